//! Rules by which optimizers change a parameter: what one keeps beside the value, and how it updates a part.
use crate::StateInfo;
use crate::optimizer::part::UpdatePart;
use kernels::Kernels;
use tensor::Tensor;

/// A rule. Parameters, checkpoints, offload and prices learn of its state from [`states`](Self::states)
/// alone.
pub trait UpdateRule<D: Kernels>: Send + Sync {
    /// Its name in files.
    fn name(&self) -> &'static str;
    /// The tensors that it keeps for each trained parameter, all zero before the first step.
    fn states(&self) -> &'static [StateInfo];
    /// Updates a part of a parameter.
    fn update(&self, part: UpdatePart<D>, step: &UpdateStep<D>);
}

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
