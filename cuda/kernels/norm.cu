// RMSNorm and LayerNorm with their backwards. A block takes a row: its statistics are sums over the block;
// its elements stay in registers, or are read again from the cache. In backward, a block takes rows a grid's
// width apart and sums its own part of dgain and dbias; `add_rows` adds the parts, in the order of the
// blocks.
// Source: Zhang, Sennrich, arXiv:1910.07467; Ba, Kiros, Hinton, arXiv:1607.06450, §3.1.
#include "row.cuh"

// A row that a block reads more than once. If a thread has at most 32 of its elements the row is HELD: they
// are in registers after the first pass.
template <int N, bool HELD, class T>
struct Row {
    const T* from;
    u32 cols;
    float held[HELD ? 32 / N : 1][N];

    // First pass: calls f(column, N elements) for this thread's columns. The loads of a HELD row are all in
    // flight at once.
    template <class F>
    __device__ __forceinline__ void first(F f) {
        if constexpr (HELD) each_held([&](u32 j, float(&x)[N]) { load(x, from + j); });
        again(f);
    }
    template <class F>
    __device__ __forceinline__ void again(F f) {
        if constexpr (HELD) return each_held(f);
        along<N>(cols, [&](u32 j) {
            float x[N];
            load(x, from + j);
            f(j, x);
        });
    }
    template <class F>
    __device__ __forceinline__ void each_held(F f) {
#pragma unroll
        for (int v = 0; v < 32 / N; v++) {
            u32 j = (v * blockDim.x + threadIdx.x) * N;
            if (j < cols) f(j, held[HELD ? v : 0]);
        }
    }
};
// Calls f<N, HELD>, a function of one block's rows: by lanes or one by one, HELD or not.
#define ROWS(lanes, cols, T, f, ...)                                                   \
    if ((cols) <= 32 * blockDim.x) {                                                   \
        if (lanes) f<LANES<T>, true>(__VA_ARGS__);                                     \
        else f<1, true>(__VA_ARGS__);                                                  \
    } else {                                                                           \
        if (lanes) f<LANES<T>, false>(__VA_ARGS__);                                    \
        else f<1, false>(__VA_ARGS__);                                                 \
    }

// y[B,N] = x · r · gain[1,N], r[B,1] = rsqrt(mean(x²) + eps). One block per row.
template <int N, bool HELD, class T>
__device__ __forceinline__ void rms_norm_row(View<T> y, View<float> r, View<T> x, View<T> gain, float count,
                                             float eps) {
    u64 row = blockIdx.x;
    T* to = y.at + row * y.row_stride;
    Row<N, HELD, T> of = {x.at + row * x.row_stride, x.cols};
    float squares = 0;
    of.first([&](u32, float(&x)[N]) {
#pragma unroll
        for (int n = 0; n < N; n++) squares += x[n] * x[n];
    });
    float scale = rsqrtf(block_sum(squares) * count + eps);
    if (threadIdx.x == 0) r(row, 0) = scale;
    of.again([&](u32 j, float(&x)[N]) {
        float g[N];
        load(g, gain.at + j);
#pragma unroll
        for (int n = 0; n < N; n++) g[n] *= x[n] * scale;
        store(to + j, g);
    });
}
template <class T>
__device__ void rms_norm(View<T> y, View<float> r, View<T> x, View<T> gain, float count, float eps) {
    ROWS(by_lanes(y, x, gain), x.cols, T, rms_norm_row, y, r, x, gain, count, eps)
}
BOTH(rms_norm,
     PARAMS(View<T> y, View<float> r, View<T> x, View<T> gain, float count, float eps),
     y, r, x, gain, count, eps)

// y[B,N] = (x − mean) · r · gain[1,N] + bias[1,N], r = rsqrt(variance + eps), stats[B,2] = (mean, r). One
// block per row. The variance is of differences from the mean: rounding would destroy a difference of two
// large sums.
template <int N, bool HELD, class T>
__device__ __forceinline__ void layer_norm_row(View<T> y, View<float> stats, View<T> x, View<T> gain, View<T> bias,
                                               float count, float eps) {
    u64 row = blockIdx.x;
    T* to = y.at + row * y.row_stride;
    Row<N, HELD, T> of = {x.at + row * x.row_stride, x.cols};
    float sum = 0, squares = 0;
    of.first([&](u32, float(&x)[N]) {
#pragma unroll
        for (int n = 0; n < N; n++) sum += x[n];
    });
    float mean = block_sum(sum) * count;
    of.again([&](u32, float(&x)[N]) {
#pragma unroll
        for (int n = 0; n < N; n++) squares += (x[n] - mean) * (x[n] - mean);
    });
    float r = rsqrtf(block_sum(squares) * count + eps);
    if (threadIdx.x == 0) stats(row, 0) = mean, stats(row, 1) = r;
    of.again([&](u32 j, float(&x)[N]) {
        float g[N], b[N];
        load(g, gain.at + j);
        load(b, bias.at + j);
#pragma unroll
        for (int n = 0; n < N; n++) b[n] += (x[n] - mean) * r * g[n];
        store(to + j, b);
    });
}
template <class T>
__device__ void layer_norm(View<T> y, View<float> stats, View<T> x, View<T> gain, View<T> bias, float count,
                           float eps) {
    ROWS(by_lanes(y, x, gain, bias), x.cols, T, layer_norm_row, y, stats, x, gain, bias, count, eps)
}
BOTH(layer_norm, PARAMS(View<T> y, View<float> stats, View<T> x, View<T> gain, View<T> bias, float count, float eps),
     y, stats, x, gain, bias, count, eps)

