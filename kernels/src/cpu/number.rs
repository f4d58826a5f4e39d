//! The numbers the host can compute with, and what each of them overrides.
use super::{gemm, gemm_field};
use crate::kernels::Write;
use tensor::{Cpu, Dual, Field, Scalar, View, ViewMut};

/// A number that the host can compute with. What differs from number to number is here.
pub trait CpuScalar: Scalar {
    /// Attention's tile, queries × keys. Tiny where numbers are exact, so that small proofs cross tile borders.
    const TILE: [usize; 2];
    /// Whether loops over it gain from vectors: only then kernels are compiled once for each width.
    const VECTORS: bool;
    /// C (+)= A·B for any strides.
    fn gemm(c: ViewMut<Cpu<Self>>, a: View<Cpu<Self>>, b: View<Cpu<Self>>, write: Write);
}

impl CpuScalar for f32 {
    const TILE: [usize; 2] = [64, 256];
    const VECTORS: bool = true;
    #[inline(always)]
    fn gemm(c: ViewMut<Cpu<f32>>, a: View<Cpu<f32>>, b: View<Cpu<f32>>, write: Write) {
        gemm::f32(c, a, b, write);
    }
}

impl CpuScalar for f64 {
    const TILE: [usize; 2] = [64, 256];
    const VECTORS: bool = true;
    #[inline(always)]
    fn gemm(c: ViewMut<Cpu<f64>>, a: View<Cpu<f64>>, b: View<Cpu<f64>>, write: Write) {
        gemm::library(c, a, b, write);
    }
}

impl<const BITS: u32> CpuScalar for Field<BITS> {
    const TILE: [usize; 2] = [2, 3];
    const VECTORS: bool = false;
    fn gemm(c: ViewMut<Cpu<Self>>, a: View<Cpu<Self>>, b: View<Cpu<Self>>, write: Write) {
        gemm_field::product(c, a, b, write);
    }
}

impl<S: Scalar> CpuScalar for Dual<S> {
    const TILE: [usize; 2] = [2, 3];
    const VECTORS: bool = false;
    fn gemm(c: ViewMut<Cpu<Self>>, a: View<Cpu<Self>>, b: View<Cpu<Self>>, write: Write) {
        gemm::plain(c, a, b, write);
    }
}
