// Norms of gradients and optimizer steps. Contiguous matrices are read and written four elements at a time.
#include "adamw.cuh"
#include "lanes.cuh"
#include "sum.cuh"

namespace optimizer {
template <class T>
__device__ __forceinline__ bool in_fours(View<T> x) {
    return x.lies_together() && (u64)x.at % (4 * sizeof(T)) == 0;
}

// Calls f(lanes, row, column) for this thread's part of all elements. Contiguous matrices are treated as one
// row, in fours and a remainder; the elements of other matrices are taken one by one.
template <class F>
__device__ __forceinline__ void each_four(u32 rows, u32 cols, bool fours, F f) {
    u64 n = (u64)rows * cols, first = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    u64 cut = fours ? n / 4 : 0;
    for (u64 i = first; i < cut; i += step) f(Lanes<4>{}, 0, 4 * i);
    for (u64 i = 4 * cut + first; i < n; i += step) f(Lanes<1>{}, fours ? 0 : i / cols, fours ? i : i % cols);
}

// w = f(w, moved). If there is a master copy, it is what f updates, and w becomes its value. `moved` returns
// the update's lanes at an element.
template <class T, class M, class F>
__device__ __forceinline__ void change(View<T> w, View<float> master, bool fours, M moved, F f) {
    bool has = master.at != nullptr;
    each_four(w.rows, w.cols, fours && in_fours(w) && (!has || in_fours(master)), [&](auto lanes, u64 i, u64 j) {
        const int N = decltype(lanes)::n;
        Lanes<N> by = moved(lanes, i, j), to = has ? load<N>(&master(i, j)) : load<N>(&w(i, j));
#pragma unroll
        for (int l = 0; l < N; l++) to.x[l] = f(to.x[l], by.x[l]);
        if (has) store(&master(i, j), to);
        store(&w(i, j), to);
    });
}
} // namespace optimizer

// out[1,1] += Σ x²: each thread sums its part, then sum.cuh sums the launch.
template <class T>
__device__ void add_norm2(View<T> out, View<T> x) {
    using namespace optimizer;
    float mine = 0;
    each_four(x.rows, x.cols, in_fours(x), [&](auto lanes, u64 i, u64 j) {
        lanes = load<decltype(lanes)::n>(&x(i, j));
        for (float of : lanes.x) mine += of * of;
    });
    sums::launch(mine, [&](float sum) { out(0, 0) = narrow<T>(wide(out(0, 0)) + sum); });
}
BOTH(add_norm2, PARAMS(View<T> out, View<T> x), out, x)

// factor[1,1] = min(1, limit/√norm2). One thread.
template <class T>
__device__ void clip_factor(View<T> factor, View<T> norm2, float limit) {
    factor(0, 0) = narrow<T>(fminf(limit / sqrtf(wide(norm2(0, 0))), 1));
}
BOTH(clip_factor, PARAMS(View<T> factor, View<T> norm2, float limit), factor, norm2, limit)

// w = keep · w − lr · factor · g, element by element; keep is 1 − lr·decay.
template <class T>
__device__ void sgd(View<T> w, View<float> master, View<float> g, View<float> factor, float lr, float keep) {
    using namespace optimizer;
    float step = lr * factor(0, 0);
    auto moved = [&](auto lanes, u64 i, u64 j) {
        lanes = load<decltype(lanes)::n>(&g(i, j));
        for (float& x : lanes.x) x *= step;
        return lanes;
    };
    change(w, master, in_fours(g), moved, [&](float w, float moved) { return w * keep - moved; });
}
BOTH(sgd, PARAMS(View<T> w, View<float> master, View<float> g, View<float> factor, float lr, float keep), w, master,
     g, factor, lr, keep)

