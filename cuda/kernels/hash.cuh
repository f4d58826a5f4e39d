// The hashes by which elements are taken away or moved while training: those of the tensor crate, number by number.
#pragma once
#include "number.cuh"

// SplitMix64: `mix` of tensor/src/scalar.rs.
__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
