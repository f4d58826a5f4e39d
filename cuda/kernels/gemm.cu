// C[M,N] (+)= A[M,K]·B[K,N], the first rungs of a ladder: what a product is, before what makes it fast. A and B have any
// strides, C's columns lie together; sums are kept in f32 and rounded once, at the end.
#include "number.cuh"

// The three kernels of a rung: of f32, of bf16, and of bf16 with C in f32.
#define PRODUCTS(rung)                                                                                            \
    KERNEL rung##_f32(View<float> c, View<float> a, View<float> b, u32 add) { rung(c, a, b, add); }               \
    KERNEL rung##_bf16(View<bf16> c, View<bf16> a, View<bf16> b, u32 add) { rung(c, a, b, add); }                 \
    KERNEL rung##_wide_bf16(View<float> c, View<bf16> a, View<bf16> b, u32 add) { rung(c, a, b, add); }

// Rung 0, the definition: a thread adds up one element of C. Each number of A is read N times and each of B M times.
template <class T, class C>
__device__ void gemm_naive(View<C> c, View<T> a, View<T> b, u32 add) {
    each(c.rows, c.cols, [&](u64 i, u64 j) {
        float sum = 0;
        for (u64 k = 0; k < a.cols; k++) sum += wide(a(i, k)) * wide(b(k, j));
        c(i, j) = narrow<C>(add ? wide(c(i, j)) + sum : sum);
    });
}
PRODUCTS(gemm_naive)
