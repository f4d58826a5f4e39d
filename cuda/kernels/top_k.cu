// The first k elements of every row, and their columns. Every element has a key, smaller for earlier ones:
// first come those that are not finite, then the largest; equal ones by column. No two keys of a row are
// equal, so the order in which threads find them does not matter.
//
// One block per row. The k-th smallest key is found digit by digit, by counting. Elements with no larger key
// are gathered in the result and sorted there. Source: Batcher, "Sorting networks and their applications",
// AFIPS 1968; the network has the form that sorts any number of keys: those beyond the last count as larger
// than all.
#include "number.cuh"

namespace select_first {
const int DIGIT = 8;

__device__ __forceinline__ u64 key(float x, u32 column) {
    u32 bits = float_to_bits(x);
    if ((bits & 0x7f800000) == 0x7f800000) return column;        // not finite
    if (x == 0) bits = 0;                                         // there is one zero
    u32 rising = bits & 0x80000000 ? ~bits : bits | 0x80000000;   // rises with x; never all ones
    return (u64)~rising << 32 | column;
}

// Returns a key that exactly k keys of a row do not exceed (k from 1), the same in every thread. Once the
// digits so far tell those k from all others, its remaining bits are ones.
template <class T>
__device__ u64 kth(View<T> x, u64 row, u32 k) {
    __shared__ u32 count[1 << DIGIT];
    __shared__ u64 found;
    __shared__ u32 left; // how many keys that begin with `found` are still wanted
    if (threadIdx.x == 0) found = 0, left = k;
    for (int shift = 64 - DIGIT; shift >= 0; shift -= DIGIT) {
        for (u32 i = threadIdx.x; i < 1 << DIGIT; i += blockDim.x) count[i] = 0;
        __syncthreads();
        u64 so_far = found;
        for (u32 j = threadIdx.x; j < x.cols; j += blockDim.x) {
            u64 of = key(wide(x(row, j)), j);
            if ((of ^ so_far) >> shift >> DIGIT == 0) atomicAdd(&count[of >> shift & ((1 << DIGIT) - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 digit = 0, rest = left;
            for (; rest > count[digit]; digit++) rest -= count[digit];
            found |= (u64)digit << shift;
            left = rest < count[digit] ? rest : 0;
            if (left == 0) found |= (1ull << shift) - 1;
        }
        __syncthreads();
        if (left == 0) break;
    }
    return found;
}

// Sorts a row of values and columns by key, in place.
template <class T>
__device__ void sort(View<T> values, u32* columns, u64 row) {
    u32 n = values.cols;
    u64 size = 1;
    while (size < n) size *= 2;
    for (u64 run = 2; run <= size; run *= 2) {
        for (u64 apart = run / 2; apart > 0; apart /= 2) {
            for (u64 pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                // The first step of a run compares its ends, so that all steps sort upwards.
                u64 i = pair / apart * apart * 2 + pair % apart, j = apart == run / 2 ? i ^ (run - 1) : i + apart;
                if (j >= n) continue;
                T a = values(row, i), b = values(row, j);
                u32 of_a = columns[i], of_b = columns[j];
                if (key(wide(a), of_a) < key(wide(b), of_b)) continue;
                values(row, i) = b, values(row, j) = a;
                columns[i] = of_b, columns[j] = of_a;
            }
            __syncthreads();
        }
    }
}
} // namespace select_first

// values[B,k] and columns[B·k] from x[B,N].
template <class T>
__device__ void top_k(View<T> values, List columns, View<T> x) {
    using namespace select_first;
    __shared__ u32 gathered;
    u64 row = blockIdx.x;
    u32 k = values.cols, *of_row = (u32*)columns.at + row * k;
    if (threadIdx.x == 0) gathered = 0;
    u64 last = kth(x, row, k);
    for (u32 j = threadIdx.x; j < x.cols; j += blockDim.x) {
        T value = x(row, j);
        if (key(wide(value), j) > last) continue;
        u32 at = atomicAdd(&gathered, 1u);
        values(row, at) = value;
        of_row[at] = j;
    }
    __syncthreads();
    sort(values, of_row, row);
}
BOTH(top_k, PARAMS(View<T> values, List columns, View<T> x), values, columns, x)
