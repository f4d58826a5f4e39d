// Attention of bf16 on cards of compute capability 9.0: as attention_cores.cu, for heads of 64 or 128
// features.
// ARCH: sm_90a
//
// A block has 128 query rows, 64 for each of two groups of four warps. One more warp starts the card's copies
// of 128 keys and their values at a time, as far ahead as there is room. A group multiplies the previous
// keys' weights by their values while it weighs the scores of the next keys.
// Source: Shah et al., "FlashAttention-3", §3.1 and §3.2, arXiv:2407.08608.
#include "attention_softmax.cuh"
#include "hopper_attention.cuh"

namespace hopper {
namespace forward {
const u32 QUERIES = 128, KEYS = 128;
const int STAGES = 2;
typedef float Scores[1][KEYS / 8][4];

// Layout of shared memory: queries, then keys and values of each stage, then barriers.
template <int D>
struct Room {
    typedef Tile<QUERIES, D> Queries;
    typedef Tile<KEYS, D> Side;
    unsigned char* at;
    __device__ __forceinline__ unsigned char* queries() const { return at; }
    __device__ __forceinline__ unsigned char* keys(u32 stage) const { return at + Queries::BYTES + stage * 2 * Side::BYTES; }
    __device__ __forceinline__ unsigned char* values(u32 stage) const { return keys(stage) + Side::BYTES; }
    // The barrier of the queries, then those of each stage: keys arrived, values arrived, keys are free
    // again, values are free again.
    __device__ __forceinline__ Barrier* of_queries() const { return (Barrier*)keys(STAGES); }
    __device__ __forceinline__ Barrier* barrier(u32 which, u32 stage) const {
        return of_queries() + 1 + which * STAGES + stage;
    }
};
enum { KEYS_ARE_THERE, VALUES_ARE_THERE, KEYS_ARE_FREE, VALUES_ARE_FREE };

// Starts the card's copies of all that a query tile needs, in order. One warp calls it.
template <int D>
__device__ __forceinline__ void fetch_all(Walk<KEYS> walk, const Room<D>& room, const Map& q, const Map& k, const Map& v,
                                          u32 of_q, u32 of_k) {
    bool leads = threadIdx.x % 32 == 0;
    auto fetch = [&](unsigned char* to, const Map& map, Turn<STAGES> at, int there, int free) {
        wait(room.barrier(free, at.stage), at.phase ^ 1); // at first there is nothing to wait for
        if (!leads) return;
        arrive_with(room.barrier(there, at.stage), Room<D>::Side::BYTES);
        Room<D>::Side::fetch(to, map, walk.tile.span.key.row + walk.block, of_k, room.barrier(there, at.stage));
    };
    if (leads) {
        arrive_with(room.of_queries(), Room<D>::Queries::BYTES);
        Room<D>::Queries::fetch(room.queries(), q, walk.tile.row, of_q, room.of_queries());
    }
    for (Turn<STAGES> turn; walk.next(); turn.next()) {
        fetch(room.keys(turn.stage), k, turn, KEYS_ARE_THERE, KEYS_ARE_FREE);
        fetch(room.values(turn.stage), v, turn, VALUES_ARE_THERE, VALUES_ARE_FREE);
    }
}

template <int D>
__device__ __forceinline__ void attend(Attend a, List spans, u32 q_rows, const Map& q, const Map& k, const Map& v,
                                       View<bf16> o, View<float> out, View<float> max, View<float> sum) {
    typedef typename Room<D>::Queries Queries;
    typedef typename Room<D>::Side Side;
    SHARED(unsigned char, shared);
    Room<D> room = {shared};
    u32 row = (gridDim.x - 1 - blockIdx.x) * QUERIES, head = blockIdx.y, kv = head / a.fan();
    u32 rows = min(QUERIES, q_rows - row), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        init(room.of_queries(), 1);
        for (u32 i = 0; i < 4 * STAGES; i++) init(room.barrier(i / STAGES, i % STAGES), i < 2 * STAGES ? 1 : WARPS);
        publish();
    }
    __syncthreads();
    Walk<KEYS> walk = {a, {spans, row, rows}};
    if (warp >= WARPS) { // copies: the first warp of a group that gives its registers away
        give_registers<24>();
        if (warp == WARPS) fetch_all<D>(walk, room, q, k, v, head * D, kv * D);
        return;
    }
    take_registers<240>();
    // This thread's rows are 8 apart, and so are its pairs of columns.
    u32 group = warp / 4, my_row = warp * 16 + lane / 4, my_col = lane % 4 * 2;
    bool carried = !o.at;
    float acc[1][D / 8][4] = {}, most[2], total[2], shrink[2], by = a.scale * 1.44269504f;
    u32 p[KEYS / 16][4];
    begin_softmax(acc, most, total, carried, row + my_row, q_rows, my_col, head, D, a.scale, out, max, sum);
    wait(room.of_queries(), 0);
    auto scores = [&](Scores& s, Turn<STAGES> at) {
        wait(room.barrier(KEYS_ARE_THERE, at.stage), at.phase);
        products_begin();
        Queries::template multiply<Side>(s[0], room.queries(), group * 64, room.keys(at.stage));
        products_are_a_group();
    };
    auto values = [&](Turn<STAGES> at, u32 n) {
        wait(room.barrier(VALUES_ARE_THERE, at.stage), at.phase);
        if (n < KEYS) {
            Side::clear(room.values(at.stage), n);
            meet_for_products(group);
        }
        products_begin();
        Side::add(acc[0], p, room.values(at.stage));
        products_are_a_group();
    };
    auto weighed = [&](Scores& s) {
        const Spans<false>& tile = walk.tile;
        weigh(s, shrink, most, total, a, tile.span, walk.whole(), tile.first, tile.last, my_row - tile.before,
              walk.block, walk.n, my_col, head, by);
    };
    auto keep = [&](const Scores& s) { // keeps the weights for the next values; shrinks the output so far
        shrink_by(acc, shrink);
        to_pairs(p, s[0]);
    };
    auto free = [&](u32 which, Turn<STAGES> at) {
        if (lane == 0) arrive(room.barrier(which, at.stage));
    };
    if (walk.next()) {
        Scores s;
        Turn<STAGES> turn, before;
        scores(s, turn);
        wait_for_products<0>();
        are_there(s[0]);
        free(KEYS_ARE_FREE, turn);
        weighed(s);
        keep(s);
        u32 n = walk.n;
        for (turn.next(); walk.next(); turn.next()) {
            scores(s, turn);
            values(before, n);
            wait_for_products<1>();
            are_there(s[0]);
            free(KEYS_ARE_FREE, turn);
            weighed(s);
            wait_for_products<0>();
            are_there(acc[0]);
            free(VALUES_ARE_FREE, before);
            keep(s);
            before = turn, n = walk.n;
        }
        values(before, n);
        wait_for_products<0>();
        are_there(acc[0]);
    }
    u32 touched = walk.tile.touched(my_row);
    end_softmax(acc, most, total, carried, touched, row + my_row, my_col, head, D, a.scale, o, out, max, sum);
}
} // namespace forward
} // namespace hopper

#define ON_HOPPER(D)                                                                                                \
    KERNEL __launch_bounds__(384, 1) attention_hopper_##D##_bf16(                                                   \
        Attend a, List spans, u32 q_rows, const __grid_constant__ hopper::Map q, const __grid_constant__ hopper::Map k, \
        const __grid_constant__ hopper::Map v, View<bf16> o, View<float> out, View<float> max, View<float> sum) {   \
        hopper::forward::attend<D>(a, spans, q_rows, q, k, v, o, out, max, sum);                                             \
    }
ON_HOPPER(64)
ON_HOPPER(128)
#undef ON_HOPPER
