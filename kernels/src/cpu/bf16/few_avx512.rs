//! Few rows times a large matrix of bf16 with AVX-512: what counts is how fast the matrix comes from memory.
//!
//! It is read once, from several places at a time, each some way ahead of what is used. Vectors are widened without moving
//! a number: by rows, a vector is split into two that hold its columns in an order of their own, and sums are put in order
//! at the end; by columns both factors have the same order, and sums need none.
use super::super::gemm::Factor;
use super::super::micro_avx512::multiply_add;
#[allow(clippy::wildcard_imports)] // a dozen intrinsics
use std::arch::x86_64::*;
use tensor::{Bf16, Scalar};

/// Words that each step multiplies with: numbers, or pairs of two rows.
const WORDS: usize = 4;
/// Numbers of a vector of bf16.
const LANES: usize = 32;
/// How many numbers ahead of use they are fetched; beyond a row's end its place goes on with the next.
const AHEAD: usize = 1024;
/// Columns that are gone through together.
const COLUMNS: usize = 4;
/// Rows of A that a pass over these takes.
const ROWS: usize = 4;

/// Floats that both products need for the left factor.
pub(super) fn left_len(m: usize, k: usize) -> usize {
    m * (k + 2 * LANES)
}

/// Floats from row to row of sums of `n` columns.
pub(super) fn sums_ld(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// sums\[m,n\] = A\[m,k\]·B\[k,n\]; rows of B are rows in memory.
///
/// # Safety
/// The windows are valid; `left` has room for [`left_len`] floats, `sums` for m rows of [`sums_ld`]; the CPU has AVX-512F,
/// AVX-512BW, and for pairs AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn by_rows<const PAIRS: bool>(
    [m, n, k]: [usize; 3],
    left: *mut f32,
    sums: *mut f32,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    let rows = if PAIRS { 2 * WORDS } else { WORDS };
    let (apart, ld) = (k / rows, sums_ld(n));
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        std::slice::from_raw_parts_mut(sums, m * ld).fill(0.0);
        for g in 0..=apart {
            // The last time what is left, one row after the other.
            let (from, step, there) =
                if g < apart { (g, apart, rows) } else { (apart * rows, 1, k - apart * rows) };
            if there == 0 {
                break;
            }
            for i in 0..m {
                let x = |r: usize| if r < there { (*a.from(i, from + r * step).at).to_bits() } else { 0 };
                for s in 0..WORDS {
                    let [low, high] = if PAIRS { [x(2 * s), x(2 * s + 1)] } else { [0, x(s)] };
                    *left.add(i * WORDS + s) = f32::from_bits(u32::from(low) | u32::from(high) << 16);
                }
            }
            let b = Factor { at: b.from(from, 0).at, row: step * b.row, col: 1 };
            if there == rows {
                add_rows::<PAIRS, true>([m, n, there], left, sums, b);
            } else {
                add_rows::<PAIRS, false>([m, n, there], left, sums, b);
            }
        }
        for i in 0..m {
            in_order::<PAIRS>(sums.add(i * ld), ld);
        }
    }
}

/// sums += words·rows, for so many rows of B.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn add_rows<const PAIRS: bool, const ALL: bool>(
    [m, n, there]: [usize; 3],
    words: *const f32,
    sums: *mut f32,
    b: Factor<Bf16>,
) {
    let ld = sums_ld(n);
    for j in (0..n).step_by(LANES) {
        let columns = if n - j >= LANES { u32::MAX } else { (1 << (n - j)) - 1 };
        // SAFETY: masked to rows and columns that there are; prefetches may point anywhere.
        unsafe {
            let row = |r: usize| {
                let at = b.from(r, j).at;
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                _mm512_maskz_loadu_epi16(if ALL || r < there { columns } else { 0 }, at.cast())
            };
            let vectors: [_; WORDS] = std::array::from_fn(|s| {
                if PAIRS {
                    let (x, y) = (row(2 * s), row(2 * s + 1));
                    [_mm512_unpacklo_epi16(x, y), _mm512_unpackhi_epi16(x, y)].map(|v| _mm512_castsi512_ps(v))
                } else {
                    widened(row(s))
                }
            });
            for i in 0..m {
                let at = sums.add(i * ld + j);
                let mut sum = [_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(LANES / 2))];
                for (s, vectors) in vectors.iter().enumerate() {
                    let x = _mm512_set1_ps(*words.add(i * WORDS + s));
                    sum[0] = multiply_add::<PAIRS>(x, vectors[0], sum[0]);
                    sum[1] = multiply_add::<PAIRS>(x, vectors[1], sum[1]);
                }
                _mm512_storeu_ps(at, sum[0]);
                _mm512_storeu_ps(at.add(LANES / 2), sum[1]);
            }
        }
    }
}

/// The numbers with even places, and those with odd ones.
#[target_feature(enable = "avx512f")]
#[inline]
fn widened(v: __m512i) -> [__m512; 2] {
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)), _mm512_castsi512_ps(_mm512_and_si512(v, upper))]
}

