// A step of AdamW with moments of 8 bits. A warp updates a block of a row, each thread four elements at a
// time, whose codes are one number.
#include "adamw.cuh"
#include "row.cuh"

// Codes of multiples of a unit: `codes.rs` of the crate tensor says which byte stands for which.
namespace codes {
const float MOST = 3.402823466e38f, LEAST = 1.175494351e-38f; // normal numbers

template <bool SIGNED>
__device__ __forceinline__ float decoded(u32 code) {
    float y = SIGNED ? (float)code - 127.0f : (float)code + 1.0f, size = fabsf(y);
    float p = bits_to_float(float_to_bits(size) & 0x7f800000);
    return copysignf(p * p * fmaf(p, -6.0f, fmaf(size, 7.0f, 7.0f)), y);
}

template <bool SIGNED>
__device__ __forceinline__ u32 code(float x) {
    float z = fmaxf(fabsf(x), SIGNED ? 1.0f : 8.0f);
    u32 range = ((float_to_bits(z) >> 23) - 127) * 11 >> 5;
    float slope = bits_to_float(float_to_bits(1.0f / 7.0f) - (range << 24));
    float start = bits_to_float(float_to_bits(6.0f / 7.0f) + (range << 23)), y = fmaf(z, slope, start);
    const float ROUND = 12582912.0f;
    y = SIGNED ? copysignf(y - 1.0f, x) + (ROUND + 127.0f) : y + (ROUND - 2.0f);
    return float_to_bits(y) & 255;
}

// The larger magnitude: by bits, of which those of NaN are the largest.
__device__ __forceinline__ float larger(float most, float x) {
    u32 a = float_to_bits(most), b = float_to_bits(x) & 0x7fffffff;
    return bits_to_float(a > b ? a : b);
}

// The unit of a block, of which each thread of a warp has seen a part: `most` is the largest magnitude there.
template <bool SIGNED>
__device__ __forceinline__ float unit_of(float most) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) most = larger(most, __shfl_xor_sync(~0u, most, apart));
    return most * (SIGNED ? 1.0f / 2097152 : 1.0f / 16777216);
}

// A number that holds the codes of `n` values.
template <bool SIGNED>
__device__ __forceinline__ float held(const float* values, u32 n, float unit) {
    float units = fabsf(unit) >= LEAST && fabsf(unit) <= MOST ? 1 / unit : 0;
    u32 all = 0;
#pragma unroll
    for (u32 l = 0; l < 4; l++)
        if (l < n) all |= code<SIGNED>(values[l] * units) << 8 * l;
    return bits_to_float(all >> 1 | all << 31);
}
__device__ __forceinline__ u32 bytes_of(float held) { return float_to_bits(held) << 1 | float_to_bits(held) >> 31; }
} // namespace codes

// Loads, or stores, up to four elements of a row; four at once if they are aligned.
template <class T>
__device__ __forceinline__ Lanes<4> some(View<T> x, u64 i, u64 j, u32 n) {
    if (n == 4 && aligned<4>(x)) return load<4>(&x(i, j));
    Lanes<4> all = {};
    for (u32 l = 0; l < n; l++) all.x[l] = wide(x(i, j + l));
    return all;
}
template <class T>
__device__ __forceinline__ void store_some(View<T> x, u64 i, u64 j, u32 n, Lanes<4> from) {
    if (n == 4 && aligned<4>(x)) return store(&x(i, j), from);
    for (u32 l = 0; l < n; l++) x(i, j + l) = narrow<T>(from.x[l]);
}

template <class T>
__device__ void adamw_8bit(View<T> w, View<float> master, View<float> m, View<float> m_units, View<float> v,
                           View<float> v_units, View<float> g, View<float> factor, AdamW by, u32 block) {
    float scale = factor(0, 0), fresh1 = 1 - by.beta1, fresh2 = 1 - by.beta2;
    bool has = master.at != nullptr;
    u32 lane = threadIdx.x % 32, of_row = m_units.cols;
    u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = (u64)gridDim.x * blockDim.x / 32;
    for (u64 at = first; at < (u64)g.rows * of_row; at += warps) {
        u64 i = at / of_row, unit_at = at % of_row, begin = unit_at * block;
        u32 len = g.cols - begin < block ? (u32)(g.cols - begin) : block;
        float m_unit = m_units(i, unit_at), v_unit = v_units(i, unit_at), most_m = 0, most_v = 0;
        float ms[8], vs[8]; // this thread's, of two numbers
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            u32 from = 4 * (lane + 32 * k), n = from < len ? len - from : 0;
            if (n == 0) continue;
            n = n < 4 ? n : 4;
            u64 j = begin + from;
            u32 m_codes = codes::bytes_of(m(i, j / 4)), v_codes = codes::bytes_of(v(i, j / 4));
            Lanes<4> of_g = some(g, i, j, n), to = has ? some(master, i, j, n) : some(w, i, j, n);
#pragma unroll
            for (u32 l = 0; l < 4; l++) {
                float x = of_g.x[l] * scale;
                float of_m = m_unit * codes::decoded<true>(m_codes >> 8 * l & 255) * by.beta1 + fresh1 * x;
                float of_v = v_unit * codes::decoded<false>(v_codes >> 8 * l & 255) * by.beta2 + fresh2 * (x * x);
                to.x[l] = to.x[l] * by.keep - by.first * of_m / (sqrtf(of_v * by.second) + by.eps);
                ms[4 * k + l] = of_m, vs[4 * k + l] = of_v;
                if (l < n) most_m = codes::larger(most_m, of_m), most_v = codes::larger(most_v, of_v);
            }
            if (has) store_some(master, i, j, n, to);
            store_some(w, i, j, n, to);
        }
        m_unit = codes::unit_of<true>(most_m), v_unit = codes::unit_of<false>(most_v);
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            u32 from = 4 * (lane + 32 * k), n = from < len ? len - from : 0;
            if (n == 0) continue;
            m(i, (begin + from) / 4) = codes::held<true>(ms + 4 * k, n, m_unit);
            v(i, (begin + from) / 4) = codes::held<false>(vs + 4 * k, n, v_unit);
        }
        if (lane == 0) m_units(i, unit_at) = m_unit, v_units(i, unit_at) = v_unit;
    }
}
BOTH(adamw_8bit, PARAMS(View<T> w, View<float> master, View<float> m, View<float> m_units, View<float> v,
     View<float> v_units, View<float> g, View<float> factor, AdamW by, u32 block), w, master, m, m_units, v,
     v_units, g, factor, by, block)
