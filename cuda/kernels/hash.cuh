// Hashes that select dropped elements and generate noise in training: the same values as the tensor crate's.
#pragma once
#include "number.cuh"

// SplitMix64: `mix` of tensor/src/scalar.rs. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014.
__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

// Hash of a token at one place in the model, to be mixed with each of its features.
__device__ __forceinline__ u64 token_of(u64 salt, u64 sequence, u64 position) {
    return mix(salt ^ mix(sequence << 32 | position));
}

// Hash of an element at one place in the model: `element` of tensor/src/dropout.rs.
__device__ __forceinline__ u64 element(u64 salt, u64 sequence, u64 position, u64 feature) {
    return mix(token_of(salt, sequence, position) ^ feature);
}

// A standard normal sample, by Box and Muller: `normal` of tensor/src/float.rs.
__device__ inline float normal(u64 key) {
    const double TAU = 6.283185307179586;
    double u = ((double)(mix(key ^ 0x55) >> 11) + 0.5) / 9007199254740992.0;
    double v = ((double)(mix(mix(key) ^ 0xaa) >> 11) + 0.5) / 9007199254740992.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(TAU * v));
}
