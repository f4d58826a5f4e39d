// Kernels that begin before the kernel before them has ended, on Hopper.
// Source: NVIDIA, "CUDA C++ Programming Guide", section "Programmatic Dependent Launch and Synchronization".
#pragma once

namespace early {
// Lets the blocks of the next kernel begin, if it was launched to begin early.
__device__ __forceinline__ void next_may_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the kernels before this one have ended.
__device__ __forceinline__ void wait_for_others() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
} // namespace early
