//! Few rows times a matrix of f32 with AVX-512: what counts is how fast the matrix comes from memory.
//!
//! Each of its rows is read once, from [`STREAMS`] places at a time, each [`AHEAD`] of what is used: memory gives more to
//! several streams than to one, and the hardware alone does not look far enough ahead.
use super::gemm::Factor;
#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

const STREAMS: usize = 4;
/// How many numbers ahead of use they are fetched; beyond a row's end the next row lies.
const AHEAD: usize = 512;
const LANES: usize = 16;

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\].
///
/// # Safety
/// The windows are valid, the columns of `c` (row stride `ldc`) and of B lie together, `c` overlaps neither factor, and
/// the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn product(
    [m, n, k]: [usize; 3],
    c: *mut f32,
    ldc: usize,
    a: Factor<f32>,
    b: Factor<f32>,
    add: bool,
) {
    let apart = k / STREAMS;
    // SAFETY: rows and columns inside the windows, by the caller's promise.
    unsafe {
        for i in 0..m {
            if !add {
                std::slice::from_raw_parts_mut(c.add(i * ldc), n).fill(0.0);
            }
        }
        for p in 0..apart {
            let places: [usize; STREAMS] = std::array::from_fn(|s| p + s * apart);
            for i in 0..m {
                let x = places.map(|p| *a.at.add(i * a.row + p * a.col));
                add_rows(c.add(i * ldc), x, places.map(|p| b.at.add(p * b.row)), n);
            }
        }
        for p in apart * STREAMS..k {
            for i in 0..m {
                add_rows(c.add(i * ldc), [*a.at.add(i * a.row + p * a.col)], [b.at.add(p * b.row)], n);
            }
        }
    }
}

/// y += Σ x·row.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn add_rows<const N: usize>(y: *mut f32, x: [f32; N], rows: [*const f32; N], n: usize) {
    let x = x.map(|x| _mm512_set1_ps(x));
    for j in (0..n).step_by(LANES) {
        let mask = if n - j >= LANES { u16::MAX } else { (1 << (n - j)) - 1 };
        // SAFETY: masked to the rows' ends; prefetches may point anywhere.
        unsafe {
            let mut sum = _mm512_maskz_loadu_ps(mask, y.add(j));
            for (&x, &row) in x.iter().zip(&rows) {
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(j + AHEAD).cast());
                sum = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask, row.add(j)), sum);
            }
            _mm512_mask_storeu_ps(y.add(j), mask, sum);
        }
    }
}
