// Which elements dropout takes away: the hash of what an element is, bit for bit that of tensor/src/dropout.rs.
#pragma once
#include "number.cuh"

// `Dropped` of launches.rs. A `least` of 0 keeps all.
struct Dropout {
    u64 salt, least; // an element stays if its hash >> 11 is at least this
    float scale;     // what is multiplied by where it stays
    u32 on;          // whether there is any
};

// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
// A hash of a token: the same for all of its features.
__device__ __forceinline__ u64 token_hash(const Dropout& dropout, u32 sequence, u32 position) {
    return mix(dropout.salt ^ mix((u64)sequence << 32 | position));
}
// What a feature of that token is multiplied by. Attention's feature: query head << 32 | key's position.
__device__ __forceinline__ float dropout_factor(const Dropout& dropout, u64 token, u64 feature) {
    return (mix(token ^ feature) >> 11) >= dropout.least ? dropout.scale : 0.0f;
}
