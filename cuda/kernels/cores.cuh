// Tiles of bf16 in shared memory and their products on tensor cores, one warp at a time, with sums in f32.
#pragma once
#include "tensor.cuh"

// Two numbers rounded to bf16, the first in the lower half.
__device__ __forceinline__ u32 pack(float low, float high) {
#ifdef __CUDACC__
    u32 x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
#else
    return narrow<bf16>(low).bits | (u32)narrow<bf16>(high).bits << 16;
#endif
}
// 2^x, to 22 bits; 0 for results below 2^-126.
__device__ __forceinline__ float power_of_2(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// Where 8 numbers of a tile of rows of D lie: mixed by the row, so that 8 rows at one column meet no bank twice.
template <int D>
__device__ __forceinline__ u32 mixed(u32 row, u32 eighth) {
    return row * D + (eighth ^ row % 8) * 8;
}

// Begins to copy x[row .. row + n, col .. col + cols] to a tile of `ROWS` rows of D; 0 beyond. All threads of the
// block.
template <int D, int ROWS>
__device__ __forceinline__ void fetch(bf16* tile, const View<bf16>& x, u64 row, u32 n, u32 col, u32 cols) {
    const bf16* from = x.at + row * x.row_stride + col;
    for (u32 e = threadIdx.x; e < ROWS * D / 8; e += blockDim.x) {
        u32 r = e / (D / 8), c = e % (D / 8);
        bool there = r < n && c * 8 < cols;
        tensor::copy_async(tile + mixed<D>(r, c), there ? from + r * x.row_stride + c * 8 : x.at, there ? 16 : 0);
    }
}
// Waits for all that this thread began.
__device__ __forceinline__ void fetched() {
    tensor::copies_are_a_group();
    tensor::wait_for_copies<0>();
}

// s[16·M, 8·N] += A[16·M, D]·B[8·N, D]ᵀ of tiles; A from its row on.
template <int D, int M, int N>
__device__ __forceinline__ void times_rows(float (&s)[M][N][4], const bf16* a, u32 row, const bf16* b) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u32 x[M][4], y[4];
#pragma unroll
        for (int m = 0; m < M; m++)
            tensor::load_matrices<false>(x[m], a + mixed<D>(row + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            tensor::load_matrices<false>(y, b + mixed<D>(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++)
                tensor::multiply(s[m][n], x[m], y[0], y[1]), tensor::multiply(s[m][n + 1], x[m], y[2], y[3]);
        }
    }
}
// s[16·M, D] += P[16·M, 8·K]·B[8·K, D], P rounded to bf16.
template <int D, int M, int K>
__device__ __forceinline__ void times_columns(float (&s)[M][D / 8][4], const float (&p)[M][K][4], const bf16* b) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        u32 x[M][4], y[4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            x[m][0] = pack(p[m][k][0], p[m][k][1]), x[m][1] = pack(p[m][k][2], p[m][k][3]);
            x[m][2] = pack(p[m][k + 1][0], p[m][k + 1][1]), x[m][3] = pack(p[m][k + 1][2], p[m][k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            tensor::load_matrices<true>(y, b + mixed<D>(8 * k + lane % 16, n + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++)
                tensor::multiply(s[m][n], x[m], y[0], y[1]), tensor::multiply(s[m][n + 1], x[m], y[2], y[3]);
        }
    }
}
