//! Launches of `optimizer.cu` and `adamw_8bit.cu`.
use super::{Launches, MatrixIn, MatrixOut, MatrixView, each};
use crate::card::{Argument, LaunchConfig, arguments_of};
use crate::gpu::Gpu;
use tensor::Scalar;

/// Most blocks of a launch that sums over all its blocks: `MOST` of `sum.cuh`.
const MOST_BLOCKS: usize = 1024;

/// Blocks for a sum of one term per thread, `terms` in all; at least one block, which writes the result.
pub(crate) fn summing(gpu: &Gpu, terms: usize) -> LaunchConfig {
    let shape = each(gpu, terms);
    LaunchConfig { blocks: [shape.blocks[0].clamp(1, MOST_BLOCKS), 1, 1], ..shape }
}

/// Constants of an optimizer step: `AdamW` of `adamw.cuh`.
#[repr(C)]
struct OptimizerArgs {
    keep: f32,
    first: f32,
    second: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
}
arguments_of!(OptimizerArgs);

impl OptimizerArgs {
    /// Uses the arithmetic of the host's kernel.
    fn new((constants, number): ([f64; 5], usize)) -> Self {
        let [lr, beta1, beta2, eps, decay] = constants.map(|x| x as f32);
        Self {
            keep: 1.0 - lr * decay,
            first: lr * (1.0 / (1.0 - Scalar::pow(beta1, number))),
            second: 1.0 / (1.0 - Scalar::pow(beta2, number)),
            beta1,
            beta2,
            eps,
        }
    }
}

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn add_norm2(&self, out: MatrixOut<S>, x: MatrixIn<S>) {
        self.launch("add_norm2", summing(self.0, MatrixView::from(&x).len().div_ceil(4)), &[&out, &x]);
    }

    pub(crate) fn clip_factor(&self, factor: MatrixOut<S>, norm2: MatrixIn<S>, limit: f64) {
        let one = LaunchConfig { blocks: [1; 3], threads: 1, shared: 0 };
        self.launch("clip_factor", one, &[&factor, &norm2, &(limit as f32)]);
    }

    pub(crate) fn sgd(
        &self,
        w: MatrixOut<S>,
        master: Option<MatrixOut<f32>>,
        g: MatrixIn<f32>,
        factor: MatrixIn<f32>,
        constants: [f64; 2],
    ) {
        let [lr, decay] = constants.map(|x| x as f32);
        let shape = each(self.0, MatrixView::from(&g).len().div_ceil(4));
        self.launch("sgd", shape, &[&w, &master, &g, &factor, &lr, &(1.0 - lr * decay)]);
    }

    pub(crate) fn adamw(
        &self,
        w: MatrixOut<S>,
        master: Option<MatrixOut<f32>>,
        (m, v): (MatrixOut<f32>, MatrixOut<f32>),
        g: MatrixIn<f32>,
        factor: MatrixIn<f32>,
        constants: ([f64; 5], usize),
    ) {
        let arguments: [&dyn Argument; 7] =
            [&w, &master, &m, &v, &g, &factor, &OptimizerArgs::new(constants)];
        self.launch("adamw", each(self.0, MatrixView::from(&g).len().div_ceil(4)), &arguments);
    }

    pub(crate) fn adamw_8bit(
        &self,
        w: MatrixOut<S>,
        master: Option<MatrixOut<f32>>,
        [m, m_units, v, v_units]: [MatrixOut<f32>; 4],
        g: MatrixIn<f32>,
        factor: MatrixIn<f32>,
        (constants, [number, block]): ([f64; 5], [usize; 2]),
    ) {
        let shape = each(self.0, 32 * MatrixView::from(&m_units).len()); // a warp a block
        let by = OptimizerArgs::new((constants, number));
        let arguments: [&dyn Argument; 10] =
            [&w, &master, &m, &m_units, &v, &v_units, &g, &factor, &by, &(block as u32)];
        self.launch("adamw_8bit", shape, &arguments);
    }

    pub(crate) fn lion(
        &self,
        w: MatrixOut<S>,
        master: Option<MatrixOut<f32>>,
        m: MatrixOut<f32>,
        g: MatrixIn<f32>,
        factor: MatrixIn<f32>,
        constants: [f64; 4],
    ) {
        let [lr, beta1, beta2, decay] = constants.map(|x| x as f32);
        let shape = each(self.0, MatrixView::from(&g).len().div_ceil(4));
        self.launch("lion", shape, &[&w, &master, &m, &g, &factor, &lr, &(1.0 - lr * decay), &beta1, &beta2]);
    }

    pub(crate) fn momentum(
        &self,
        to: MatrixOut<S>,
        m: MatrixOut<S>,
        g: MatrixIn<S>,
        factor: MatrixIn<S>,
        beta: f64,
    ) {
        let shape = each(self.0, MatrixView::from(&g).len().div_ceil(4));
        self.launch("momentum", shape, &[&to, &m, &g, &factor, &(beta as f32)]);
    }

    pub(crate) fn scale(&self, y: MatrixOut<S>, x: MatrixIn<S>, factor: MatrixIn<S>, by: f64) {
        let shape = each(self.0, MatrixView::from(&x).len().div_ceil(4));
        self.launch("scale", shape, &[&y, &x, &factor, &(by as f32)]);
    }
}
