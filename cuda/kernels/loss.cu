// The embedding, the parts of a vocabulary-parallel cross-entropy, and the mean squared error.
#include "row.cuh"

// A rank's vocabulary shard of a table: `Slice` of the kernels crate.
struct Slice {
    u32 first, len;
    // `has`: true if an id is in the shard. `local`: its row there.
    __device__ __forceinline__ bool has(u32 id) const { return id >= first && id - first < len; }
    __device__ __forceinline__ u32 local(u32 id) const { return id - first; }
};

// y[B,N] = the table's row of each id, or zeros if the shard lacks it. One block per row.
template <int N, class T>
__device__ __forceinline__ void embed_row(T* to, const T* from, u32 cols) {
    along<N>(cols, [&](u32 j) {
        float x[N] = {};
        if (from) load(x, from + j);
        store(to + j, x);
    });
}
template <class T>
__device__ void embed(View<T> y, View<T> table, List ids, u32 first, u32 len) {
    Slice slice{first, len};
    u32 id = ids.at[blockIdx.x];
    T* to = y.at + blockIdx.x * y.row_stride;
    const T* from = slice.has(id) ? table.at + slice.local(id) * table.row_stride : nullptr;
    if (by_lanes(y, table)) embed_row<LANES<T>>(to, from, y.cols);
    else embed_row<1>(to, from, y.cols);
}
BOTH(embed, PARAMS(View<T> y, View<T> table, List ids, u32 first, u32 len), y, table, ids, first, len)

// Ids that a block reads at once; most ids that it holds; columns of a block.
const u32 AT_ONCE = 1024, HELD = 2048, WIDTH = 512;
// Ids whose table rows belong to this block, with their rows of dy: in order of arrival, or sorted by id.
struct Found {
    u32 row[HELD], from[HELD];
};

// Adds the found rows to dtable. Sorts them by table row, equal ones in the order of their tokens, then adds
// every run to its row. Each thread adds its own columns, with loads of 8 rows in flight at once. There is no
// barrier at the end: the block has another barrier before anything found is overwritten.
template <class T>
__device__ __forceinline__ void add_found(View<float> dtable, View<T> dy, const Found& found, Found& sorted, u32 held) {
    for (u32 e = threadIdx.x; e < held; e += blockDim.x) {
        u32 row = found.row[e], rank = 0;
        for (u32 f = 0; f < held; f++) rank += found.row[f] < row || (found.row[f] == row && f < e);
        sorted.row[rank] = row, sorted.from[rank] = found.from[e];
    }
    __syncthreads();
    u64 end = min((u64)(blockIdx.y + 1) * WIDTH, (u64)dy.cols);
    for (u64 col = (u64)blockIdx.y * WIDTH + threadIdx.x; col < end; col += blockDim.x) {
        float sum = 0;
        for (u32 e = 0; e < held; e += 8) {
            float x[8], old[8];
            bool starts[8];
#pragma unroll
            for (u32 k = 0; k < 8; k++) {
                bool there = e + k < held;
                starts[k] = there && (e + k == 0 || sorted.row[e + k] != sorted.row[e + k - 1]);
                x[k] = there ? wide(dy(sorted.from[e + k], col)) : 0;
                old[k] = starts[k] ? dtable(sorted.row[e + k], col) : 0;
            }
#pragma unroll
            for (u32 k = 0; k < 8; k++) {
                if (e + k >= held) break;
                sum = (starts[k] ? old[k] : sum) + x[k];
                if (e + k + 1 == held || sorted.row[e + k] != sorted.row[e + k + 1])
                    dtable(sorted.row[e + k], col) = sum;
            }
        }
    }
}

