// A few adjacent elements, in f32: loaded and stored at once where they are aligned.
#pragma once
#include "number.cuh"

template <int N>
struct Lanes {
    static const int n = N;
    float x[N];
};

// Loads N elements from an address that is a multiple of their size. f32: N is 1, 2 or a multiple of 4; bf16:
// N is 1, 2, 4 or 8.
template <int N>
__device__ __forceinline__ Lanes<N> load(const float* from) {
    Lanes<N> to;
    if constexpr (N == 1) to.x[0] = *from;
    if constexpr (N == 2) {
        float2 two = *(const float2*)from;
        to.x[0] = two.x, to.x[1] = two.y;
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float4 four = ((const float4*)from)[i];
        to.x[4 * i] = four.x, to.x[4 * i + 1] = four.y, to.x[4 * i + 2] = four.z, to.x[4 * i + 3] = four.w;
    }
    return to;
}
template <int N>
__device__ __forceinline__ Lanes<N> load(const bf16* from) {
    Lanes<N> to;
    u32 pairs[(N + 1) / 2];
    if constexpr (N == 1) pairs[0] = from->bits;
    if constexpr (N == 2) pairs[0] = *(const u32*)from;
    if constexpr (N == 4) {
        uint2 four = *(const uint2*)from;
        pairs[0] = four.x, pairs[1] = four.y;
    }
    if constexpr (N == 8) {
        uint4 eight = *(const uint4*)from;
        pairs[0] = eight.x, pairs[1] = eight.y, pairs[2] = eight.z, pairs[3] = eight.w;
    }
#pragma unroll
    for (int i = 0; i < N; i++) to.x[i] = bits_to_float(i % 2 ? pairs[i / 2] & 0xffff0000 : pairs[i / 2] << 16);
    return to;
}

template <int N>
__device__ __forceinline__ void store(float* to, Lanes<N> from) {
    if constexpr (N == 1) *to = from.x[0];
    if constexpr (N == 2) *(float2*)to = make_float2(from.x[0], from.x[1]);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        ((float4*)to)[i] = make_float4(from.x[4 * i], from.x[4 * i + 1], from.x[4 * i + 2], from.x[4 * i + 3]);
}
template <int N>
__device__ __forceinline__ void store(bf16* to, Lanes<N> from) {
    if constexpr (N == 1) {
        *to = narrow<bf16>(from.x[0]);
    } else {
        u32 pairs[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) pairs[i] = pack(from.x[2 * i], from.x[2 * i + 1]);
        if constexpr (N == 2) *(u32*)to = pairs[0];
        if constexpr (N == 4) *(uint2*)to = uint2{pairs[0], pairs[1]};
        if constexpr (N == 8) *(uint4*)to = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
    }
}

// True if every N elements of a row, from a multiple of N on, may be loaded at once.
template <int N, class T>
__device__ __forceinline__ bool aligned(View<T> x) {
    return x.col_stride == 1 && x.row_stride % N == 0 && (u64)x.at % (N * sizeof(T)) == 0;
}
