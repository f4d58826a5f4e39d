//! Few rows times a large matrix of bf16 with AVX-512: limited by how fast the matrix is read from memory.
//!
//! The matrix is read once, from eight places at a time, each of which continues where it stopped: memory
//! gives the most bandwidth to prefetches of a few long streams. Prefetches go to L2: to L1 they were slower.
//! Vectors are widened without moving elements. By rows, a vector is split into two that hold its columns in
//! an order of their own, and sums are reordered at the end; by columns, both factors have the same order,
//! and sums need no reordering.
use super::super::factor::Factor;
use super::super::micro_avx512::multiply_add;
#[allow(clippy::wildcard_imports)] // a dozen intrinsics
use std::arch::x86_64::*;
use tensor::{Bf16, Scalar};

/// Rows of B that are added together, each from a place of its own, so that sums are read and written seldom.
const TOGETHER: usize = 8;
/// Elements of a vector of bf16.
const LANES: usize = 32;
/// Elements that are prefetched ahead of their use; beyond the end of a row or column its place continues
/// with the next.
const AHEAD: usize = 1024;
/// Sums that L2 holds besides prefetched elements. Columns are processed in blocks within this limit, since
/// memory gives long rows faster than short ones.
const SUMS: usize = 1 << 15;
/// Columns of B that are multiplied together, each from a place of its own.
const COLUMNS: usize = 8;
/// Rows of A that a pass over the columns processes.
const ROWS: usize = 2;

/// Floats that both products need for the left factor.
pub(super) fn left_len(m: usize, k: usize) -> usize {
    m * (k + 2 * LANES)
}

/// Floats from row to row of sums of `n` columns: not a power of two, since such rows would share cache sets.
pub(super) fn sums_ld(n: usize) -> usize {
    n.next_multiple_of(LANES) + LANES
}

/// sums\[m,n\] = A\[m,k\]·B\[k,n\], where B is row-major. A row of A is multiplied by `WORDS` words at a
/// time: 4 pairs of elements or 8 elements.
///
/// # Safety
/// The windows are valid; `left` has room for [`left_len`] floats, `sums` for m rows of [`sums_ld`]; the CPU
/// has AVX-512F, AVX-512BW, and for pairs AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn by_rows<const PAIRS: bool, const WORDS: usize>(
    [m, n, k]: [usize; 3],
    left: *mut f32,
    sums: *mut f32,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    const { assert!(WORDS == if PAIRS { TOGETHER / 2 } else { TOGETHER }) };
    let (ld, block) = (sums_ld(n), (SUMS / m.max(1)).next_multiple_of(LANES));
    let (groups, apart) = (k.div_ceil(TOGETHER), k / TOGETHER);
    // Row of B at place r of a group; the remaining rows of B are adjacent.
    let place = |group: usize, r: usize| if group < apart { group + r * apart } else { apart * TOGETHER + r };
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        std::slice::from_raw_parts_mut(sums, m * ld).fill(0.0);
        for (group, i) in (0..groups).flat_map(|group| (0..m).map(move |i| (group, i))) {
            let x = |r: usize| match place(group, r) {
                p if p < k => (*a.from(i, p).at).to_bits(),
                _ => 0,
            };
            for s in 0..WORDS {
                let [low, high] = if PAIRS { [x(2 * s), x(2 * s + 1)] } else { [0, x(s)] };
                let word = f32::from_bits(u32::from(low) | u32::from(high) << 16);
                *left.add((group * m + i) * WORDS + s) = word;
            }
        }
        for j in (0..n).step_by(block) {
            let nc = block.min(n - j);
            for group in 0..groups {
                let (words, sums) = (left.add(group * m * WORDS), sums.add(j));
                let rows = std::array::from_fn(|r| b.from(place(group, r).min(k - 1), j).at);
                if group < apart {
                    add_rows::<PAIRS, WORDS, true>([m, nc, TOGETHER], words, sums, ld, rows);
                } else {
                    add_rows::<PAIRS, WORDS, false>([m, nc, k % TOGETHER], words, sums, ld, rows);
                }
            }
        }
        for i in 0..m {
            in_order::<PAIRS>(sums.add(i * ld), ld);
        }
    }
}