// dtable[V,N] += each row of dy[B,N], at its id's row. Block x alone adds to the table's rows x, x + blocks,
// …: it reads all ids, in order, and keeps its own. So every sum is in the order of the tokens.
template <class T>
__device__ void embed_backward(View<float> dtable, View<T> dy, List ids, u32 first, u32 len) {
    __shared__ Found found, sorted;
    __shared__ u32 of_warps[8];
    Slice slice{first, len};
    u32 held = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 at = 0; at < ids.len; at += AT_ONCE) {
        u32 rows[4], all_mine = 0, before = 0, more = 0;
        for (u32 k = 0; k < 4; k++) {
            u64 i = at + threadIdx.x * 4 + k;
            rows[k] = i < ids.len && slice.has(ids.at[i]) ? slice.local(ids.at[i]) : ~0u;
            bool mine = rows[k] != ~0u && rows[k] % gridDim.x == blockIdx.x;
            u32 those = __ballot_sync(~0u, mine);
            all_mine |= (u32)mine << k, before += __popc(those & ((1u << lane) - 1)), more += __popc(those);
        }
        if (lane == 0) of_warps[warp] = more;
        __syncthreads();
        u32 to = held + before;
        for (u32 w = 0; w < 8; w++) {
            if (w < warp) to += of_warps[w];
            held += of_warps[w];
        }
        for (u32 k = 0; k < 4; k++)
            if (all_mine >> k & 1) found.row[to] = rows[k], found.from[to++] = (u32)(at + threadIdx.x * 4 + k);
        __syncthreads();
        if (held + AT_ONCE <= HELD && at + AT_ONCE < ids.len) continue;
        add_found(dtable, dy, found, sorted, held);
        held = 0;
    }
}
BOTH(embed_backward, PARAMS(View<float> dtable, View<T> dy, List ids, u32 first, u32 len), dtable, dy, ids, first, len)

// m[B,1] = the maximum of each row of logits[B,V]; −∞ of an empty row. One block per row.
template <int N, class T>
__device__ __forceinline__ float largest(const T* from, u32 cols) {
    float most = -INFINITY;
    along<N>(cols, [&](u32 j) {
        float x[N];
        load(x, from + j);
#pragma unroll
        for (int n = 0; n < N; n++) most = fmaxf(most, x[n]);
    });
    return block_max(most);
}
template <class T>
__device__ void row_stab(View<float> m, View<T> logits) {
    const T* from = logits.at + blockIdx.x * logits.row_stride;
    float most = by_lanes(logits) ? largest<LANES<T>>(from, logits.cols) : largest<1>(from, logits.cols);
    if (threadIdx.x == 0) m(blockIdx.x, 0) = most;
}
BOTH(row_stab, PARAMS(View<float> m, View<T> logits), m, logits)

// sums[B,2 or 3] = (Σ exp(x − m), the target's x or 0, Σ x) of each row of logits[B,V]. One block per row.
template <int N, class T>
__device__ __forceinline__ void sum_row(float (&sums)[2], const T* from, u32 cols, float m) {
    along<N>(cols, [&](u32 j) {
        float x[N];
        load(x, from + j);
#pragma unroll
        for (int n = 0; n < N; n++) sums[0] += expf(x[n] - m), sums[1] += x[n];
    });
    block_sum(sums);
}
template <class T>
__device__ void row_sums(View<float> sums, View<T> logits, View<float> m, List targets, u32 first, u32 len) {
    Slice slice{first, len};
    u64 row = blockIdx.x;
    const T* from = logits.at + row * logits.row_stride;
    float of_row[2] = {0, 0};
    if (by_lanes(logits)) sum_row<LANES<T>>(of_row, from, logits.cols, m(row, 0));
    else sum_row<1>(of_row, from, logits.cols, m(row, 0));
    if (threadIdx.x > 0) return;
    u32 target = targets.at[row];
    sums(row, 0) = of_row[0];
    sums(row, 1) = slice.has(target) ? wide(from[slice.local(target)]) : 0;
    if (sums.cols > 2) sums(row, 2) = of_row[1];
}
BOTH(row_sums, PARAMS(View<float> sums, View<T> logits, View<float> m, List targets, u32 first, u32 len),
     sums, logits, m, targets, first, len)

const u32 IGNORED = ~0u; // a target that does not count

