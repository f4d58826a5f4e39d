//! Rules by which optimizers change a parameter: what one keeps beside the value, and how it updates a part.
//!
//! ```text
//! SGD     w −= lr·c·g
//! AdamW   m = β₁m + (1−β₁)cg,  v = β₂v + (1−β₂)(cg)²,  w −= lr·λ·w + lr·m̂/(√v̂ + ε)
//! ```
//! Source: Loshchilov, Hutter, arXiv:1711.05101 (`AdamW`).
use crate::optimizer::part::UpdatePart;
use crate::{OptimizerKind, StateInfo};
use kernels::{AdamW, Kernels};
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

impl<D: Kernels> UpdateRule<D> for OptimizerKind {
    fn name(&self) -> &'static str {
        OptimizerKind::name(*self)
    }
    fn states(&self) -> &'static [StateInfo] {
        OptimizerKind::states(*self)
    }
    fn update(&self, part: UpdatePart<D>, step: &UpdateStep<D>) {
        let UpdatePart { device, value, master, states, gradient } = part;
        let (factor, lr) = (step.factor.view(), step.lr);
        match *self {
            OptimizerKind::Sgd => device.sgd(value, master, gradient, factor, lr),
            OptimizerKind::AdamW { beta1, beta2, eps, decay } => {
                let (decay, [m, v]) = (decay * step.decays, states.all());
                let constants = AdamW { lr, beta1, beta2, eps, decay, step: step.number };
                device.adamw(value, master, (m, v), gradient, factor, constants);
            }
        }
    }
}
