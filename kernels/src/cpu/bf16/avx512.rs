//! Blocks of bf16 with AVX-512, in panels as the innermost loop reads them: as pairs, two steps of K side by
//! side, or widened to f32.
//!
//! For any strides, a vector has 16 columns of two rows: element (p, w) is in the lower half of its lane w,
//! (p + 1, w) in the upper. The vector itself is a row of pairs; each half moved up is a row of f32.
use super::super::factor::{Factor, Sums};
use super::super::gemm_avx512::transpose;
use super::super::micro_avx512::{Ahead, MR, NR, NV, Panel, tile, together};
use super::blocks::Inner;
#[allow(clippy::wildcard_imports)] // a dozen intrinsics
use std::arch::x86_64::*;
use tensor::Bf16;

/// Columns of a vector.
const LANES: usize = 16;
/// Steps of K of a transposition: a cache line.
const BLOCK: usize = 32;
/// Columns that are processed together if rows are contiguous in memory: whole lines.
const TOGETHER: usize = 64;

/// Blocks in panels: of pairs, which `vdpbf16ps` multiplies, or widened for f32's multiply-adds.
pub(super) struct Avx512<const PAIRS: bool>;

impl<const PAIRS: bool> Inner<Bf16> for Avx512<PAIRS> {
    const SIZE: [usize; 2] = [if PAIRS { 512 } else { 256 }, 11 * NV * NR];
    const STRIP: usize = 64;
    unsafe fn right(to: *mut f32, b: Factor<Bf16>, k: usize, n: usize) -> Factor<f32> {
        // SAFETY: the caller's.
        unsafe { pack::<NR, PAIRS>(to, b, k, n) };
        Factor { at: to, row: NR, col: 1 }
    }
    unsafe fn left(to: *mut f32, a: Factor<Bf16>, m: usize, k: usize, fresh: bool) -> Factor<f32> {
        if fresh {
            // SAFETY: the caller's.
            unsafe { pack::<MR, PAIRS>(to, a.t(), k, m) };
        }
        Factor { at: to, row: 1, col: MR }
    }
    unsafe fn multiply([m, n, k]: [usize; 3], c: Sums<f32>, a: Factor<f32>, b: Factor<f32>) {
        let k = height(k, PAIRS);
        for i in (0..m).step_by(MR) {
            for (j, cols) in together(n) {
                let sums = Sums { at: c.at.wrapping_add(i * c.ld + j), ..c };
                let size = [MR.min(m - i), cols, k];
                let a = a.at.wrapping_add(i * k);
                let b = Panel { at: b.at.wrapping_add(j * k), apart: k * NR };
                // SAFETY: panels that were packed, and a part of the caller's window.
                unsafe { tile::<MR, false, PAIRS, false>(size, (a, 1), b, sums, &mut Ahead::none()) };
            }
        }
    }
}

/// Rows of a packed panel of `k` rows: pairs of them, or all.
fn height(k: usize, pairs: bool) -> usize {
    if pairs { k.div_ceil(2) } else { k }
}

/// Destination of a vector's columns: the panels of `W` columns that they fill.
#[derive(Clone, Copy)]
struct To<const W: usize> {
    at: *mut f32,
    height: usize, // of a panel
    width: usize,  // columns that exist, of 16
}

/// Packs a factor of `k` rows and `width` columns into panels of `W` columns, 8 or 16, one panel after the
/// other. Missing columns of the last panel and a missing row of the last pair are zero.
///
/// # Safety
/// The window is valid, `to` has room for ⌈width/W⌉ panels, and the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn pack<const W: usize, const PAIRS: bool>(to: *mut f32, from: Factor<Bf16>, k: usize, width: usize) {
    let height = height(k, PAIRS);
    let place = |w: usize| To::<W> { at: to.wrapping_add(w * height), height, width: LANES.min(width - w) };
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        let by_rows = if from.col == 1 { width / LANES * LANES } else { 0 };
        for first in (0..by_rows).step_by(TOGETHER) {
            let last = by_rows.min(first + TOGETHER);
            for p in (0..k).step_by(2) {
                let row = from.from(p, first);
                for ahead in [8, 9] {
                    for line in [0, 32] {
                        // Prefetches may point anywhere.
                        _mm_prefetch::<_MM_HINT_T0>(row.from(ahead, line).at.cast());
                    }
                }
                for w in (first..last).step_by(LANES) {
                    let low = row_of_16(from.from(p, w));
                    let high =
                        if p + 1 < k { row_of_16(from.from(p + 1, w)) } else { _mm512_setzero_si512() };
                    put::<W, PAIRS>(place(w), p, k, _mm512_or_si512(low, _mm512_slli_epi32::<16>(high)));
                }
            }
        }
        for w in (by_rows..width).step_by(LANES) {
            let (to, from) = (place(w), from.from(0, w));
            let by_columns = if from.row == 1 { k / BLOCK * BLOCK } else { 0 };
            for p in (0..by_columns).step_by(BLOCK) {
                let mut block = [_mm512_setzero_ps(); LANES];
                for (w, v) in block[..to.width].iter_mut().enumerate() {
                    *v = _mm512_loadu_ps(from.from(p, w).at.cast());
                }
                for (s, v) in transpose(block).into_iter().enumerate() {
                    put::<W, PAIRS>(to, p + 2 * s, k, _mm512_castps_si512(v));
                }
            }
            for p in (by_columns..k).step_by(2) {
                put::<W, PAIRS>(to, p, k, one_by_one(from, p, k, to.width));
            }
        }
    }
}

/// Loads a row of 16 contiguous elements, each into the lower half of its lane.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn row_of_16(from: Factor<Bf16>) -> __m512i {
    // SAFETY: the caller guarantees 16 elements there.
    unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.at.cast())) }
}

/// Loads rows p and p + 1 of up to 16 columns, for any strides.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn one_by_one(from: Factor<Bf16>, p: usize, k: usize, width: usize) -> __m512i {
    let mut lanes = [0u32; LANES];
    for (w, lane) in lanes[..width].iter_mut().enumerate() {
        // SAFETY: inside the factor, as the caller says.
        let half = |p: usize| u32::from(unsafe { *from.from(p, w).at }.to_bits());
        *lane = half(p) | if p + 1 < k { half(p + 1) << 16 } else { 0 };
    }
    // SAFETY: as many lanes as a vector has.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

/// Stores rows p and p + 1 in their place.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn put<const W: usize, const PAIRS: bool>(to: To<W>, p: usize, k: usize, v: __m512i) {
    // SAFETY: rows that the panels have.
    unsafe {
        if PAIRS {
            row::<W>(to, p / 2, v);
        } else {
            row::<W>(to, p, _mm512_slli_epi32::<16>(v));
            if p + 1 < k {
                let upper = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
                row::<W>(to, p + 1, _mm512_and_si512(v, upper));
            }
        }
    }
}

/// Stores a row of one panel of 16 columns, or of up to two of 8.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn row<const W: usize>(to: To<W>, p: usize, v: __m512i) {
    const { assert!(W == LANES || 2 * W == LANES) };
    // SAFETY: a row that the panels have.
    unsafe {
        let target = to.at.add(p * W);
        if W == LANES {
            _mm512_storeu_ps(target, _mm512_castsi512_ps(v));
        } else {
            _mm256_storeu_si256(target.cast(), _mm512_castsi512_si256(v));
            if to.width > W {
                _mm256_storeu_si256(target.add(to.height * W).cast(), _mm512_extracti64x4_epi64::<1>(v));
            }
        }
    }
}
