// Attention by tiles with an online softmax.
// Source: Dao et al., "FlashAttention", Algorithm 1, arXiv:2205.14135; Milakov, Gimelshein, "Online
// normalizer calculation for softmax", arXiv:1805.02867.
#include "attention.cuh"

// State of a row's softmax so far: its running max and Σ e^(s − max).
struct Held {
    float max, sum;
};

// Turns one row of scores, a part of it in each of `lanes` lanes, into weights. Returns the factor for the
// row's output so far. A row that has seen no key yet holds −∞ and 0.
template <int N>
__device__ __forceinline__ float online(float (&p)[N], Held& held, int lanes) {
    float most = held.max;
#pragma unroll
    for (int j = 0; j < N; j++) most = fmaxf(most, p[j]);
    for (int lane = lanes / 2; lane; lane /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
    float base = most == -INFINITY ? 0 : most, shrink = expf(held.max - base), sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) sum += p[j] = expf(p[j] - base);
    for (int lane = lanes / 2; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    held.max = most;
    held.sum = held.sum * shrink + sum;
    return shrink;
}

// Attention of 64 query rows and one head per block. Writes o[B, queries·value] and lse = `max`[B, queries];
// without o, updates the carried out, max and sum. A block takes all spans of its rows, one after another, so
// spans may share rows. The heads of a group are neighbours in blockIdx.y.
template <class T, int C>
__device__ void attention(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<T> o, View<float> out,
                          View<float> max, View<float> sum) {
    SHARED(float, shared);
    float *qs = shared, *kv = shared + TILE_LEN, *weights = shared + 2 * TILE_LEN;
    u32 row = (gridDim.x - 1 - blockIdx.x) * TILE, head = blockIdx.y, group = head / a.fan(), dim = a.dim, value = a.value;
    u32 rows = min((u32)TILE, q.rows - row), touched = 0;
    bool carried = !o.at;
    Sixteen acc[C] = {};
    Held held[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 r = row + my_row() + i;
        held[i] = Held{-INFINITY, 0};
        if (!carried || r >= q.rows || max(r, head) == -INFINITY) continue;
        held[i] = Held{max(r, head), sum(r, head)};
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 col = c * TILE + 4 * my_col() + j;
                if (col < value) acc[c][i][j] = out(r, head * value + col);
            }
    }
    if (C == 1) load_tile(qs, q, row, rows, head * dim, dim);
    each_span(spans, false, row, row + rows, [&](Span span) {
        u32 before = span.query.row - row; // query i is row i + before of the tile, modulo 2^32
        u32 first = minus(row, span.query.row), last = min(row + rows - span.query.row, span.query.len) - 1;
#pragma unroll
        for (u32 i = 0; i < 4; i++) touched |= (u32)(my_row() + i - before - first <= last - first) << i;
        each_block(seen_by_some(a, span, first, last), [&](u32 block, u32 n) {
            Sixteen s = {};
#pragma unroll 1
            for (u32 c = 0; c * TILE < dim; c++) {
                int cols = min((int)(dim - c * TILE), TILE);
                __syncthreads();
                if (C > 1) load_tile(qs, q, row, rows, head * dim + c * TILE, cols);
                load_tile(kv, k, span.key.row + block, n, group * dim + c * TILE, cols);
                __syncthreads();
                times_turned(s, qs, kv, cols);
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 query = my_row() + i - before;
                bool mine = query - first <= last - first;
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 key = my_col() + 16 * j;
                    cap(a, s[i][j]);
                    s[i][j] = mine && key < n && sees(a, span, query, block + key) ? s[i][j] * a.scale : -INFINITY;
                }
                float shrink = online(s[i], held[i], 16);
#pragma unroll
                for (int c = 0; c < C; c++)
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[c][i][j] *= shrink;
                if (!a.dropout.on) continue;
                u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + query);
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 key = span.key.position + block + my_col() + 16 * j;
                    s[i][j] *= dropout_factor(a.dropout, token, (u64)(a.first + head) << 32 | key);
                }
            }
            put_tile(weights, s);
#pragma unroll
            for (u32 c = 0; c < C; c++) {
                if (c * TILE >= value) break;
                __syncthreads();
                load_tile(kv, v, span.key.row + block, n, group * value + c * TILE, min((int)(value - c * TILE), TILE));
                __syncthreads();
                times(acc[c], weights, kv, n);
            }
        });
    });
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 r = row + my_row() + i;
        if (!(touched >> i & 1)) continue; // padding: left as is
        float share = carried ? 1 : 1 / held[i].sum;
#pragma unroll
        for (int c = 0; c < C; c++) {
            u32 col = c * TILE + 4 * my_col();
#pragma unroll
            for (int j = 0; j < 4; j++) acc[c][i][j] *= share;
            if (carried)
                put4(&out(r, head * value + col), acc[c][i], (int)(value - col));
            else
                put4(&o(r, head * value + col), acc[c][i], (int)(value - col));
        }
        if (my_col() == 0) {
            max(r, head) = carried ? held[i].max : held[i].max + logf(held[i].sum);
            if (carried) sum(r, head) = held[i].sum;
        }
    }
}
BY_TILES(attention,
         PARAMS(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<T> o, View<float> out, View<float> max,
                View<float> sum),
         a, spans, q, k, v, o, out, max, sum)

// o[B, queries·value] = out / sum; max[B, queries] becomes the log-sum-exp. One warp per row and head.
template <class T>
__device__ void attention_finish(View<T> o, View<float> out, View<float> max, View<float> sum, u32 value) {
    u64 lane = threadIdx.x % 32, warps = (u64)gridDim.x * blockDim.x / 32;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < max.len(); i += warps) {
        u64 row = i / max.cols, head = i % max.cols;
        float most = max(row, head), total = sum(row, head), share = 1 / total;
        for (u64 col = head * value + lane; col < (head + 1) * value; col += 32)
            o(row, col) = narrow<T>(out(row, col) * share);
        __syncwarp(); // all lanes have read max
        if (lane == 0) max(row, head) = most + logf(total);
    }
}
BOTH(attention_finish, PARAMS(View<T> o, View<float> out, View<float> max, View<float> sum, u32 value), o, out, max, sum,
     value)

// Merges a running softmax of other keys into one of the same queries. One that has seen no key changes
// nothing. One warp per row and head.
template <class T>
__device__ void attention_merge(View<T> out, View<T> max, View<T> sum, View<T> other_out, View<T> other_max,
                                View<T> other_sum, u32 value) {
    u64 lane = threadIdx.x % 32, warps = (u64)gridDim.x * blockDim.x / 32;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < max.len(); i += warps) {
        u64 row = i / max.cols, head = i % max.cols;
        float own = wide(max(row, head)), other = wide(other_max(row, head)), most = fmaxf(own, other);
        if (other == -INFINITY) continue; // all lanes alike
        bool had = own != -INFINITY;
        float keep = expf(own - most), by = expf(other - most);
        for (u64 col = head * value + lane; col < (head + 1) * value; col += 32)
            out(row, col) = narrow<T>((had ? wide(out(row, col)) * keep : 0) + wide(other_out(row, col)) * by);
        __syncwarp(); // all lanes have read max
        if (lane > 0) continue;
        sum(row, head) = narrow<T>((had ? wide(sum(row, head)) * keep : 0) + wide(other_sum(row, head)) * by);
        max(row, head) = narrow<T>(most);
    }
}
BOTH(attention_merge,
     PARAMS(View<T> out, View<T> max, View<T> sum, View<T> other_out, View<T> other_max, View<T> other_sum, u32 value),
     out, max, sum, other_out, other_max, other_sum, value)
