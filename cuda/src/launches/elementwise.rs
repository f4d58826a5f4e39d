//! Launches of `elementwise.cu`.
use super::{Window, each, named};
use crate::device::Cuda;
use crate::gpu::Gpu;
use tensor::{Scalar, View, ViewMut};

/// y = x, whatever their strides.
pub(crate) fn gather<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, x: View<Cuda<S>>) {
    copy(gpu, y, x);
}

pub(crate) fn copy<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, x: View<Cuda<S>>) {
    let [y, x] = [Window::from(&y), Window::from(&x)];
    gpu.launch(&named::<S>("copy"), each(gpu, y.len()), &[&y, &x]);
}

pub(crate) fn add<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, a: View<Cuda<S>>) {
    let [y, a] = [Window::from(&y), Window::from(&a)];
    gpu.launch(&named::<S>("add"), each(gpu, y.len()), &[&y, &a]);
}
