// Products of few rows, as in decoding. Every element of B is multiplied only a few times, so the speed of
// memory decides. B is read once, 16 bytes per thread; A, which is small, comes from the caches. B's rows or
// columns must be aligned.
#include "gemm_row.cuh"

namespace few {
using row::Vector;
using row::read_once;

// For a B with contiguous columns: C[ROWS, N]. A block has 4 columns; its threads split K.
template <int ROWS, class T>
__device__ __forceinline__ void by_columns(View<T> c, View<T> a, View<T> b, u32 how) {
    const int COLS = 4, V = Vector<T>::N, WARPS = 4;
    __shared__ float of_warps[WARPS][ROWS * COLS];
    float sums[ROWS][COLS] = {};
    u32 first = blockIdx.x * COLS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll(ROWS == 1 ? 2 : 1)
    for (u32 k = threadIdx.x * V; k < a.cols; k += blockDim.x * V) {
        Lanes<V> x[COLS];
#pragma unroll
        for (int j = 0; j < COLS; j++) x[j] = load<V>(&b(k, min(first + j, b.cols - 1)));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            Lanes<V> y = load<V>(&a(min((u32)i, a.rows - 1), k));
#pragma unroll
            for (int j = 0; j < COLS; j++)
#pragma unroll
                for (int v = 0; v < V; v++) sums[i][j] += x[j].x[v] * y.x[v];
        }
    }
#pragma unroll
    for (int at = 0; at < ROWS * COLS; at++) {
        float sum = warp_sum(sums[at / COLS][at % COLS]);
        if (lane == 0) of_warps[warp][at] = sum;
    }
    __syncthreads();
    u32 row = threadIdx.x / COLS, col = first + threadIdx.x % COLS;
    if (row >= ROWS) return;
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += of_warps[w][threadIdx.x];
    product::write(c, row, col, Lanes<1>{sum}, how);
}

// For a B with contiguous rows: a block has 4·16 bytes of columns; a thread has 16 bytes of every 128th row,
// and loads AHEAD of them at a time.
template <int ROWS, class T>
__device__ __forceinline__ void by_rows(View<T> c, View<T> a, View<T> b, u32 how) {
    const int ACROSS = 4, V = Vector<T>::N, COLS = ACROSS * V, WARPS = 16, AHEAD = 16 / ROWS;
    __shared__ float of_warps[WARPS][ROWS][COLS];
    float sums[ROWS][V] = {};
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * COLS, own = first + lane % ACROSS * V;
    if (own < b.cols) {
        const u32 step = WARPS * 32 / ACROSS;
        for (u32 k = threadIdx.x / ACROSS; k < a.cols; k += AHEAD * step) {
            uint4 x[AHEAD];
            float y[AHEAD][ROWS];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) x[n] = read_once(&b(min(k + n * step, a.cols - 1), own));
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    y[n][i] = k + n * step < a.cols ? wide(a(min((u32)i, a.rows - 1), k + n * step)) : 0;
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                Lanes<V> of = Vector<T>::of(x[n]);
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int v = 0; v < V; v++) sums[i][v] += of.x[v] * y[n][i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int v = 0; v < V; v++) {
            float sum = sums[i][v];
            for (int lanes = ACROSS; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            if (lane < ACROSS) of_warps[warp][i][lane * V + v] = sum;
        }
    __syncthreads();
    u32 row = threadIdx.x / COLS, col = threadIdx.x % COLS;
    if (row >= ROWS) return;
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += of_warps[w][row][col];
    product::write(c, row, first + col, Lanes<1>{sum}, how);
}
} // namespace few

// Kernels of products of at most `rows` rows.
#define FEW_BY_COLUMNS(rows) \
    template <class T> \
    __device__ __forceinline__ void gemm_by_columns_##rows(View<T> c, View<T> a, View<T> b, u32 how) { \
        few::by_columns<rows>(c, a, b, how); \
    } \
    PRODUCTS(gemm_by_columns_##rows, __launch_bounds__(128))
#define FEW_BY_ROWS(rows) \
    template <class T> \
    __device__ __forceinline__ void gemm_by_rows_##rows(View<T> c, View<T> a, View<T> b, u32 how) { \
        few::by_rows<rows>(c, a, b, how); \
    } \
    PRODUCTS(gemm_by_rows_##rows, __launch_bounds__(512, 1))
FEW_BY_COLUMNS(1)
FEW_BY_COLUMNS(4)
FEW_BY_COLUMNS(8)
FEW_BY_ROWS(4)
FEW_BY_ROWS(8)
#undef FEW_BY_COLUMNS
#undef FEW_BY_ROWS
