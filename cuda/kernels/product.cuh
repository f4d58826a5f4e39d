// What the rungs of the product's ladder have in common: see gemm.cu.
#pragma once
#include "lanes.cuh"

// The kernels of a rung: of f32, of bf16, and of bf16 with C in f32. `bounds` are those of a launch.
#define PRODUCT(rung, name, C, T, bounds)                                                                      \
    extern "C" __global__ void bounds rung##_##name(View<C> c, View<T> a, View<T> b, u32 add) { rung(c, a, b, add); }
#define NARROW_PRODUCTS(rung, bounds)                                                                          \
    PRODUCT(rung, bf16, bf16, bf16, bounds)                                                                    \
    PRODUCT(rung, wide_bf16, float, bf16, bounds)
#define PRODUCTS(rung, bounds)                                                                                 \
    PRODUCT(rung, f32, float, float, bounds)                                                                   \
    NARROW_PRODUCTS(rung, bounds)

namespace product {
// The other way round: rows are columns.
template <class T>
__device__ __forceinline__ View<T> turned(View<T> x) {
    return View<T>{x.at, x.col_stride, x.row_stride, x.cols, x.rows};
}

// Sums of N columns of a row, from a multiple of N on, to C: what lies beyond it is left away.
template <int N, class C>
__device__ __forceinline__ void write(View<C> c, u32 row, u32 col, Lanes<N> sums, u32 add, bool at_once) {
    if (row >= c.rows) return;
    if (at_once && col + N <= c.cols) {
        C* to = &c(row, col);
        if (add) {
            Lanes<N> before = load<N>(to);
#pragma unroll
            for (int i = 0; i < N; i++) sums.x[i] += before.x[i];
        }
        store(to, sums);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (col + i < c.cols)
                c(row, col + i) = narrow<C>(add ? wide(c(row, col + i)) + sums.x[i] : sums.x[i]);
    }
}

// Where this block's tile begins. Tiles are taken eight rows of them at a time, column by column, so that blocks that run
// together share what they read of A and B, and find it in the cache.
struct Place {
    u32 row, col;
};
template <int ROWS, int COLS>
__device__ __forceinline__ Place tile(u32 rows, u32 cols) {
    const u32 TOGETHER = 8;
    u32 down = (rows + ROWS - 1) / ROWS, across = (cols + COLS - 1) / COLS;
    u32 first = blockIdx.x / (TOGETHER * across) * TOGETHER, in = blockIdx.x % (TOGETHER * across);
    u32 high = min(TOGETHER, down - first);
    return {(first + in % high) * ROWS, in / high * COLS};
}
} // namespace product
