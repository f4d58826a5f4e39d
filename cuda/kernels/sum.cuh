// Sums over a warp, a block, and a whole launch: every time in the same order, so that the same numbers give the same
// bits.
#pragma once
#include "number.cuh"

// A variable of the card itself. Launches come one after the other, so that one at a time uses it.
#ifdef EQUIPART_TWIN
#define CARDS_OWN static thread_local
#else
#define CARDS_OWN __device__
#endif

namespace sums {
const u32 MOST = 1024; // blocks of a launch: `MOST_BLOCKS` of launches/optimizer.rs
CARDS_OWN float of_blocks[MOST];
CARDS_OWN u32 ended;

// Σ over the lanes of a warp; every lane has it.
__device__ __forceinline__ float warp(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

// Σ over the threads of a block, a whole number of warps; every thread has it.
__device__ __forceinline__ float block(float x) {
    __shared__ float of_warps[32];
    u32 lane = threadIdx.x % 32, mine = threadIdx.x / 32;
    x = warp(x);
    __syncthreads(); // of_warps has been read by all, if it was used before
    if (lane == 0) of_warps[mine] = x;
    __syncthreads();
    return warp(lane < blockDim.x / 32 ? of_warps[lane] : 0);
}

// Calls use(Σ over the threads of all blocks) in one thread, of whichever block ends last: the sums of the blocks are
// added in the blocks' order. Source: NVIDIA, "CUDA C++ Programming Guide", "Memory fence functions", the example.
template <class F>
__device__ __forceinline__ void launch(float x, F use) {
    __shared__ u32 last;
    x = block(x);
    if (threadIdx.x == 0) {
        of_blocks[blockIdx.x] = x;
        __threadfence(); // the sum is there before the block counts as ended
        last = atomicAdd(&ended, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    float sum = 0;
    for (u32 i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += *(volatile float*)&of_blocks[i];
    sum = block(sum);
    if (threadIdx.x == 0) {
        ended = 0;
        use(sum);
    }
}
} // namespace sums
