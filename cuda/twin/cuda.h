// Replaces CUDA's own header where kernels are compiled for the host: one fiber per thread of a block, blocks
// one after another. A fiber runs until it waits for others (`__syncthreads`, a shuffle) or ends; then the
// next one runs. The order is forwards or backwards, so that a missing barrier, or a sum in the order in
// which blocks arrive, gives other values in one of the two orders. A launch fails if its threads wait for
// others that never arrive.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static const
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace twin {
// State of the running block, as its threads see it.
struct Block {
    dim3 index, threads, blocks;
    unsigned thread;       // the running thread
    unsigned char* shared; // dynamic shared memory
};
extern Block block;
// Waits until all threads of the block, of the warp, or of the group of four warps have arrived, except those
// that have ended.
void meet_block();
void meet_warp();
void meet_group();
// Lets other threads run: for a thread that waits for memory that another one writes, as all lanes of its
// warp do.
void step_aside();
// 64 bytes in which a thread passes data to others of its warp (kind 0) or group (kind 1), valid until it
// calls `handed` after the meeting.
unsigned char* hand(unsigned thread, int kind);
void handed(int kind);
// Copies that a thread has begun, in groups. They are made when they are waited for and not before, the last
// wait included.
struct Copies {
    struct Copy {
        void* to;
        const void* from;
        unsigned bytes, group;
    };
    std::vector<Copy> begun;
    unsigned groups = 0;
    void begin(void* to, const void* from, unsigned bytes) { begun.push_back({to, from, bytes, groups}); }
    void wait(unsigned but) {
        size_t left = 0;
        for (Copy& copy : begun) {
            if (copy.group + but >= groups) {
                begun[left++] = copy;
                continue;
            }
            memset(copy.to, 0, 16);
            memcpy(copy.to, copy.from, copy.bytes);
        }
        begun.resize(left);
    }
};
inline Copies copies[1024];
} // namespace twin

#define threadIdx (dim3{twin::block.thread, 0, 0})
#define blockIdx (twin::block.index)
#define blockDim (twin::block.threads)
#define gridDim (twin::block.blocks)

inline void __syncthreads() { twin::meet_block(); }
inline void __syncwarp(unsigned = ~0u) { twin::meet_warp(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T twin_shuffle(T x, unsigned from) {
    unsigned me = twin::block.thread;
    memcpy(twin::hand(me, 0), &x, sizeof x);
    twin::meet_warp();
    T y;
    unsigned there = (me & ~31u) | (from & 31);
    memcpy(&y, twin::hand(there < twin::block.threads.x ? there : me, 0), sizeof y);
    twin::handed(0);
    return y;
}
template <class T>
T __shfl_sync(unsigned, T x, int from) {
    return twin_shuffle(x, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
    return twin_shuffle(x, (twin::block.thread & 31) ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T x, int delta) {
    unsigned lane = twin::block.thread & 31;
    return twin_shuffle(x, lane + delta < 32 ? lane + delta : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T x, int delta) {
    unsigned lane = twin::block.thread & 31;
    return twin_shuffle(x, (int)lane >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned, int yes) {
    unsigned me = twin::block.thread, first = me & ~31u, all = 0;
    *twin::hand(me, 0) = yes != 0;
    twin::meet_warp();
    for (unsigned lane = 0; lane < 32 && first + lane < twin::block.threads.x; lane++)
        all |= (unsigned)*twin::hand(first + lane, 0) << lane;
    twin::handed(0);
    return all;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
template <class T>
T atomicAdd(T* at, T x) {
    T was = *at;
    return *at = was + x, was;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
template <class T>
T __ldg(const T* at) {
    return *at;
}
template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}
