//! Adam with decoupled weight decay, on matrices only.
//!
//! ```text
//! m = β₁m + (1−β₁)cg,  v = β₂v + (1−β₂)(cg)²,  w −= lr·λ·w + lr·m̂/(√v̂ + ε)
//! m̂ = m/(1−β₁ᵗ),  v̂ = v/(1−β₂ᵗ)                 c: the factor that clips the gradient, t: the step
//! ```
//! Source: Loshchilov, Hutter, "Decoupled weight decay regularization", Algorithm 2, arXiv:1711.05101.
use crate::optimizer::rule::UpdateStep;
use crate::param::part::UpdatePart;
use kernels::Kernels;
use shape::{Constant, OptimizerInfo, OptimizerKind, Range, StateInfo};

pub(super) const INFO: &OptimizerInfo = &OptimizerInfo {
    name: "adamw",
    title: "AdamW",
    about: "Adam with decoupled weight decay",
    paper: "Loshchilov, Hutter, arXiv:1711.05101",
    constants: &[BETAS, EPS, DECAY],
    states: |_| STATES,
    matrices: None,
};

pub(super) const STATES: &[StateInfo] = &[StateInfo::like_value("m"), StateInfo::like_value("v")];

pub(super) const BETAS: Constant = Constant {
    key: "betas",
    usual: &[0.9, 0.95],
    range: Range::Below1,
    help: "Decay of the first and of the second moment",
};
pub(super) const EPS: Constant = Constant {
    key: "eps",
    usual: &[1e-8],
    range: Range::Above0,
    help: "Constant that is added to the root of the second moment",
};
pub(super) const DECAY: Constant = Constant {
    key: "weight-decay",
    usual: &[0.1],
    range: Range::AtLeast0,
    help: "Weight decay, on matrices only; times the learning rate in each step",
};

pub(super) fn update<D: Kernels>(of: OptimizerKind, part: UpdatePart<D>, step: &UpdateStep<D>) {
    let UpdatePart { device, value, master, states, gradient } = part;
    let [beta1, beta2, eps, decay] = of.constants();
    let constants = [step.lr, beta1, beta2, eps, decay * step.decays];
    let [m, v] = states.all();
    device.adamw(value, master, (m, v), gradient, step.factor.view(), (constants, step.number));
}
