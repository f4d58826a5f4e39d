//! What a pass shows of itself: every activation and its gradient, by canonical name and in the order in which they come
//! about. So a program that differs can be told where it does so first.
//!
//! ```text
//! blocks.0.norm1.in, .out   blocks.0.attention.qkv.in, .out   …   blocks.0.mlp.added   norm.in, .out   head.in, .out
//! gradient of head.out, head.in, norm.in, blocks.1.mlp.down.out, .in, …
//! ```
use crate::parameters::{Map, Weights};
use std::fmt::Arguments;
use tensor::Scalar;

/// Who looks on: takes a name, and the matrix, row-major, a row for every token.
pub type See<'a, S> = dyn FnMut(Arguments, &[S]) + 'a;

impl Map {
    /// X to Y, both shown.
    pub(crate) fn forward_seen<S: Scalar>(&self, w: &Weights<S>, x: &[S], see: &mut See<S>) -> Vec<S> {
        let y = self.forward(w, x);
        see(format_args!("{}.in", self.name), x);
        see(format_args!("{}.out", self.name), &y);
        y
    }
    /// dY to dX, both shown.
    pub(crate) fn backward_seen<S: Scalar>(
        &self,
        w: &Weights<S>,
        x: &[S],
        dy: &[S],
        g: &mut Weights<S>,
        see: &mut See<S>,
    ) -> Vec<S> {
        see(format_args!("gradient of {}.out", self.name), dy);
        let dx = self.backward(w, x, dy, g);
        see(format_args!("gradient of {}.in", self.name), &dx);
        dx
    }
}
