// Sums over a whole launch, always in the same order, so that equal inputs give equal bits.
#pragma once
#include "row.cuh"

// A variable in the card's memory. Launches run one after another, so only one at a time uses it.
#ifdef EQUIPART_TWIN
#define CARDS_OWN static
#else
#define CARDS_OWN __device__
#endif

namespace sums {
const u32 MOST = 1024; // most blocks of a launch: `MOST_BLOCKS` of launches/optimizer.rs
CARDS_OWN float of_blocks[MOST];
CARDS_OWN u32 ended;

// Calls use(Σ over the threads of all blocks) in one thread of the block that ends last. The sums of the
// blocks are added in a fixed order. Source: NVIDIA, "CUDA C++ Programming Guide", "Memory fence functions",
// the example.
template <class F>
__device__ __forceinline__ void launch(float x, F use) {
    __shared__ u32 last;
    x = block_sum(x);
    if (threadIdx.x == 0) {
        of_blocks[blockIdx.x] = x;
        __threadfence(); // the sum is visible before the block counts as ended
        last = atomicAdd(&ended, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    float sum = 0;
    for (u32 i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += *(volatile float*)&of_blocks[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        ended = 0;
        use(sum);
    }
}
} // namespace sums
