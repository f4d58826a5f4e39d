//! The feed-forward layer of a block, and of the expert that all tokens share.
//!
//! ```text
//! Y[B,D] = activation(X[B,D]·W_up + b)·W_down + b
//! ```
use crate::activation::{activate, activate_backward};
use crate::gated::{gated, gated_backward};
use crate::parameters::{Map, MapKind, Shapes, Weights};
use crate::see::Walk;
use shape::FeedForward;
use tensor::Scalar;

/// Two matrices with an activation between them.
pub(crate) struct Pair {
    up: Map,
    down: Map,
    kind: FeedForward,
    hidden: usize,
}

/// Tensors that the forward saves for the backward.
pub(crate) struct FeedForwardSaved<S> {
    x: Vec<S>,
    up: Vec<S>, // input of the activation
    h: Vec<S>,  // output of the activation
}

impl Pair {
    /// Creates the layer with parameters `{name}.gate_up` or `.up`, and `.down`.
    pub(crate) fn new(name: &str, kind: FeedForward, [width, hidden]: [usize; 2], bias: bool) -> Self {
        let map = |part, shape| Map { name: format!("{name}.{part}"), shape, bias, does: MapKind::Affine };
        let (first, columns) = first(kind, hidden);
        Self { up: map(first, [width, columns]), down: map("down", [hidden, width]), kind, hidden }
    }
    pub(crate) fn shapes(&self) -> Shapes {
        [self.up.shapes(), self.down.shapes()].concat()
    }
    /// `X[B,D]` → `Y[B,D]`.
    pub(crate) fn forward<S: Scalar>(&self, walk: &mut Walk<S>, x: Vec<S>) -> (Vec<S>, FeedForwardSaved<S>) {
        let up = self.up.forward_recorded(walk, &x);
        let h = activate_rows(self.kind, &up, self.hidden);
        (self.down.forward_recorded(walk, &h), FeedForwardSaved { x, up, h })
    }
    /// `dY[B,D]` → `dX[B,D]`; puts the gradients of the parameters into `g`.
    pub(crate) fn backward<S: Scalar>(
        &self,
        walk: &mut Walk<S>,
        (saved, dy): (&FeedForwardSaved<S>, &[S]),
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let dh = self.down.backward_recorded(walk, &saved.h, dy, g);
        let d_up = activate_rows_backward(self.kind, &saved.up, &dh, self.hidden);
        self.up.backward_recorded(walk, &saved.x, &d_up, g)
    }
}

/// Returns the name and the columns of the matrix before the activation.
pub(crate) fn first(kind: FeedForward, hidden: usize) -> (&'static str, usize) {
    match kind {
        FeedForward::Gated(_) => ("gate_up", 2 * hidden),
        FeedForward::Plain(_) => ("up", hidden),
    }
}

/// Applies the activation to rows as wide as the first matrix; returns rows of `hidden`.
pub(crate) fn activate_rows<S: Scalar>(kind: FeedForward, x: &[S], hidden: usize) -> Vec<S> {
    match kind {
        FeedForward::Gated(f) => gated(x, hidden, f),
        FeedForward::Plain(f) => activate(x, f),
    }
}

/// Computes the backward of [`activate_rows`].
pub(crate) fn activate_rows_backward<S: Scalar>(
    kind: FeedForward,
    x: &[S],
    dh: &[S],
    hidden: usize,
) -> Vec<S> {
    match kind {
        FeedForward::Gated(f) => gated_backward(x, dh, hidden, f),
        FeedForward::Plain(f) => activate_backward(x, dh, f),
    }
}
