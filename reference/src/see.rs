//! What a pass shows of itself: every activation and its gradient, by canonical name and in the order in which they come
//! about. So a program that differs can be told where it does so first.
//!
//! ```text
//! blocks.0.norm1.in, .out   blocks.0.attention.qkv.in, .out   …   blocks.0.mlp.added   norm.in, .out   head.in, .out
//! gradient of head.out, head.in, norm.in, blocks.1.mlp.down.out, .in, …
//! ```
use crate::balance::Pool;
use crate::dropout::Pass;
use crate::parameters::{Map, Weights};
use std::collections::BTreeMap;
use std::fmt::Arguments;
use tensor::Scalar;

/// Who looks on: takes a name, and the matrix, row-major, a row for every token.
pub type See<'a, S> = dyn FnMut(Arguments, &[S]) + 'a;

/// What a walk through a model goes by, forth and back.
pub struct Walk<'a, S> {
    /// The weights.
    pub w: &'a Weights<S>,
    /// Where training stands; without it, nothing is dropped.
    pub pass: Option<Pass>,
    /// Who is shown what is computed.
    pub see: &'a mut See<'a, S>,
    /// By the name of a bias of a choice, how often each expert was chosen where training stands somewhere.
    pub(crate) chosen: Chosen,
    /// The sums that the balance of all blocks is made of, once all blocks have run.
    pub(crate) pool: Pool<S>,
}

/// How often each expert was chosen, by the name of the bias of the choice.
pub(crate) type Chosen = BTreeMap<String, Vec<usize>>;

impl<'a, S> Walk<'a, S> {
    /// Nobody has chosen yet.
    pub fn new(w: &'a Weights<S>, pass: Option<Pass>, see: &'a mut See<'a, S>) -> Self {
        Self { w, pass, see, chosen: Chosen::new(), pool: Pool::EMPTY }
    }
    /// One that nobody is shown.
    pub fn unseen(w: &'a Weights<S>, pass: Option<Pass>) -> Self {
        Self::new(w, pass, Box::leak(Box::new(|_: Arguments, _: &[S]| {}))) // which has no bytes
    }
    pub(crate) fn show(&mut self, name: Arguments, x: &[S]) {
        (self.see)(name, x);
    }
}

impl Map {
    /// X to Y, both shown.
    pub(crate) fn forward_seen<S: Scalar>(&self, walk: &mut Walk<S>, x: &[S]) -> Vec<S> {
        let y = self.forward(walk.w, x);
        walk.show(format_args!("{}.in", self.name), x);
        walk.show(format_args!("{}.out", self.name), &y);
        y
    }
    /// dY to dX, both shown.
    pub(crate) fn backward_seen<S: Scalar>(
        &self,
        walk: &mut Walk<S>,
        x: &[S],
        dy: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        walk.show(format_args!("gradient of {}.out", self.name), dy);
        let dx = self.backward(walk.w, x, dy, g);
        walk.show(format_args!("gradient of {}.in", self.name), &dx);
        dx
    }
}