/// Undoes what `add_rows` does to the order of columns: pairs lie by fours in turns, widened ones by their parity.
#[target_feature(enable = "avx512f")]
unsafe fn in_order<const PAIRS: bool>(sums: *mut f32, len: usize) {
    // Number c of 32 lies in the second vector or in the first, in this lane.
    let place = |c: usize| if PAIRS { (c / 4 % 2, c / 8 * 4 + c % 4) } else { (c % 2, c / 2) };
    let index = |first: usize| {
        let lanes: [u32; 16] = std::array::from_fn(|i| {
            let (second, lane) = place(first + i);
            (16 * second + lane) as u32
        });
        // SAFETY: as many lanes as a vector has.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    };
    let [low, high] = [index(0), index(LANES / 2)];
    for j in (0..len).step_by(LANES) {
        // SAFETY: whole vectors of the caller's.
        unsafe {
            let (x, y) = (_mm512_loadu_ps(sums.add(j)), _mm512_loadu_ps(sums.add(j + LANES / 2)));
            _mm512_storeu_ps(sums.add(j), _mm512_permutex2var_ps(x, low, y));
            _mm512_storeu_ps(sums.add(j + LANES / 2), _mm512_permutex2var_ps(x, high, y));
        }
    }
}

/// sums\[m,n\] = A\[m,k\]·B\[k,n\]; columns of B are rows in memory.
///
/// # Safety
/// As of [`by_rows`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn by_columns<const PAIRS: bool>(
    [m, n, k]: [usize; 3],
    left: *mut f32,
    sums: *mut f32,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    // A's rows, without gaps, in whole vectors.
    let (rows, apart) = (left.cast::<Bf16>(), k.next_multiple_of(LANES));
    let (ld, quarter) = (sums_ld(n), n / COLUMNS);
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        for i in 0..m {
            (0..apart).for_each(|p| {
                let x = if p < k { *a.from(i, p).at } else { Bf16::ZERO };
                *rows.add(i * apart + p) = x;
            });
        }
        for j in 0..=quarter {
            let (from, step, there) = if j < quarter {
                (j, quarter, COLUMNS)
            } else {
                (quarter * COLUMNS, 1, n - quarter * COLUMNS)
            };
            // Columns that are not there are read as the first, and not written.
            let b: [_; COLUMNS] =
                std::array::from_fn(|c| b.from(0, from + if c < there { c * step } else { 0 }).at);
            for i in (0..if there > 0 { m } else { 0 }).step_by(ROWS) {
                let (a, to) = (rows.add(i * apart), sums.add(i * ld + from));
                let write = |r: usize, dots: [f32; COLUMNS]| {
                    for (c, dot) in dots.into_iter().enumerate().take(there) {
                        *to.add(r * ld + c * step) = dot;
                    }
                };
                match m - i {
                    1 => dots::<1, PAIRS>(k, a, b).into_iter().enumerate().for_each(|(r, d)| write(r, d)),
                    2 => dots::<2, PAIRS>(k, a, b).into_iter().enumerate().for_each(|(r, d)| write(r, d)),
                    3 => dots::<3, PAIRS>(k, a, b).into_iter().enumerate().for_each(|(r, d)| write(r, d)),
                    _ => dots::<ROWS, PAIRS>(k, a, b).into_iter().enumerate().for_each(|(r, d)| write(r, d)),
                }
            }
        }
    }
}

/// The sums of products of rows of A, in whole vectors, with columns of B.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn dots<const R: usize, const PAIRS: bool>(
    k: usize,
    a: *const Bf16,
    b: [*const Bf16; COLUMNS],
) -> [[f32; COLUMNS]; R] {
    let apart = k.next_multiple_of(LANES);
    let mut acc = [[_mm512_setzero_ps(); COLUMNS]; R];
    for p in (0..k).step_by(LANES) {
        let there = if k - p >= LANES { u32::MAX } else { (1 << (k - p)) - 1 };
        // SAFETY: masked to the columns' ends; prefetches may point anywhere.
        unsafe {
            let rows: [_; R] = std::array::from_fn(|r| _mm512_loadu_si512(a.add(r * apart + p).cast()));
            for (c, &column) in b.iter().enumerate() {
                _mm_prefetch::<_MM_HINT_T0>(column.wrapping_add(p + AHEAD).cast());
                let y = _mm512_maskz_loadu_epi16(there, column.add(p).cast());
                for (acc, &x) in acc.iter_mut().zip(&rows) {
                    if PAIRS {
                        let [x, y] = [x, y].map(|v| _mm512_castsi512_ps(v));
                        acc[c] = multiply_add::<true>(x, y, acc[c]);
                    } else {
                        let ([x0, x1], [y0, y1]) = (widened(x), widened(y));
                        acc[c] = multiply_add::<false>(x0, y0, multiply_add::<false>(x1, y1, acc[c]));
                    }
                }
            }
        }
    }
    acc.map(|acc| acc.map(|acc| _mm512_reduce_add_ps(acc)))
}
