//! Values that a pass shows: every activation and its gradient, by canonical name, in the order of
//! computation. A comparison with another program then finds the first difference.
//!
//! ```text
//! blocks.0.norm1.in, .out   blocks.0.attention.qkv.in, .out   …   blocks.0.mlp.added   norm.in, .out
//! head.in, .out
//! gradient of head.out, head.in, norm.in, blocks.1.mlp.down.out, .in, …
//! ```
use crate::dropout::Pass;
use crate::parameters::{Map, MapKind, Weights};
use std::collections::BTreeMap;
use std::fmt::Arguments;
use tensor::Scalar;

/// Observer of a pass: receives a name and a row-major matrix with one row for every token.
pub type See<'a, S> = dyn FnMut(Arguments, &[S]) + 'a;

/// State of a pass through a model, in forward and backward.
pub struct Walk<'a, S> {
    /// The weights.
    pub w: &'a Weights<S>,
    /// Place of the pass in training; without it, nothing is dropped.
    pub pass: Option<Pass>,
    /// Receives the computed values.
    pub see: &'a mut See<'a, S>,
    /// Times that each expert was chosen in training, by the name of the router's bias.
    pub(crate) chosen: Chosen,
    /// Sums for the pooled balance of all blocks, complete after all blocks have run.
    pub(crate) pool: BalanceSums<S>,
}

/// Sums over the rows of all blocks of a microbatch.
#[derive(Clone, Debug)]
pub(crate) struct BalanceSums<S> {
    pub(crate) blocks: usize,      // L
    pub(crate) rows: usize,        // R
    pub(crate) counts: Vec<usize>, // Σ n
    pub(crate) p: Vec<S>,          // Σ P̂
}

impl<S> BalanceSums<S> {
    /// Sums over no rows.
    pub(crate) const EMPTY: Self = Self { blocks: 0, rows: 0, counts: Vec::new(), p: Vec::new() };
}

/// Times that each expert was chosen, by the name of the router's bias.
pub(crate) type Chosen = BTreeMap<String, Vec<usize>>;

impl<'a, S> Walk<'a, S> {
    /// Starts with empty counts.
    pub fn new(w: &'a Weights<S>, pass: Option<Pass>, see: &'a mut See<'a, S>) -> Self {
        Self { w, pass, see, chosen: Chosen::new(), pool: BalanceSums::EMPTY }
    }
    /// Starts a walk without an observer.
    pub fn unseen(w: &'a Weights<S>, pass: Option<Pass>) -> Self {
        Self::new(w, pass, Box::leak(Box::new(|_: Arguments, _: &[S]| {}))) // no bytes are leaked
    }
    pub(crate) fn show(&mut self, name: Arguments, x: &[S]) {
        (self.see)(name, x);
    }
}

impl Map {
    /// Computes Y from X, and shows both.
    pub(crate) fn forward_recorded<S: Scalar>(&self, walk: &mut Walk<S>, x: &[S]) -> Vec<S> {
        let y = self.forward(walk.w, x);
        if matches!(self.does, MapKind::Same) {
            return y;
        }
        walk.show(format_args!("{}.in", self.name), x);
        walk.show(format_args!("{}.out", self.name), &y);
        y
    }
    /// Shows dX, unless it is dY.
    pub(crate) fn show_gradient<S: Scalar>(&self, walk: &mut Walk<S>, dx: &[S]) {
        if !matches!(self.does, MapKind::Same) {
            walk.show(format_args!("gradient of {}.in", self.name), dx);
        }
    }
    /// Computes dX from dY, and shows both.
    pub(crate) fn backward_recorded<S: Scalar>(
        &self,
        walk: &mut Walk<S>,
        x: &[S],
        dy: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        walk.show(format_args!("gradient of {}.out", self.name), dy);
        let dx = self.backward(walk.w, x, dy, g);
        self.show_gradient(walk, &dx);
        dx
    }
}
