//! Elements of ranks, for tests.
use tensor::{Category, Cpu, Scalar, Tensor, mix};

/// Element `i` of rank `rank`: a value that floats round, so that a sum depends on its order.
pub(crate) fn element<S: Scalar>(rank: usize, i: usize) -> S {
    S::from_f64((mix((rank << 32 | i) as u64) >> 20) as f64 / f64::from(1 << 30))
}
/// All elements of a rank.
pub(crate) fn tensor<S: Scalar>(device: &Cpu<S>, rank: usize, [rows, cols]: [usize; 2]) -> Tensor<Cpu<S>> {
    Tensor::from_fn(device, Category::Buffers, rows, cols, |i| element(rank, i))
}
