//! f16 on the host: blocks of products are widened to f32, for the library's product.
use super::bf16::portable::{parts, product};
use super::matrices::{In, Out};
use super::scalar::CpuScalar;
use crate::Write;
use tensor::{F16, Scalar};

impl CpuScalar for F16 {
    const TILE: [usize; 2] = [32, 256];
    const PANEL: usize = 32;
    const VECTORS: bool = true;
    fn gemm(c: Out<F16>, a: In<F16>, b: In<F16>, write: Write) {
        widened(c, a, b, write);
    }
    fn gemm_wide(c: Out<f32>, a: In<F16>, b: In<F16>, write: Write) {
        widened(c, a, b, write);
    }
    fn as_wide(_: In<F16>) -> Option<In<f32>> {
        None
    }
}

fn widened<C: Scalar<Wide = f32>>(c: Out<C>, a: In<F16>, b: In<F16>, write: Write) {
    if let Some((size, to, a, b)) = parts(c, a, b, write) {
        // SAFETY: valid windows of fitting sizes; C is borrowed mutably, so it overlaps neither factor.
        unsafe { product(size, to, a, b) };
    }
}
