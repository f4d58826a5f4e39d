// The tensor cores' rung: bf16, sums in f32. A and B must have rows or columns that are aligned to 16 bytes.
//
// A block computes a tile of C of 128·128 and takes K in steps of 32. The next three steps are copied while
// one is multiplied, so a step waits only if a copy takes longer than three steps. The block's eight warps
// are arranged 2·4, each with 64·32 of C in registers. In shared memory each 16 bytes (eight elements) stay
// together; their positions in a row are permuted so that the eight rows of a loaded matrix lie in different
// banks.
//
// Source: NVIDIA, "CUTLASS", docs "Efficient GEMM in CUDA". The primitives are explained in tensor.cuh.
#include "product.cuh"
#include "tensor.cuh"

namespace tensor {
const int SIDE = 128, STEP = 32, STAGES = 4, THREADS = 256, BYTES = SIDE * STEP * 2;
const int PITCH = SIDE + 8; // of a tile of sums: eight rows, two elements per lane, lie in different banks

// A step's part of a side x[outer, k] in shared memory, contiguous along K or along the other dimension.
template <bool ALONG_K>
struct Part {
    // Byte offset of eight adjacent elements, of which (outer, k) is the first.
    static __device__ __forceinline__ u32 place(u32 outer, u32 k) {
        return ALONG_K ? outer * (STEP * 2) + ((k / 8) ^ (outer / 2 % 4)) * 16
                       : k * (SIDE * 2) + ((outer / 8) ^ (k % 8)) * 16;
    }
    // Begins to copy the part; each thread copies some of it. Elements beyond the side are 0.
    static __device__ __forceinline__ void fetch(unsigned char* to, View<bf16> x, u32 first, u32 first_k) {
#pragma unroll
        for (u32 at = threadIdx.x; at < BYTES / 16; at += THREADS) {
            u32 outer = ALONG_K ? at / (STEP / 8) : at % (SIDE / 8) * 8;
            u32 k = ALONG_K ? at % (STEP / 8) * 8 : at / (SIDE / 8);
            u32 o = first + outer, ks = first_k + k;
            u32 there = o < x.rows && ks < x.cols ? min(ALONG_K ? x.cols - ks : x.rows - o, 8u) : 0;
            copy_async(to + place(outer, k), there ? &x(o, ks) : x.at, there * 2);
        }
    }
    // Loads 16 of the outer dimension by 16 of K, as a left factor of `multiply`. As right factors these are
    // two, of 8 columns each: registers 0 and 2, and registers 1 and 3.
    static __device__ __forceinline__ void load(u32 (&to)[4], const unsigned char* from, u32 outer, u32 k) {
        u32 lane = threadIdx.x % 32;
        if (ALONG_K)
            load_matrices<false>(to, from + place(outer + lane % 16, k + lane / 16 * 8));
        else
            load_matrices<true>(to, from + place(outer + lane / 8 % 2 * 8, k + lane % 8 + lane / 16 * 8));
    }
};

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ __forceinline__ void run(View<bf16> c, View<bf16> a, View<bf16> b, u32 how) {
    SHARED(unsigned char, shared);
    typedef Part<A_ALONG_K> Left;
    typedef Part<B_ALONG_K> Right;
    View<bf16> bt = product::turned(b);
    product::Place at = product::tile<SIDE, SIDE>(c.rows, c.cols, blockIdx.x);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp / 4 * 64, col = warp % 4 * 32;
    u32 steps = (a.cols + STEP - 1) / STEP;
    float sums[4][4][4] = {};
    auto fetch = [&](u32 step) {
        unsigned char* to = shared + step % STAGES * 2 * BYTES;
        if (step < steps) {
            Left::fetch(to, a, at.row, step * STEP);
            Right::fetch(to + BYTES, bt, at.col, step * STEP);
        }
        copies_are_a_group(); // of nothing, too: groups are counted
    };
    for (u32 step = 0; step < STAGES - 1; step++) fetch(step);
    for (u32 step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads(); // all copies have arrived, and the buffer that is written next has been read
        fetch(step + STAGES - 1);
        const unsigned char* left = shared + step % STAGES * 2 * BYTES;
#pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            u32 x[4][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) Left::load(x[i], left, row + i * 16, k);
#pragma unroll
            for (int j = 0; j < 2; j++) Right::load(y[j], left + BYTES, col + j * 16, k);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) multiply(sums[i][j], x[i], y[j / 2][j % 2], y[j / 2][j % 2 + 2]);
        }
    }
    wait_for_copies<0>();
    // The last parts have been read. Their memory now takes the sums, so that whole rows are written.
    __syncthreads();
    float(*tile)[PITCH] = (float(*)[PITCH])shared;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                store(&tile[row + i * 16 + lane / 4 + half * 8][col + j * 8 + lane % 4 * 2],
                      Lanes<2>{sums[i][j][2 * half], sums[i][j][2 * half + 1]});
    __syncthreads();
#pragma unroll 1
    for (u32 four = threadIdx.x; four < SIDE * SIDE / 4; four += THREADS) {
        u32 i = four / (SIDE / 4), j = four % (SIDE / 4) * 4;
        product::write(c, at.row + i, at.col + j, ::load<4>(&tile[i][j]), how);
    }
}
} // namespace tensor

// One kernel for each layout of A and B: contiguous along K or along the other dimension.
#define TENSOR(rung, a_along_k, b_along_k)                                                        \
    __device__ __forceinline__ void rung(View<bf16> c, View<bf16> a, View<bf16> b, u32 how) {     \
        tensor::run<a_along_k, b_along_k>(c, a, b, how);                                          \
    }                                                                                             \
    PRODUCT(rung, bf16, bf16, __launch_bounds__(256, 2))
TENSOR(gemm_tensor_kk, true, true)
TENSOR(gemm_tensor_kn, true, false)
TENSOR(gemm_tensor_mk, false, true)
TENSOR(gemm_tensor_mn, false, false)
