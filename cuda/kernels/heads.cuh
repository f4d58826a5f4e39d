// Heads of attention: `HeadsArgs` of launches.rs.
#pragma once
#include "number.cuh"

struct Heads {
    u32 queries, keys;  // query heads, KV heads
    u32 dim, value;     // features of a query or key head, and of a value head or an output
    u32 plain, rotated; // features of a query or key head before those that are rotated, and these
    u32 neighbours;     // true if rotated features are paired with their neighbours, not across halves

    // Query heads of a KV head.
    __device__ __forceinline__ u32 fan() const { return queries / keys; }
};
