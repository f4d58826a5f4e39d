// Gradients of attention scores on tensor cores. Of each 16 rows (of 16·M) a thread holds two, 8 apart; of
// each 8 columns it holds the pair that starts at `my_col`. x[M][N][4] are its elements of 8·N columns; those
// of row 8·i are x[i / 2][..][i % 2·2 ..].
#pragma once
#include "attention.cuh"
#include "cores.cuh"

// Turns a score into P∘M, which dV needs, and its dO·Vᵀ into dS, which dQ and dK need. Both `lse` and `by`
// are scaled for powers of 2 instead of e.
__device__ __forceinline__ void grade_cores(float& s, float& dp, float by, float lse, float delta, float factor, float slope) {
    float p = power_of_2(s * by - lse);
    s = p * factor;
    dp = p * (dp * factor - delta) * slope;
}

// The pair at `at` += (x, y).
__device__ __forceinline__ void add_pair(bf16* at, float x, float y) {
    u32 old = *(u32*)at;
    *(u32*)at = pack(bits_to_float(old << 16) + x, bits_to_float(old & 0xffff0000) + y);
}
__device__ __forceinline__ void add_pair(float* at, float x, float y) {
    float2 old = *(float2*)at;
    *(float2*)at = make_float2(old.x + x, old.y + y);
}

// to += x·by, in the rows marked in `touched`. A thread's rows and columns start at `my_row` and `my_col` and
// are 8 apart.
template <int M, int N, class O>
__device__ __forceinline__ void add_pairs(const View<O>& to, u32 row, u32 touched, u32 my_row, u32 col, u32 my_col,
                                          u32 cols, float (&x)[M][N][4], float by) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        if (!(touched >> i & 1)) continue;
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (8 * n >= cols) continue;
            float *pair = &x[i / 2][n][i % 2 * 2];
            add_pair(&to(row + my_row + 8 * i, col + 8 * n + my_col), pair[0] * by, pair[1] * by);
        }
    }
}

// Loads the saved lse, scaled for powers of 2, and delta of a thread's query rows, of which `row` is the
// first; 0 from `end` on.
template <int R>
__device__ __forceinline__ void saved_of_rows(float (&lses)[R], float (&deltas)[R], const View<float>& lse,
                                              const View<float>& delta, u32 row, u32 end, u32 head) {
#pragma unroll
    for (int i = 0; i < R; i++) {
        bool there = row + 8 * i < end;
        lses[i] = there ? lse(row + 8 * i, head) * 1.44269504f : 0;
        deltas[i] = there ? delta(row + 8 * i, head) : 0;
    }
}

// Applies `grade_cores` to all scores of a thread. With dropout, `factor(row, column)` is the factor of each.
// Iterates by rows if BY_ROWS, else by columns.
template <bool BY_ROWS, int M, int N, class Lse, class Delta, class Factor>
__device__ __forceinline__ void grade_all(float (&s)[M][N][4], float (&dp)[M][N][4], const Attend& a, float by, Lse lse,
                                          Delta delta, Factor factor) {
    if (a.cap) {
#pragma unroll
        for (int i = 0; i < 4 * M * N; i++) {
            int r = BY_ROWS ? i / (2 * N) : i % (2 * M), e = BY_ROWS ? i % (2 * N) : i / (2 * M), j = r % 2 * 2 + e % 2;
            float slope = cap(a, s[r / 2][e / 2][j]);
            grade_cores(s[r / 2][e / 2][j], dp[r / 2][e / 2][j], by, lse(r, e), delta(r, e), a.dropout.on ? factor(r, e) : 1, slope);
        }
        return;
    }
    if (a.dropout.on) {
#pragma unroll
        for (int i = 0; i < 4 * M * N; i++) {
            int r = BY_ROWS ? i / (2 * N) : i % (2 * M), e = BY_ROWS ? i % (2 * N) : i / (2 * M), j = r % 2 * 2 + e % 2;
            grade_cores(s[r / 2][e / 2][j], dp[r / 2][e / 2][j], by, lse(r, e), delta(r, e), factor(r, e), 1);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4 * M * N; i++) {
        int r = BY_ROWS ? i / (2 * N) : i % (2 * M), e = BY_ROWS ? i % (2 * N) : i / (2 * M), j = r % 2 * 2 + e % 2;
        grade_cores(s[r / 2][e / 2][j], dp[r / 2][e / 2][j], by, lse(r, e), delta(r, e), 1, 1);
    }
}

// Grades scores of keys (the rows; `key` is the thread's first) with queries of one head (the columns, from
// `query` on), whose lses and deltas are in shared memory. Unless `whole`, masked pairs become 0, and so do
// rows other than the span's keys `first..=last`, which belong to other spans.
template <int M, int N>
__device__ __forceinline__ void grade_keys(float (&s)[M][N][4], float (&dp)[M][N][4], const Attend& a, const Span& span,
                                           bool whole, u32 first, u32 last, u32 key, u32 query, u32 my_col, u32 head,
                                           float by, const float* lses, const float* deltas) {
    auto col = [&](int e) { return e / 2 * 8 + my_col + e % 2; };
    auto factor = [&](int r, int e) {
        u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + query + col(e));
        return dropout_factor(a.dropout, token, (u64)(a.first + head) << 32 | (span.key.position + key + 8 * r));
    };
    grade_all<false>(s, dp, a, by, [&](int, int e) { return lses[col(e)]; }, [&](int, int e) { return deltas[col(e)]; },
              factor);
    if (whole) return;
#pragma unroll
    for (int r = 0; r < 2 * M; r++)
#pragma unroll
        for (int e = 0; e < 2 * N; e++) {
            u32 mine = key + 8 * r, j = r % 2 * 2 + e % 2;
            if (!(mine - first <= last - first && sees(a, span, query + col(e), mine)))
                s[r / 2][e / 2][j] = dp[r / 2][e / 2][j] = 0;
        }
}

// Grades scores of queries (the rows; `query` is the thread's first) with the `n` keys from `block` on (the
// columns). Leaves dS, which dQ needs, in dp.
template <int M, int N>
__device__ __forceinline__ void grade_queries(float (&s)[M][N][4], float (&dp)[M][N][4], const Attend& a, const Span& span,
                                              bool whole, u32 first, u32 last, u32 query, u32 block, u32 n, u32 my_col,
                                              u32 head, float by, const float (&lses)[2 * M], const float (&deltas)[2 * M]) {
    auto col = [&](int e) { return e / 2 * 8 + my_col + e % 2; };
    auto factor = [&](int r, int e) {
        u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + query + 8 * r);
        return dropout_factor(a.dropout, token, (u64)(a.first + head) << 32 | (span.key.position + block + col(e)));
    };
    grade_all<true>(s, dp, a, by, [&](int r, int) { return lses[r]; }, [&](int r, int) { return deltas[r]; }, factor);
    if (whole) return;
#pragma unroll
    for (int r = 0; r < 2 * M; r++)
#pragma unroll
        for (int e = 0; e < 2 * N; e++) {
            u32 mine = query + 8 * r;
            if (!(col(e) < n && mine - first <= last - first && sees(a, span, mine, block + col(e))))
                dp[r / 2][e / 2][r % 2 * 2 + e % 2] = 0;
        }
}
