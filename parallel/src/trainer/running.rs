//! Steps that overlap: under a schedule that keeps the pipeline full, the next step begins before the last
//! microbatches of this one have run backward. Each microbatch is an update of its own.
use crate::Result;
use comm::Request;
use kernels::Kernels;
use ops::{Wide, filled, scaled};
use tensor::{Category, Scalar, Tensor};

/// Prefix of a training step's name in a trace; the step's number follows.
pub const STEP: &str = "step ";

/// Result of a step, still on the device; the same on every rank.
pub struct Report<D: Kernels> {
    /// The mean loss over all tokens of the step, in nats.
    pub loss: Tensor<D::Wide>,
    /// The square of the gradient's global norm, before clipping; `None` if each microbatch was an update.
    pub norm2: Option<Tensor<D::Wide>>,
    /// Logarithm of the step's loss scale to the base 2, if it has one; loss and norm are divided by the
    /// scale.
    pub scale: Option<u32>,
    /// True if the scaled gradients were not finite, so that nothing was updated.
    pub skipped: bool,
}

/// A training step that may still be running.
pub struct RunningStep<D: Kernels>(StepLoss<D>);

enum StepLoss<D: Kernels> {
    /// The sum of the mean losses of this number of microbatches is under way.
    Losses(Box<Request<D::Wide>>, usize),
    Done(Report<D>),
}

impl<D: Kernels> RunningStep<D> {
    /// A step whose sum of the losses of this number of microbatches is under way.
    pub(super) fn losses(sum: Request<D::Wide>, microbatches: usize) -> Self {
        Self(StepLoss::Losses(Box::new(sum), microbatches))
    }
    /// Waits for the loss of the step; if each microbatch is an update, the mean of their losses. Gradients
    /// and updates may still be running.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn wait(self) -> Result<Report<D>> {
        let (losses, microbatches) = match self.0 {
            StepLoss::Losses(losses, microbatches) => (losses, microbatches),
            StepLoss::Done(report) => return Ok(report),
        };
        let sum: Tensor<D::Wide> = losses.wait()?;
        let each = Wide::<D>::from_usize(microbatches).inv();
        let loss = scaled(&sum, &filled(sum.device(), Category::Buffers, [1, 1], each));
        Ok(Report { loss, norm2: None, scale: None, skipped: false })
    }
}

impl<D: Kernels> From<Report<D>> for RunningStep<D> {
    /// The report of a finished step.
    fn from(report: Report<D>) -> Self {
        Self(StepLoss::Done(report))
    }
}
