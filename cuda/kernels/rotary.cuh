// Kernels of rows by their tokens' positions: rotary embeddings, and rows put to their places in a cache.
#pragma once
#include "heads.cuh"
#include "row.cuh"

// Rotates every query and key head of x: the halves (a, b) of its rotated features, or neighbours, become
// (a·cos − b·sin, a·sin + b·cos). One block per row; a thread keeps its angles, table[position, cos | sin],
// for head after head. `back` rotates in the opposite direction. Neighbours are read one by one (N = 1).
template <int N, class T>
__device__ __forceinline__ void rotate_row(T* row, const float* cosines, u32 heads, const Heads& of, float sign) {
    u32 half = of.rotated / 2, pieces = half / N, per = min(pieces, blockDim.x), at_once = blockDim.x / per;
    if (threadIdx.x / per >= at_once) return;
    for (u32 piece = threadIdx.x % per; piece < pieces; piece += per) {
        float cos[N], sin[N], a[N], b[N], x[N], y[N];
        load(cos, cosines + piece * N);
        load(sin, cosines + half + piece * N);
#pragma unroll 2
        for (u32 head = threadIdx.x / per; head < heads; head += at_once) {
            T* at = row + (u64)head * of.dim + of.plain + piece * (N == 1 && of.neighbours ? 2 : N);
            T* beside = at + (N == 1 && of.neighbours ? 1 : half);
            load(a, at);
            load(b, beside);
#pragma unroll
            for (int n = 0; n < N; n++) {
                x[n] = a[n] * cos[n] - b[n] * (sign * sin[n]);
                y[n] = a[n] * (sign * sin[n]) + b[n] * cos[n];
            }
            store(at, x);
            store(beside, y);
        }
    }
}
template <class T>
__device__ void rotate(View<T> x, View<float> table, List tokens, Heads of, u32 back) {
    Place place = place_of(tokens, blockIdx.x);
    if (!place.here || of.rotated < 2) return;
    T* row = x.at + blockIdx.x * x.row_stride;
    const float* cosines = table.at + place.position * table.row_stride;
    u32 heads = x.cols / of.dim;
    float sign = back ? -1.0f : 1.0f;
    bool lanes = !of.neighbours && of.rotated % (2 * LANES<T>) == 0 && (of.dim | of.plain) % LANES<T> == 0 && by_lanes(x) && by_lanes(table);
    if (lanes) rotate_row<LANES<T>>(row, cosines, heads, of, sign);
    else rotate_row<1>(row, cosines, heads, of, sign);
}

// Copies the rows of each segment of x to rows of y: its first one to the row of its position. One block per
// row of x.
template <int N, class T>
__device__ __forceinline__ void copy_row(T* to, const T* from, u32 cols) {
    along<N>(cols, [&](u32 j) {
        float x[N];
        load(x, from + j);
        store(to + j, x);
    });
}
template <class T>
__device__ void put_rows(View<T> y, View<T> x, List segments) {
    Place place = place_of(segments, blockIdx.x);
    if (!place.here) return;
    T *to = &y(place.position, 0), *from = &x(blockIdx.x, 0);
    if (by_lanes(x, y)) copy_row<LANES<T>>(to, from, x.cols);
    else copy_row<1>(to, from, x.cols);
}
