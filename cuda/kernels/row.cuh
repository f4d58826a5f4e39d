// Rows of matrices, by 16 bytes at a time where they are aligned; sums over a warp or a block, always in one
// order; positions of rows' tokens.
#pragma once
#include "lanes.cuh"

// Number of T in 16 bytes, which a thread moves at once.
template <class T>
constexpr int LANES = 16 / sizeof(T);

// True if every row can be read and written by 16 bytes at a time.
template <class T>
__device__ __forceinline__ bool by_lanes(const View<T>& x) {
    const u64 n = LANES<T>;
    bool rows = x.rows <= 1 || x.row_stride % n == 0;
    return x.col_stride == 1 && x.cols % n == 0 && rows && (u64)x.at % 16 == 0;
}
template <class T, class... More>
__device__ __forceinline__ bool by_lanes(const View<T>& x, const More&... more) {
    return by_lanes(x) && by_lanes(more...);
}

// Checks that elements moved at once lie at a multiple of 16 bytes: the host twin aborts where a card would
// fail.
template <int N>
__device__ __forceinline__ void at_16(const void* at) {
#ifdef EQUIPART_TWIN
    if (N > 1 && (u64)at % 16) abort();
#endif
}
// Loads N elements from `at` on, in f32; or stores N elements there, each rounded once. N is 1, or fills 16
// bytes.
template <int N, class T>
__device__ __forceinline__ void load(float (&x)[N], const T* at) {
    at_16<N>(at);
    Lanes<N> lanes = load<N>(at);
#pragma unroll
    for (int n = 0; n < N; n++) x[n] = lanes.x[n];
}
template <int N, class T>
__device__ __forceinline__ void store(T* at, const float (&x)[N]) {
    at_16<N>(at);
    Lanes<N> lanes;
#pragma unroll
    for (int n = 0; n < N; n++) lanes.x[n] = x[n];
    store(at, lanes);
}

// Sum, or maximum, over the 32 threads of a warp; each thread gets it.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

// Sums each x over all threads of a block of whole warps; each thread gets the sums. `room` may be reused at
// once.
template <int N>
__device__ __forceinline__ void block_sum(float (&x)[N]) {
    __shared__ float room[32 * N];
    u32 warps = blockDim.x / 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < N; n++) x[n] = warp_sum(x[n]);
    if (threadIdx.x % 32 == 0)
        for (int n = 0; n < N; n++) room[warp * N + n] = x[n];
    __syncthreads();
    for (int n = 0; n < N; n++) x[n] = 0;
    for (u32 w = 0; w < warps; w++)
        for (int n = 0; n < N; n++) x[n] += room[w * N + n];
    __syncthreads();
}
__device__ __forceinline__ float block_sum(float x) {
    float sum[1] = {x};
    block_sum(sum);
    return sum[0];
}

// Maximum of x over all threads of a block; each thread gets it.
__device__ __forceinline__ float block_max(float x) {
    __shared__ float room[32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    for (u32 w = 0; w < blockDim.x / 32; w++) x = fmaxf(x, room[w]);
    __syncthreads();
    return x;
}

// Calls f(column) for this thread's columns of a row, N adjacent ones at a time.
template <int N, int UNROLL = N == 1 ? 4 : 2, class F>
__device__ __forceinline__ void along(u32 cols, F f) {
#pragma unroll UNROLL
    for (u32 j = threadIdx.x * N; j < cols; j += blockDim.x * N) f(j);
}

// Position of a row's token; `here` is false for padding.
struct Place {
    u32 sequence, position;
    bool here;
};
// Finds the position of a row's token. All threads of a block call it together. Segments may be in any order.
__device__ __forceinline__ Place place_of(List tokens, u64 row) {
    __shared__ u32 found[3];
    if (threadIdx.x == 0) found[2] = 0;
    __syncthreads();
    for (u64 k = threadIdx.x; k < tokens.len / 4; k += blockDim.x) {
        Segment s = ((const Segment*)tokens.at)[k];
        if (row < s.row || row - s.row >= s.len) continue;
        found[0] = s.sequence, found[1] = s.position + (u32)(row - s.row), found[2] = 1;
    }
    __syncthreads();
    return {found[0], found[1], found[2] != 0};
}

