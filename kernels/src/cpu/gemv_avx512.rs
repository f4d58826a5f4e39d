//! Few rows times a matrix of f32 with AVX-512: limited by how fast the matrix is read from memory.
//!
//! Rows of the matrix are prefetched [`AHEAD`] elements before use, since the hardware alone does not look
//! far enough ahead. Prefetches go to L2: to L1 they were slower.
use super::factor::{Factor, Sums};
use super::few::{AddRows, by_rows};
#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

/// Elements that are prefetched ahead of their use; beyond a row's end lies the next row.
const AHEAD: usize = 512;
const LANES: usize = 16;

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\], where B is row-major.
///
/// # Safety
/// The windows are valid, C overlaps neither factor, and the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn product(size: [usize; 3], c: Sums<f32>, a: Factor<f32>, b: Factor<f32>) {
    // SAFETY: the caller's.
    unsafe { by_rows::<f32, GemvAvx512>(size, c, a, b) };
}

struct GemvAvx512;

impl AddRows<f32> for GemvAvx512 {
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
                    _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(j + AHEAD).cast());
                    sum = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask, row.add(j)), sum);
                }
                _mm512_mask_storeu_ps(y.add(j), mask, sum);
            }
        }
    }
}
