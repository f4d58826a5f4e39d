//! The shape of a layer: a forward, and a backward in two halves.
use crate::param::weight::RowWeight;
use crate::{Cx, Param, Result};
use kernels::Kernels;
use smallvec::SmallVec;

/// A list of parameters, on the stack while it is short: steps that have warmed up allocate nothing.
pub type Params<'a, D> = SmallVec<[&'a mut Param<D>; 64]>;

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
    /// dY to what the weight half needs, where nobody wants dX: of the first layer behind features that enter the model.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn backward_first(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: Self::Out) -> Result<Self::Pending> {
        Ok(self.backward_input(cx, saved, dy)?.1)
    }
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
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>);
    /// The place of the table `[V,D]` that an embedding and a head may share: an embedding's own, which a tied head is lent while it
    /// is gone through. Layers besides these two have none.
    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        None
    }
}

/// One layer after the other. Backward goes back layer by layer, so that what the second keeps is gone before the first's
/// turn.
impl<D: Kernels, A: Layer<D>, B: Layer<D, In = A::Out>> Layer<D> for (A, B) {
    type In = A::In;
    type Out = B::Out;
    type Saved = (A::Saved, B::Saved);
    type Pending = (A::Pending, B::Pending);

    fn forward(&self, cx: &Cx<D>, x: A::In) -> Result<(B::Out, Self::Saved)> {
        let (y, first) = self.0.forward(cx, x)?;
        let (y, second) = self.1.forward(cx, y)?;
        Ok((y, (first, second)))
    }
    fn backward_input(&mut self, cx: &Cx<D>, (first, second): Self::Saved, dy: B::Out) -> Back<D, Self> {
        let (dx, second) = self.1.backward_input(cx, second, dy)?;
        let (dx, first) = self.0.backward_input(cx, first, dx)?;
        Ok((dx, (first, second)))
    }
    fn backward_first(
        &mut self,
        cx: &Cx<D>,
        (first, second): Self::Saved,
        dy: B::Out,
    ) -> Result<Self::Pending> {
        let (dx, second) = self.1.backward_input(cx, second, dy)?;
        Ok((self.0.backward_first(cx, first, dx)?, second))
    }
    fn backward_weight(&mut self, cx: &Cx<D>, (first, second): Self::Pending) -> Result<()> {
        self.1.backward_weight(cx, second)?;
        self.0.backward_weight(cx, first)
    }
    fn backward(&mut self, cx: &Cx<D>, (first, second): Self::Saved, dy: B::Out) -> Result<A::In> {
        let dx = self.1.backward(cx, second, dy)?;
        self.0.backward(cx, first, dx)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
        self.1.params(into);
    }
}
