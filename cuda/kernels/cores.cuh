// Tensor cores: products of tiles of bf16 with sums in f32, one warp at a time, and copies that run beside them. Each
// primitive has two bodies: PTX, and the same by exchange between lanes on the host.
// Source: PTX ISA, "mma.m16n8k16", "ldmatrix", "cp.async".
#pragma once
#include "number.cuh"

// d[16,8] += a[16,16]·b[16,8]. With g = lane / 4 and t = lane % 4 a lane has d of rows g, g + 8 at columns 2t, 2t + 1, a of
// these rows at columns 2t, 2t + 1, then 8 more, b of rows 2t, 2t + 1, then 8 more, at column g.
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1}, me = twin::block.thread, warp = me & ~31u, lane = me & 31;
    memcpy(twin::hand(me, 1), mine, sizeof mine);
    twin::meet();
    float x[2][16], y[2][16]; // rows g and g + 8 of a, columns 2t and 2t + 1 of b
    for (u32 i = 0; i < 2; i++)
        for (u32 k = 0; k < 16; k += 2) {
            u32 p = k % 8 / 2, word = ((u32*)twin::hand(warp + lane / 4 * 4 + p, 1))[i + k / 8 * 2];
            x[i][k] = bits_to_float(word << 16), x[i][k + 1] = bits_to_float(word & 0xffff0000);
            word = ((u32*)twin::hand(warp + (lane % 4 * 2 + i) * 4 + p, 1))[4 + k / 8];
            y[i][k] = bits_to_float(word << 16), y[i][k + 1] = bits_to_float(word & 0xffff0000);
        }
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < 16; k++) d[i] += x[i / 2][k] * y[i % 2][k];
    twin::meet();
#endif
}

// Four matrices of 8 × 8: lane 8·i + r says where row r of the i-th lies; x[i] becomes its row lane / 4 at columns
// 2·(lane % 4), + 1, or, turned, its column lane / 4 at these rows.
template <bool TURNED>
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const bf16* at) {
#ifdef __CUDACC__
    u32 from = (u32)__cvta_generic_to_shared(at);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
#else
    u32 me = twin::block.thread, warp = me & ~31u, lane = me & 31;
    memcpy(twin::hand(me, 1), &at, sizeof at);
    twin::meet();
    for (u32 i = 0; i < 4; i++) {
        u32 half[2];
        for (u32 j = 0; j < 2; j++) {
            u32 row = TURNED ? lane % 4 * 2 + j : lane / 4, col = TURNED ? lane / 4 : lane % 4 * 2 + j;
            half[j] = (*(const bf16**)twin::hand(warp + 8 * i + row, 1))[col].bits;
        }
        x[i] = half[0] | half[1] << 16;
    }
    twin::meet();
#endif
}

// Begins to copy 16 bytes to shared memory, or zeros where there is nothing; `copied` waits for all that this thread began.
__device__ __forceinline__ void copy16(void* to, const void* from, bool there) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 16 : 0) : "memory");
#else
    if (there) memcpy(to, from, 16);
    else memset(to, 0, 16);
#endif
}
__device__ __forceinline__ void copied() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

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

// Begins to copy x[row .. row + n, col .. col + cols] to a tile of `ROWS` rows of D; 0 beyond. All threads of the block.
template <int D, int ROWS>
__device__ __forceinline__ void fetch(bf16* tile, const View<bf16>& x, u64 row, u32 n, u32 col, u32 cols) {
    const bf16* from = x.at + row * x.row_stride + col;
    for (u32 e = threadIdx.x; e < ROWS * D / 8; e += blockDim.x) {
        u32 r = e / (D / 8), c = e % (D / 8);
        bool there = r < n && c * 8 < cols;
        copy16(tile + mixed<D>(r, c), there ? from + r * x.row_stride + c * 8 : x.at, there);
    }
}

// s[16·M, 8·N] += A[16·M, D]·B[8·N, D]ᵀ of tiles; A from its row on.
template <int D, int M, int N>
__device__ __forceinline__ void times_rows(float (&s)[M][N][4], const bf16* a, u32 row, const bf16* b) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u32 x[M][4], y[4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices<false>(x[m], a + mixed<D>(row + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            load_matrices<false>(y, b + mixed<D>(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++) mma(s[m][n], x[m], y[0], y[1]), mma(s[m][n + 1], x[m], y[2], y[3]);
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
            load_matrices<true>(y, b + mixed<D>(8 * k + lane % 16, n + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) mma(s[m][n], x[m], y[0], y[1]), mma(s[m][n + 1], x[m], y[2], y[3]);
        }
    }
}
