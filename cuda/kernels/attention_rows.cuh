// Attention of single query rows, as in decoding one token at a time. Keys and values pass through registers
// once; reading them takes most of the time.
// Source: Dao et al., "Flash-Decoding for long-context inference" (2023): keys are split, the parts'
// softmaxes joined.
#pragma once
#include "attention.cuh"
#include "early.cuh"

// Heads of one KV head that a block takes together; groups of 16 lanes, each with its own keys and softmaxes.
const u32 TOGETHER = 4, GROUPS = 8, ROW_THREADS = 16 * GROUPS;

// State of a running softmax.
struct Run {
    float max, sum;
};

// Joins n running softmaxes of `value` outputs, `stride` elements apart, each followed by its max and sum, and
// the softmax `more`, whose outputs `at` returns. Calls put(f, x, sum) for every feature. A warp computes it;
// each lane gets max and sum.
template <class At, class Put>
__device__ __forceinline__ Run join(const float* parts, u32 n, u64 stride, u32 value, Run more, At at, Put put) {
    float most = more.max, sum = 0;
    for (u32 i = 0; i < n; i++) most = fmaxf(most, parts[i * stride + value]);
    float base = most == -INFINITY ? 0 : most, by = expf(more.max - base);
    sum = more.max == -INFINITY ? 0 : more.sum * by;
    for (u32 i = 0; i < n; i++) sum += parts[i * stride + value + 1] * expf(parts[i * stride + value] - base);
    for (u32 f = threadIdx.x % 32; f < value; f += 32) {
        float x = more.max == -INFINITY ? 0 : at(f) * by;
        for (u32 i = 0; i < n; i++) x += parts[i * stride + f] * expf(parts[i * stride + value] - base);
        put(f, x, sum);
    }
    return Run{most, sum};
}

// As `join`, and writes to attention's results.
template <class T>
__device__ __forceinline__ void finish(const float* parts, u32 n, u64 stride, u32 value, u64 row, u32 head,
                                       const View<T>& o, const View<float>& out, const View<float>& max,
                                       const View<float>& sum) {
    bool carried = !o.at;
    Run before = carried ? Run{max(row, head), sum(row, head)} : Run{-INFINITY, 0};
    u64 col = (u64)head * value;
    Run now = join(
        parts, n, stride, value, before, [&](u32 f) { return out(row, col + f); },
        [&](u32 f, float x, float total) {
            if (carried)
                out(row, col + f) = x;
            else
                o(row, col + f) = narrow<T>(x * (1 / total));
        });
    __syncwarp(); // all lanes have read what is overwritten
    if (threadIdx.x % 32) return;
    max(row, head) = carried ? now.max : now.max + logf(now.sum);
    if (carried) sum(row, head) = now.sum;
}

