//! Launches of `norm.cu`.
use super::row::RowRules;
use super::{Launches, MatrixIn, MatrixOut, across, scratch};
use crate::card::{Argument, KernelName, LaunchConfig};
use tensor::Scalar;

/// Returns 1/n for n columns.
fn share<S: Scalar>(of: MatrixIn<S>) -> f32 {
    1.0 / of.cols() as f32
}

#[allow(clippy::too_many_arguments)] // as the kernels
impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn rms_norm(
        &self,
        y: MatrixOut<S>,
        r: MatrixOut<f32>,
        x: MatrixIn<S>,
        gain: MatrixIn<S>,
        eps: f64,
    ) {
        let arguments: [&dyn Argument; 6] = [&y, &r, &x, &gain, &share(x), &(eps as f32)];
        self.launch_under(&RowRules, "rms_norm", across(&x), &arguments);
    }
    /// Launches another kernel in its place: the one written by hand.
    pub(crate) fn rms_norm_as(
        &self,
        kernel: KernelName,
        y: MatrixOut<S>,
        r: MatrixOut<f32>,
        x: MatrixIn<S>,
        gain: MatrixIn<S>,
        eps: f64,
    ) {
        self.0.launch(kernel, across(&x), &[&y, &r, &x, &gain, &share(x), &(eps as f32)]);
    }
    pub(crate) fn layer_norm(
        &self,
        y: MatrixOut<S>,
        stats: MatrixOut<f32>,
        x: MatrixIn<S>,
        gain: MatrixIn<S>,
        bias: MatrixIn<S>,
        eps: f64,
    ) {
        let arguments: [&dyn Argument; 7] = [&y, &stats, &x, &gain, &bias, &share(x), &(eps as f32)];
        self.launch("layer_norm", across(&x), &arguments);
    }
    pub(crate) fn rms_norm_backward(
        &self,
        dx: MatrixOut<S>,
        dgain: MatrixOut<f32>,
        x: MatrixIn<S>,
        r: MatrixIn<f32>,
        gain: MatrixIn<S>,
        dy: MatrixIn<S>,
        skip: Option<MatrixIn<S>>,
    ) {
        self.backward("rms_norm_backward", dx, [dgain], x, r, gain, dy, skip);
    }
    pub(crate) fn layer_norm_backward(
        &self,
        dx: MatrixOut<S>,
        dgain_dbias: [MatrixOut<f32>; 2],
        x: MatrixIn<S>,
        stats: MatrixIn<f32>,
        gain: MatrixIn<S>,
        dy: MatrixIn<S>,
        skip: Option<MatrixIn<S>>,
    ) {
        self.backward("layer_norm_backward", dx, dgain_dbias, x, stats, gain, dy, skip);
    }
    /// Launches one block per 8 rows, up to the number that a card runs at once; then adds their partial
    /// gradients.
    fn backward<const N: usize>(
        &self,
        kernel: &'static str,
        dx: MatrixOut<S>,
        gradients: [MatrixOut<f32>; N],
        x: MatrixIn<S>,
        stats: MatrixIn<f32>,
        gain: MatrixIn<S>,
        dy: MatrixIn<S>,
        skip: Option<MatrixIn<S>>,
    ) {
        const ROOM: usize = 96 << 10; // bytes of shared memory, so that two blocks fit on a processor
        let LaunchConfig { threads, .. } = across(&x);
        let cols = x.cols();
        let blocks = x.rows().div_ceil(8).min(self.0.card().about.processors * 1024 / threads);
        if blocks == 0 || cols == 0 {
            return;
        }
        let bytes = N * cols * size_of::<f32>();
        let shared = if bytes <= ROOM { bytes } else { 0 };
        let mut parts = scratch(self.0, blocks, N * cols);
        let shape = LaunchConfig { blocks: [blocks, 1, 1], threads, shared };
        let sums = parts.view_mut();
        self.launch(kernel, shape, &[&dx, &sums, &x, &stats, &gain, &dy, &skip, &share(x), &(shared as u32)]);
        for (i, gradient) in gradients.into_iter().enumerate() {
            Launches::<f32>::on(self.0).add_rows(gradient, parts.view().take_cols(i * cols, cols));
        }
    }
}
