// Gradient of attention of bf16 on cards of compute capability 9.0: in two passes as in
// attention_cores_backward.cu, for heads of 64 or 128 features.
// ARCH: sm_90a
//
// A block has 128 rows of its own, 64 for each of two groups of four warps. One more warp starts the card's
// copies of rows of the other side, in two or three stages.
// Source: Shah et al., "FlashAttention-3", §3.1, arXiv:2407.08608.
#include "attention_gradient.cuh"
#include "hopper_attention.cuh"

namespace hopper {
namespace backward {
const u32 OWN = 128;

// Layout of shared memory: two tiles of the block's own rows; for each stage, two tiles of the other side's
// rows, then the lse and delta saved of them; then barriers. Barriers: own tiles arrived, stage arrived
// (`full`), stage is free again (`empty`).
template <u32 ASIDE, u32 D, int STAGES>
struct Room {
    typedef Tile<OWN, D> Own;
    typedef Tile<ASIDE, D> Other;
    unsigned char* at;
    __device__ __forceinline__ unsigned char* own(u32 which) const { return at + which * Own::BYTES; }
    __device__ __forceinline__ unsigned char* other(u32 stage, u32 which) const {
        return own(2) + (stage * 2 + which) * Other::BYTES;
    }
    __device__ __forceinline__ float* saved(u32 stage, u32 which) const {
        return (float*)other(STAGES, 0) + (stage * 2 + which) * ASIDE;
    }
    __device__ __forceinline__ Barrier* of_own() const { return (Barrier*)saved(STAGES, 0); }
    __device__ __forceinline__ Barrier* full(u32 stage) const { return of_own() + 1 + stage; }
    __device__ __forceinline__ Barrier* empty(u32 stage) const { return full(STAGES) + stage; }

    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) {
            init(of_own(), 1);
            for (u32 i = 0; i < STAGES; i++) init(full(i), 1), init(empty(i), WARPS);
            publish();
        }
        __syncthreads();
    }
    // Starts the card's copies of the block's own tiles. One thread calls it.
    __device__ __forceinline__ void fetch_own(const Map& x, const Map& y, u32 row, u32 col) const {
        arrive_with(of_own(), 2 * Own::BYTES);
        Own::fetch(own(0), x, row, col, of_own()), Own::fetch(own(1), y, row, col, of_own());
    }
    // Starts the card's copies of a stage. One thread calls it, and arrives at `full` later.
    __device__ __forceinline__ void fetch_other(u32 stage, const Map& x, const Map& y, u32 row, u32 col) const {
        Other::fetch(other(stage, 0), x, row, col, full(stage)), Other::fetch(other(stage, 1), y, row, col, full(stage));
    }
    // Waits for the stage's rows and zeroes those from n on. Begins s = own(0)·other(0)ᵀ and dp =
    // own(1)·other(1)ᵀ, of a group's 64 rows.
    __device__ __forceinline__ void scores(float (&s)[ASIDE / 8][4], float (&dp)[ASIDE / 8][4], Turn<STAGES> turn, u32 n) const {
        u32 group = threadIdx.x / 128;
        wait(full(turn.stage), turn.phase);
        if (n < ASIDE) {
            Other::clear(other(turn.stage, 0), n), Other::clear(other(turn.stage, 1), n);
            meet_for_products(group);
        }
        products_begin();
        Own::template multiply<Other>(s, own(0), group * 64, other(turn.stage, 0));
        Own::template multiply<Other>(dp, own(1), group * 64, other(turn.stage, 1));
        products_are_a_group();
    }
    __device__ __forceinline__ void free(u32 stage) const {
        if (threadIdx.x % 32 == 0) arrive(empty(stage));
    }
};

// Iterates over tiles of ASIDE queries that see some keys of a key tile: span by span, head by head.
template <u32 ASIDE>
struct Round {
    const Attend& a;
    u32 kv;
    Spans<true> tile;
    uint2 queries = {0, 0};
    // The query tile's first query and head; the end of the heads; the query tile's number of queries.
    u32 query = 0, head = 0, end = 0, n = 0;