// One step of AdamW on factor · g, element by element.
template <class T>
__device__ void adamw(View<T> w, View<float> master, View<float> m, View<float> v, View<float> g, View<float> factor,
                      AdamW by) {
    using namespace optimizer;
    float scale = factor(0, 0), fresh1 = 1 - by.beta1, fresh2 = 1 - by.beta2;
    auto moved = [&](auto lanes, u64 i, u64 j) {
        const int N = decltype(lanes)::n;
        Lanes<N> of_m = load<N>(&m(i, j)), of_v = load<N>(&v(i, j)), of_g = load<N>(&g(i, j));
#pragma unroll
        for (int l = 0; l < N; l++) {
            float x = of_g.x[l] * scale;
            of_m.x[l] = of_m.x[l] * by.beta1 + fresh1 * x;
            of_v.x[l] = of_v.x[l] * by.beta2 + fresh2 * (x * x);
            lanes.x[l] = by.first * of_m.x[l] / (sqrtf(of_v.x[l] * by.second) + by.eps);
        }
        store(&m(i, j), of_m);
        store(&v(i, j), of_v);
        return lanes;
    };
    change(w, master, in_fours(m) && in_fours(v) && in_fours(g), moved,
           [&](float w, float moved) { return w * by.keep - moved; });
}
BOTH(adamw, PARAMS(View<T> w, View<float> master, View<float> m, View<float> v, View<float> g, View<float> factor,
     AdamW by), w, master, m, v, g, factor, by)

// One step of Lion on factor · g, element by element; keep is 1 − lr·decay. Source: Chen et al., Algorithm 2,
// arXiv:2302.06675.
template <class T>
__device__ void lion(View<T> w, View<float> master, View<float> m, View<float> g, View<float> factor, float lr,
                     float keep, float beta1, float beta2) {
    using namespace optimizer;
    float scale = factor(0, 0), fresh1 = 1 - beta1, fresh2 = 1 - beta2;
    auto moved = [&](auto lanes, u64 i, u64 j) {
        const int N = decltype(lanes)::n;
        Lanes<N> of_m = load<N>(&m(i, j)), of_g = load<N>(&g(i, j));
#pragma unroll
        for (int l = 0; l < N; l++) {
            float x = of_g.x[l] * scale, to = of_m.x[l] * beta1 + fresh1 * x;
            lanes.x[l] = lr * (to > 0 ? 1 : to < 0 ? -1 : to);
            of_m.x[l] = of_m.x[l] * beta2 + fresh2 * x;
        }
        store(&m(i, j), of_m);
        return lanes;
    };
    change(w, master, in_fours(m) && in_fours(g), moved, [&](float w, float moved) { return w * keep - moved; });
}
BOTH(lion, PARAMS(View<T> w, View<float> master, View<float> m, View<float> g, View<float> factor, float lr,
     float keep, float beta1, float beta2), w, master, m, g, factor, lr, keep, beta1, beta2)

// Nesterov's momentum of x = factor · g, element by element: m = β·m + (1 − β)·x, to = β·m + (1 − β)·x.
template <class T>
__device__ void momentum(View<T> to, View<T> m, View<T> g, View<T> factor, float beta) {
    using namespace optimizer;
    float scale = wide(factor(0, 0)), fresh = 1 - beta;
    each_four(g.rows, g.cols, in_fours(to) && in_fours(m) && in_fours(g), [&](auto lanes, u64 i, u64 j) {
        const int N = decltype(lanes)::n;
        Lanes<N> of_m = load<N>(&m(i, j)), of_g = load<N>(&g(i, j));
#pragma unroll
        for (int l = 0; l < N; l++) {
            float x = fresh * (of_g.x[l] * scale);
            of_m.x[l] = of_m.x[l] * beta + x;
            lanes.x[l] = of_m.x[l] * beta + x;
        }
        store(&m(i, j), of_m);
        store(&to(i, j), lanes);
    });
}
BOTH(momentum, PARAMS(View<T> to, View<T> m, View<T> g, View<T> factor, float beta), to, m, g, factor, beta)

// y = by · factor · x, element by element.
template <class T>
__device__ void scale(View<T> y, View<T> x, View<T> factor, float by) {
    using namespace optimizer;
    by = wide(narrow<T>(by)) * wide(factor(0, 0));
    each_four(x.rows, x.cols, in_fours(y) && in_fours(x), [&](auto lanes, u64 i, u64 j) {
        lanes = load<decltype(lanes)::n>(&x(i, j));
        for (float& of : lanes.x) of *= by;
        store(&y(i, j), lanes);
    });
}
BOTH(scale, PARAMS(View<T> y, View<T> x, View<T> factor, float by), y, x, factor, by)
