// Gradient of attention of bf16 on tensor cores, in two passes as in attention_backward.cu. Scores and their
// gradients are kept in f32; weights and score gradients are rounded to bf16 where they are multiplied by
// rows.
// Source: Dao, "FlashAttention-2", Algorithm 2, arXiv:2307.08691.
#include "attention_gradient.cuh"

// Rows of a block: 16·M in each of its warps. Rows of the other side come `ASIDE` at a time; the next ones
// are prefetched.
template <int D>
struct Plan {
    static const int M = D == 64 ? 2 : 1, ROWS = 128, THREADS = ROWS / M * 2, ASIDE = 32, LEN = ASIDE * D;
};

// dk[M, keys·dim], dv[M, keys·value] += the contributions of all spans. One block per 128 key rows and KV head.
template <int D, class O>
__device__ void attention_cores_keys(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<float> lse,
                                     View<float> delta, View<bf16> d_o, View<O> dk, View<O> dv) {
    using P = Plan<D>;
    const int M = P::M, N = P::ASIDE / 8;
    SHARED(bf16, shared);
    bf16 *ks = shared, *vs = ks + P::ROWS * D, *aside = vs + P::ROWS * D; // two buffers of queries and dO
    float* saved = (float*)(aside + 4 * P::LEN);                          // two buffers of lse and delta
    u32 row = blockIdx.x * P::ROWS, group = blockIdx.y, dim = a.dim, value = a.value, fan = a.fan();
    u32 rows = min((u32)P::ROWS, k.rows - row), touched = 0, lane = threadIdx.x % 32,
        warp_row = threadIdx.x / 32 * 16 * M;
    u32 my_row = warp_row + lane / 4, my_col = lane % 4 * 2;
    float dks[M][D / 8][4] = {}, dvs[M][D / 8][4] = {}, by = a.scale * 1.44269504f;
    fetch<D, P::ROWS>(ks, k, row, rows, group * dim, dim);
    fetch<D, P::ROWS>(vs, v, row, rows, group * value, value);
    each_span(spans, true, row, row + rows, [&](Span span) {
        u32 before = span.key.row - row; // key j is row j + before of the tile, modulo 2^32
        u32 first = minus(row, span.key.row), last = min(row + rows - span.key.row, span.key.len) - 1;
#pragma unroll
        for (int i = 0; i < 2 * M; i++) touched |= (u32)(my_row + 8 * i - before - first <= last - first) << i;
        uint2 queries = seeing(a, span, first, last);
        u32 tiles = (minus(queries.y, queries.x) + P::ASIDE - 1) / P::ASIDE;
        auto begin = [&](u32 t) { // copies the t-th queries to their half of the memory
            u32 head = group * fan + t / tiles, query = queries.x + t % tiles * P::ASIDE,
                n = min(queries.y - query, (u32)P::ASIDE);
            bf16* to = aside + t % 2 * 2 * P::LEN;
            fetch<D, P::ASIDE>(to, q, (u64)span.query.row + query, n, head * dim, dim);
            fetch<D, P::ASIDE>(to + P::LEN, d_o, (u64)span.query.row + query, n, head * value, value);
            u32 i = threadIdx.x % P::ASIDE, which = threadIdx.x / P::ASIDE;
            float x = 0;
            if (i < n && which < 2)
                x = which ? delta(span.query.row + query + i, head)
                          : lse(span.query.row + query + i, head) * 1.44269504f;
            if (which < 2) saved[(t % 2 * 2 + which) * P::ASIDE + i] = x;
        };
        __syncthreads(); // all threads are done with the previous contents
        if (tiles) begin(0);
        for (u32 t = 0; t < tiles * fan; t++) {
            fetched();
            __syncthreads();
            if (t + 1 < tiles * fan) begin(t + 1);
            const bf16 *qs = aside + t % 2 * 2 * P::LEN, *dos = qs + P::LEN;
            const float *lses = saved + t % 2 * 2 * P::ASIDE, *deltas = lses + P::ASIDE;
            u32 head = group * fan + t / tiles, query = queries.x + t % tiles * P::ASIDE,
                n = min(queries.y - query, (u32)P::ASIDE);
            u32 warp_first = span.key.position + warp_row - before, last_query = span.query.position + query + n - 1;
            bool idle = a.causal && (int)(warp_first - last_query) > 0; // the first may lie before position 0
            if (idle) continue;
            float s[M][N][4] = {}, dp[M][N][4] = {};
            times_rows<D, M, N>(s, ks, warp_row, qs);
            times_rows<D, M, N>(dp, vs, warp_row, dos);
            // Queries beyond n are zeros, and add nothing.
            bool whole = last - first + 1 == rows && all_see(a, span, query, query + n - 1, first, last);
            grade_keys(s, dp, a, span, whole, first, last, my_row - before, query, my_col, head, by, lses, deltas);
            times_columns<D, M, N>(dvs, s, dos);
            times_columns<D, M, N>(dks, dp, qs);
        }
    });
    fetched();
    add_pairs<M, D / 8>(dk, row, touched, my_row, group * dim, my_col, dim, dks, a.scale);
    add_pairs<M, D / 8>(dv, row, touched, my_row, group * value, my_col, value, dvs, 1);
}