    __device__ __forceinline__ bool next() {
        u32 fan = a.fan();
        query += ASIDE;
        if (query >= queries.y) query = queries.x, head++;
        while (head >= end) {
            if (!tile.next()) return false;
            queries = seeing(a, tile.span, tile.first, tile.last);
            if (queries.x < queries.y) query = queries.x, head = kv * fan, end = head + fan;
        }
        n = min(queries.y - query, ASIDE);
        return true;
    }
    __device__ __forceinline__ bool whole() const {
        return tile.last - tile.first + 1 == tile.rows &&
               all_see(a, tile.span, query, query + n - 1, tile.first, tile.last);
    }
};

// dk, dv[M, keys·D] += the contributions of all spans. One block per 128 key rows and KV head.
template <u32 D, class O>
__device__ __forceinline__ void of_keys(Attend a, List spans, u32 k_rows, const Map& q, const Map& k, const Map& v,
                                        const Map& d_o, View<float> lse, View<float> delta, View<O> dk, View<O> dv) {
    const u32 ASIDE = 64;
    const int STAGES = 2;
    SHARED(unsigned char, shared);
    typedef Tile<ASIDE, D> Other;
    Room<ASIDE, D, STAGES> room = {shared};
    u32 row = blockIdx.y * OWN, kv = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 my_row = warp * 16 + lane / 4, my_col = lane % 4 * 2;
    room.begin();
    Round<ASIDE> round = {a, kv, {spans, row, min(OWN, k_rows - row)}};
    Turn<STAGES> turn;
    if (warp >= WARPS) {
        give_registers<40>();
        if (warp > WARPS) return;
        if (lane == 0) room.fetch_own(k, v, row, kv * D);
        for (; round.next(); turn.next()) {
            u32 first = round.tile.span.query.row + round.query;
            wait(room.empty(turn.stage), turn.phase ^ 1); // at first there is nothing to wait for
            if (lane == 0) room.fetch_other(turn.stage, q, d_o, first, round.head * D);
            for (u32 i = lane; i < ASIDE; i += 32) {
                room.saved(turn.stage, 0)[i] = i < round.n ? lse(first + i, round.head) * 1.44269504f : 0;
                room.saved(turn.stage, 1)[i] = i < round.n ? delta(first + i, round.head) : 0;
            }
            __syncwarp();
            if (lane == 0) arrive_with(room.full(turn.stage), 2 * Other::BYTES);
        }
        return;
    }
    take_registers<232>();
    float dks[1][D / 8][4] = {}, dvs[1][D / 8][4] = {}, by = a.scale * 1.44269504f;
    wait(room.of_own(), 0);
    for (; round.next(); turn.next()) {
        float s[1][ASIDE / 8][4], dp[1][ASIDE / 8][4];
        u32 p[ASIDE / 16][4], ds[ASIDE / 16][4];
        const Spans<true>& tile = round.tile;
        room.scores(s[0], dp[0], turn, round.n);
        wait_for_products<0>();
        are_there(s[0]), are_there(dp[0]);
        grade_keys(s, dp, a, tile.span, round.whole(), tile.first, tile.last, my_row - tile.before, round.query, my_col,
                   round.head, by, room.saved(turn.stage, 0), room.saved(turn.stage, 1));
        to_pairs(p, s[0]), to_pairs(ds, dp[0]);
        products_begin();
        Other::add(dvs[0], p, room.other(turn.stage, 1)), Other::add(dks[0], ds, room.other(turn.stage, 0));
        products_are_a_group();
        wait_for_products<0>();
        are_there(dks[0]), are_there(dvs[0]);
        room.free(turn.stage);
    }
    u32 touched = round.tile.touched(my_row);
    add_pairs<1, D / 8>(dk, row, touched, my_row, kv * D, my_col, D, dks, a.scale);
    add_pairs<1, D / 8>(dv, row, touched, my_row, kv * D, my_col, D, dvs, 1);
}

