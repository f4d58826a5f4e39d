// Selects the elements that dropout drops, by a hash of their identity, bit for bit as in
// tensor/src/dropout.rs.
#pragma once
#include "hash.cuh"

// Arguments of dropout: `Dropped` of launches.rs.
struct Dropout {
    u64 salt, least; // an element is kept if its hash >> 11 is at least `least`
    float scale;     // factor of kept elements
    u32 on;          // nonzero if dropout is on
};

// Returns the hash of a token, which all of its features share.
__device__ __forceinline__ u64 token_hash(const Dropout& dropout, u32 sequence, u32 position) {
    return token_of(dropout.salt, sequence, position);
}
// Returns the factor of a feature of that token. Attention's feature is query head << 32 | the key's
// position.
__device__ __forceinline__ float dropout_factor(const Dropout& dropout, u64 token, u64 feature) {
    return (mix(token ^ feature) >> 11) >= dropout.least ? dropout.scale : 0.0f;
}
