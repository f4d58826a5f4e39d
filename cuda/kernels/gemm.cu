// C[M,N] (+)= A[M,K]·B[K,N], as a ladder: each rung computes the same as the one below it, and says what
// makes it faster. A and B have any strides; C's columns are contiguous. Sums are kept in f32 and rounded
// once, at the end.
//
// | rung | an element is read from memory | file |
// |---|---|---|
// | naive | once for every product that it is in | here |
// | tiled | once for every tile of C that it is in; multiplied from registers | here |
// | few | once, as fast as memory allows: for products of few rows | gemm_few.cu |
// | tensor | as tiled, while the previous ones are multiplied, by tensor cores | gemm_tensor.cu |
// | hopper | as tensor, but the card copies tiles by itself; four warps multiply together | gemm_hopper.cu |
#include "product.cuh"

// Rung 0, the definition: a thread sums one element of C. Each element of A is read N times and each of B M
// times.
template <class T>
__device__ void gemm_naive(View<T> c, View<T> a, View<T> b, u32 how) {
    each(c.rows, c.cols, [&](u64 i, u64 j) {
        float sum = 0;
        for (u64 k = 0; k < a.cols; k++) sum += wide(a(i, k)) * wide(b(k, j));
        product::write(c, i, j, Lanes<1>{sum}, how);
    });
}
PRODUCTS(gemm_naive, )

namespace tiled {
const int THREADS = 256;

// A thread's part of a WIDTH·K tile of a side x[outer, k]: four elements along whichever dimension is
// contiguous. They wait in registers between memory and shared memory, while the previous tile is multiplied.
template <int WIDTH, int K, class T>
struct Share {
    static_assert(WIDTH * K == 4 * THREADS, "one four of a tile for each thread");
    View<T> x;
    const T* at;     // its four elements in the tile that is fetched next
    u32 first, from; // their position in x
    bool at_once;
    Lanes<4> four;

    __device__ __forceinline__ bool along_k() const { return x.col_stride == 1; }
    __device__ __forceinline__ u32 outer() const {
        return along_k() ? threadIdx.x / (K / 4) : threadIdx.x % (WIDTH / 4) * 4;
    }
    __device__ __forceinline__ u32 k() const { return along_k() ? threadIdx.x % (K / 4) * 4 : threadIdx.x / (WIDTH / 4); }

    __device__ __forceinline__ Share(View<T> x, u32 begin) : x(x), first(begin + outer()), from(k()) {
        at_once = aligned<4>(along_k() ? x : product::turned(x));
        at = &x(first, from);
    }
    // Fetches the four elements of the next tile.
    __device__ __forceinline__ void fetch() {
        u32 outers = first < x.rows ? min(x.rows - first, 4u) : 0, ks = from < x.cols ? min(x.cols - from, 4u) : 0;
        u32 there = along_k() ? (outers ? ks : 0) : (ks ? outers : 0);
        if (at_once && there == 4) {
            four = load<4>(at);
        } else {
            u64 step = along_k() ? 1 : x.row_stride;
#pragma unroll
            for (u32 l = 0; l < 4; l++) four.x[l] = l < there ? wide(at[l * step]) : 0;
        }
        at += K * x.col_stride, from += K;
    }
    __device__ __forceinline__ void put(float (*to)[WIDTH + 4]) const {
        if (along_k()) {
#pragma unroll
            for (int l = 0; l < 4; l++) to[k() + l][outer()] = four.x[l];
        } else {
            store(&to[k()][outer()], four);
        }
    }
};

// A block computes a tile of C of 64·HALVES rows and columns; a thread has 4·4 elements in each quarter of it
// (if HALVES is 2). Each element that it reads from shared memory is multiplied 4·HALVES times.
template <int HALVES, class T>
__device__ __forceinline__ void run(View<T> c, View<T> a, View<T> b, u32 how) {
    const int WIDTH = 64 * HALVES, K = 16 / HALVES;
    __shared__ __align__(16) float room[2][2][K][WIDTH + 4];
    float(*left)[K][WIDTH + 4] = room[0], (*right)[K][WIDTH + 4] = room[1];
    product::Place at = product::tile<WIDTH, WIDTH>(c.rows, c.cols, blockIdx.x);
    u32 tx = threadIdx.x % 16 * 4, ty = threadIdx.x / 16 * 4;
    float sums[4 * HALVES][4 * HALVES] = {};
    Share<WIDTH, K, T> of_a(a, at.row), of_b(product::turned(b), at.col);
    of_a.fetch(), of_b.fetch();
    of_a.put(left[0]), of_b.put(right[0]);
    __syncthreads();
    // The next factors are loaded from shared memory to registers, and the next tile from memory, while the
    // current factors are multiplied. That tile goes into the half of shared memory that was read in the
    // previous step, before its barrier.
    Lanes<4> x[2][HALVES], y[2][HALVES];
    auto get = [&](int half, int l) {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            x[l % 2][h] = load<4>(&left[half][l][h * 64 + ty]);
            y[l % 2][h] = load<4>(&right[half][l][h * 64 + tx]);
        }
    };
    get(0, 0);
    for (u32 k = K, now = 0; k < a.cols + K; k += K, now ^= 1) {
        bool more = k < a.cols;
        if (more) of_a.fetch(), of_b.fetch();
#pragma unroll
        for (int l = 0; l < K; l++) {
            if (l + 1 < K) {
                get(now, l + 1);
            } else if (more) {
                of_a.put(left[now ^ 1]), of_b.put(right[now ^ 1]);
                __syncthreads();
                get(now ^ 1, 0);
            }
#pragma unroll
            for (int i = 0; i < 4 * HALVES; i++)
#pragma unroll
                for (int j = 0; j < 4 * HALVES; j++) sums[i][j] += x[l % 2][i / 4].x[i % 4] * y[l % 2][j / 4].x[j % 4];
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * HALVES; i++)
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            Lanes<4> of = {sums[i][4 * h], sums[i][4 * h + 1], sums[i][4 * h + 2], sums[i][4 * h + 3]};
            product::write(c, at.row + i / 4 * 64 + ty + i % 4, at.col + h * 64 + tx, of, how);
        }
}
} // namespace tiled

// Rung 1: tiles of both sides go through shared memory; a thread keeps a tile of C in registers. Source:
// Volkov, Demmel, "Benchmarking GPUs to tune dense linear algebra", SC 2008.
__device__ __forceinline__ void gemm_tiled(View<float> c, View<float> a, View<float> b, u32 how) {
    tiled::run<2>(c, a, b, how);
}
PRODUCT(gemm_tiled, f32, float, __launch_bounds__(256, 2))

// As `gemm_tiled`, with tiles of a quarter of the size: for a C with too few large tiles for all
// multiprocessors.
template <class T>
__device__ __forceinline__ void gemm_small(View<T> c, View<T> a, View<T> b, u32 how) {
    tiled::run<1>(c, a, b, how);
}
PRODUCTS(gemm_small, __launch_bounds__(256))
