//! Lion: steps of one size in every element, along the sign of a momentum.
//!
//! ```text
//! w −= lr·λ·w + lr·sign(β₁m + (1−β₁)cg),  m = β₂m + (1−β₂)cg    c: the factor that clips the gradient
//! ```
//! λ applies to matrices only. It needs a learning rate 3 to 10 times smaller than that of `AdamW`.
//!
//! Source: Chen et al., "Symbolic discovery of optimization algorithms", Algorithm 2, arXiv:2302.06675.
use crate::optimizer::adamw;
use crate::optimizer::rule::UpdateStep;
use crate::param::part::UpdatePart;
use kernels::Kernels;
use shape::{Constant, OptimizerInfo, OptimizerKind, Range, StateInfo};

pub(super) const INFO: &OptimizerInfo = &OptimizerInfo {
    name: "lion",
    title: "Lion",
    about: "steps along the sign of a momentum",
    paper: "Chen et al., arXiv:2302.06675",
    constants: &[
        Constant {
            key: "betas",
            usual: &[0.9, 0.99],
            range: Range::Below1,
            help: "Decay of the momentum in the step, and of the momentum that is kept",
        },
        adamw::DECAY,
    ],
    states: |_| STATES,
    matrices: None,
};

pub(super) const STATES: &[StateInfo] = &[StateInfo::like_value("m")];

pub(super) fn update<D: Kernels>(of: OptimizerKind, part: UpdatePart<D>, step: &UpdateStep<D>) {
    let UpdatePart { device, value, master, states, gradient } = part;
    let [beta1, beta2, decay] = of.constants();
    let [m] = states.all();
    device.lion(value, master, m, gradient, step.factor.view(), [step.lr, beta1, beta2, decay * step.decays]);
}
