// Attention of bf16 on tensor cores. Scores, sums and outputs are kept in f32; only the weights are rounded to bf16,
// where they are multiplied by values (their sum is of what they were): an output is off by 2^-9 of Σ weight·|value| at
// most. Source: Dao, "FlashAttention-2", Algorithm 1, arXiv:2307.08691.
#include "attention.cuh"
#include "cores.cuh"

const u32 QUERIES = 128;

// Row h of a thread's two in 16, of N·8 scores: they become weights, what its output so far is multiplied by is given.
// The stabiliser is of products that were not scaled yet; the sum is that of this lane's columns.
template <int N>
__device__ __forceinline__ float online(float (&s)[N][4], int h, float by, float& most, float& sum) {
    float before = most;
#pragma unroll
    for (int n = 0; n < N; n++) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    float base = most == -INFINITY ? 0 : most * by, shrink = power_of_2(before * by - base);
    sum *= shrink;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 2 * h; j < 2 * h + 2; j++) sum += s[n][j] = power_of_2(s[n][j] * by - base);
    return shrink;
}

// As `attention` of attention.cu, for 128 rows of queries a block: 32 a warp. Keys are on their way while the block
// before is weighed, values while scores are computed.
template <int D>
__device__ void attention_cores(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<bf16> o,
                                View<float> out, View<float> max, View<float> sum) {
    const u32 KEYS = 64 * 64 / D; // as many as registers allow
    SHARED(bf16, shared);
    bf16 *qs = shared, *ks = qs + QUERIES * D, *vs = ks + KEYS * D;
    u32 row = (gridDim.x - 1 - blockIdx.x) * QUERIES, head = blockIdx.y, group = head / (a.queries / a.keys),
        dim = a.dim;
    u32 rows = min(QUERIES, q.rows - row), touched = 0, lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 32;
    u32 my_row = warp_row + lane / 4, my_col = lane % 4 * 2; // rows 8 apart, columns 8 apart
    bool carried = !o.at;
    float acc[2][D / 8][4] = {}, most[4], total[4], by = a.scale * 1.44269504f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 r = row + my_row + 8 * i;
        most[i] = -INFINITY, total[i] = 0;
        if (!carried || r >= q.rows || max(r, head) == -INFINITY) continue;
        most[i] = max(r, head) / a.scale;
        if (lane % 4 == 0) total[i] = sum(r, head);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (8 * n + my_col < dim) acc[i / 2][n][i % 2 * 2 + j] = out(r, head * dim + 8 * n + my_col + j);
    }
    fetch<D, QUERIES>(qs, q, row, rows, head * dim, dim);
    each_span(spans, false, row, row + rows, [&](Span span) {
        u32 before = span.query.row - row; // query i is row i + before of the tile, beyond 2^32
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
            fetch<D, KEYS>(vs, v, key_row + block, n, group * dim, dim);
            u32 warp_last = span.query.position + warp_row + 31 - before;
            bool idle = a.causal && (int)(warp_last - span.key.position - block) < 0;
            float s[2][KEYS / 8][4] = {};
            if (!idle) {
                times_rows<D, 2, KEYS / 8>(s, qs, warp_row, ks);
                bool whole = !idle && n == KEYS && last - first + 1 == rows &&
                             all_see(a, span, first, last, block, block + n - 1);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 query = my_row + 8 * i - before;
                    bool mine = query - first <= last - first;
                    if (!whole)
#pragma unroll
                        for (int e = 0; e < KEYS / 4; e++) {
                            u32 key = e / 2 * 8 + my_col + e % 2;
                            if (idle || !(mine && key < n && sees(a, span, query, block + key)))
                                s[i / 2][e / 2][i % 2 * 2 + e % 2] = -INFINITY;
                        }
                    float shrink = online(s[i / 2], i % 2, by, most[i], total[i]);
#pragma unroll
                    for (int c = 0; c < D / 8; c++)
                        acc[i / 2][c][i % 2 * 2] *= shrink, acc[i / 2][c][i % 2 * 2 + 1] *= shrink;
                    if (!a.dropout.on) continue;
                    u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + query);
#pragma unroll
                    for (int e = 0; e < KEYS / 4; e++) {
                        u32 key = span.key.position + block + e / 2 * 8 + my_col + e % 2;
                        s[i / 2][e / 2][i % 2 * 2 + e % 2] *=
                            dropout_factor(a.dropout, token, (u64)(a.first + head) << 32 | key);
                    }
                }
            }
            fetched();
            __syncthreads();
            if (next < seen.to) fetch<D, KEYS>(ks, k, key_row + next, seen.count(next, KEYS), group * dim, dim);
            if (!idle) times_columns<D, 2, KEYS / 8>(acc, s, vs);
            block = next;
        }
    });
    fetched();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 r = row + my_row + 8 * i;
        total[i] += __shfl_xor_sync(~0u, total[i], 1);
        total[i] += __shfl_xor_sync(~0u, total[i], 2);
        if (!(touched >> i & 1)) continue; // padding, which stays
        float share = carried ? 1 : 1 / total[i];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            if (8 * n >= dim) continue;
            float x = acc[i / 2][n][i % 2 * 2] * share, y = acc[i / 2][n][i % 2 * 2 + 1] * share;
            u64 col = head * dim + 8 * n + my_col;
            if (carried)
                *(float2*)&out(r, col) = float2{x, y};
            else
                *(u32*)&o(r, col) = pack(x, y);
        }
        if (lane % 4) continue;
        float scaled = most[i] * a.scale;
        max(r, head) = carried ? scaled : scaled + logf(total[i]);
        if (carried) sum(r, head) = total[i];
    }
}
#define CORES(D)                                                                                                 \
    KERNEL __launch_bounds__(128)                                                                                \
        attention_cores_##D##_bf16(Attend a, List spans, View<bf16> q, View<bf16> k, View<bf16> v, View<bf16> o, \
                                   View<float> out, View<float> max, View<float> sum) {                          \
        attention_cores<D>(a, spans, q, k, v, o, out, max, sum);                                                 \
    }
CORES(64)
CORES(128)
