// Online softmax of attention on tensor cores. Of each 16 rows (of 16·M) a thread holds two, 8 apart; of each
// 8 columns it holds the pair that starts at `my_col`. x[M][N][4] are its elements of 8·N columns; those of
// row 8·i are x[i / 2][..][i % 2·2 ..].
#pragma once
#include "attention.cuh"
#include "cores.cuh"

// Turns row h of a thread's two in 16, of N·8 scores, into weights. Returns the factor for the row's output
// so far. The running max is of products that are not scaled yet; the sum is over this lane's columns.
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

// Multiplies each row of x by its factor.
template <int M, int N>
__device__ __forceinline__ void shrink_by(float (&x)[M][N][4], const float (&by)[2 * M]) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++)
#pragma unroll
        for (int n = 0; n < N; n++) x[i / 2][n][i % 2 * 2] *= by[i], x[i / 2][n][i % 2 * 2 + 1] *= by[i];
}

// Sets the initial state of a softmax: empty, or the carried out, max and sum if `carried`. It covers the
// head's columns up to `value`; `row` is the thread's first row.
template <int M, int N>
__device__ __forceinline__ void begin_softmax(float (&acc)[M][N][4], float (&most)[2 * M], float (&total)[2 * M], bool carried,
                                              u32 row, u32 rows, u32 my_col, u32 head, u32 value, float scale,
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
                if (8 * n + my_col < value) acc[i / 2][n][i % 2 * 2 + j] = out(r, head * value + 8 * n + my_col + j);
    }
}

// Turns scores of a span's queries (`query` is the thread's first) with its `n` keys from `block` on into
// weights. `shrink` receives the factors for the outputs so far. Unless `whole`, masked pairs get weight 0,
// and so do rows other than the span's queries `first..=last`, which belong to other spans.
template <int M, int N>
__device__ __forceinline__ void weigh(float (&s)[M][N][4], float (&shrink)[2 * M], float (&most)[2 * M], float (&total)[2 * M],
                                      const Attend& a, const Span& span, bool whole, u32 first, u32 last, u32 query,
                                      u32 block, u32 n, u32 my_col, u32 head, float by) {
    if (a.cap)
#pragma unroll
        for (int e = 0; e < 4 * M * N; e++) cap(a, s[e / (4 * N)][e / 4 % N][e % 4]);
    if (whole && !a.dropout.on) { // nothing keeps the compiler from computing all rows beside each other
#pragma unroll
        for (int i = 0; i < 2 * M; i++) shrink[i] = online(s[i / 2], i % 2, by, most[i], total[i]);
        return;
    }
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

// Writes the finished output and lse, or the carried state. Rows that were not touched are left as they are.
template <int M, int N>
__device__ __forceinline__ void end_softmax(const float (&acc)[M][N][4], const float (&most)[2 * M], float (&total)[2 * M],
                                            bool carried, u32 touched, u32 row, u32 my_col, u32 head, u32 value, float scale,
                                            const View<bf16>& o, const View<float>& out, const View<float>& max,
                                            const View<float>& sum) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        u32 r = row + 8 * i;
        total[i] += __shfl_xor_sync(~0u, total[i], 1);
        total[i] += __shfl_xor_sync(~0u, total[i], 2);
        if (!(touched >> i & 1)) continue; // padding: left as is
        float share = carried ? 1 : 1 / total[i];
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (8 * n >= value) continue;
            float x = acc[i / 2][n][i % 2 * 2] * share, y = acc[i / 2][n][i % 2 * 2 + 1] * share;
            u64 col = head * value + 8 * n + my_col;
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
