//! The shape of a layer: a forward, and a backward in two halves.
use crate::{Cx, Param, Result};
use kernels::Kernels;

/// What the input half of a backward gives: dX, and what the weight half needs.
pub type Back<D, L> = Result<(<L as Layer<D>>::In, <L as Layer<D>>::Pending)>;

/// A function of activations with a hand-written derivative. Gradients have the types of what they are gradients
/// of. `Saved` moves into `Pending` and `Pending` into nothing: one backward per forward, its halves in order, any
/// number of microbatches in flight.
pub trait Layer<D: Kernels> {
    /// What enters.
    type In;
    /// What leaves.
    type Out;
    /// What backward needs of forward, made of [`Kept`](crate::Kept): empty when only inferring.
    type Saved;
    /// What the weight half needs of the input half.
    type Pending;

    /// X to Y.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn forward(&self, cx: &Cx<D>, x: Self::In) -> Result<(Self::Out, Self::Saved)>;
    /// dY to dX, now.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn backward_input(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: Self::Out) -> Back<D, Self>;
    /// dW, now or later.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn backward_weight(&mut self, cx: &Cx<D>, pending: Self::Pending) -> Result<()>;
    /// Both halves.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn backward(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: Self::Out) -> Result<Self::In> {
        let (dx, pending) = self.backward_input(cx, saved, dy)?;
        self.backward_weight(cx, pending)?;
        Ok(dx)
    }
    /// Its parameters, in program order.
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>);
}
