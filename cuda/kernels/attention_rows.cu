// Attention of single query rows: see attention_rows.cuh.
#include "attention_rows.cuh"

BY_ROWS(attention_rows)

// Joins the parts of each row and head, parts[B, queries, splits, value + 2], with the carried state. One warp
// per row and head.
template <class T>
__device__ void attention_join(View<T> o, View<float> out, View<float> max, View<float> sum, View<float> parts,
                               u32 splits, u32 value) {
    u64 warps = (u64)gridDim.x * blockDim.x / 32, len = value + 2;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < max.len(); i += warps) {
        const float* of = parts.at + i * splits * len;
        if (!(of[value + 1] < 0)) finish(of, splits, len, value, i / max.cols, i % max.cols, o, out, max, sum);
    }
}
BOTH(attention_join,
     PARAMS(View<T> o, View<float> out, View<float> max, View<float> sum, View<float> parts, u32 splits, u32 value), o,
     out, max, sum, parts, splits, value)
