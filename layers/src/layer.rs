//! The trait of layers: a forward, and a backward in two halves.
use kernels::Kernels;
use ops::{Param, PassContext, Result, RowWeight};
use smallvec::SmallVec;

/// List of parameters, on the stack while it is short: training steps allocate nothing after warm-up.
pub type Params<'a, D> = SmallVec<[&'a mut Param<D>; 64]>;

/// Result of the input half of a backward: dX, and the values that the weight half needs.
pub type InputHalf<D, L> = Result<(<L as Layer<D>>::In, <L as Layer<D>>::Pending)>;

/// A function of activations with a hand-written derivative. A gradient has the type of its activation.
/// `Saved` moves into `Pending`, and the weight half consumes `Pending`: one backward per forward, its halves
/// in order, any number of microbatches in flight.
pub trait Layer<D: Kernels> {
    /// Type of the input.
    type In;
    /// Type of the output.
    type Out;
    /// Values of forward that backward needs, made of [`KeptValue`](ops::KeptValue): empty in inference.
    type Saved;
    /// Values of the input half that the weight half needs.
    type Pending;

    /// Computes Y from X.
    ///
    /// # Errors
    /// If a collective fails.
    fn forward(&self, cx: &PassContext<D>, x: Self::In) -> Result<(Self::Out, Self::Saved)>;
    /// Input half of backward: computes dX from dY, now.
    ///
    /// # Errors
    /// If a collective fails.
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Self::Out,
    ) -> InputHalf<D, Self>;
    /// Input half without dX: returns only the values that the weight half needs. For the first layer after
    /// features that enter the model, whose gradient is not needed.
    ///
    /// # Errors
    /// If a collective fails.
    fn backward_without_dx(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Self::Out,
    ) -> Result<Self::Pending> {
        Ok(self.backward_input(cx, saved, dy)?.1)
    }
    /// Weight half of backward: adds dW, now or later.
    ///
    /// # Errors
    /// If a collective fails.
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Self::Pending) -> Result<()>;
    /// Runs both halves.
    ///
    /// # Errors
    /// If a collective fails.
    fn backward(&mut self, cx: &PassContext<D>, saved: Self::Saved, dy: Self::Out) -> Result<Self::In> {
        let (dx, pending) = self.backward_input(cx, saved, dy)?;
        self.backward_weight(cx, pending)?;
        Ok(dx)
    }
    /// Appends its parameters to `into`, in program order.
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>);
    /// Slot of the table `[V,D]` that an embedding and a tied head share: the embedding owns the table, and
    /// the head borrows it while it runs. Other layers have no slot.
    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        None
    }
}

/// Two layers in sequence. Backward runs the second one first, so the values that it kept are freed before
/// the first one runs.
impl<D: Kernels, A: Layer<D>, B: Layer<D, In = A::Out>> Layer<D> for (A, B) {
    type In = A::In;
    type Out = B::Out;
    type Saved = (A::Saved, B::Saved);
    type Pending = (A::Pending, B::Pending);

    fn forward(&self, cx: &PassContext<D>, x: A::In) -> Result<(B::Out, Self::Saved)> {
        let (y, first) = self.0.forward(cx, x)?;
        let (y, second) = self.1.forward(cx, y)?;
        Ok((y, (first, second)))
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        (first, second): Self::Saved,
        dy: B::Out,
    ) -> InputHalf<D, Self> {
        let (dx, second) = self.1.backward_input(cx, second, dy)?;
        let (dx, first) = self.0.backward_input(cx, first, dx)?;
        Ok((dx, (first, second)))
    }
    fn backward_without_dx(
        &mut self,
        cx: &PassContext<D>,
        (first, second): Self::Saved,
        dy: B::Out,
    ) -> Result<Self::Pending> {
        let (dx, second) = self.1.backward_input(cx, second, dy)?;
        Ok((self.0.backward_without_dx(cx, first, dx)?, second))
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, (first, second): Self::Pending) -> Result<()> {
        self.1.backward_weight(cx, second)?;
        self.0.backward_weight(cx, first)
    }
    fn backward(&mut self, cx: &PassContext<D>, (first, second): Self::Saved, dy: B::Out) -> Result<A::In> {
        self.0.backward(cx, first, self.1.backward(cx, second, dy)?)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
        self.1.params(into);
    }
}
