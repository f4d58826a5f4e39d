//! The numbers that the host computes with, and what each of them overrides.
use super::matrices::{In, Out};
use super::panels::Panels;
use super::scalar::CpuScalar;
use super::{bf16, gemm, gemm_field};
use crate::Write;
use tensor::{Bf16, Dual, Field, Scalar};

/// What is the same for every number that is its own wide number.
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
    #[inline(always)]
    fn gemm(c: Out<f32>, a: In<f32>, b: In<f32>, write: Write) {
        gemm::f32(c, a, b, write);
    }
    as_wide_as_sums!();
    fn panel(n: usize) -> usize {
        if gemm::has_avx512() { Self::PANEL } else { n.max(1) }
    }
    #[inline(always)]
    fn pack(to: Out<f32>, b: In<f32>) {
        gemm::pack_f32(to, b);
    }
    #[inline(always)]
    fn gemm_panels(c: Out<f32>, a: In<f32>, b: &Panels<f32>, write: Write) {
        gemm::panels_f32(c, a, b, write);
    }
}

impl CpuScalar for f64 {
    const TILE: [usize; 2] = [64, 256];
    const PANEL: usize = 32;
    const VECTORS: bool = true;
    #[inline(always)]
    fn gemm(c: Out<f64>, a: In<f64>, b: In<f64>, write: Write) {
        gemm::f64(c, a, b, write);
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

impl<S: Scalar> CpuScalar for Dual<S> {
    const TILE: [usize; 2] = [2, 3];
    const PANEL: usize = 3;
    const VECTORS: bool = false;
    fn panel(_: usize) -> usize {
        Self::PANEL // so that proofs cross their borders
    }
    fn gemm(c: Out<Self>, a: In<Self>, b: In<Self>, write: Write) {
        gemm::plain(c, a, b, write);
    }
    as_wide_as_sums!();
}
