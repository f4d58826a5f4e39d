//! Rules by which optimizers change a parameter: what one keeps beside the value, and how it updates a part.
use crate::param::part::UpdatePart;
use crate::{Param, ParamMatrix};
use kernels::Kernels;
use shape::RuleStates;
use tensor::{Tensor, ViewMut};

/// A rule. Parameters, checkpoints, offload and prices learn of its state from [`states`](Self::states)
/// alone.
pub trait UpdateRule<D: Kernels>: Send + Sync {
    /// Its name in files.
    fn name(&self) -> &'static str;
    /// The tensors that it keeps for each trained parameter, all zero before the first step.
    fn states(&self) -> RuleStates;
    /// Returns the rule with blocks of state of half as many elements; `None` if it has no smaller ones.
    fn halved(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
    /// Updates a part of a parameter.
    fn update(&self, part: UpdatePart<D>, step: &UpdateStep<D>);
    /// Returns its rule for matrices of blocks, if it updates these as whole matrices.
    fn matrices(&self) -> Option<Box<dyn MatrixRule<D>>> {
        None
    }
}

/// A rule for whole matrices.
pub trait MatrixRule<D: Kernels> {
    /// The way in which ranks get whole matrices: its place among the ways.
    fn exchange(&self) -> usize;
    /// Computes the direction of a part from its gradient, and updates its state.
    fn direction(&self, part: UpdatePart<D>, to: ViewMut<D::Wide>, step: &UpdateStep<D>);
    /// Changes a whole matrix of directions.
    fn change(&self, device: &D::Wide, whole: ViewMut<D::Wide>, of: &ParamMatrix);
    /// Updates the value of a part by its changed direction, which is in the place of its gradient.
    fn apply(&self, part: UpdatePart<D>, step: &UpdateStep<D>);
}

/// The direction of a parameter at rest, with its parameter.
pub(crate) type Direction<'a, D> = (&'a Param<D>, Tensor<<D as Kernels>::Wide>);

/// Changes a whole matrix of a parameter.
pub(super) type Change<'a, D> = dyn Fn(&Param<D>, &ParamMatrix, &mut Tensor<<D as Kernels>::Wide>) + 'a;

/// Step of an update.
pub struct UpdateStep<'a, D: Kernels> {
    /// Factor `[1, 1]` of the gradient, which clips it.
    pub factor: &'a Tensor<D::Wide>,
    /// Learning rate.
    pub lr: f64,
    /// Factor of weight decay: 1 for matrices, 0 for gains and biases.
    pub decays: f64,
    /// Number of the step, counted from 1.
    pub number: usize,
}
