// The running softmax of attention on tensor cores. A thread has, of every 16·M rows, two rows of each 16, 8 apart, and
// of every 8 columns the pair from `my_col` on: x[M][N][4] are its numbers of 8·N columns, row 8·i's are x[i / 2][..][i
// % 2·2 ..].
#pragma once
#include "attention.cuh"
#include "cores.cuh"

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

// x ·= by, row by row.
template <int M, int N>
__device__ __forceinline__ void shrink_by(float (&x)[M][N][4], const float (&by)[2 * M]) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++)
#pragma unroll
        for (int n = 0; n < N; n++) x[i / 2][n][i % 2 * 2] *= by[i], x[i / 2][n][i % 2 * 2 + 1] *= by[i];
}

// What a softmax begins with: nothing, or what was carried here; of the columns up to `dim` of a head. A thread's first
// row is `row`.
template <int M, int N>
__device__ __forceinline__ void begin_softmax(float (&acc)[M][N][4], float (&most)[2 * M], float (&total)[2 * M], bool carried,
                                              u32 row, u32 rows, u32 my_col, u32 head, u32 dim, float scale,
                                              const View<float>& out, const View<float>& max, const View<float>& sum) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        u32 r = row + 8 * i;
        most[i] = -INFINITY, total[i] = 0;
        if (!carried || r >= rows || max(r, head) == -INFINITY) continue;
        most[i] = max(r, head) / scale;
        if (my_col == 0) total[i] = sum(r, head);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (8 * n + my_col < dim) acc[i / 2][n][i % 2 * 2 + j] = out(r, head * dim + 8 * n + my_col + j);
    }
}

// Scores of queries of a span, `query` the thread's first, with its `n` keys from `block` on become weights; `shrink`
// is what outputs so far are multiplied by. Rows that are not `first..=last` of the span's queries are of others.
template <int M, int N>
__device__ __forceinline__ void weigh(float (&s)[M][N][4], float (&shrink)[2 * M], float (&most)[2 * M], float (&total)[2 * M],
                                      const Attend& a, const Span& span, bool whole, u32 first, u32 last, u32 query,
                                      u32 block, u32 n, u32 my_col, u32 head, float by) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++, query += 8) {
        bool mine = query - first <= last - first;
        if (!whole)
#pragma unroll
            for (int e = 0; e < 2 * N; e++) {
                u32 key = e / 2 * 8 + my_col + e % 2;
                if (!(mine && key < n && sees(a, span, query, block + key))) s[i / 2][e / 2][i % 2 * 2 + e % 2] = -INFINITY;
            }
        shrink[i] = online(s[i / 2], i % 2, by, most[i], total[i]);
        if (!a.dropout.on) continue;
        u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + query);
#pragma unroll
        for (int e = 0; e < 2 * N; e++) {
            u32 key = span.key.position + block + e / 2 * 8 + my_col + e % 2;
            s[i / 2][e / 2][i % 2 * 2 + e % 2] *= dropout_factor(a.dropout, token, (u64)(a.first + head) << 32 | key);
        }
    }
}

// Writes what came of it, or what is carried on; rows that were not touched stay.
template <int M, int N>
__device__ __forceinline__ void end_softmax(const float (&acc)[M][N][4], const float (&most)[2 * M], float (&total)[2 * M],
                                            bool carried, u32 touched, u32 row, u32 my_col, u32 head, u32 dim, float scale,
                                            const View<bf16>& o, const View<float>& out, const View<float>& max,
                                            const View<float>& sum) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        u32 r = row + 8 * i;
        total[i] += __shfl_xor_sync(~0u, total[i], 1);
        total[i] += __shfl_xor_sync(~0u, total[i], 2);
        if (!(touched >> i & 1)) continue; // padding, which stays
        float share = carried ? 1 : 1 / total[i];
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (8 * n >= dim) continue;
            float x = acc[i / 2][n][i % 2 * 2] * share, y = acc[i / 2][n][i % 2 * 2 + 1] * share;
            u64 col = head * dim + 8 * n + my_col;
            if (carried)
                *(float2*)&out(r, col) = float2{x, y};
            else
                *(u32*)&o(r, col) = pack(x, y);
        }
        if (my_col) continue;
        float scaled = most[i] * scale;
        max(r, head) = carried ? scaled : scaled + logf(total[i]);
        if (carried) sum(r, head) = total[i];
    }
}
