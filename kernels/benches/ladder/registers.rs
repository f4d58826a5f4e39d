//! Rungs that name AVX-512: 12×32 of C stay in registers, and are written once.
use crate::{M, Matrix, N, V, matrix};
use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

/// Rows of C in registers, columns of C in registers: 24 of the 32 vectors hold sums.
const MR: usize = 12;
const NR: usize = 32;
const LANES: usize = 16;
/// Rows and columns of B that are packed together: 512 KiB, half of a common L2.
const KC: usize = 256;
const NC: usize = 512;

/// Memory for packed factors, allocated once.
pub(crate) struct Room {
    a: Matrix,
    b: Matrix,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self { a: matrix(1, N.next_multiple_of(MR) * KC, |_| 0.0), b: matrix(1, NC * KC, |_| 0.0) }
    }
    /// Packs both factors: the elements that registers need next are adjacent.
    pub(crate) fn both_packed(&mut self, c: M, a: V, b: V) {
        self.product::<true>(c, a, b);
    }
    /// Reads A in place: each of its elements is read by itself, so twelve rows are as fast as one.
    pub(crate) fn a_as_it_lies(&mut self, c: M, a: V, b: V) {
        self.product::<false>(c, a, b);
    }
    fn product<const PACKED: bool>(&mut self, mut c: M, a: V, b: V) {
        assert!(std::is_x86_feature_detected!("avx512f"), "this rung needs AVX-512");
        for matrix in [&c.read(), &a, &b] {
            assert!([matrix.rows(), matrix.cols()] == [N, N] && matrix.is_contiguous());
        }
        let (mut pa, mut pb) = (self.a.view_mut(), self.b.view_mut());
        let (pa, pb) = (pa.flat(), pb.flat());
        for k in (0..N).step_by(KC) {
            if PACKED {
                for (i, panel) in (0..N).step_by(MR).zip(pa.chunks_exact_mut(MR * KC)) {
                    pack::<MR>(panel, a.take_rows(i, MR.min(N - i)).take_cols(k, KC).t());
                }
            }
            for j in (0..N).step_by(NC) {
                for (jr, panel) in (0..NC).step_by(NR).zip(pb.chunks_exact_mut(NR * KC)) {
                    pack::<NR>(panel, b.take_rows(k, KC).take_cols(j + jr, NR));
                }
                for i in (0..N).step_by(MR) {
                    let rows = MR.min(N - i);
                    let a = if PACKED { pa[i * KC..].as_ptr() } else { a.row(i)[k..].as_ptr() };
                    for (jr, panel) in (0..NC).step_by(NR).zip(pb.chunks_exact(NR * KC)) {
                        let c = c.again().take_rows(i, rows).take_cols(j + jr, NR);
                        // SAFETY: `a` has `rows` rows of KC from column k on, as they lie or packed; the rest
                        // was asserted.
                        unsafe {
                            match rows {
                                MR => tile::<MR, PACKED>(c, a, panel, k > 0),
                                _ => tile::<{ N % MR }, PACKED>(c, a, panel, k > 0),
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Packs the rows of x, one after the other, each with room for `W` elements.
fn pack<const W: usize>(to: &mut [f32], x: V) {
    for (k, to) in to.chunks_exact_mut(W).enumerate() {
        if x.col_stride() == 1 {
            to.copy_from_slice(x.row(k));
        } else {
            to.iter_mut().zip(0..x.cols()).for_each(|(to, i)| *to = x.at(k, i));
        }
    }
}

/// Computes `R` rows of 32 columns of C from `R` rows of A and one panel of B; adds to C if `add`.
///
/// # Safety
/// Element (r, k) of A is `a[k * 12 + r]` if packed, else `a[r * N + k]`, for all rows k of the panel. C is a
/// window of this size, and the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize, const PACKED: bool>(c: M, a: *const f32, panel: &[f32], add: bool) {
    let mut sums: [[__m512; 2]; R] = [[_mm512_setzero_ps(); 2]; R];
    for (k, b) in panel.chunks_exact(NR).enumerate() {
        // SAFETY: a row of the panel is two vectors; the caller vouches for A.
        let b = unsafe { [_mm512_loadu_ps(b.as_ptr()), _mm512_loadu_ps(b.as_ptr().add(LANES))] };
        for r in 0..R {
            // SAFETY: as above.
            let x = _mm512_set1_ps(unsafe { *a.add(if PACKED { k * MR + r } else { r * N + k }) });
            for v in 0..2 {
                sums[r][v] = _mm512_fmadd_ps(x, b[v], sums[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..2 {
            let at = c.raw().wrapping_add(r * N + v * LANES);
            // SAFETY: inside the window, by the caller's promise.
            unsafe {
                let before = if add { _mm512_loadu_ps(at) } else { _mm512_setzero_ps() };
                _mm512_storeu_ps(at, _mm512_add_ps(sums[r][v], before));
            }
        }
    }
}
