// Dtypes, matrices and lists of all kernels, and the primitives that the host twin replaces.
#pragma once
#include <cstdint>
#ifdef EQUIPART_TWIN
#include "../twin/cuda.h"
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

// A float of 16 bits, the upper half of an f32. Sums and functions are computed in f32 and rounded once.
struct bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float bits_to_float(u32 bits) {
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}
__device__ __forceinline__ u32 float_to_bits(float x) {
#ifdef __CUDACC__
    return __float_as_uint(x);
#else
    u32 bits;
    memcpy(&bits, &x, sizeof x);
    return bits;
#endif
}

// Converts to f32, exactly.
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(bf16 x) { return bits_to_float((u32)x.bits << 16); }

// Rounds to the nearest T, ties to even.
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
#ifdef __CUDACC__
    bf16 y; // one instruction; the lines below take seven
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    u32 bits = float_to_bits(x);
    if (x != x) return bf16{(uint16_t)(bits >> 16 | 64)}; // a NaN stays one
    return bf16{(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

// Rounds two floats to bf16 and packs them, the first in the lower half.
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

// 1/x, to 23 bits; 0 for results below 2^-126.
__device__ __forceinline__ float reciprocal(float x) {
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}

// 1/(1 + e^(−x)).
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + power_of_2(-1.4426950408889634f * x)); }

// A matrix, contiguous or not: `Window` of launches.rs.
template <class T>
struct View {
    T* at;
    u64 row_stride, col_stride;
    u32 rows, cols;
    __device__ __forceinline__ T& operator()(u64 row, u64 col) const {
        return at[row * row_stride + col * col_stride];
    }
    __device__ __forceinline__ u64 len() const { return (u64)rows * cols; }
    __device__ __forceinline__ bool lies_together() const { return col_stride == 1 && (row_stride == cols || rows <= 1); }
};

// A list of unsigned integers.
struct List {
    const u32* at;
    u64 len;
};

// Consecutive tokens of one sequence: `Segment` of the kernels crate.
struct Segment {
    u32 row, len, position, sequence;
};

#define KERNEL extern "C" __global__ void

// Dynamic shared memory of a block, as an array of `type`. The launch sets its size in bytes.
#ifdef EQUIPART_TWIN
#define SHARED(type, name) type* name = (type*)twin::block.shared
#else
#define SHARED(type, name)                            \
    extern __shared__ __align__(1024) uint8_t shared_bytes[]; \
    type* name = (type*)shared_bytes
#endif

// Kernel `name` for both dtypes: `name_f32` and `name_bf16` call the template `name` with T = float and T =
// bf16.
#define PARAMS(...) (__VA_ARGS__)
#define BOTH(name, params, ...)                                              \
    namespace in_f32 {                                                       \
    using T = float;                                                         \
    KERNEL name##_f32 params { name<T>(__VA_ARGS__); }                       \
    }                                                                        \
    namespace in_bf16 {                                                      \
    using T = bf16;                                                          \
    KERNEL name##_bf16 params { name<T>(__VA_ARGS__); }                      \
    }

// Calls f(row, col) for every element of this thread.
template <class F>
__device__ __forceinline__ void each(u64 rows, u64 cols, F f) {
    u64 step = (u64)gridDim.x * blockDim.x, n = rows * cols;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i / cols, i % cols);
}
