// Tensor cores and copies that do not wait, each a primitive of two bodies: PTX, and what it means on the host.
// Source: NVIDIA, "Parallel Thread Execution ISA", sections "cp.async", "ldmatrix" and "mma.m16n8k16 with .bf16".
#pragma once
#include "number.cuh"

namespace tensor {
// d[16,8] += a[16,16]·b[16,8]. With g = lane / 4 and t = lane % 4 a lane has d of rows g, g + 8 at columns 2t, 2t + 1,
// a of these rows at columns 2t, 2t + 1, then 8 more, b of rows 2t, 2t + 1, then 8 more, at column g.
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const void* at) {
#ifdef __CUDACC__
    u32 from = (u32)__cvta_generic_to_shared(at);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from)
                     : "memory");
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

// Begins to copy `bytes` of the 16 bytes at `from` to shared memory; the rest become 0. Both addresses are multiples
// of 16.
__device__ __forceinline__ void copy_async(void* to, const void* from, u32 bytes) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    memset(to, 0, 16);
    memcpy(to, from, bytes);
#endif
}
// The copies begun since the last call are a group.
__device__ __forceinline__ void copies_are_a_group() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until this thread's groups are done, but for the N last.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
} // namespace tensor
