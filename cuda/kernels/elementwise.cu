// Element by element: sums and copies.
#include "number.cuh"

template <class T>
__device__ void copy(View<T> y, View<T> x) {
    each(y.rows, y.cols, [&](u64 i, u64 j) { y(i, j) = x(i, j); });
}
BOTH(copy, PARAMS(View<T> y, View<T> x), y, x)

template <class T>
__device__ void add(View<T> y, View<T> a) {
    each(y.rows, y.cols, [&](u64 i, u64 j) { y(i, j) = narrow<T>(wide(y(i, j)) + wide(a(i, j))); });
}
BOTH(add, PARAMS(View<T> y, View<T> a), y, a)
