// Which elements dropout takes away: the hash of what an element is, bit for bit that of tensor/src/dropout.rs.
#pragma once
#include "hash.cuh"

// `Dropped` of launches.rs.
struct Dropout {
    u64 salt, least; // an element stays if its hash >> 11 is at least this
    float scale;     // what is multiplied by where it stays
    u32 on;          // whether there is any
};

// A hash of a token: the same for all of its features.
__device__ __forceinline__ u64 token_hash(const Dropout& dropout, u32 sequence, u32 position) {
    return token_of(dropout.salt, sequence, position);
}
// What a feature of that token is multiplied by. Attention's feature: query head << 32 | key's position.
__device__ __forceinline__ float dropout_factor(const Dropout& dropout, u64 token, u64 feature) {
    return (mix(token ^ feature) >> 11) >= dropout.least ? dropout.scale : 0.0f;
}
