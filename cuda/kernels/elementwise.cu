// Elementwise kernels: sums, copies, activations, dropout, rotations. A thread moves 16 bytes at once where
// rows are aligned.
#include "dropout.cuh"
#include "rotary.cuh"

// y = f(x, row) for PIECES pieces of N adjacent elements: the first, then every `step`-th. A row has `per`
// pieces; `per` is 0 if everything is one row. All pieces are loaded before any is used, so that the loads
// overlap.
template <int N, int PIECES, int OUT, int IN, class T, class F>
__device__ __forceinline__ void map_pieces(
    const View<T> (&y)[OUT], const View<T> (&x)[IN], u64 first, u64 step, u64 per, F f) {
    float from[PIECES][IN][N], to[OUT][N];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        u64 i = first + p * step, row = per ? i / per : 0, col = (i - row * per) * N;
#pragma unroll
        for (int k = 0; k < IN; k++) load(from[p][k], &x[k].at[row * x[k].row_stride + col]);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        u64 i = first + p * step, row = per ? i / per : 0, col = (i - row * per) * N;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float one[IN], other[OUT];
            for (int k = 0; k < IN; k++) one[k] = from[p][k][n];
            f(other, one, row);
            for (int k = 0; k < OUT; k++) to[k][n] = other[k];
        }
#pragma unroll
        for (int k = 0; k < OUT; k++) store(&y[k].at[row * y[k].row_stride + col], to[k]);
    }
}
// y = f(x, row) element by element, for all rows of the last x. `by_rows`: f needs the row. A thread takes
// two pieces of 16 bytes, or single elements, a grid's width apart. Contiguous matrices are treated as one
// row.
template <int N, int OUT, int IN, class T, class F>
__device__ __forceinline__ void map_by(const View<T> (&y)[OUT], const View<T> (&x)[IN], bool together, F f) {
    u64 of_row = x[IN - 1].cols / N, all = x[IN - 1].rows * of_row, per = together ? 0 : of_row;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    const int PIECES = N > 1 ? 2 : 1;
    for (; i + (PIECES - 1) * step < all; i += PIECES * step) map_pieces<N, PIECES>(y, x, i, step, per, f);
    if (N > 1 && i < all) map_pieces<N, 1>(y, x, i, step, per, f);
}
template <int OUT, int IN, class T, class F>
__device__ __forceinline__ void map(const View<T> (&y)[OUT], const View<T> (&x)[IN], F f, bool by_rows = false) {
    bool lanes = true, together = !by_rows;
    for (int k = 0; k < OUT; k++) lanes = lanes && by_lanes(y[k]), together = together && y[k].lies_together();
    for (int k = 0; k < IN; k++) lanes = lanes && by_lanes(x[k]), together = together && x[k].lies_together();
    if (lanes) map_by<LANES<T>>(y, x, together, f);
    else map_by<1>(y, x, together, f);
}

// y[B,N] = value.
template <class T>
__device__ void fill(View<T> y, float value) {
    map<1, 1, T>({y}, {y}, [=](float* to, const float*, u64) { *to = value; });
}
BOTH(fill, PARAMS(View<T> y, float value), y, value)

// y[B,N] = x[B,N].
template <class T>
__device__ void copy(View<T> y, View<T> x) {
    map<1, 1, T>({y}, {x}, [](float* to, const float* x, u64) { *to = *x; });
}
BOTH(copy, PARAMS(View<T> y, View<T> x), y, x)

// y[B,N] = x[B,N], rounded to T.
template <class T>
__device__ void narrow(View<T> y, View<float> x) {
    each(y.rows, y.cols, [&](u64 row, u64 col) { y(row, col) = narrow<T>(x(row, col)); });
}
BOTH(narrow, PARAMS(View<T> y, View<float> x), y, x)

// y[B,N] = x[B,N] of any strides, by squares of 32 × 32 that are read along x's columns and written along y's
// rows, so that a transpose reads and writes whole lines. A block of 256 threads takes one square after
// another.
template <class T>
__device__ void gather(View<T> y, View<T> x) {
    __shared__ T square[32][33];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 across = (y.cols + 31) / 32, squares = across * ((y.rows + 31) / 32);
    for (u64 at = blockIdx.x; at < squares; at += gridDim.x) {
        u64 row = at / across * 32, col = at % across * 32;
        for (u32 j = warp; j < 32; j += 8)
            if (row + lane < y.rows && col + j < y.cols) square[lane][j] = x(row + lane, col + j);
        __syncthreads();
        for (u32 i = warp; i < 32; i += 8)
            if (row + i < y.rows && col + lane < y.cols) y(row + i, col + lane) = square[i][lane];
        __syncthreads();
    }
}
BOTH(gather, PARAMS(View<T> y, View<T> x), y, x)

