// Tensor cores and asynchronous copies. Each primitive has two bodies: PTX, and its meaning on the host.
// Source: NVIDIA, "Parallel Thread Execution ISA", sections "cp.async", "ldmatrix" and "mma.m16n8k16 with
// .bf16".
#pragma once
#include "number.cuh"

namespace tensor {
#ifdef __CUDACC__
__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Begins to copy `bytes` of the 16 bytes at `from` to shared memory; the rest become 0. Both addresses are
// multiples of 16.
__device__ __forceinline__ void copy_async(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::
                 "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
// Closes a group: the copies begun since the last call.
__device__ __forceinline__ void copies_are_a_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups of this thread but the last N are done.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Loads four matrices of 8·8 bf16 into the lanes of a warp. Lane l gives the address of row l % 8 of matrix l
// / 8. From each matrix it gets columns 2·(l % 4) and the next of row l / 4; if TURNED, from its transpose.
template <bool TURNED>
__device__ __forceinline__ void load_matrices(u32 (&to)[4], const void* row) {
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// sums[16,8] += a[16,16]·b[16,8], by a warp. With g = lane / 4 and t = 2·(lane % 4), a lane holds a[g, t],
// a[g + 8, t], a[g, t + 8], a[g + 8, t + 8], two columns per register; b[t, g], b[t + 8, g], two rows per
// register; and sums[g, t], sums[g, t + 1], sums[g + 8, t], sums[g + 8, t + 1], one per register.
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
inline void copy_async(void* to, const void* from, u32 bytes) {
    twin::copies[twin::block.thread].begin(to, from, bytes);
}
inline void copies_are_a_group() { twin::copies[twin::block.thread].groups++; }
template <int N>
void wait_for_copies() {
    twin::copies[twin::block.thread].wait(N);
}

template <bool TURNED>
void load_matrices(u32 (&to)[4], const void* row) {
    u32 me = twin::block.thread, lane = me % 32;
    memcpy(twin::hand(me, 0), &row, sizeof row);
    twin::meet_warp();
    for (u32 i = 0; i < 4; i++)
        for (u32 half = 0; half < 2; half++) {
            u32 r = TURNED ? lane % 4 * 2 + half : lane / 4, c = TURNED ? lane / 4 : lane % 4 * 2 + half;
            const uint16_t* of;
            memcpy(&of, twin::hand(me - lane + i * 8 + r, 0), sizeof of);
            to[i] = half ? to[i] | (u32)of[c] << 16 : of[c];
        }
    twin::meet_warp();
}

inline void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 me = twin::block.thread, lane = me % 32, own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(twin::hand(me, 0), own, sizeof own);
    twin::meet_warp();
    float left[2][16], right[2][16]; // this lane's rows of a, its columns of b
    auto put = [&](float* to, u32 of_lane, u32 i) {
        u32 pair;
        memcpy(&pair, twin::hand(me - lane + of_lane, 0) + 4 * i, 4);
        to[0] = bits_to_float(pair << 16), to[1] = bits_to_float(pair & 0xffff0000);
    };
    for (u32 k = 0; k < 16; k += 2)
        for (u32 i = 0; i < 2; i++) {
            put(&left[i][k], lane / 4 * 4 + k % 8 / 2, i + k / 8 * 2);
            put(&right[i][k], (lane % 4 * 2 + i) * 4 + k % 8 / 2, 4 + k / 8);
        }
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < 16; k++) sums[i] += left[i / 2][k] * right[i % 2][k];
    twin::meet_warp();
}
#endif
} // namespace tensor
