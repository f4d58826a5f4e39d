// Hopper's rung: bf16 on cards of compute capability 9.0. ARCH: sm_90a
//
// One block per multiprocessor takes tiles of C of 128·256 in turn. One warp starts the card's copies of the
// parts of A and B (64 of K at a time, boxes of 64·64) to shared memory, as far ahead as there is room. Two
// groups of four warps multiply them, each 64 rows of the tile, with all sums in registers. The warp and the
// groups meet only at two barriers per stage: `full`, when the bytes have arrived, and `empty`, when they
// have been multiplied. So copies continue while a tile is finished and the next one begins.
//
// Source: NVIDIA, "CUTLASS", docs "Efficient GEMM in CUDA", "Warp specialization". The primitives are
// explained in hopper.cuh.
#include "hopper.cuh"
#include "product.cuh"

namespace hopper {
const int ROWS = 128, COLS = 256, STEP = BOX, STAGES = 4;
const int A_BYTES = ROWS * STEP * 2, STAGE_BYTES = A_BYTES + COLS * STEP * 2;

// Copies the boxes of a side from this position on, one after another along the dimension that is not K.
template <bool ALONG_K>
__device__ __forceinline__ void fetch(unsigned char* to, const Map& map, u32 boxes, u32 first, u32 k, Barrier* full) {
    for (u32 i = 0; i < boxes; i++) {
        u32 outer = first + i * BOX;
        copy_box(to + i * BOX_BYTES, map, ALONG_K ? outer : k, ALONG_K ? k : outer, full);
    }
}

// Writes a thread's sums as pairs of columns. Pairs are whole, since C's number of columns is even.
template <class T>
__device__ __forceinline__ void finish(View<T> c, const float (&sums)[32][4], u32 row, u32 col, bool add) {
    col += threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8) {
        T* to = &c(row, col);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (row >= c.rows || col + 8 * i >= c.cols) continue;
            Lanes<2> two = {sums[i][2 * half], sums[i][2 * half + 1]};
            if (add) {
                Lanes<2> before = load<2>(to + 8 * i);
                two.x[0] += before.x[0], two.x[1] += before.x[1];
            }
            store(to + 8 * i, two);
        }
    }
}
// As `finish`, for bf16 rows that are multiples of 16 bytes. Four lanes hold pairs of the same 8 columns.
// They exchange the pairs of four such groups of columns, so that each lane writes the 8 columns of one group
// at once.
__device__ __forceinline__ void finish_eights(View<bf16> c, const float (&sums)[32][4], u32 row, u32 col) {
    u32 lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8)
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            u32 x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = pack(sums[i + j][2 * half], sums[i + j][2 * half + 1]);
#pragma unroll
            for (u32 apart = 1; apart < 4; apart *= 2) // transposes 4 by 4, by halves of halves
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    if (j & apart) continue;
                    u32 give = __shfl_xor_sync(~0u, lane & apart ? x[j] : x[j + apart], apart);
                    if (lane & apart) x[j] = give;
                    else x[j + apart] = give;
                }
            u32 first = col + 8 * (i + lane);
            if (row < c.rows && first < c.cols) *(uint4*)&c(row, first) = uint4{x[0], x[1], x[2], x[3]};
        }
}

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ __forceinline__ void run(View<bf16> c, u32 cols, const Map& a, const Map& b, u32 how) {
    SHARED(unsigned char, shared);
    Barrier *full = (Barrier*)(shared + STAGES * STAGE_BYTES), *empty = full + STAGES;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = product::tiles<ROWS, COLS>(c.rows, c.cols);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) init(&full[i], 1), init(&empty[i], WARPS);
        publish();
    }
    __syncthreads();
    Turn<STAGES> turn;
    if (warp >= WARPS) { // copies: the first warp of a group that gives its registers away
        give_registers<40>();
        if (warp > WARPS) return;
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            product::Place at = product::tile<ROWS, COLS>(c.rows, c.cols, tile);
            for (u32 k = 0; k < cols; k += STEP, turn.next()) {
                wait(&empty[turn.stage], turn.phase ^ 1); // at first there is nothing to wait for
                if (lane > 0) continue;
                unsigned char* to = shared + turn.stage * STAGE_BYTES;
                arrive_with(&full[turn.stage], STAGE_BYTES);
                fetch<A_ALONG_K>(to, a, ROWS / BOX, at.row, k, &full[turn.stage]);
                fetch<B_ALONG_K>(to + A_BYTES, b, COLS / BOX, at.col, k, &full[turn.stage]);
            }
        }
        return;
    }
    take_registers<232>();
    u32 group = warp / 4;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        product::Place at = product::tile<ROWS, COLS>(c.rows, c.cols, tile);
        float sums[32][4] = {};
        u32 before = 0; // the stage of the previous step
        for (u32 k = 0; k < cols; k += STEP, turn.next()) {
            const unsigned char* left = shared + turn.stage * STAGE_BYTES;
            wait(&full[turn.stage], turn.phase);
            products_begin();
#pragma unroll
            for (int part = 0; part < STEP; part += 16)
                multiply<!A_ALONG_K, !B_ALONG_K>(sums, descriptor<!A_ALONG_K>(left + group * BOX_BYTES, part),
                                                 descriptor<!B_ALONG_K>(left + A_BYTES, part));
            products_are_a_group();
            wait_for_products<1>(); // those of the previous step
            if (k > 0 && lane == 0) arrive(&empty[before]);
            before = turn.stage;
        }
        wait_for_products<0>();
        if (lane == 0) arrive(&empty[before]);
        u32 row = at.row + warp * 16 + lane / 4;
        if (how & WIDE)
            finish(View<float>{(float*)c.at, c.row_stride, 1, c.rows, c.cols}, sums, row, at.col, how & ADD);
        else if (how & ADD || !aligned<8>(c) || c.cols % 8)
            finish(c, sums, row, at.col, how & ADD);
        else
            finish_eights(c, sums, row, at.col);
    }
}
} // namespace hopper

// One kernel for each layout of A and B: contiguous along K or along the other dimension. K is `cols`.
#define HOPPER(rung, a_along_k, b_along_k)                                                                          \
    KERNEL __launch_bounds__(384, 1) rung##_bf16(View<bf16> c, u32 cols, const __grid_constant__ hopper::Map a,      \
                                                 const __grid_constant__ hopper::Map b, u32 how) {                  \
        hopper::run<a_along_k, b_along_k>(c, cols, a, b, how);                                                      \
    }
HOPPER(gemm_hopper_kk, true, true)
HOPPER(gemm_hopper_kn, true, false)
HOPPER(gemm_hopper_mk, false, true)
HOPPER(gemm_hopper_mn, false, false)