// Backward of both norms. With c = x − mean (x for RMSNorm) and g = dy·gain: dx[B,N] = skip + r·(g − Σg/n) −
// c·r³/n·Σ(g·c), without Σg for RMSNorm. A block takes rows a grid's width apart. parts[blocks, N or 2·N]
// receives its Σ dy·c·r and, after it, its Σ dy. If there is `room`, they are summed in shared memory, each
// column by one thread.
template <int N, bool MEAN, class T>
__device__ __forceinline__ void norm_backward_rows(View<T> dx, View<float> parts, View<T> x, View<float> stats,
                                                   View<T> gain, View<T> dy, View<T> skip, float count, float* room) {
    u32 cols = x.cols;
    float *mine = parts.at + blockIdx.x * parts.row_stride, *dgain = room ? room : mine, *dbias = dgain + cols;
    along<N, 1>(cols, [&](u32 j) {
        float zero[N] = {};
        store(dgain + j, zero);
        if (MEAN) store(dbias + j, zero);
    });
    for (u64 row = blockIdx.x; row < x.rows; row += gridDim.x) {
        const T *of = x.at + row * x.row_stride, *from = dy.at + row * dy.row_stride;
        const T* beside = skip.at ? skip.at + row * skip.row_stride : nullptr;
        T* to = dx.at + row * dx.row_stride;
        float mean = MEAN ? stats(row, 0) : 0, r = stats(row, MEAN ? 1 : 0), sums[2] = {0, 0};
        along<N>(cols, [&](u32 j) {
            float x[N], d[N], g[N];
            load(x, of + j);
            load(d, from + j);
            load(g, gain.at + j);
#pragma unroll
            for (int n = 0; n < N; n++) {
                sums[0] += d[n] * g[n] * (x[n] - mean);
                if (MEAN) sums[1] += d[n] * g[n];
            }
        });
        block_sum(sums);
        float slope = sums[0] * r * r * r * count, flat = sums[1] * count;
        along<N, 1>(cols, [&](u32 j) {
            float x[N], d[N], g[N], s[N] = {}, dg[N], db[N];
            load(x, of + j);
            load(d, from + j);
            load(g, gain.at + j);
            load(dg, dgain + j);
            if (MEAN) load(db, dbias + j);
            if (beside) load(s, beside + j);
#pragma unroll
            for (int n = 0; n < N; n++) {
                float c = x[n] - mean;
                dg[n] += d[n] * c * r;
                if (MEAN) db[n] += d[n];
                s[n] += (d[n] * g[n] - flat) * r - c * slope;
            }
            store(dgain + j, dg);
            if (MEAN) store(dbias + j, db);
            store(to + j, s);
        });
    }
    if (!room) return;
    along<N, 1>(cols, [&](u32 j) {
        float sum[N];
        load(sum, dgain + j);
        store(mine + j, sum);
        if (!MEAN) return;
        load(sum, dbias + j);
        store(mine + cols + j, sum);
    });
}
template <bool MEAN, class T>
__device__ __forceinline__ void norm_backward(View<T> dx, View<float> parts, View<T> x, View<float> stats,
                                              View<T> gain, View<T> dy, View<T> skip, float count, u32 shared) {
    SHARED(float, memory);
    float* room = shared ? memory : nullptr;
    bool lanes = by_lanes(dx, x, gain, dy) && (!skip.at || by_lanes(skip));
    if (lanes) norm_backward_rows<LANES<T>, MEAN>(dx, parts, x, stats, gain, dy, skip, count, room);
    else norm_backward_rows<1, MEAN>(dx, parts, x, stats, gain, dy, skip, count, room);
}
template <class T>
__device__ void rms_norm_backward(View<T> dx, View<float> parts, View<T> x, View<float> r, View<T> gain, View<T> dy,
                                  View<T> skip, float count, u32 shared) {
    norm_backward<false>(dx, parts, x, r, gain, dy, skip, count, shared);
}
BOTH(rms_norm_backward,
     PARAMS(View<T> dx, View<float> parts, View<T> x, View<float> r, View<T> gain, View<T> dy, View<T> skip,
            float count, u32 shared),
     dx, parts, x, r, gain, dy, skip, count, shared)
template <class T>
__device__ void layer_norm_backward(View<T> dx, View<float> parts, View<T> x, View<float> stats, View<T> gain,
                                    View<T> dy, View<T> skip, float count, u32 shared) {
    norm_backward<true>(dx, parts, x, stats, gain, dy, skip, count, shared);
}
BOTH(layer_norm_backward,
     PARAMS(View<T> dx, View<float> parts, View<T> x, View<float> stats, View<T> gain, View<T> dy, View<T> skip,
            float count, u32 shared),
     dx, parts, x, stats, gain, dy, skip, count, shared)
