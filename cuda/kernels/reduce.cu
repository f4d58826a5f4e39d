// Sum, or maximum, of the ranks' windows: the arithmetic of collectives whose ranks share a card.
#include "number.cuh"

// Address of each rank's elements, for `count` ranks.
struct Ranks {
    u64 at[256];
    u32 count;
};

// Every target's element i = the sum (`stab`: the maximum) of all sources' element i, in rank order, rounded
// once. One thread per element.
template <class T>
__device__ void reduce(const Ranks& sources, const Ranks& targets, u64 len, u32 stab) {
    each(1, len, [&](u64, u64 i) {
        float x = wide(((const T*)sources.at[0])[i]);
        for (u32 rank = 1; rank < sources.count; rank++) {
            float y = wide(((const T*)sources.at[rank])[i]);
            x = stab ? (x > y ? x : y) : x + y;
        }
        for (u32 rank = 0; rank < targets.count; rank++) ((T*)targets.at[rank])[i] = narrow<T>(x);
    });
}
BOTH(reduce, PARAMS(Ranks sources, Ranks targets, u64 len, u32 stab), sources, targets, len, stab)
