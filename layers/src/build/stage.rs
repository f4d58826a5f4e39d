//! Inputs and outputs of a part of a model that a schedule drives, and the keeper's calls around the use of
//! its modules.
use crate::Params;
use kernels::Kernels;
use ops::{Keeper, Partial, Result, Stream};
use tensor::{Tensor, TokenIds};

/// Input of a stage: tokens or rows of features for the first, activations for the others.
#[derive(Clone)]
pub enum Input<D: Kernels> {
    /// Token ids `[B]`.
    Tokens(TokenIds<D::Place>),
    /// Features `[B,F]`, whole on every tensor rank.
    Rows(Tensor<D>),
    /// `X[B,D]` from the stage before.
    Activation(Stream<D>),
}

impl<D: Kernels> From<TokenIds<D::Place>> for Input<D> {
    fn from(ids: TokenIds<D::Place>) -> Self {
        Self::Tokens(ids)
    }
}

/// Target of each token's row.
#[derive(Clone)]
pub enum Targets<D: Kernels> {
    /// The next token, or a class, `[B]`.
    Ids(TokenIds<D::Place>),
    /// A row `[B,D]`, whole on every tensor rank.
    Rows(Tensor<D>),
}

/// Request to the last stage: loss or logits.
#[derive(Clone)]
pub enum StageRequest<D: Kernels> {
    /// The loss against these targets.
    Loss(Targets<D>),
    /// Logits of the last token of every sequence that has one, or of every token.
    Logits {
        /// True for every token, false for the last ones.
        all: bool,
    },
}

/// Output of a stage.
pub enum Output<D: Kernels> {
    /// From the last stage: this microbatch's part of the mean loss, a partial sum over data ranks.
    Loss(Partial<D::Wide>),
    /// From the last stage: `[sequences, V]` or `[B, V]`, the same on every tensor rank. A model without a
    /// head returns its rows.
    Logits(Tensor<D>),
    /// `X[B,D]` for the stage after.
    Activation(Stream<D>),
}

/// Input of the end of a model (a head or another layer after the last block): `X[B,D]` and the request. The
/// end's backward returns dX, and `None` for the request. It receives no dY for the loss, whose gradient is
/// 1.
pub type Ending<D> = (Stream<D>, Option<StageRequest<D>>);

/// Amount of a backward that runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Both halves, layer by layer, so that a layer's saved activations are freed before the next layer
    /// begins.
    Both,
    /// dX alone; the weight half comes later.
    Input,
}

/// Function that collects the parameters of a module.
pub(crate) type Lists<D, U> = for<'a> fn(&'a mut U, &mut Params<'a, D>);

/// Returns the parameters of a module.
pub(crate) fn listed<D: Kernels, U>((unit, list): (&mut U, Lists<D, U>)) -> Params<'_, D> {
    let mut params = Params::new();
    list(unit, &mut params);
    params
}

/// Runs a module after its values are gathered, while those of the `next` one are, and releases it; `last` if
/// no later use of the step adds to its gradients.
pub(crate) fn using<D: Kernels, U, T>(
    keeper: &mut Keeper<D>,
    (unit, list): (&mut U, Lists<D, U>),
    next: Option<&mut U>,
    last: bool,
    run: impl FnOnce(&mut U) -> Result<T>,
) -> Result<T> {
    if keeper.has_uses() {
        keeper.gather(&mut listed((unit, list)))?;
        next.map_or(Ok(()), |next| keeper.gather_ahead(&mut listed((next, list))))?;
    }
    let outcome = run(unit)?;
    if keeper.has_uses() || last {
        release(keeper, (unit, list), last)?;
    }
    Ok(outcome)
}

/// Ends a use of a module; after the `last` one the gradients of its parameters are complete.
pub(crate) fn release<D: Kernels, U>(
    keeper: &mut Keeper<D>,
    unit: (&mut U, Lists<D, U>),
    last: bool,
) -> Result<()> {
    let mut params = listed(unit);
    if params.is_empty() { Ok(()) } else { keeper.release(&mut params, last) }
}
