//! List of the optimizers: a rule is one file, and its name here, with that of its rule for matrices. Flags,
//! files, checks, drawn cases and words follow from its [`OptimizerInfo`].
use crate::optimizer::rule::{MatrixRule, UpdateRule, UpdateStep};
use crate::param::part::UpdatePart;
use kernels::Kernels;
use serde::Deserializer;
use shape::{OptimizerInfo, OptimizerKind, RuleStates};

macro_rules! optimizers {
    ($($rule:ident $(($matrices:ident))?)*) => {
        $(use crate::optimizer::$rule;)*

        /// All optimizers.
        pub const OPTIMIZERS: &[&OptimizerInfo] = &[$($rule::INFO),*];

        impl<D: Kernels> UpdateRule<D> for OptimizerKind {
            fn name(&self) -> &'static str {
                OptimizerKind::name(*self)
            }
            fn states(&self) -> RuleStates {
                OptimizerKind::states(*self)
            }
            fn halved(&self) -> Option<Self> {
                OptimizerKind::halved(*self)
            }
            fn update(&self, part: UpdatePart<D>, step: &UpdateStep<D>) {
                match OptimizerKind::name(*self) {
                    $(name if name == $rule::INFO.name => $rule::update(*self, part, step),)*
                    name => panic!("{name} is not in the list of optimizers"),
                }
            }
            fn matrices(&self) -> Option<Box<dyn MatrixRule<D>>> {
                match OptimizerKind::name(*self) {
                    $($(name if name == $rule::INFO.name => Some(Box::new($rule::$matrices(*self))),)?)*
                    _ => None,
                }
            }
        }
    };
}
optimizers! { sgd adamw adamw_8bit lion muon(Muon) }

/// Plain gradient descent.
pub const SGD: OptimizerKind = OptimizerKind::usual(sgd::INFO);
/// `AdamW` with the constants usual for transformers.
pub const ADAMW: OptimizerKind = OptimizerKind::usual(adamw::INFO);
/// `AdamW` with moments of 8 bits, in blocks of 256.
pub const ADAMW_8BIT: OptimizerKind = OptimizerKind::usual(adamw_8bit::INFO);
/// Muon with the constants of `torch.optim.Muon`.
pub const MUON: OptimizerKind = OptimizerKind::usual(muon::INFO);

/// Reads an optimizer of the list from a file.
///
/// # Errors
/// If the list has no such rule, the rule has no such constant, or a value is out of range.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<OptimizerKind, D::Error> {
    OptimizerKind::deserialize(OPTIMIZERS, from)
}