// m[B,1] += ln sums[B,0], and loss[1,1] = share · Σ(lse − own·sums[B,1] − every·sums[B,2] + z·lse²) over the
// rows whose target counts. One block; its threads take rows in turn.
template <class T>
__device__ void cross_entropy(View<T> loss, View<T> m, View<T> sums, List targets, float share, float own,
                              float every, float z) {
    float total = 0;
    for (u64 i = threadIdx.x; i < sums.rows; i += blockDim.x) {
        m(i, 0) = narrow<T>(wide(m(i, 0)) + logf(wide(sums(i, 0))));
        if (targets.at[i] == IGNORED) continue;
        float lse = wide(m(i, 0));
        total += lse - own * wide(sums(i, 1)) + z * lse * lse;
        if (every != 0) total -= every * wide(sums(i, 2));
    }
    total = block_sum(total);
    if (threadIdx.x == 0) loss(0, 0) = narrow<T>(total * share);
}
BOTH(cross_entropy,
     PARAMS(View<T> loss, View<T> m, View<T> sums, List targets, float share, float own, float every, float z),
     loss, m, sums, targets, share, own, every, z)

// logits[B,V] become exp(x − lse)·whole − every, less own at the target; 0 where the target is ignored. One
// block per row.
template <int N, class T>
__device__ __forceinline__ void cross_entropy_row(T* row, u32 cols, float lse, float whole, float every, u32 target,
                                                  float own, float inv) {
    along<N>(cols, [&](u32 j) {
        float x[N];
        load(x, row + j);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float tanh = x[n] * inv;
            x[n] = expf(x[n] - lse) * whole - every;
            if (j + n == target) x[n] -= own;
            x[n] *= 1 - tanh * tanh;
        }
        store(row + j, x);
    });
}
template <class T>
__device__ void cross_entropy_backward(View<T> logits, View<float> lse, List targets, u32 first, u32 len, float share,
                                       float own, float every, float z, float inv) {
    Slice slice{first, len};
    T* row = logits.at + blockIdx.x * logits.row_stride;
    u32 id = targets.at[blockIdx.x], target = slice.has(id) ? slice.local(id) : IGNORED;
    float of_row = lse(blockIdx.x, 0), whole = share * (1 + 2 * z * of_row);
    bool lanes = by_lanes(logits);
    every *= share, own *= share;
    if (id == IGNORED && lanes) embed_row<LANES<T>, T>(row, nullptr, logits.cols);
    else if (id == IGNORED) embed_row<1, T>(row, nullptr, logits.cols);
    else if (lanes) cross_entropy_row<LANES<T>>(row, logits.cols, of_row, whole, every, target, own, inv);
    else cross_entropy_row<1>(row, logits.cols, of_row, whole, every, target, own, inv);
}
BOTH(cross_entropy_backward,
     PARAMS(View<T> logits, View<float> lse, List targets, u32 first, u32 len, float share, float own, float every,
            float z, float inv),
     logits, lse, targets, first, len, share, own, every, z, inv)

// parts[1,blocks] = each block's Σ(x − y)², and x[B,N] = twice·(x − y).
template <int N, class T>
__device__ __forceinline__ float squares(View<T> x, View<T> y, float twice) {
    float sum = 0;
    u64 step = (u64)gridDim.x * blockDim.x, per = y.cols / N;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < y.rows * per; i += step) {
        u64 row = i / per, col = (i - row * per) * N;
        T* to = x.at + row * x.row_stride + col;
        float a[N], b[N];
        load(a, to);
        load(b, y.at + row * y.row_stride + col);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float far = a[n] - b[n];
            sum += far * far, a[n] = far * twice;
        }
        store(to, a);
    }
    return block_sum(sum);
}
template <class T>
__device__ void mean_square(View<float> parts, View<T> x, View<T> y, float twice) {
    float sum = by_lanes(x, y) ? squares<LANES<T>>(x, y, twice) : squares<1>(x, y, twice);
    if (threadIdx.x == 0) parts(0, blockIdx.x) = sum;
}
BOTH(mean_square, PARAMS(View<float> parts, View<T> x, View<T> y, float twice), parts, x, y, twice)

// loss[1,1] = share · Σ parts[1,N]. One block.
KERNEL mean_square_total(View<float> loss, View<float> parts, float share) {
    float sum = 0;
    for (u32 i = threadIdx.x; i < parts.cols; i += blockDim.x) sum += parts(0, i);
    sum = block_sum(sum);
    if (threadIdx.x == 0) loss(0, 0) = sum * share;
}