// dq[B, queries·D] += the contributions of all spans. One block per 128 query rows and head.
template <u32 D, class O>
__device__ __forceinline__ void of_queries(Attend a, List spans, u32 q_rows, const Map& q, const Map& k, const Map& v,
                                           const Map& d_o, View<float> lse, View<float> delta, View<O> dq) {
    const u32 ASIDE = 64 * 128 / D; // keys at a time: as many as registers allow
    const int STAGES = 3; // one is multiplied, one graded, one fetched
    SHARED(unsigned char, shared);
    typedef Tile<ASIDE, D> Other;
    Room<ASIDE, D, STAGES> room = {shared};
    u32 row = (gridDim.x - 1 - blockIdx.x) * OWN, rows = min(OWN, q_rows - row), head = blockIdx.y,
        kv = head / a.fan(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 my_row = warp * 16 + lane / 4, my_col = lane % 4 * 2;
    room.begin();
    Walk<ASIDE> walk = {a, {spans, row, rows}};
    Turn<STAGES> turn;
    if (warp >= WARPS) {
        give_registers<40>();
        if (warp > WARPS) return;
        if (lane == 0) room.fetch_own(q, d_o, row, head * D);
        for (; walk.next(); turn.next()) {
            wait(room.empty(turn.stage), turn.phase ^ 1); // at first there is nothing to wait for
            if (lane > 0) continue;
            room.fetch_other(turn.stage, k, v, walk.tile.span.key.row + walk.block, kv * D);
            arrive_with(room.full(turn.stage), 2 * Other::BYTES);
        }
        return;
    }
    take_registers<232>();
    float dqs[1][D / 8][4] = {}, lses[2], deltas[2], by = a.scale * 1.44269504f;
    saved_of_rows(lses, deltas, lse, delta, row + my_row, row + rows, head);
    wait(room.of_own(), 0);
    float s[1][ASIDE / 8][4], dp[1][ASIDE / 8][4];
    u32 ds[ASIDE / 16][4];
    auto grade = [&] {
        const Spans<false>& tile = walk.tile;
        are_there(s[0]), are_there(dp[0]);
        grade_queries(s, dp, a, tile.span, walk.whole(), tile.first, tile.last, my_row - tile.before, walk.block, walk.n,
                      my_col, head, by, lses, deltas);
    };
    auto add = [&](u32 stage) {
        products_begin();
        Other::add(dqs[0], ds, room.other(stage, 0));
        products_are_a_group();
    };
    if (walk.next()) {
        room.scores(s[0], dp[0], turn, walk.n);
        wait_for_products<0>();
        grade();
        to_pairs(ds, dp[0]);
        u32 before = turn.stage;
        for (turn.next(); walk.next(); turn.next()) { // dQ grows by the last keys while the next ones are graded
            room.scores(s[0], dp[0], turn, walk.n);
            add(before);
            wait_for_products<1>();
            grade();
            wait_for_products<0>();
            are_there(dqs[0]);
            room.free(before);
            to_pairs(ds, dp[0]);
            before = turn.stage;
        }
        add(before);
        wait_for_products<0>();
        are_there(dqs[0]);
    }
    u32 touched = walk.tile.touched(my_row);
    add_pairs<1, D / 8>(dq, row, touched, my_row, head * D, my_col, D, dqs, a.scale);
}
} // namespace backward
} // namespace hopper

// The kernels whose names end in `name`, which add to gradients of type O.
#define ON_HOPPER(D, name, O)                                                                                       \
    KERNEL __launch_bounds__(384, 1) attention_hopper_keys_##name(                                                  \
        Attend a, List spans, u32 k_rows, const __grid_constant__ hopper::Map q, const __grid_constant__ hopper::Map k, \
        const __grid_constant__ hopper::Map v, const __grid_constant__ hopper::Map d_o, View<float> lse,            \
        View<float> delta, View<O> dk, View<O> dv) {                                                                \
        hopper::backward::of_keys<D>(a, spans, k_rows, q, k, v, d_o, lse, delta, dk, dv);                           \
    }                                                                                                               \
    KERNEL __launch_bounds__(384, 1) attention_hopper_queries_##name(                                               \
        Attend a, List spans, u32 q_rows, const __grid_constant__ hopper::Map q, const __grid_constant__ hopper::Map k, \
        const __grid_constant__ hopper::Map v, const __grid_constant__ hopper::Map d_o, View<float> lse,            \
        View<float> delta, View<O> dq) {                                                                            \
        hopper::backward::of_queries<D>(a, spans, q_rows, q, k, v, d_o, lse, delta, dq);                            \
    }
ON_HOPPER(64, 64_bf16, bf16)
ON_HOPPER(128, 128_bf16, bf16)
ON_HOPPER(64, wide_64_bf16, float)
ON_HOPPER(128, wide_128_bf16, float)
#undef ON_HOPPER
