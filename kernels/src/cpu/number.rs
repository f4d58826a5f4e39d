//! Dtypes that the host computes with, and what each of them overrides.
use super::factor::{check, factor, sums};
use super::gemm::has_avx512;
use super::matrices::{In, Out};
use super::panels::{self, Panels};
use super::scalar::CpuScalar;
use super::{bf16, few, gemm, gemm_field};
#[cfg(target_arch = "x86_64")]
use super::{gemm_avx512, gemv_avx512, micro_avx512::NR};
use crate::Write;
use tensor::{Bf16, Coded, Dual, Field};

/// Largest number of rows of f32 products that stream the other factor once, row by row.
const FEW: usize = 8;

/// Methods of every dtype that is its own wide dtype.
macro_rules! as_wide_as_sums {
    () => {
        #[inline(always)]
        fn gemm_wide(c: Out<Self>, a: In<Self>, b: In<Self>, write: Write) {
            Self::gemm(c, a, b, write);
        }
        #[inline(always)]
        fn as_wide(x: In<Self>) -> Option<In<Self>> {
            Some(x)
        }
    };
}

impl CpuScalar for f32 {
    const TILE: [usize; 2] = [32, 256];
    const PANEL: usize = 16;
    const VECTORS: bool = true;
    /// Few rows are multiplied by rows or columns; other products use the packed kernel where it runs, else
    /// the library's.
    #[inline(always)]
    fn gemm(c: Out<f32>, a: In<f32>, b: In<f32>, write: Write) {
        check(&c, &a, &b);
        let (size, to, a, b) = ([c.rows(), c.cols(), a.cols()], sums(&c, write), factor(&a), factor(&b));
        let by_rows = b.col == 1;
        // SAFETY: valid windows of fitting sizes; `c` is borrowed mutably, so it overlaps neither factor.
        unsafe {
            if c.rows() <= FEW && (by_rows || b.row == 1 && a.col == 1) {
                return match by_rows {
                    #[cfg(target_arch = "x86_64")]
                    true if has_avx512() => gemv_avx512::product(size, to, a, b),
                    true => few::by_rows::<_, few::Plain>(size, to, a, b),
                    false => few::by_columns(size, to, a, b),
                };
            }
            #[cfg(target_arch = "x86_64")]
            if size[2] > 0 && has_avx512() {
                return gemm_avx512::product(size, to, a, gemm_avx512::RightFactor::Strided(b));
            }
            gemm::f32_by_library(size, to, a, b);
        }
    }
    as_wide_as_sums!();
    fn panel(n: usize) -> usize {
        if has_avx512() { Self::PANEL } else { n.max(1) }
    }
    #[inline(always)]
    fn pack(to: Out<f32>, b: In<f32>) {
        #[cfg(target_arch = "x86_64")]
        if has_avx512() {
            assert!(to.is_contiguous() && to.cols() == NR);
            assert_eq!(to.rows(), b.cols().div_ceil(NR) * b.rows());
            // SAFETY: valid windows, of fitting sizes; `to` is borrowed mutably, so it does not overlap the
            // factor.
            return unsafe { gemm_avx512::pack_panels::<NR>(to.raw(), factor(&b), b.rows(), b.cols()) };
        }
        panels::pack(to, b);
    }
    /// Reads the panels in place.
    #[inline(always)]
    fn gemm_panels(c: Out<f32>, a: In<f32>, b: &Panels<f32>, write: Write) {
        #[cfg(target_arch = "x86_64")]
        if let Some((first, apart)) = b.first().filter(|_| has_avx512() && a.cols() > 0) {
            assert!([a.cols(), c.cols()] == b.size() && c.rows() == a.rows() && c.col_stride() == 1);
            let size = [c.rows(), c.cols(), a.cols()];
            let b = gemm_avx512::RightFactor::Panels { first: first.raw(), apart };
            // SAFETY: valid windows of fitting sizes; `c` is borrowed mutably, so it overlaps neither factor.
            return unsafe { gemm_avx512::product(size, sums(&c, write), factor(&a), b) };
        }
        panels::product(c, a, b, write);
    }
}

impl CpuScalar for f64 {
    const TILE: [usize; 2] = [64, 256];
    const PANEL: usize = 32;
    const VECTORS: bool = true;
    #[inline(always)]
    fn gemm(c: Out<f64>, a: In<f64>, b: In<f64>, write: Write) {
        check(&c, &a, &b);
        let size = [c.rows(), c.cols(), a.cols()];
        // SAFETY: valid windows of fitting sizes; `c` is borrowed mutably, so it overlaps neither factor.
        unsafe { gemm::f64_by_library(size, sums(&c, write), factor(&a), factor(&b)) };
    }
    as_wide_as_sums!();
}

impl CpuScalar for Bf16 {
    const TILE: [usize; 2] = [32, 256];
    const PANEL: usize = 32;
    const VECTORS: bool = true;
    fn gemm(c: Out<Bf16>, a: In<Bf16>, b: In<Bf16>, write: Write) {
        bf16::product(c, a, b, write);
    }
    fn gemm_wide(c: Out<f32>, a: In<Bf16>, b: In<Bf16>, write: Write) {
        bf16::product(c, a, b, write);
    }
    fn as_wide(_: In<Bf16>) -> Option<In<f32>> {
        None
    }
}

impl<const BITS: u32> CpuScalar for Field<BITS> {
    const TILE: [usize; 2] = [2, 3];
    const PANEL: usize = 3;
    const VECTORS: bool = false;
    fn gemm(c: Out<Self>, a: In<Self>, b: In<Self>, write: Write) {
        gemm_field::product(c, a, b, write);
    }
    as_wide_as_sums!();
}

impl<S: Coded> CpuScalar for Dual<S> {
    const TILE: [usize; 2] = [2, 3];
    const PANEL: usize = 3;
    const VECTORS: bool = false;
    fn panel(_: usize) -> usize {
        Self::PANEL // so that proofs cross the borders of panels
    }
    fn gemm(c: Out<Self>, a: In<Self>, b: In<Self>, write: Write) {
        gemm::plain(c, a, b, write);
    }
    as_wide_as_sums!();
}
