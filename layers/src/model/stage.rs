//! What a part of a model takes and gives as a schedule drives it, and how its units are used.
use crate::ops::{Partial, Stream};
use crate::{Params, Result, Uses};
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

/// Lists the parameters of a unit.
pub(crate) type Lists<D, U> = for<'a> fn(&'a mut U, &mut Params<'a, D>);

/// The parameters of a unit.
pub(crate) fn listed<D: Kernels, U>((unit, list): (&mut U, Lists<D, U>)) -> Params<'_, D> {
    let mut all = Params::new();
    list(unit, &mut all);
    all
}

/// Runs a unit where its parameters are, and reports them when it was the `last` that adds to their gradients.
pub(crate) fn using<D: Kernels, U, T>(
    uses: &mut dyn Uses<D>,
    (unit, list): (&mut U, Lists<D, U>),
    last: bool,
    run: impl FnOnce(&mut U) -> Result<T>,
) -> Result<T> {
    if uses.moves() {
        uses.before(&mut listed((unit, list)))?;
    }
    let outcome = run(unit)?;
    if uses.moves() {
        uses.after(&mut listed((unit, list)))?;
    }
    if last {
        complete(uses, (unit, list))?;
    }
    Ok(outcome)
}

/// Reports that nothing more is added to the gradients of a unit's parameters.
pub(crate) fn complete<D: Kernels, U>(uses: &mut dyn Uses<D>, unit: (&mut U, Lists<D, U>)) -> Result<()> {
    let mut params = listed(unit);
    if params.is_empty() { Ok(()) } else { uses.complete(&mut params) }
}
