// RMSNorm and LayerNorm with their backwards. A block takes a row: its statistics are sums over the block, and its
// numbers are read again from the cache that they came through. Backwards, a block takes every so many rows, and adds
// up its own part of dgain and dbias beside them; the parts are added by `add_rows`, in the order of the blocks.
// Source: Zhang, Sennrich, arXiv:1910.07467; Ba, Kiros, Hinton, arXiv:1607.06450, §3.1.
#include "row.cuh"

// y[B,N] = x · r · gain[1,N], r[B,1] = rsqrt(mean(x²) + eps): a block a row.
template <int N, class T>
__device__ __forceinline__ void rms_norm_row(View<T> y, View<float> r, View<T> x, View<T> gain, float count,
                                             float eps) {
    u64 row = blockIdx.x;
    const T* from = x.at + row * x.row_stride;
    T* to = y.at + row * y.row_stride;
    float squares = 0;
    along<N>(x.cols, [&](u32 j) {
        float x[N];
        load(x, from + j);
#pragma unroll
        for (int n = 0; n < N; n++) squares += x[n] * x[n];
    });
    float scale = rsqrtf(block_sum(squares) * count + eps);
    if (threadIdx.x == 0) r(row, 0) = scale;
    along<N>(x.cols, [&](u32 j) {
        float x[N], g[N];
        load(x, from + j);
        load(g, gain.at + j);
#pragma unroll
        for (int n = 0; n < N; n++) x[n] = x[n] * scale * g[n];
        store(to + j, x);
    });
}
template <class T>
__device__ void rms_norm(View<T> y, View<float> r, View<T> x, View<T> gain, float count, float eps) {
    if (by_lanes(y, x, gain)) rms_norm_row<LANES<T>>(y, r, x, gain, count, eps);
    else rms_norm_row<1>(y, r, x, gain, count, eps);
}
BOTH(rms_norm,
     PARAMS(View<T> y, View<float> r, View<T> x, View<T> gain, float count, float eps),
     y, r, x, gain, count, eps)

// y[B,N] = (x − mean) · r · gain[1,N] + bias[1,N], r = rsqrt(variance + eps), stats[B,2] = (mean, r): a block a row.
// The variance is of differences from the mean, as a difference of two large sums would be rounded away.
template <int N, class T>
__device__ __forceinline__ void layer_norm_row(View<T> y, View<float> stats, View<T> x, View<T> gain, View<T> bias,
                                               float count, float eps) {
    u64 row = blockIdx.x;
    const T* from = x.at + row * x.row_stride;
    T* to = y.at + row * y.row_stride;
    float sum = 0, squares = 0;
    along<N>(x.cols, [&](u32 j) {
        float x[N];
        load(x, from + j);
#pragma unroll
        for (int n = 0; n < N; n++) sum += x[n];
    });
    float mean = block_sum(sum) * count;
    along<N>(x.cols, [&](u32 j) {
        float x[N];
        load(x, from + j);
#pragma unroll
        for (int n = 0; n < N; n++) squares += (x[n] - mean) * (x[n] - mean);
    });
    float r = rsqrtf(block_sum(squares) * count + eps);
    if (threadIdx.x == 0) stats(row, 0) = mean, stats(row, 1) = r;
    along<N>(x.cols, [&](u32 j) {
        float x[N], g[N], b[N];
        load(x, from + j);
        load(g, gain.at + j);
        load(b, bias.at + j);
#pragma unroll
        for (int n = 0; n < N; n++) x[n] = (x[n] - mean) * r * g[n] + b[n];
        store(to + j, x);
    });
}
template <class T>
__device__ void layer_norm(View<T> y, View<float> stats, View<T> x, View<T> gain, View<T> bias, float count,
                           float eps) {
    if (by_lanes(y, x, gain, bias)) layer_norm_row<LANES<T>>(y, stats, x, gain, bias, count, eps);
    else layer_norm_row<1>(y, stats, x, gain, bias, count, eps);
}
BOTH(layer_norm, PARAMS(View<T> y, View<float> stats, View<T> x, View<T> gain, View<T> bias, float count, float eps),
     y, stats, x, gain, bias, count, eps)

// What both norms' backwards have: with c = x − mean (x where there is no mean) and g = dy·gain, dx[B,N] = skip + r·(g
// − Σg/n) − c·r³/n·Σ(g·c), without Σg for RMSNorm; a block takes rows a grid's width apart. parts[blocks, N or 2·N]
// become its Σ dy·c·r and, beside it, its Σ dy: they are added up in shared memory, if there is `room`, each column by
// one thread.
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
