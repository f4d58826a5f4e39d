//! Launches of products: of all ways to compute one that the card has, the fastest that fits.
use super::{Window, each};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::Write;
use tensor::{Scalar, Tensor, View, ViewMut};

pub(crate) fn gemm<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S>>,
    a: View<Cuda<S>>,
    b: View<Cuda<S>>,
    write: Write,
) {
    product(gpu, c, a, b, write);
}

pub(crate) fn gemm_wide<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S::Wide>>,
    a: View<Cuda<S>>,
    b: View<Cuda<S>>,
    write: Write,
) {
    product(gpu, c, a, b, write);
}

pub(crate) fn gemm_packed<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S>>,
    a: View<Cuda<S>>,
    b: &Tensor<Cuda<S>>,
    write: Write,
) {
    product(gpu, c, a, b.view(), write);
}

fn product<S: Scalar, C: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<C>>,
    a: View<Cuda<S>>,
    b: View<Cuda<S>>,
    write: Write,
) {
    let [c, a, b] = [Window::from(&c), Window::from(&a), Window::from(&b)];
    let fit = c.rows == a.rows && a.cols == b.rows && b.cols == c.cols;
    assert!(fit && c.col_stride == 1, "a product of matrices that do not fit");
    let numbers = if S::NAME == C::NAME { S::NAME.into() } else { format!("wide_{}", S::NAME) };
    let add = u32::from(write == Write::Add);
    gpu.launch(&format!("gemm_naive_{numbers}"), each(gpu, c.len()), &[&c, &a, &b, &add]);
}
