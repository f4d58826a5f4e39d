// Gradient of attention by tiles. Scores are recomputed from forward's log-sum-exp, once for the gradients of
// keys and values and once for those of queries, so that each gradient is summed in one place, in one order.
// With P = softmax(S), M the dropout factors (1 without dropout), δ = Σ o·do: dV = (P∘M)ᵀ·dO, dS = P ∘
// (M∘(dO·Vᵀ) − δ), dQ = dS·K, dK = dSᵀ·Q.
// Kernels named `wide` add to gradients in f32, which are summed over calls.
// Source: Dao, "FlashAttention-2", Algorithm 2, arXiv:2307.08691.
#include "attention.cuh"
#include "row.cuh"

// delta[B, queries] = Σ o·do per head. One warp per row and head.
template <class T>
__device__ void attention_delta(View<float> delta, View<T> o, View<T> d_o, u32 value) {
    u64 lane = threadIdx.x % 32, warps = (u64)gridDim.x * blockDim.x / 32;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < delta.len(); i += warps) {
        u64 row = i / delta.cols, head = i % delta.cols;
        float sum = 0;
        for (u64 col = head * value + lane; col < (head + 1) * value; col += 32)
            sum += wide(o(row, col)) * wide(d_o(row, col));
        sum = warp_sum(sum);
        if (lane == 0) delta(row, head) = sum;
    }
}
BOTH(attention_delta, PARAMS(View<float> delta, View<T> o, View<T> d_o, u32 value), delta, o, d_o, value)

// dsinks[1, queries] −= Σ e^(sink − lse)·delta over all rows. One block per head.
template <class T>
__device__ void attention_sinks(View<float> dsinks, View<T> sinks, View<float> lse, View<float> delta) {
    u32 head = blockIdx.x;
    float sink = wide(sinks(0, head)), sum = 0;
    for (u32 row = threadIdx.x; row < lse.rows; row += blockDim.x) sum += expf(sink - lse(row, head)) * delta(row, head);
    sum = block_sum(sum);
    if (threadIdx.x == 0) dsinks(0, head) -= sum;
}
BOTH(attention_sinks, PARAMS(View<float> dsinks, View<T> sinks, View<float> lse, View<float> delta), dsinks, sinks, lse,
     delta)

// Turns a score into P∘M, which dV needs, and its dO·Vᵀ into dS, which dQ and dK need.
__device__ __forceinline__ void grade(const Attend& a, float& s, float& dp, float lse, float delta, float factor) {
    float slope = cap(a, s), p = expf(s * a.scale - lse);
    s = p * factor;
    dp = p * (dp * factor - delta) * slope;
}

// s += A·Bᵀ over `dim` features of n_a and n_b rows, by tiles that are loaded to `left` and `right`.
template <class T>
__device__ __forceinline__ void add_products(Sixteen& s, float* left, float* right, const View<T>& a, u64 row_a,
                                             u32 n_a, u32 col_a, const View<T>& b, u64 row_b, u32 n_b, u32 col_b,
                                             u32 dim) {
#pragma unroll 1
    for (u32 col = 0; col < dim; col += TILE) {
        int cols = min((int)(dim - col), TILE);
        __syncthreads();
        load_tile(left, a, row_a, n_a, col_a + col, cols);
        load_tile(right, b, row_b, n_b, col_b + col, cols);
        __syncthreads();
        times_turned(s, left, right, cols);
    }
}

// to[row, col ..] += x·by, in the thread's rows that are marked in `touched`.
template <class T>
__device__ __forceinline__ void add_share(const View<T>& to, u32 row, u32 rows, u32 touched, u32 col, u32 cols,
                                          Sixteen& x, float by) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (!(touched >> i & 1)) continue;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (4 * my_col() + j >= cols) continue;
            T& at = to(row + my_row() + i, col + 4 * my_col() + j);
            at = narrow<T>(wide(at) + x[i][j] * by);
        }
    }
}

