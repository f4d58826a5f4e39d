//! A part of a model as a schedule drives it: any number of microbatches in flight, told apart by their [`Cx`].
use crate::ops::{Partial, Stream};
use crate::{Cx, Param, Result, Uses};
use kernels::Kernels;
use tensor::{Ids, Tensor};

/// What enters a stage: the first takes tokens or rows of features.
pub enum Input<D: Kernels> {
    /// Token ids `[B]`.
    Tokens(Ids<D::Place>),
    /// Features `[B,F]`, whole on every tensor rank.
    Rows(Tensor<D>),
    /// `X[B,D]` from the stage before.
    Activation(Stream<D>),
}

impl<D: Kernels> From<Ids<D::Place>> for Input<D> {
    fn from(ids: Ids<D::Place>) -> Self {
        Self::Tokens(ids)
    }
}

/// What each token's row should have come to.
pub enum Targets<D: Kernels> {
    /// The next token, or a class, `[B]`.
    Ids(Ids<D::Place>),
    /// A row `[B,D]`, whole on every tensor rank.
    Rows(Tensor<D>),
}

/// What the last stage is asked for.
pub enum Wanted<D: Kernels> {
    /// The loss against these targets.
    Loss(Targets<D>),
    /// Logits of the last token of every sequence that has one; or of every token.
    Logits {
        /// Of every token.
        all: bool,
    },
}

/// What leaves a stage.
pub enum Output<D: Kernels> {
    /// From the last: this microbatch's part of the mean loss, a partial sum over data ranks.
    Loss(Partial<D::Wide>),
    /// From the last: `[sequences, V]` or `[B, V]`, the same on every tensor rank; of a model without a head its rows.
    Logits(Tensor<D>),
    /// `X[B,D]` for the stage after.
    Activation(Stream<D>),
}

/// What enters the end of a model, a head or what else stands behind the last block: `X[B,D]`, and what is wanted of it. Its
/// backward gives dX, and nothing for the rest; it is given none for the loss, whose gradient is 1.
pub type Ending<D> = (Stream<D>, Option<Wanted<D>>);

/// How much of a backward is done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Both halves, layer by layer, so that what a layer saved is gone before the next begins.
    Both,
    /// dX alone; the weight half comes later.
    Input,
}

/// A rank's part of a model: runs of consecutive layers with hand-written backward, numbered from 0 in the model's order.
pub trait Stage<D: Kernels> {
    /// One microbatch forward; the last stage is told what is wanted.
    ///
    /// # Errors
    /// If ranks do not meet.
    ///
    /// # Panics
    /// If the microbatch is in flight already.
    fn forward(
        &mut self,
        run: usize,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        wanted: Option<Wanted<D>>,
    ) -> Result<Output<D>>;
    /// Its backward: dX for the stage before (none for what entered the model); `dy` comes from the stage after (none after
    /// a loss). Where it is the `last` of the step, `uses` is told of each unit (head, a block, embedding) whose
    /// gradients are complete.
    ///
    /// # Errors
    /// If ranks do not meet, and what `uses` gives.
    ///
    /// # Panics
    /// If there was no forward of this microbatch.
    fn backward(
        &mut self,
        run: usize,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        dy: Option<Stream<D>>,
        half: Half,
        last: bool,
    ) -> Result<Option<Stream<D>>>;
    /// The weight half of a microbatch whose input half is done.
    ///
    /// # Errors
    /// If ranks do not meet, and what `uses` gives.
    ///
    /// # Panics
    /// If its input half is not done.
    fn backward_weight(&mut self, run: usize, cx: &Cx<D>, uses: &mut dyn Uses<D>, last: bool) -> Result<()>;
    /// Appends its parameters to a list, in program order.
    fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>);
    /// Its parameters, in program order.
    fn params(&mut self) -> Vec<&mut Param<D>> {
        let mut all = Vec::new();
        self.list(&mut all);
        all
    }
}

/// Memory for lists of parameters; empty between its uses.
pub struct Room<D: Kernels>(Vec<&'static mut Param<D>>);

impl<D: Kernels> Default for Room<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// How a unit lists its parameters.
pub(crate) type Lists<D, U> = for<'a> fn(&'a mut U, &mut Vec<&'a mut Param<D>>);

impl<D: Kernels> Room<D> {
    /// Lists a unit's parameters for `what`.
    ///
    /// # Errors
    /// Those of `what`.
    pub fn with<'a, T>(
        &mut self,
        list: impl FnOnce(&mut Vec<&'a mut Param<D>>),
        what: impl FnOnce(&mut [&mut Param<D>]) -> T,
    ) -> T
    where
        D: 'a,
    {
        let mut all = std::mem::take(&mut self.0);
        list(&mut all);
        let outcome = what(&mut all);
        self.0 = emptied(all);
        outcome
    }
    /// Runs a unit where its parameters are, and tells of them when it was the `last` that adds to their gradients.
    pub(crate) fn using<U, T>(
        &mut self,
        uses: &mut dyn Uses<D>,
        (unit, list): (&mut U, Lists<D, U>),
        last: bool,
        run: impl FnOnce(&mut U) -> Result<T>,
    ) -> Result<T> {
        if uses.moves() {
            self.with(|all| list(unit, all), |params| uses.before(params))?;
        }
        let outcome = run(unit)?;
        if uses.moves() {
            self.with(|all| list(unit, all), |params| uses.after(params))?;
        }
        if last {
            self.complete(uses, (unit, list))?;
        }
        Ok(outcome)
    }
    /// Tells of a unit's parameters that nothing more is added to their gradients.
    pub(crate) fn complete<U>(
        &mut self,
        uses: &mut dyn Uses<D>,
        (unit, list): (&mut U, Lists<D, U>),
    ) -> Result<()> {
        let complete =
            |params: &mut [&mut Param<D>]| if params.is_empty() { Ok(()) } else { uses.complete(params) };
        self.with(|all| list(unit, all), complete)
    }
}

/// A list without elements in the memory of another, whatever that one's elements may be borrowed from.
fn emptied<'b, T>(mut list: Vec<&mut T>) -> Vec<&'b mut T> {
    list.clear();
    list.into_iter().map(|_| unreachable!("it is empty")).collect() // in place: that it is, is tested
}
