// Shared by attention and its backward: the arguments, which keys a query sees, and tiles of 64 × 64 in
// shared memory whose products are plain multiply-adds, for any dtype and up to 256 features per head.
#pragma once
#include "dropout.cuh"
#include "heads.cuh"

// Arguments of attention: `AttendArgs` of launches/attention.rs.
struct Attend : Heads {
    u32 first;       // index in the model of the first query head here
    u32 causal;      // nonzero if queries see only keys up to their own position:
    u32 size, sinks; // the last `size` of these, and the first `sinks` of the sequence
    float scale;     // factor of a product, which makes it a score
    float cap;       // cap of products before that, or 0
    Dropout dropout;
};

// Caps a product of a query and a key. Returns the factor of its gradient.
__device__ __forceinline__ float cap(const Attend& a, float& s) {
    if (!a.cap) return 1;
    float t = tanhf(s / a.cap);
    s = a.cap * t;
    return 1 - t * t;
}

// One sequence's queries and the keys they may see: `Span` of the kernels crate.
struct Span {
    Segment query, key;
};

__device__ __forceinline__ Span span_of(List spans, u32 i) {
    const uint4* at = (const uint4*)spans.at + 2 * (u64)i; // index lists have the alignment of any allocation
    uint4 q = at[0], k = at[1];
    return Span{{q.x, q.y, q.z, q.w}, {k.x, k.y, k.z, k.w}};
}

__device__ __forceinline__ u32 minus(u32 a, u32 b) { return a > b ? a - b : 0; }

// Calls f(span), in order, for each span that has rows among `from..to`: query rows, or key rows if
// `of_keys`. All threads of the block call it together; each warp tests 32 spans at once.
template <class F>
__device__ __forceinline__ void each_span(List spans, bool of_keys, u32 from, u32 to, F f) {
    u32 n = spans.len / 8, lane = threadIdx.x & 31;
    for (u32 s = 0; s < n; s += 32) {
        bool here = false;
        if (s + lane < n) {
            const u32* at = spans.at + 8 * (u64)(s + lane) + 4 * of_keys;
            here = at[0] < to && at[0] + at[1] > from;
        }
        for (u32 left = __ballot_sync(~0u, here); left; left &= left - 1) f(span_of(spans, s + __ffs(left) - 1));
    }
}

// The visible keys of a span: rows `0..sinks` and `from..to`. Loops take them in tiles of at most `most`,
// from `begin` to before `to`.
struct Seen {
    u32 sinks, from, to;
    __device__ __forceinline__ u32 begin() const { return sinks ? 0 : from; }
    __device__ __forceinline__ u32 count(u32 k, u32 most) const { return min(most, (k < sinks ? sinks : to) - k); }
    __device__ __forceinline__ u32 next(u32 k, u32 most) const {
        return k < sinks && k + most >= sinks ? from : k + most;
    }
};

// The keys that query `i` sees: `Mask::seen` of the kernels crate.
__device__ __forceinline__ Seen seen_by(const Attend& a, const Span& span, u32 i) {
    u32 first = span.key.position, len = span.key.len, end = span.query.position + i + 1;
    if (!a.causal) return Seen{0, 0, len};
    Seen seen = {min(minus(a.sinks, first), len), min(minus(minus(end, a.size), first), len),
                 min(minus(end, first), len)};
    return seen.from <= seen.sinks ? Seen{0, 0, seen.to} : seen;
}
// The keys that at least one of the queries `first..=last` sees.
__device__ __forceinline__ Seen seen_by_some(const Attend& a, const Span& span, u32 first, u32 last) {
    Seen low = seen_by(a, span, first), high = seen_by(a, span, last);
    return low.from <= high.sinks ? Seen{0, 0, high.to} : Seen{high.sinks, low.from, high.to};
}
// Calls f(first, n) for tiles of at most 64 of the visible keys.
template <class F>
__device__ __forceinline__ void each_block(Seen seen, F f) {
    for (u32 k = seen.begin(); k < seen.to; k = seen.next(k, 64)) f(k, seen.count(k, 64));
}
// True if query `i` of a span sees its key `j`.
__device__ __forceinline__ bool sees(const Attend& a, const Span& span, u32 i, u32 j) {
    u32 q = span.query.position + i, k = span.key.position + j;
    return !a.causal || (k <= q && (q - k < a.size || k < a.sinks));
}
// True if queries `i..=to_i` are known to see all keys `j..=to_j`; it may be false although they do.
__device__ __forceinline__ bool all_see(const Attend& a, const Span& span, u32 i, u32 to_i, u32 j, u32 to_j) {
    return sees(a, span, i, to_j) && (!a.causal || span.query.position + to_i - (span.key.position + j) < a.size);
}
// Queries of a span that see at least one of its keys `first..=last`: from .x to before .y. Some queries of
// this range may see none.
__device__ __forceinline__ uint2 seeing(const Attend& a, const Span& span, u32 first, u32 last) {
    u32 n = span.query.len, q = span.query.position, k = span.key.position;
    if (!a.causal) return uint2{0, n};
    u64 end = (u64)k + last + a.size; // the position after the last query whose window holds the last key
    return uint2{min(minus(k + first, q), n), k + first < a.sinks || end >= (u64)q + n ? n : minus((u32)end, q)};
}