// dk[M, keys·dim], dv[M, keys·value] += the contributions of all spans. One block per 64 key rows and KV head.
template <class T, int C, class O>
__device__ void attention_keys(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<float> lse,
                               View<float> delta, View<T> d_o, View<O> dk, View<O> dv) {
    SHARED(float, shared);
    float *left = shared, *right = shared + TILE_LEN, *weights = shared + 2 * TILE_LEN;
    u32 row = blockIdx.x * TILE, group = blockIdx.y, dim = a.dim, value = a.value, fan = a.fan();
    u32 rows = min((u32)TILE, k.rows - row), touched = 0;
    Sixteen dks[C] = {}, dvs[C] = {};
    each_span(spans, true, row, row + rows, [&](Span span) {
        u32 before = span.key.row - row; // key j is row j + before of the tile, modulo 2^32
        u32 first = minus(row, span.key.row), last = min(row + rows - span.key.row, span.key.len) - 1;
#pragma unroll
        for (u32 i = 0; i < 4; i++) touched |= (u32)(my_row() + i - before - first <= last - first) << i;
        uint2 queries = seeing(a, span, first, last);
        u32 tiles = (minus(queries.y, queries.x) + TILE - 1) / TILE;
        for (u32 t = 0; t < tiles * fan; t++) {
            u32 head = group * fan + t / tiles, query = queries.x + t % tiles * TILE,
                n = min(queries.y - query, (u32)TILE);
            u64 query_row = span.query.row + query;
            Sixteen s = {}, dp = {};
            add_products(s, left, right, k, row, rows, group * dim, q, query_row, n, head * dim, dim); // K·Qᵀ
            // V·dOᵀ
            add_products(dp, left, right, v, row, rows, group * value, d_o, query_row, n, head * value, value);
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 i = my_col() + 16 * j, position = span.query.position + query + i;
                bool there = i < n;
                float lse_i = there ? lse(query_row + i, head) : 0, delta_i = there ? delta(query_row + i, head) : 0;
                u64 token = token_hash(a.dropout, span.query.sequence, position);
#pragma unroll
                for (u32 r = 0; r < 4; r++) {
                    u32 key = my_row() + r - before;
                    bool seen = there && key - first <= last - first && sees(a, span, query + i, key);
                    u64 pair = (u64)(a.first + head) << 32 | (span.key.position + key);
                    float factor = a.dropout.on ? dropout_factor(a.dropout, token, pair) : 1;
                    grade(a, s[r][j], dp[r][j], lse_i, delta_i, factor);
                    if (!seen) s[r][j] = dp[r][j] = 0;
                }
            }
            put_tile(weights, s);
#pragma unroll
            for (u32 c = 0; c < 2 * C; c++) { // dV += P·dO, dK += dS·Q
                u32 col = c % C * TILE, features = c < C ? value : dim;
                if (col >= features) continue;
                __syncthreads();
                if (c == C) put_tile(weights, dp);
                if (c > 0 || C > 1)
                    load_tile(right, c < C ? d_o : q, query_row, n, head * features + col, min((int)(features - col), TILE));
                __syncthreads();
                times(c < C ? dvs[c % C] : dks[c % C], weights, right, n);
            }
        }
    });
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        u32 col = c * TILE;
        if (col < dim) add_share(dk, row, rows, touched, group * dim + col, dim - col, dks[c], a.scale);
        if (col < value) add_share(dv, row, rows, touched, group * value + col, value - col, dvs[c], 1);
    }
}
BY_TILES(attention_keys,
         PARAMS(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<float> lse, View<float> delta, View<T> d_o,
                View<T> dk, View<T> dv),
         a, spans, q, k, v, lse, delta, d_o, dk, dv)
WIDTH(attention_keys_wide, attention_keys, bf16, bf16, 256, 4, TILE_THREADS, 1,
      PARAMS(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<float> lse, View<float> delta, View<T> d_o,
             View<float> dk, View<float> dv),
      a, spans, q, k, v, lse, delta, d_o, dk, dv)

// dq[B, queries·dim] += the contributions of all spans. One block per 64 query rows and head.
template <class T, int C, class O>
__device__ void attention_queries(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<float> lse,
                                  View<float> delta, View<T> d_o, View<O> dq) {
    SHARED(float, shared);
    float *left = shared, *right = shared + TILE_LEN, *weights = shared + 2 * TILE_LEN;
    u32 row = (gridDim.x - 1 - blockIdx.x) * TILE, head = blockIdx.y, dim = a.dim, value = a.value, group = head / a.fan();
    u32 rows = min((u32)TILE, q.rows - row), touched = 0;
    Sixteen dqs[C] = {};
    each_span(spans, false, row, row + rows, [&](Span span) {
        u32 before = span.query.row - row; // query i is row i + before of the tile, modulo 2^32
        u32 first = minus(row, span.query.row), last = min(row + rows - span.query.row, span.query.len) - 1;
#pragma unroll
        for (u32 i = 0; i < 4; i++) touched |= (u32)(my_row() + i - before - first <= last - first) << i;
        each_block(seen_by_some(a, span, first, last), [&](u32 block, u32 n) {
            u64 key_row = span.key.row + block;
            Sixteen s = {}, dp = {};
            add_products(s, left, right, q, row, rows, head * dim, k, key_row, n, group * dim, dim); // Q·Kᵀ
            // dO·Vᵀ
            add_products(dp, left, right, d_o, row, rows, head * value, v, key_row, n, group * value, value);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 query = my_row() + i - before;
                bool mine = query - first <= last - first;
                float lse_i = mine ? lse(row + my_row() + i, head) : 0,
                      delta_i = mine ? delta(row + my_row() + i, head) : 0;
                u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + query);
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 key = my_col() + 16 * j;
                    bool seen = mine && key < n && sees(a, span, query, block + key);
                    u64 pair = (u64)(a.first + head) << 32 | (span.key.position + block + key);
                    float factor = a.dropout.on ? dropout_factor(a.dropout, token, pair) : 1;
                    grade(a, s[i][j], dp[i][j], lse_i, delta_i, factor);
                    if (!seen) dp[i][j] = 0;
                }
            }
            put_tile(weights, dp);
#pragma unroll
            for (u32 c = 0; c < C; c++) {
                if (c * TILE >= dim) break;
                __syncthreads();
                load_tile(right, k, key_row, n, group * dim + c * TILE, min((int)(dim - c * TILE), TILE));
                __syncthreads();
                times(dqs[c], weights, right, n);
            }
        });
    });
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        if (c * TILE >= dim) break;
        add_share(dq, row, rows, touched, head * dim + c * TILE, dim - c * TILE, dqs[c], a.scale);
    }
}
BY_TILES(attention_queries,
         PARAMS(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<float> lse, View<float> delta, View<T> d_o,
                View<T> dq),
         a, spans, q, k, v, lse, delta, d_o, dq)
WIDTH(attention_queries_wide, attention_queries, bf16, bf16, 256, 4, TILE_THREADS, 1,
      PARAMS(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<float> lse, View<float> delta, View<T> d_o,
             View<float> dq),
      a, spans, q, k, v, lse, delta, d_o, dq)
