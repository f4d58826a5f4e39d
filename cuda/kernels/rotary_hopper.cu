// Rotary embedding and the cache's write in one kernel, which begins before the kernel before it has ended.
// ARCH: sm_90
#include "early.cuh"
#include "rotary.cuh"

// As `rotate` of x, then `put_rows` of kv to y. Row B of kv lies in row B of x, or in no row of x.
template <class T>
__device__ void rotate_put(View<T> x, View<float> table, List tokens, Heads of, u32 back, View<T> y, View<T> kv,
                           List segments) {
    early::next_may_begin();
    early::wait_for_others();
    rotate(x, table, tokens, of, back);
    __syncthreads();
    put_rows(y, kv, segments);
}
BOTH(rotate_put,
     PARAMS(View<T> x, View<float> table, List tokens, Heads of, u32 back, View<T> y, View<T> kv, List segments), x,
     table, tokens, of, back, y, kv, segments)
