// Attention of bf16 on tensor cores. Scores, sums and outputs are kept in f32. Only the weights are rounded
// to bf16, for their product with the values; their sum is of the unrounded ones. An output's error is at
// most 2^-9 of Σ weight·|value|.
// Source: Dao, "FlashAttention-2", Algorithm 1, arXiv:2307.08691.
#include "attention_softmax.cuh"

const u32 QUERIES = 128;

// As `attention` of attention.cu, for 128 query rows per block, 32 per warp. Keys are copied while the
// previous tile is weighed, values while scores are computed.
template <int D>
__device__ void attention_cores(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<bf16> o,
                                View<float> out, View<float> max, View<float> sum) {
    const u32 KEYS = 64 * 64 / D; // as many as registers allow
    SHARED(bf16, shared);
    bf16 *qs = shared, *ks = qs + QUERIES * D, *vs = ks + KEYS * D;
    u32 row = (gridDim.x - 1 - blockIdx.x) * QUERIES, head = blockIdx.y, group = head / a.fan(),
        dim = a.dim, value = a.value;
    u32 rows = min(QUERIES, q.rows - row), touched = 0, lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 32;
    u32 my_row = warp_row + lane / 4, my_col = lane % 4 * 2; // rows 8 apart, columns 8 apart
    bool carried = !o.at;
    float acc[2][D / 8][4] = {}, most[4], total[4], by = a.scale * 1.44269504f;
    begin_softmax(acc, most, total, carried, row + my_row, q.rows, my_col, head, value, a.scale, out, max, sum);
    fetch<D, QUERIES>(qs, q, row, rows, head * dim, dim);
    each_span(spans, false, row, row + rows, [&](Span span) {
        u32 before = span.query.row - row; // query i is row i + before of the tile, modulo 2^32
        u32 first = minus(row, span.query.row), last = min(row + rows - span.query.row, span.query.len) - 1;
#pragma unroll
        for (int i = 0; i < 4; i++) touched |= (u32)(my_row + 8 * i - before - first <= last - first) << i;
        Seen seen = seen_by_some(a, span, first, last);
        u64 key_row = span.key.row;
        if (seen.begin() < seen.to)
            fetch<D, KEYS>(ks, k, key_row + seen.begin(), seen.count(seen.begin(), KEYS), group * dim, dim);
        for (u32 block = seen.begin(); block < seen.to;) {
            u32 n = seen.count(block, KEYS), next = seen.next(block, KEYS);
            fetched();
            __syncthreads();
            fetch<D, KEYS>(vs, v, key_row + block, n, group * value, value);
            u32 warp_last = span.query.position + warp_row + 31 - before;
            bool idle = a.causal && (int)(warp_last - span.key.position - block) < 0;
            float s[2][KEYS / 8][4] = {};
            if (!idle) {
                times_rows<D, 2, KEYS / 8>(s, qs, warp_row, ks);
                bool whole = n == KEYS && last - first + 1 == rows &&
                             all_see(a, span, first, last, block, block + n - 1);
                float shrink[4];
                weigh(s, shrink, most, total, a, span, whole, first, last, my_row - before, block, n, my_col, head, by);
                shrink_by(acc, shrink);
            }
            fetched();
            __syncthreads();
            if (next < seen.to) fetch<D, KEYS>(ks, k, key_row + next, seen.count(next, KEYS), group * dim, dim);
            if (!idle) times_columns<D, 2, KEYS / 8>(acc, s, vs);
            block = next;
        }
    });
    fetched();
    end_softmax(acc, most, total, carried, touched, row + my_row, my_col, head, value, a.scale, o, out, max, sum);
}
#define CORES(D)                                                                                                 \
    KERNEL __launch_bounds__(128)                                                                                \
        attention_cores_##D##_bf16(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<bf16> o, \
                                   View<float> out, View<float> max, View<float> sum) {                          \
        attention_cores<D>(a, spans, q, k, v, o, out, max, sum);                                                 \
    }
CORES(64)
CORES(128)
