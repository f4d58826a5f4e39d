// Products of one row on Hopper: see gemm_row.cuh. They begin before the kernel before them has ended, and take
// small kernels along.
// ARCH: sm_90
#include "gemm_row.cuh"

// C (+)= A·B (+ more); with A = RMSNorm(x); with A = SwiGLU(gate, up).
#define ON_HOPPER(number, T, WARPS, CHUNKS, BLOCKS)                                                                  \
    ROW_PRODUCT(gemm_row_hopper_##WARPS, number, T, WARPS, CHUNKS, BLOCKS)                                           \
    KERNEL __launch_bounds__(WARPS * 32, BLOCKS) gemm_row_normed_##WARPS##_##number(                                 \
        View<T> c, View<T> a, View<T> b, u32 how, View<T> more, View<float> r, View<T> x, View<T> gain, float count, \
        float eps, u32 threads) {                                                                                    \
        row::multiply<WARPS, CHUNKS>(c, a, b, how, more, row::Normed<T>{r, x, gain, count, eps, threads});           \
    }                                                                                                                \
    KERNEL __launch_bounds__(WARPS * 32, BLOCKS) gemm_row_gated_##WARPS##_##number(                                  \
        View<T> c, View<T> a, View<T> b, u32 how, View<T> more, View<T> gate, View<T> up) {                          \
        row::multiply<WARPS, CHUNKS>(c, a, b, how, more, row::Gated<T>{gate, up});                                   \
    }
ON_HOPPER(f32, float, 16, 2, 1)
ON_HOPPER(f32, float, 8, 1, 3)
ON_HOPPER(bf16, bf16, 16, 2, 1)
ON_HOPPER(bf16, bf16, 8, 1, 3)
#undef ON_HOPPER
