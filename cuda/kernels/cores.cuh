// Tiles of bf16 in shared memory and their products on tensor cores, one warp at a time, with sums in f32.
#pragma once
#include "tensor.cuh"

// Position of 8 elements of a tile whose rows have D elements. It is permuted (swizzled) by the row, so that
// 8 rows at one column fall in different banks.
template <int D>
__device__ __forceinline__ u32 mixed(u32 row, u32 eighth) {
    return row * D + (eighth ^ row % 8) * 8;
}

// Begins to copy x[row .. row + n, col .. col + cols] to a tile of `ROWS` rows of D; 0 beyond. All threads of
// the block call it.
template <int D, int ROWS>
__device__ __forceinline__ void fetch(bf16* tile, const View<bf16>& x, u64 row, u32 n, u32 col, u32 cols) {
    const bf16* from = x.at + row * x.row_stride + col;
    for (u32 e = threadIdx.x; e < ROWS * D / 8; e += blockDim.x) {
        u32 r = e / (D / 8), c = e % (D / 8);
        bool there = r < n && c * 8 < cols;
        tensor::copy_async(tile + mixed<D>(r, c), there ? from + r * x.row_stride + c * 8 : x.at, there ? 16 : 0);
    }
}
// Waits for all copies that this thread began.
__device__ __forceinline__ void fetched() {
    tensor::copies_are_a_group();
    tensor::wait_for_copies<0>();
}

// s[16·M, 8·N] += A[16·M, D]·B[8·N, D]ᵀ of tiles; A's rows start at `row`.
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
// Rounds a thread's elements of 16 rows and 8·K columns to bf16 as a left factor: four pairs for each 16
// columns.
template <int K>
__device__ __forceinline__ void to_pairs(u32 (&pairs)[K / 2][4], const float (&p)[K][4]) {
#pragma unroll
    for (int e = 0; e < 2 * K; e++) pairs[e / 4][e % 4] = pack(p[e / 2][e % 2 * 2], p[e / 2][e % 2 * 2 + 1]);
}
// s[16·M, D] += P[16·M, 8·K]·B[8·K, D], P rounded to bf16.
template <int D, int M, int K>
__device__ __forceinline__ void times_columns(float (&s)[M][D / 8][4], const float (&p)[M][K][4], const bf16* b) {
    u32 lane = threadIdx.x % 32, x[M][K / 2][4], y[4];
#pragma unroll
    for (int m = 0; m < M; m++) to_pairs(x[m], p[m]);
#pragma unroll
    for (int k = 0; k < K; k += 2) {
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            tensor::load_matrices<true>(y, b + mixed<D>(8 * k + lane % 16, n + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++)
                tensor::multiply(s[m][n], x[m][k / 2], y[0], y[1]),
                    tensor::multiply(s[m][n + 1], x[m][k / 2], y[2], y[3]);
        }
    }
}
