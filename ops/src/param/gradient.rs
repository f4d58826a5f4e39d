//! The gradient of a parameter in its step, from the first contribution to the update.
//!
//! ```text
//! Last ─ first contribution ► Sums ─ last use of the module ► Complete ─ summed ► Sums ─ update ► Last
//! ```
use crate::param::residence::Residence;
use kernels::Write;
use tensor::{Device, Tensor};

/// A gradient: allocated at the first contribution, so inference has none.
pub(crate) struct Gradient<D: Device> {
    pub(crate) at: Residence<D>,
    pub(crate) stage: GradientStage,
}

/// A stage of a gradient's step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GradientStage {
    /// The end of the last step: the first contribution overwrites the gradient.
    Last,
    /// The whole, if any, and the shard, if any, have contributions of this step.
    Sums,
    /// All contributions are there; the gradient may be in a bucket's call.
    Complete,
}

impl<D: Device> Gradient<D> {
    pub(crate) const NONE: Self = Self { at: Residence::Absent, stage: GradientStage::Last };

    /// Returns whether the whole has contributions that were not summed over the ranks.
    pub(crate) fn has_contributions(&self) -> bool {
        self.stage != GradientStage::Last && self.at.whole().is_some()
    }
    pub(crate) fn is_complete(&self) -> bool {
        self.stage == GradientStage::Complete
    }
    /// Begins a contribution; returns whether it is the first of the step.
    pub(crate) fn begin(&mut self) -> bool {
        let is_first = self.stage == GradientStage::Last;
        if is_first {
            self.stage = GradientStage::Sums;
        }
        is_first
    }
    /// Returns the whole for a contribution, and whether this one overwrites it.
    pub(crate) fn contribute(&mut self, fresh: impl FnOnce() -> Tensor<D>) -> (&mut Tensor<D>, Write) {
        let write = if self.has_contributions() { Write::Add } else { Write::Set };
        if self.begin() {
            self.at.take_shard();
        }
        if self.at.whole().is_none() {
            self.at.give_back(fresh());
        }
        (self.at.whole_mut().expect("just made"), write)
    }
}