// y[B,N] += a[B,N].
template <class T>
__device__ void add(View<T> y, View<T> a) {
    map<1, 2, T>({y}, {y, a}, [](float* to, const float* x, u64) { *to = x[0] + x[1]; });
}
BOTH(add, PARAMS(View<T> y, View<T> a), y, a)

// y[B,N] = the larger of y and a.
template <class T>
__device__ void stab(View<T> y, View<T> a) {
    map<1, 2, T>({y}, {y, a}, [](float* to, const float* x, u64) { *to = x[0] > x[1] ? x[0] : x[1]; });
}
BOTH(stab, PARAMS(View<T> y, View<T> a), y, a)

// y[B,N] += row[1,N], to every row.
template <class T>
__device__ void add_row(View<T> y, View<T> row) {
    row.rows = y.rows, row.row_stride = 0;
    map<1, 2, T>({y}, {y, row}, [](float* to, const float* x, u64) { *to = x[0] + x[1]; }, true);
}
BOTH(add_row, PARAMS(View<T> y, View<T> row), y, row)

// y[B,N] = y · by[B,1].
template <class T>
__device__ void scale_rows(View<T> y, View<float> by) {
    y.rows = by.rows;
    map<1, 1, T>({y}, {y}, [=](float* to, const float* x, u64 row) { *to = *x * by(row, 0); }, true);
}
BOTH(scale_rows, PARAMS(View<T> y, View<float> by), y, by)

// r[B,1] = rsqrt(r · count + eps), r a sum of squares.
template <class T>
__device__ void inverse_rms(View<T> r, float count, float eps) {
    map<1, 1, T>({r}, {r}, [=](float* to, const float* x, u64) { *to = rsqrtf(*x * count + eps); });
}
BOTH(inverse_rms, PARAMS(View<T> r, float count, float eps), r, count, eps)

// y[B,N] = x · r · gain[1,N], less z · r² · s · count if there is a z; stats[B,2] = (r, s).
template <class T>
__device__ void norm_part(View<T> y, View<T> x, View<float> stats, View<T> gain, View<T> z, float count) {
    gain.rows = x.rows, gain.row_stride = 0;
    if (z.at) {
        map<1, 3, T>({y}, {gain, z, x}, [=](float* to, const float* of, u64 row) {
            float r = stats(row, 0);
            *to = of[2] * r * of[0] - of[1] * (r * r * stats(row, 1) * count);
        }, true);
    } else {
        map<1, 2, T>({y}, {gain, x}, [=](float* to, const float* of, u64 row) {
            *to = of[1] * stats(row, 0) * of[0];
        }, true);
    }
}
BOTH(norm_part, PARAMS(View<T> y, View<T> x, View<float> stats, View<T> gain, View<T> z, float count), y, x, stats,
     gain, z, count)

