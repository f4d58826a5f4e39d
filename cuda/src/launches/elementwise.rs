//! Launches of `elementwise.cu`.
use super::row::RowRules;
use super::{DropoutArgs, Launches, MatrixIn, MatrixOut, MatrixView, across, each, scratch};
use crate::card::{Argument, LaunchConfig};
use crate::gpu::Gpu;
use kernels::{Activation, Gate};
use tensor::{Dropout, Index, Scalar};

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    /// Copies y = x, for any strides.
    pub(crate) fn gather(&self, y: MatrixOut<S>, x: MatrixIn<S>) {
        if x.col_stride() == 1 {
            return self.copy(y, x);
        }
        self.launch("gather", each(self.0, MatrixView::from(&y).len()), &[&y, &x]);
    }

    pub(crate) fn copy(&self, y: MatrixOut<S>, x: MatrixIn<S>) {
        if x.col_stride() != 1 {
            return self.gather(y, x);
        }
        self.map("copy", &x, &[&y, &x]);
    }

    pub(crate) fn narrow(&self, y: MatrixOut<S>, x: MatrixIn<f32>) {
        self.map("narrow", &x, &[&y, &x]);
    }

    /// Launches a kernel over the elements of a matrix: each thread has several, at least 16 bytes of them if
    /// the layout of rows allows.
    fn map(&self, kernel: &'static str, over: impl Into<MatrixView>, arguments: &[&dyn Argument]) {
        self.launch(kernel, self.over(over), arguments);
    }
    fn over(&self, x: impl Into<MatrixView>) -> LaunchConfig {
        each(self.0, x.into().len().div_ceil(4))
    }

    pub(crate) fn fill(&self, y: MatrixOut<S>, value: S) {
        self.map("fill", &y, &[&y, &value.widen()]);
    }

    pub(crate) fn add(&self, y: MatrixOut<S>, a: MatrixIn<S>) {
        self.map("add", &a, &[&y, &a]);
    }

    pub(crate) fn stab(&self, y: MatrixOut<S>, a: MatrixIn<S>) {
        self.map("stab", &a, &[&y, &a]);
    }

    pub(crate) fn add_row(&self, y: MatrixOut<S>, row: MatrixIn<S>) {
        self.map("add_row", &y, &[&y, &row]);
    }

    pub(crate) fn scale_rows(&self, y: MatrixOut<S>, by: MatrixIn<f32>) {
        self.map("scale_rows", &y, &[&y, &by]);
    }

    pub(crate) fn inverse_rms(&self, r: MatrixOut<S>, n: usize, eps: f64) {
        self.map("inverse_rms", &r, &[&r, &(1.0 / n as f32), &(eps as f32)]);
    }

    pub(crate) fn norm_part(
        &self,
        y: MatrixOut<S>,
        x: MatrixIn<S>,
        stats: MatrixIn<f32>,
        gain: MatrixIn<S>,
        z: Option<MatrixIn<S>>,
        n: usize,
    ) {
        self.map("norm_part", &x, &[&y, &x, &stats, &gain, &z, &(1.0 / n as f32)]);
    }

    /// Sums in parts if there are many rows; the parts' sums go to scratch memory and are added last.
    pub(crate) fn add_rows(&self, sum: MatrixOut<f32>, x: MatrixIn<S>) {
        const TOGETHER: usize = 256; // rows of a part, at least
        let parts = x.rows().div_ceil(TOGETHER).min(64);
        let shape =
            |parts| LaunchConfig { blocks: [x.cols().div_ceil(32), parts, 1], threads: 256, shared: 0 };
        if parts < 2 {
            return self.launch("add_rows", shape(parts), &[&sum, &x, &1u32]);
        }
        let mut of_parts = scratch(self.0, parts, x.cols());
        self.launch("add_rows", shape(parts), &[&of_parts.view_mut(), &x, &0u32]);
        self.0.launch(("add_rows", "f32"), shape(1), &[&sum, &of_parts.view(), &1u32]);
    }

    pub(crate) fn dropout(&self, x: MatrixOut<S>, tokens: &Index<Gpu>, first_row: usize, dropout: &Dropout) {
        let arguments: [&dyn Argument; 4] =
            [&x, tokens, &(first_row as u64), &DropoutArgs::from(Some(dropout))];
        self.launch("dropout", across(&x), &arguments);
    }

    /// Passes the activation as its number in the `enum` of `elementwise.cu`, which has the same order.
    pub(crate) fn activate(&self, h: MatrixOut<S>, x: MatrixIn<S>, f: Activation) {
        self.map("activate", &x, &[&h, &x, &(f as u32)]);
    }

    pub(crate) fn activate_backward(&self, dx: MatrixOut<S>, x: MatrixIn<S>, dh: MatrixIn<S>, f: Activation) {
        self.map("activate_backward", &x, &[&dx, &x, &dh, &(f as u32)]);
    }

    /// Passes a gate other than `SwiGLU`'s as its number in the `enum` of `elementwise.cu`.
    pub(crate) fn gated(&self, h: MatrixOut<S>, gate: MatrixIn<S>, up: MatrixIn<S>, f: Gate) {
        match f {
            Gate::Silu => self.launch_under(&RowRules, "swiglu", self.over(&h), &[&h, &gate, &up]),
            f => self.map("gated", &up, &[&h, &gate, &up, &(f as u32)]),
        }
    }

    pub(crate) fn stretch(&self, y: MatrixOut<S>, x: MatrixIn<S>, n: usize) {
        self.map("stretch", &x, &[&y, &x, &((n as f64).sqrt() as f32)]);
    }

    pub(crate) fn cap(&self, y: MatrixOut<S>, c: f64) {
        self.map("cap", &y, &[&y, &(c as f32)]);
    }

    pub(crate) fn gated_backward(
        &self,
        dgate: MatrixOut<S>,
        dup: MatrixOut<S>,
        gate: MatrixIn<S>,
        up: MatrixIn<S>,
        dh: MatrixIn<S>,
        f: Gate,
    ) {
        match f {
            Gate::Silu => self.map("swiglu_backward", &dh, &[&dgate, &dup, &gate, &up, &dh]),
            f => self.map("gated_backward", &dh, &[&dgate, &dup, &gate, &up, &dh, &(f as u32)]),
        }
    }
}
