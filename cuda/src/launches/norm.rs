//! Launches of `norm.cu`.
use super::{Shape, across, add_rows, named, scratch};
use crate::card::{Argument, KernelName};
use crate::device::Cuda;
use crate::gpu::Gpu;
use tensor::{Scalar, View, ViewMut};

/// 1/n, of as many columns as there are.
fn share<S: Scalar>(of: View<Cuda<S>>) -> f32 {
    1.0 / of.cols() as f32
}

pub(crate) fn rms_norm<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    y: ViewMut<Cuda<S>>,
    r: ViewMut<Cuda<f32>>,
    x: View<Cuda<S>>,
    gain: View<Cuda<S>>,
    eps: f64,
) {
    rms_norm_as(gpu, named::<S>("rms_norm"), y, r, x, gain, eps);
}

/// By the kernel of this name: the compiled one, or that which is written by hand.
pub(crate) fn rms_norm_as<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    kernel: KernelName,
    y: ViewMut<Cuda<S>>,
    r: ViewMut<Cuda<f32>>,
    x: View<Cuda<S>>,
    gain: View<Cuda<S>>,
    eps: f64,
) {
    gpu.launch(kernel, across(&x), &[&y, &r, &x, &gain, &share(x), &(eps as f32)]);
}

pub(crate) fn layer_norm<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    y: ViewMut<Cuda<S>>,
    stats: ViewMut<Cuda<f32>>,
    x: View<Cuda<S>>,
    gain: View<Cuda<S>>,
    bias: View<Cuda<S>>,
    eps: f64,
) {
    let arguments: [&dyn Argument; 7] = [&y, &stats, &x, &gain, &bias, &share(x), &(eps as f32)];
    gpu.launch(named::<S>("layer_norm"), across(&x), &arguments);
}

/// What a backward reads and writes beside the gains' gradients.
struct Backward<'a, S: Scalar> {
    dx: ViewMut<'a, Cuda<S>>,
    x: View<'a, Cuda<S>>,
    stats: View<'a, Cuda<f32>>,
    gain: View<'a, Cuda<S>>,
    dy: View<'a, Cuda<S>>,
    skip: Option<View<'a, Cuda<S>>>,
}

impl<S: Scalar<Wide = f32>> Backward<'_, S> {
    /// Launches it in so many blocks as a card takes at once, where there are 8 rows for each; then adds what these give to the
    /// gradients.
    fn launch<const N: usize>(self, gpu: &Gpu, kernel: &'static str, gradients: [ViewMut<Cuda<f32>>; N]) {
        const ROOM: usize = 96 << 10; // bytes of shared memory, so that two blocks share a processor's
        let Self { dx, x, stats, gain, dy, skip } = self;
        let (Shape { threads, .. }, cols) = (across(&x), x.cols());
        let most = gpu.card().about.processors * 1024 / threads;
        let blocks = x.rows().div_ceil(8).min(most);
        if blocks == 0 || cols == 0 {
            return;
        }
        let bytes = N * cols * size_of::<f32>();
        let shared = if bytes <= ROOM { bytes } else { 0 };
        let mut parts = scratch(gpu, blocks, N * cols);
        gpu.launch(
            named::<S>(kernel),
            Shape { blocks: [blocks, 1, 1], threads, shared },
            &[&dx, &parts.view_mut(), &x, &stats, &gain, &dy, &skip, &share(x), &(shared as u32)],
        );
        for (i, gradient) in gradients.into_iter().enumerate() {
            add_rows(gpu, gradient, parts.view().take_cols(i * cols, cols));
        }
    }
}

#[allow(clippy::too_many_arguments)] // as the kernel
pub(crate) fn rms_norm_backward<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    dx: ViewMut<Cuda<S>>,
    dgain: ViewMut<Cuda<f32>>,
    x: View<Cuda<S>>,
    r: View<Cuda<f32>>,
    gain: View<Cuda<S>>,
    dy: View<Cuda<S>>,
    skip: Option<View<Cuda<S>>>,
) {
    Backward { dx, x, stats: r, gain, dy, skip }.launch(gpu, "rms_norm_backward", [dgain]);
}

#[allow(clippy::too_many_arguments)] // as the kernel
pub(crate) fn layer_norm_backward<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    dx: ViewMut<Cuda<S>>,
    dgain_dbias: [ViewMut<Cuda<f32>>; 2],
    x: View<Cuda<S>>,
    stats: View<Cuda<f32>>,
    gain: View<Cuda<S>>,
    dy: View<Cuda<S>>,
    skip: Option<View<Cuda<S>>>,
) {
    Backward { dx, x, stats, gain, dy, skip }.launch(gpu, "layer_norm_backward", dgain_dbias);
}