// sums[p,N] = Σ over the p-th part of x's rows [B,N], added to the old sums if `add`. One block per part and
// 32 columns; its warps take rows in turn.
template <class T>
__device__ void add_rows(View<float> sums, View<T> x, u32 add) {
    __shared__ float of_warps[8][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
    u64 part = (x.rows + gridDim.y - 1) / gridDim.y, first = part * blockIdx.y, end = min(first + part, (u64)x.rows);
    float sum = 0;
    if (col < x.cols) {
#pragma unroll 8
        for (u64 i = first + warp; i < end; i += 8) sum += wide(x(i, col));
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= x.cols) return;
    float& to = sums(blockIdx.y, col);
    sum = add ? to : 0;
    for (u32 w = 0; w < 8; w++) sum += of_warps[w][lane];
    to = sum;
}
BOTH(add_rows, PARAMS(View<float> sums, View<T> x, u32 add), sums, x, add)

// Φ(x): below 0 it is e^(−x²/2)·t·p(t) with t = 1/(1 + 0.32·|x|), as in `normal_f32` of the tensor crate.
__device__ __forceinline__ float normal_cdf(float x) {
    const float P[10] = {-0.021623133f, 0.097935215f, -0.15160769f, 0.07046826f, -0.012533999f,
                         0.059799325f,  0.08759353f,  0.11464703f,  0.12765992f, 0.12766154f};
    float t = reciprocal(1.0f + 0.32f * fabsf(x)), p = P[0];
#pragma unroll
    for (int k = 1; k < 10; k++) p = p * t + P[k];
    float below = power_of_2(-0.721347520f * x * x) * t * p;
    return x < 0 ? below : 1 - below;
}

// `Activation` of the kernels crate.
enum { GELU, GELU_TANH, RELU };
// 2√(2/π) and the weight of the cube in GELU's tanh form.
const float GELU_A = 1.5957691216057307f, GELU_B = 0.044715f;
__device__ __forceinline__ float gelu_gate(float x) { return sigmoid(GELU_A * (x + GELU_B * x * x * x)); }

// h[B,N] = f(x[B,N]).
template <class T>
__device__ void activate(View<T> h, View<T> x, u32 f) {
    if (f == GELU) map<1, 1, T>({h}, {x}, [](float* h, const float* x, u64) { *h = *x * normal_cdf(*x); });
    if (f == GELU_TANH) map<1, 1, T>({h}, {x}, [](float* h, const float* x, u64) { *h = *x * gelu_gate(*x); });
    if (f == RELU) map<1, 1, T>({h}, {x}, [](float* h, const float* x, u64) { *h = *x * (*x > 0 ? 1.0f : 0.0f); });
}
BOTH(activate, PARAMS(View<T> h, View<T> x, u32 f), h, x, f)

// dx[B,N] = dh[B,N] · f'(x[B,N]). In the order of the enum, f' is Φ + x·φ; s + x·s·(1 − s)·a·(1 + 3b·x²),
// where s is the gate; the unit step.
template <class T>
__device__ void activate_backward(View<T> dx, View<T> x, View<T> dh, u32 f) {
    auto gelu = [](float* dx, const float* of, u64) {
        float x = of[0], density = 0.3989422804014327f * power_of_2(-0.721347520f * x * x);
        *dx = of[1] * (normal_cdf(x) + x * density);
    };
    auto gelu_tanh = [](float* dx, const float* of, u64) {
        float x = of[0], s = gelu_gate(x);
        *dx = of[1] * (s + x * s * (1 - s) * GELU_A * (1 + 3 * GELU_B * x * x));
    };
    auto relu = [](float* dx, const float* of, u64) { *dx = of[1] * (of[0] > 0 ? 1.0f : 0.0f); };
    if (f == GELU) map<1, 2, T>({dx}, {x, dh}, gelu);
    if (f == GELU_TANH) map<1, 2, T>({dx}, {x, dh}, gelu_tanh);
    if (f == RELU) map<1, 2, T>({dx}, {x, dh}, relu);
}
BOTH(activate_backward, PARAMS(View<T> dx, View<T> x, View<T> dh, u32 f), dx, x, dh, f)

// h[B,N] = gate · sigmoid(gate) · up.
template <class T>
__device__ void swiglu(View<T> h, View<T> gate, View<T> up) {
    map<1, 2, T>({h}, {gate, up}, [](float* h, const float* x, u64) { *h = x[0] * sigmoid(x[0]) * x[1]; });
}
BOTH(swiglu, PARAMS(View<T> h, View<T> gate, View<T> up), h, gate, up)

// With s = sigmoid(g): dgate[B,N] = dh·u·(s + g·s·(1 − s)), dup[B,N] = dh·g·s.
template <class T>
__device__ void swiglu_backward(View<T> dgate, View<T> dup, View<T> gate, View<T> up, View<T> dh) {
    map<2, 3, T>({dgate, dup}, {gate, up, dh}, [](float* to, const float* of, u64) {
        float g = of[0], u = of[1], dh = of[2], s = sigmoid(g);
        to[0] = dh * u * (s + g * s * (1 - s));
        to[1] = dh * g * s;
    });
}
BOTH(swiglu_backward,
     PARAMS(View<T> dgate, View<T> dup, View<T> gate, View<T> up, View<T> dh),
     dgate, dup, gate, up, dh)

// `Gate` of the kernels crate, but for the first, which is `swiglu`.
enum { SILU, GEGLU, CLAMPED };
// A gate and up with their sigmoid: h = g·s·u. The slope of s is s·(1 − s)·`slope`; g and u are kept within
// bounds or not.
struct Pair {
    float g, u, s, slope;
    bool keeps_g, keeps_u;
    __device__ __forceinline__ Pair(float gate, float up, u32 f) {
        bool clamped = f == CLAMPED;
        keeps_g = !clamped || gate <= 7, keeps_u = !clamped || fabsf(up) <= 7;
        g = keeps_g ? gate : 7;
        u = (keeps_u ? up : copysignf(7, up)) + (clamped ? 1 : 0);
        slope = clamped ? 1.702f : GELU_A * (1 + 3 * GELU_B * g * g);
        s = clamped ? sigmoid(1.702f * g) : gelu_gate(g);
    }
};

// h[B,N] = f(gate, up).
template <class T>
__device__ void gated(View<T> h, View<T> gate, View<T> up, u32 f) {
    map<1, 2, T>({h}, {gate, up}, [=](float* h, const float* x, u64) {
        Pair of(x[0], x[1], f);
        *h = of.g * of.s * of.u;
    });
}
BOTH(gated, PARAMS(View<T> h, View<T> gate, View<T> up, u32 f), h, gate, up, f)

// dgate[B,N] = dh·u·(s + g·s·(1 − s)·slope), dup[B,N] = dh·g·s; 0 beyond a bound.
template <class T>
__device__ void gated_backward(View<T> dgate, View<T> dup, View<T> gate, View<T> up, View<T> dh, u32 f) {
    map<2, 3, T>({dgate, dup}, {gate, up, dh}, [=](float* to, const float* x, u64) {
        Pair of(x[0], x[1], f);
        to[0] = of.keeps_g ? x[2] * of.u * (of.s + of.g * of.s * (1 - of.s) * of.slope) : 0;
        to[1] = of.keeps_u ? x[2] * of.g * of.s : 0;
    });
}
BOTH(gated_backward,
     PARAMS(View<T> dgate, View<T> dup, View<T> gate, View<T> up, View<T> dh, u32 f),
     dgate, dup, gate, up, dh, f)

// y[B,N] = by · x.
template <class T>
__device__ void stretch(View<T> y, View<T> x, float by) {
    map<1, 1, T>({y}, {x}, [=](float* to, const float* x, u64) { *to = by * *x; });
}
BOTH(stretch, PARAMS(View<T> y, View<T> x, float by), y, x, by)

// y[B,N] = c · tanh(y/c).
template <class T>
__device__ void cap(View<T> y, float c) {
    map<1, 1, T>({y}, {y}, [=](float* to, const float* x, u64) { *to = c * tanhf(*x / c); });
}
BOTH(cap, PARAMS(View<T> y, float c), y, c)

// Dropout of x[B,N]: elements whose hash is below `least` become 0, others are scaled. One block per row; it
// mixes the hash of the row's token with every feature. Row B is row `first` + B of the whole matrix. Padding
// is left as is.
template <int N, class T>
__device__ __forceinline__ void dropout_row(T* row, u32 cols, u64 token, const Dropout& dropout) {
    along<N, 1>(cols, [&](u32 j) {
        float x[N];
        load(x, row + j);
#pragma unroll
        for (int n = 0; n < N; n++) x[n] *= dropout_factor(dropout, token, j + n);
        store(row + j, x);
    });
}
template <class T>
__device__ void dropout(View<T> x, List tokens, u64 first, Dropout dropout) {
    Place place = place_of(tokens, first + blockIdx.x);
    if (!place.here) return;
    u64 token = token_hash(dropout, place.sequence, place.position);
    T* row = x.at + blockIdx.x * x.row_stride;
    if (by_lanes(x)) dropout_row<LANES<T>>(row, x.cols, token, dropout);
    else dropout_row<1>(row, x.cols, token, dropout);
}
BOTH(dropout, PARAMS(View<T> x, List tokens, u64 first, Dropout terms), x, tokens, first, terms)

BOTH(rotate, PARAMS(View<T> x, View<float> table, List tokens, Heads of, u32 back), x, table, tokens, of, back)
BOTH(put_rows, PARAMS(View<T> y, View<T> x, List segments), y, x, segments)
