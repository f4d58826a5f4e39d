// Shared by the rungs of the product's ladder: see gemm.cu.
#pragma once
#include "lanes.cuh"

// Kernels of a rung: C (+)= A·B of f32 and of bf16. Flags in `how`: ADD adds to C; WIDE means that C is f32,
// whatever its view's dtype. `bounds` are the launch bounds.
const u32 ADD = 1, WIDE = 2;
#define PRODUCT(rung, name, T, bounds) \
    extern "C" __global__ void bounds rung##_##name(View<T> c, View<T> a, View<T> b, u32 how) { rung(c, a, b, how); }
#define PRODUCTS(rung, bounds) PRODUCT(rung, f32, float, bounds) PRODUCT(rung, bf16, bf16, bounds)

namespace product {
// Transpose of a view.
template <class T>
__device__ __forceinline__ View<T> turned(View<T> x) {
    return View<T>{x.at, x.col_stride, x.row_stride, x.cols, x.rows};
}

// Writes sums of N columns of a row to C, from a multiple of N on, or adds them if `add`. Columns beyond C
// are dropped.
template <int N, class C>
__device__ __forceinline__ void write_as(View<C> c, u32 row, u32 col, Lanes<N> sums, bool add) {
    if (aligned<N>(c) && col + N <= c.cols) {
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
            if (col + i < c.cols) c(row, col + i) = narrow<C>(add ? wide(c(row, col + i)) + sums.x[i] : sums.x[i]);
    }
}
template <int N, class T>
__device__ __forceinline__ void write(View<T> c, u32 row, u32 col, Lanes<N> sums, u32 how) {
    if (row >= c.rows) return;
    if constexpr (sizeof(T) < sizeof(float))
        if (how & WIDE) {
            View<float> of = {(float*)c.at, c.row_stride, c.col_stride, c.rows, c.cols};
            return write_as(of, row, col, sums, how & ADD);
        }
    write_as(c, row, col, sums, how & ADD);
}

// Number of tiles of C.
template <int ROWS, int COLS>
__device__ __forceinline__ u32 tiles(u32 rows, u32 cols) {
    return (rows + ROWS - 1) / ROWS * ((cols + COLS - 1) / COLS);
}

// First row and column of a tile. Tiles are taken eight tile rows at a time, column by column, so that blocks
// that run together read the same parts of A and B and find them in the cache.
struct Place {
    u32 row, col;
};
template <int ROWS, int COLS>
__device__ __forceinline__ Place tile(u32 rows, u32 cols, u32 which) {
    const u32 TOGETHER = 8;
    u32 down = (rows + ROWS - 1) / ROWS, across = (cols + COLS - 1) / COLS;
    u32 first = which / (TOGETHER * across) * TOGETHER, in = which % (TOGETHER * across);
    u32 high = min(TOGETHER, down - first);
    return {(first + in % high) * ROWS, in / high * COLS};
}
} // namespace product
