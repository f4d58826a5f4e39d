// Products of one row, as in decoding one sequence: C[1,N] (+)= A[1,K]·B[K,N]. Reading B takes all the time,
// and it is read once, by 16 bytes per thread. B's rows are aligned, and K is a multiple of 8.
//
// On Hopper a block reads its first rows of B while the kernel before it still runs, and only then waits for
// it: no launch leaves the memory idle. And a product takes small kernels along. Its blocks compute A from
// what a norm or SwiGLU would read, each for itself, and add what a sum would add.
#pragma once
#include "early.cuh"
#include "product.cuh"
#include "row.cuh"

namespace row {
const u32 EARLY = 4; // bit of `how`: no kernel that still runs writes to B

template <class T>
struct Vector {
    static const int N = 16 / sizeof(T); // elements in 16 bytes

    static __device__ __forceinline__ Lanes<N> of(uint4 bytes) {
        const u32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
        Lanes<N> x;
#pragma unroll
        for (int i = 0; i < N; i++) {
            u32 word = words[i * sizeof(T) / 4];
            x.x[i] = bits_to_float(sizeof(T) == 4 ? word : i % 2 ? word & 0xffff0000 : word << 16);
        }
        return x;
    }
};
// Reads 16 bytes that are needed once, and does not keep them in the L1 cache.
__device__ __forceinline__ uint4 read_once(const void* at) {
#ifdef __CUDACC__
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
#else
    return *(const uint4*)at;
#endif
}

// Where the row A comes from. Each puts N of its elements at a time to shared memory, and the first block of
// the grid also to A, as the kernel would that it stands for. The bits are those of that kernel.
template <class T>
struct Normed { // RMSNorm of x, with the threads of `rms_norm`
    static const bool COMPUTED = true;
    View<float> r;
    View<T> x, gain;
    float count, eps;
    u32 threads;

    template <class Put>
    __device__ __forceinline__ void compute(u32 cols, Put put) const {
        const int N = LANES<T>;
        float squares = 0;
        if (threadIdx.x < threads)
            for (u32 j = threadIdx.x * N; j < cols; j += threads * N) {
                float of[N];
                load(of, x.at + j);
#pragma unroll
                for (int n = 0; n < N; n++) squares += of[n] * of[n];
            }
        float scale = rsqrtf(block_sum(squares) * count + eps);
        if (blockIdx.x == 0 && threadIdx.x == 0) r(0, 0) = scale;
        along<N>(cols, [&](u32 j) {
            float of[N], g[N];
            load(of, x.at + j);
            load(g, gain.at + j);
#pragma unroll
            for (int n = 0; n < N; n++) g[n] *= of[n] * scale;
            put(j, g);
        });
    }
};
template <class T>
struct Gated { // SwiGLU of gate and up
    static const bool COMPUTED = true;
    View<T> gate, up;

    template <class Put>
    __device__ __forceinline__ void compute(u32 cols, Put put) const {
        const int N = LANES<T>;
        along<N>(cols, [&](u32 j) {
            float g[N], u[N];
            load(g, gate.at + j);
            load(u, up.at + j);
#pragma unroll
            for (int n = 0; n < N; n++) g[n] = g[n] * sigmoid(g[n]) * u[n];
            put(j, g);
        });
    }
};
struct Given { // A itself
    static const bool COMPUTED = false;
};

// A block of WARPS warps has 64 bytes of columns. A thread has 16 bytes of 8 adjacent rows at a time, CHUNKS
// times, and reads all of them before it multiplies any. `more`, if not empty, is added to C.
template <int WARPS, int CHUNKS, class T, class Of>
__device__ __forceinline__ void multiply(View<T> c, View<T> a, View<T> b, u32 how, View<T> more, const Of& of) {
    const int ACROSS = 4, V = Vector<T>::N, COLS = ACROSS * V, ROWS = 8;
    const u32 STEP = WARPS * 32 / ACROSS * ROWS; // rows of a chunk
    SHARED(T, given);
    __shared__ float of_warps[WARPS][COLS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * COLS, own = first + lane % ACROSS * V;
    float sums[V] = {};
    uint4 x[CHUNKS][ROWS];
    auto row_of = [&](u32 k, int chunk) { return k + chunk * STEP + threadIdx.x / ACROSS * ROWS; };
    auto read = [&](u32 k) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 j = row_of(k, i);
            bool here = j < a.cols && own < b.cols;
            const T* at = &b(j, own);
#pragma unroll
            for (int n = 0; n < ROWS; n++) x[i][n] = here ? read_once(at + n * b.row_stride) : uint4{0, 0, 0, 0};
        }
    };
    early::next_may_begin();
    if (how & EARLY) read(0);
    early::wait_for_others();
    if (!(how & EARLY)) read(0);
    const T* factor = a.at;
    if constexpr (Of::COMPUTED) {
        const int N = LANES<T>;
        of.compute(a.cols, [&](u32 j, const float(&y)[N]) {
            store(given + j, y);
            if (blockIdx.x == 0) store(a.at + j, y);
        });
        factor = given;
        __syncthreads();
    }
    for (u32 k = 0; k < a.cols; k += STEP * CHUNKS) {
        if (k > 0) read(k);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 j = row_of(k, i);
            if (j >= a.cols) continue;
            Lanes<ROWS> y = load<ROWS>(factor + j);
#pragma unroll
            for (int n = 0; n < ROWS; n++) {
                Lanes<V> z = Vector<T>::of(x[i][n]);
#pragma unroll
                for (int v = 0; v < V; v++) sums[v] += z.x[v] * y.x[n];
            }
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        float sum = sums[v];
#pragma unroll
        for (int lanes = ACROSS; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (lane < ACROSS) of_warps[warp][lane * V + v] = sum;
    }
    __syncthreads();
    u32 col = first + threadIdx.x;
    if (threadIdx.x >= COLS || col >= c.cols) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += of_warps[w][threadIdx.x];
    if (more.at) sum = wide(narrow<T>(sum)) + wide(more(0, col));
    product::write(c, 0, col, Lanes<1>{sum}, how);
}
} // namespace row

// Kernel `name` of a dtype: a block has WARPS warps, and BLOCKS blocks fit a multiprocessor.
#define ROW_PRODUCT(name, number, T, WARPS, CHUNKS, BLOCKS)                                        \
    KERNEL __launch_bounds__(WARPS * 32, BLOCKS)                                                   \
        name##_##number(View<T> c, View<T> a, View<T> b, u32 how, View<T> more) {                  \
        row::multiply<WARPS, CHUNKS>(c, a, b, how, more, row::Given{});                            \
    }