// As `attention` of attention.cu. One block per query row, up to 4 heads of one KV head, and one of `splits`
// parts of the visible keys. If there are several parts, each leaves a running softmax in `parts` for
// `attention_join`. On Hopper blocks begin before the kernel before has ended, and let the next kernel begin.
template <class T, int C>
__device__ void attention_rows(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<T> o, View<float> out,
                               View<float> max, View<float> sum, View<float> parts, u32 splits) {
    early::next_may_begin();
    early::wait_for_others();
    SHARED(float, shared);
    const int AHEAD = C == 4 ? 2 : 4; // keys of a group that are read together
    u32 row = blockIdx.x / splits, split = blockIdx.x % splits, dim = a.dim, value = a.value, fan = a.fan();
    u32 chunks = (fan + TOGETHER - 1) / TOGETHER, kv = blockIdx.y / chunks, chunk = blockIdx.y % chunks;
    u32 head = kv * fan + chunk * TOGETHER, heads = min(TOGETHER, fan - chunk * TOGETHER);
    u32 lane = threadIdx.x % 16, group = threadIdx.x / 16;
    bool touched = false,
         aligned =
             ((u64)k.at | (u64)v.at | k.row_stride * sizeof(T) | v.row_stride * sizeof(T)) % (4 * sizeof(T)) == 0 &&
             (dim | value) % 4 == 0;
    float4 query[TOGETHER][C], acc[TOGETHER][C] = {};
    float most[TOGETHER], total[TOGETHER];
#pragma unroll
    for (int h = 0; h < TOGETHER; h++) {
        most[h] = -INFINITY, total[h] = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            u32 f = c * TILE + 4 * lane;
            query[h][c] = get4(&q(row, (u64)(head + h) * dim + f), h < heads ? (int)dim - (int)f : 0, false);
        }
    }
    each_span(spans, false, row, row + 1, [&](Span span) {
        touched = true;
        u32 i = row - span.query.row;
        Seen seen = seen_by(a, span, i);
        u32 in_sight = seen.sinks + minus(seen.to, seen.from);
        u32 end = (u64)in_sight * (split + 1) / splits;
        u64 token = token_hash(a.dropout, span.query.sequence, span.query.position + i);
        for (u32 first = (u64)in_sight * split / splits; first < end; first += AHEAD * GROUPS) {
            float4 x[AHEAD][C], y[AHEAD][C];
            u32 keys[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                u32 j = first + n * GROUPS + group;
                keys[n] = j < seen.sinks ? j : seen.from + j - seen.sinks;
#pragma unroll
                for (int c = 0; c < C; c++) {
                    u32 f = c * TILE + 4 * lane;
                    int of_key = j < end ? (int)dim - (int)f : 0, of_value = j < end ? (int)value - (int)f : 0;
                    x[n][c] = get4(&k((u64)span.key.row + keys[n], (u64)kv * dim + f), of_key, aligned);
                    y[n][c] = get4(&v((u64)span.key.row + keys[n], (u64)kv * value + f), of_value, aligned);
                }
            }
#pragma unroll
            for (int h = 0; h < TOGETHER; h++) {
                if (h >= heads) continue;
                float s[AHEAD], top = most[h];
#pragma unroll
                for (int n = 0; n < AHEAD; n++) {
                    s[n] = 0;
#pragma unroll
                    for (int c = 0; c < C; c++)
                        s[n] += query[h][c].x * x[n][c].x + query[h][c].y * x[n][c].y + query[h][c].z * x[n][c].z +
                                query[h][c].w * x[n][c].w;
#pragma unroll
                    for (int step = 8; step; step /= 2) s[n] += __shfl_xor_sync(~0u, s[n], step);
                    cap(a, s[n]);
                    s[n] = first + n * GROUPS + group < end ? s[n] * a.scale : -INFINITY;
                    top = fmaxf(top, s[n]);
                }
                float base = top == -INFINITY ? 0 : top, shrink = expf(most[h] - base);
                most[h] = top;
                total[h] *= shrink;
#pragma unroll
                for (int c = 0; c < C; c++)
                    acc[h][c].x *= shrink, acc[h][c].y *= shrink, acc[h][c].z *= shrink, acc[h][c].w *= shrink;
#pragma unroll
                for (int n = 0; n < AHEAD; n++) {
                    float p = expf(s[n] - base);
                    total[h] += p;
                    u64 pair = (u64)(a.first + head + h) << 32 | (span.key.position + keys[n]);
                    if (a.dropout.on) p *= dropout_factor(a.dropout, token, pair);
#pragma unroll
                    for (int c = 0; c < C; c++)
                        acc[h][c].x += p * y[n][c].x, acc[h][c].y += p * y[n][c].y, acc[h][c].z += p * y[n][c].z,
                            acc[h][c].w += p * y[n][c].w;
                }
            }
        }
    });
    u64 len = value + 2, stride = TOGETHER * len; // [group][head][outputs, max, sum]
#pragma unroll
    for (int h = 0; h < TOGETHER; h++) {
        float* to = shared + group * stride + h * len;
#pragma unroll
        for (int c = 0; c < C; c++) {
            u32 f = c * TILE + 4 * lane;
            put4(to + f, &acc[h][c].x, (int)value - (int)f);
        }
        if (lane == 0) to[value] = most[h], to[value + 1] = total[h];
    }
    __syncthreads();
    u32 h = threadIdx.x / 32; // one warp per head
    if (h >= heads) return;
    if (splits == 1) {
        if (touched) finish(shared + h * len, GROUPS, stride, value, row, head + h, o, out, max, sum);
        return;
    }
    float* part = parts.at + (((u64)row * a.queries + head + h) * splits + split) * len;
    Run now = join(
        shared + h * len, GROUPS, stride, value, Run{-INFINITY, 0}, [](u32) { return 0.0f; },
        [&](u32 f, float x, float) { part[f] = x; });
    if (threadIdx.x % 32 == 0) part[value] = now.max, part[value + 1] = touched ? now.sum : -1; // -1: padding
}

// Kernels of up to 128 and up to 256 features.
#define ROW_PARAMS                                                                                              \
    PARAMS(Attend a, List spans, View<T> q, View<T> k, View<T> v, View<T> o, View<float> out, View<float> max, \
           View<float> sum, View<float> parts, u32 splits)
#define ROW_ARGUMENTS a, spans, q, k, v, o, out, max, sum, parts, splits
#define BY_ROWS(kernel)                                                                               \
    WIDTH(kernel, attention_rows, f32, float, 128, 2, ROW_THREADS, 2, ROW_PARAMS, ROW_ARGUMENTS)      \
    WIDTH(kernel, attention_rows, f32, float, 256, 4, ROW_THREADS, 1, ROW_PARAMS, ROW_ARGUMENTS)      \
    WIDTH(kernel, attention_rows, bf16, bf16, 128, 2, ROW_THREADS, 2, ROW_PARAMS, ROW_ARGUMENTS)      \
    WIDTH(kernel, attention_rows, bf16, bf16, 256, 4, ROW_THREADS, 1, ROW_PARAMS, ROW_ARGUMENTS)