/// sums += words·rows, for `there` rows of B.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn add_rows<const PAIRS: bool, const WORDS: usize, const ALL: bool>(
    [m, n, there]: [usize; 3],
    words: *const f32,
    sums: *mut f32,
    ld: usize,
    rows: [*const Bf16; TOGETHER],
) {
    for j in (0..n).step_by(LANES) {
        let columns = if n - j >= LANES { u32::MAX } else { (1 << (n - j)) - 1 };
        // SAFETY: masked to rows and columns that exist; prefetches may point anywhere.
        unsafe {
            let row = |r: usize| {
                let row: *const Bf16 = rows[r];
                _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(j + AHEAD).cast());
                _mm512_maskz_loadu_epi16(if ALL || r < there { columns } else { 0 }, row.add(j).cast())
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
                let target = sums.add(i * ld + j);
                let mut sum = [_mm512_loadu_ps(target), _mm512_loadu_ps(target.add(LANES / 2))];
                for (s, vectors) in vectors.iter().enumerate() {
                    let x = _mm512_set1_ps(*words.add(i * WORDS + s));
                    sum[0] = multiply_add::<PAIRS>(x, vectors[0], sum[0]);
                    sum[1] = multiply_add::<PAIRS>(x, vectors[1], sum[1]);
                }
                _mm512_storeu_ps(target, sum[0]);
                _mm512_storeu_ps(target.add(LANES / 2), sum[1]);
            }
        }
    }
}

/// Returns the elements at even places, and those at odd places.
#[target_feature(enable = "avx512f")]
#[inline]
fn widened(v: __m512i) -> [__m512; 2] {
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)), _mm512_castsi512_ps(_mm512_and_si512(v, upper))]
}

/// Undoes the order of columns of `add_rows`: pairs alternate by fours, widened elements by their parity.
#[target_feature(enable = "avx512f")]
unsafe fn in_order<const PAIRS: bool>(sums: *mut f32, len: usize) {
    // Column c of 32 is in the second vector or in the first, in this lane.
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

/// Elements of a row of A in whole vectors, plus one vector for the reason of [`sums_ld`].
fn row_len(k: usize) -> usize {
    k.next_multiple_of(LANES) + LANES
}

/// sums\[m,n\] = A\[m,k\]·B\[k,n\], where columns of B are contiguous in memory.
///
/// # Safety
/// As for [`by_rows`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn by_columns<const PAIRS: bool>(
    [m, n, k]: [usize; 3],
    left: *mut f32,
    sums: *mut f32,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    // A's rows, without gaps, in whole vectors.
    let (rows, apart) = (left.cast::<Bf16>(), row_len(k));
    let (ld, part) = (sums_ld(n), n / COLUMNS);
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        for i in 0..m {
            (0..apart).for_each(|p| {
                let x = if p < k { *a.from(i, p).at } else { Bf16::ZERO };
                *rows.add(i * apart + p) = x;
            });
        }
        for j in 0..=part {
            let (from, step, there) =
                if j < part { (j, part, COLUMNS) } else { (part * COLUMNS, 1, n - part * COLUMNS) };
            // Missing columns are read as the first, and not written.
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
                    _ => dots::<ROWS, PAIRS>(k, a, b).into_iter().enumerate().for_each(|(r, d)| write(r, d)),
                }
            }
        }
    }
}

/// Dot products of rows of A, in whole vectors, with columns of B.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn dots<const R: usize, const PAIRS: bool>(
    k: usize,
    a: *const Bf16,
    b: [*const Bf16; COLUMNS],
) -> [[f32; COLUMNS]; R] {
    let apart = row_len(k);
    let mut acc = [[_mm512_setzero_ps(); COLUMNS]; R];
    for p in (0..k).step_by(LANES) {
        let there = if k - p >= LANES { u32::MAX } else { (1 << (k - p)) - 1 };
        // SAFETY: masked to the columns' ends; prefetches may point anywhere.
        unsafe {
            let rows: [_; R] = std::array::from_fn(|r| _mm512_loadu_si512(a.add(r * apart + p).cast()));
            for c in 0..COLUMNS {
                _mm_prefetch::<_MM_HINT_T1>(b[c].wrapping_add(p + AHEAD).cast());
                let y = _mm512_maskz_loadu_epi16(there, b[c].add(p).cast());
                for r in 0..R {
                    let sum = acc[r][c];
                    acc[r][c] = if PAIRS {
                        multiply_add::<true>(_mm512_castsi512_ps(rows[r]), _mm512_castsi512_ps(y), sum)
                    } else {
                        let ([x0, x1], [y0, y1]) = (widened(rows[r]), widened(y));
                        multiply_add::<false>(x0, y0, multiply_add::<false>(x1, y1, sum))
                    };
                }
            }
        }
    }
    let mut dots = [[0.0; COLUMNS]; R];
    for (dots, acc) in dots.iter_mut().zip(acc) {
        for (dot, acc) in dots.iter_mut().zip(acc) {
            *dot = _mm512_reduce_add_ps(acc);
        }
    }
    dots
}