// dq[B, queries·dim] += the contributions of all spans. One block per 128 query rows and head.
template <int D, class O>
__device__ void attention_cores_queries(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<float> lse,
                                        View<float> delta, View<bf16> d_o, View<O> dq) {
    using P = Plan<D>;
    const int M = P::M, N = P::ASIDE / 8;
    SHARED(bf16, shared);
    bf16 *qs = shared, *dos = qs + P::ROWS * D, *aside = dos + P::ROWS * D; // two buffers of keys and values
    u32 row = (gridDim.x - 1 - blockIdx.x) * P::ROWS, head = blockIdx.y, group = head / a.fan(),
        dim = a.dim, value = a.value;
    u32 rows = min((u32)P::ROWS, q.rows - row), touched = 0, lane = threadIdx.x % 32,
        warp_row = threadIdx.x / 32 * 16 * M;
    u32 my_row = warp_row + lane / 4, my_col = lane % 4 * 2;
    float dqs[M][D / 8][4] = {}, lses[2 * M], deltas[2 * M], by = a.scale * 1.44269504f;
    saved_of_rows(lses, deltas, lse, delta, row + my_row, row + rows, head);
    fetch<D, P::ROWS>(qs, q, row, rows, head * dim, dim);
    fetch<D, P::ROWS>(dos, d_o, row, rows, head * value, value);
    each_span(spans, false, row, row + rows, [&](Span span) {
        u32 before = span.query.row - row; // query i is row i + before of the tile, modulo 2^32
        u32 first = minus(row, span.query.row), last = min(row + rows - span.query.row, span.query.len) - 1;
#pragma unroll
        for (int i = 0; i < 2 * M; i++) touched |= (u32)(my_row + 8 * i - before - first <= last - first) << i;
        Seen seen = seen_by_some(a, span, first, last);
        auto begin = [&](u32 block, u32 half) { // copies these keys to their half of the memory
            bf16* to = aside + half * 2 * P::LEN;
            fetch<D, P::ASIDE>(to, k, (u64)span.key.row + block, seen.count(block, P::ASIDE), group * dim, dim);
            fetch<D, P::ASIDE>(to + P::LEN, v, (u64)span.key.row + block, seen.count(block, P::ASIDE), group * value,
                               value);
        };
        __syncthreads(); // all threads are done with the previous contents
        if (seen.begin() < seen.to) begin(seen.begin(), 0);
        for (u32 block = seen.begin(), half = 0, next; block < seen.to; block = next, half ^= 1) {
            u32 n = seen.count(block, P::ASIDE);
            next = seen.next(block, P::ASIDE);
            fetched();
            __syncthreads();
            if (next < seen.to) begin(next, half ^ 1);
            const bf16 *ks = aside + half * 2 * P::LEN, *vs = ks + P::LEN;
            u32 warp_last = span.query.position + warp_row + 16 * M - 1 - before;
            bool idle = a.causal && (int)(warp_last - span.key.position - block) < 0;
            if (idle) continue;
            float s[M][N][4] = {}, dp[M][N][4] = {};
            times_rows<D, M, N>(s, qs, warp_row, ks);
            times_rows<D, M, N>(dp, dos, warp_row, vs);
            bool whole = n == P::ASIDE && last - first + 1 == rows &&
                         all_see(a, span, first, last, block, block + n - 1);
            grade_queries(s, dp, a, span, whole, first, last, my_row - before, block, n, my_col, head, by, lses, deltas);
            times_columns<D, M, N>(dqs, dp, ks);
        }
    });
    fetched();
    add_pairs<M, D / 8>(dq, row, touched, my_row, head * dim, my_col, dim, dqs, a.scale);
}

// The kernels whose names end in `name`, which add to gradients of type O.
#define CORES_BACKWARD(D, name, O)                                                                              \
    KERNEL __launch_bounds__(Plan<D>::THREADS) attention_cores_keys_##name(                                     \
        Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<float> lse, View<float> delta,     \
        View<bf16> d_o, View<O> dk, View<O> dv) {                                                               \
        attention_cores_keys<D>(a, spans, q, k, v, lse, delta, d_o, dk, dv);                                    \
    }                                                                                                           \
    KERNEL __launch_bounds__(Plan<D>::THREADS)                                                                  \
        attention_cores_queries_##name(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v,          \
                                       View<float> lse, View<float> delta, View<bf16> d_o, View<O> dq) {        \
        attention_cores_queries<D>(a, spans, q, k, v, lse, delta, d_o, dq);                                     \
    }
CORES_BACKWARD(64, 64_bf16, bf16)
CORES_BACKWARD(128, 128_bf16, bf16)
CORES_BACKWARD(64, wide_64_bf16, float)
CORES_BACKWARD(128, wide_128_bf16, float)
