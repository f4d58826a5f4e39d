//! Stochastic gradient descent.
//!
//! ```text
//! w −= lr·c·g        c: the factor that clips the gradient
//! ```
//! Source: Robbins, Monro, "A stochastic approximation method", doi:10.1214/aoms/1177729586.
use crate::optimizer::rule::UpdateStep;
use crate::param::part::UpdatePart;
use kernels::Kernels;
use shape::{OptimizerInfo, OptimizerKind};

pub(super) const INFO: &OptimizerInfo = &OptimizerInfo {
    name: "sgd",
    title: "SGD",
    about: "plain gradient descent",
    paper: "Robbins, Monro, doi:10.1214/aoms/1177729586",
    constants: &[],
    states: |_| &[],
    matrices: None,
};

pub(super) fn update<D: Kernels>(_: OptimizerKind, part: UpdatePart<D>, step: &UpdateStep<D>) {
    let UpdatePart { device, value, master, gradient, .. } = part;
    device.sgd(value, master, gradient, step.factor.view(), [step.lr, 0.0]);
}