// Loads four consecutive aligned elements. With `n`: loads the first `n` of four, aligned or not, and 0 for
// the others.
__device__ __forceinline__ float4 get4(const float* at) { return *(const float4*)at; }
__device__ __forceinline__ float4 get4(const bf16* at) {
    uint2 x = *(const uint2*)at;
    return float4{bits_to_float(x.x << 16), bits_to_float(x.x & 0xffff0000), bits_to_float(x.y << 16),
                  bits_to_float(x.y & 0xffff0000)};
}
template <class T>
__device__ __forceinline__ float4 get4(const T* at, int n, bool aligned) {
    if (aligned && n >= 4) return get4(at);
    return float4{n > 0 ? wide(at[0]) : 0, n > 1 ? wide(at[1]) : 0, n > 2 ? wide(at[2]) : 0, n > 3 ? wide(at[3]) : 0};
}
// Stores the first `n` of four elements.
template <class T>
__device__ __forceinline__ void put4(T* at, const float* x, int n) {
    for (int j = 0; j < 4; j++)
        if (j < n) at[j] = narrow<T>(x[j]);
}

// A tile of 64 rows and 64 columns in shared memory; rows are padded against bank conflicts.
const int TILE = 64, ROW = TILE + 4, TILE_LEN = TILE * ROW, TILE_THREADS = 256;

// tile = x[row .. row + n, col .. col + cols], 0 beyond.
template <class T>
__device__ __forceinline__ void load_tile(float* tile, const View<T>& x, u64 row, u32 n, u32 col, int cols) {
    const T* from = x.at + row * x.row_stride + col;
    if (((u64)from | x.row_stride * sizeof(T) | cols * sizeof(T)) % (4 * sizeof(T)) == 0) {
#pragma unroll 2
        for (u32 e = threadIdx.x; e < TILE * TILE / 4; e += TILE_THREADS) {
            u32 r = e / (TILE / 4), c = e % (TILE / 4) * 4;
            bool there = r < n && (int)c < cols;
            *(float4*)(tile + r * ROW + c) = there ? get4(from + r * x.row_stride + c) : float4{0, 0, 0, 0};
        }
        return;
    }
#pragma unroll 2
    for (u32 e = threadIdx.x; e < TILE * TILE; e += TILE_THREADS) {
        u32 r = e / TILE, c = e % TILE;
        tile[r * ROW + c] = r < n && (int)c < cols ? wide(from[r * x.row_stride + c]) : 0;
    }
}

// A thread holds 4 × 4 elements of a tile, in rows 4·(thread / 16) + i. Their columns are thread % 16 + 16·j
// in a product with a transposed tile, and 4·(thread % 16) + j in a product with a tile as stored.
typedef float Sixteen[4][4];

__device__ __forceinline__ u32 my_row() { return threadIdx.x / 16 * 4; }
__device__ __forceinline__ u32 my_col() { return threadIdx.x % 16; }

// s += A·Bᵀ, over `n` features.
__device__ __forceinline__ void times_turned(Sixteen& s, const float* a, const float* b, int n) {
    a += my_row() * ROW, b += my_col() * ROW;
#pragma unroll 1
    for (int f = 0; f < n; f += 4) {
        float4 x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = *(const float4*)(a + i * ROW + f), y[i] = *(const float4*)(b + 16 * i * ROW + f);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
    }
}
// s += A·B, over `n` columns of A and rows of B.
__device__ __forceinline__ void times(Sixteen& s, const float* a, const float* b, int n) {
    a += my_row() * ROW, b += 4 * my_col();
#pragma unroll 1
    for (int k = 0; k < n; k += 4) {
        float4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = *(const float4*)(a + i * ROW + k);
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            float4 y = *(const float4*)(b + (k + kk) * ROW);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float w = kk == 0 ? x[i].x : kk == 1 ? x[i].y : kk == 2 ? x[i].z : x[i].w;
                s[i][0] += w * y.x, s[i][1] += w * y.y, s[i][2] += w * y.z, s[i][3] += w * y.w;
            }
        }
    }
}
// tile = s, in the layout of `times_turned`.
__device__ __forceinline__ void put_tile(float* tile, const Sixteen& s) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) tile[(my_row() + i) * ROW + my_col() + 16 * j] = s[i][j];
}

// Kernel `kernel` for one dtype and up to `width` features, held as C tiles: calls the template `name`.
// `blocks` of its blocks fit a multiprocessor.
#define WIDTH(kernel, name, number, T_, width, C, threads, blocks, params, ...)                                   \
    namespace in_##number {                                                                                       \
        using T = T_;                                                                                             \
        KERNEL __launch_bounds__(threads, blocks) kernel##_##width##_##number params { name<T, C>(__VA_ARGS__); } \
    }
// The kernels of `name` by tiles. bf16 uses them only where it does not fit tensor cores, which is rare: one
// kernel takes all widths.
#define BY_TILES(name, params, ...)                                             \
    WIDTH(name, name, f32, float, 64, 1, TILE_THREADS, 2, params, __VA_ARGS__)  \
    WIDTH(name, name, f32, float, 256, 4, TILE_THREADS, 1, params, __VA_ARGS__) \
    WIDTH(name, name, bf16, bf16, 256, 4, TILE_THREADS, 1, params, __VA_ARGS__)
