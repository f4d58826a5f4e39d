//! State that steps need besides the model.
use crate::Result;
use crate::stages::Stages;
use crate::step::Task;
use comm::{Group, Mesh, Request};
use kernels::Kernels;
use ops::{LayerCounts, Optimizer, Partial, Pass, PassContext, Record, RootExchange};
use std::collections::VecDeque;

/// State that steps need besides the model.
pub(super) struct StepState<D: Kernels> {
    pub(super) device: D,
    pub(super) mesh: Mesh<D::Place>,
    pub(super) loss: Group<D::Place>, // the ranks that have parts of the loss
    pub(super) root: RootExchange<D::Place>, // of inputs
    pub(super) optimizer: Optimizer<D>,
    pub(super) record: Option<Record<D>>,
    pub(super) cxs: Vec<(Task, PassContext<D>)>, // of the microbatches in flight
    pub(super) spare: Vec<PassContext<D>>,       // of finished microbatches, whose memory the next one reuses
    pub(super) counts: LayerCounts,              // of all microbatches so far
    pub(super) rates: VecDeque<f64>, // learning rates of microbatches that have begun, for updates after each
    pub(super) begun: Option<usize>, // steps, as dropout counts them; until the first one, the optimizer's
}

impl<D: Kernels> StepState<D> {
    /// Starts the all-reduce of the loss over all ranks that have a part of it.
    pub(super) fn total(&self, loss: Option<Partial<D::Wide>>) -> Result<Request<D::Wide>> {
        let loss = loss.unwrap_or_else(|| Partial::nothing(self.device.wide(), [1, 1], &self.loss));
        Ok(loss.start_all_reduce(&self.loss)?)
    }
    /// Returns the index of the context of a slice of a microbatch, if that is in flight.
    pub(super) fn position(&self, of: Task) -> Option<usize> {
        self.cxs.iter().position(|(at, _)| (at.microbatch, at.slice) == (of.microbatch, of.slice))
    }
    /// Waits for the sums of a microbatch's gradient, and changes the weights with them, at the learning rate
    /// of the microbatch's step.
    pub(super) fn update_each(&mut self, of: Task, model: &mut Stages<D>) -> Result<()> {
        let (mut params, keeper, hooks) = model.learning();
        keeper.finish(&mut params)?;
        let lr = self.rates.pop_front().expect("the microbatch has begun");
        self.optimizer.step_without_norm(&mut params, &self.mesh, lr, keeper)?;
        let counts = self.cxs[self.position(of).expect("it is in flight")].1.take_counts();
        for hooks in hooks {
            hooks.after_update(&mut params, &counts)?;
        }
        self.counts.join(counts);
        Ok(())
    }
    /// Releases the contexts of a finished microbatch, and returns the counts of their layers. An idle
    /// context keeps its lists, but no memory of the device.
    pub(super) fn release(&mut self, microbatch: u32) -> LayerCounts {
        let mut counts = LayerCounts::default();
        while let Some(at) = self.cxs.iter().position(|(of, _)| of.microbatch == microbatch) {
            let (_, cx) = self.cxs.remove(at);
            counts.join(cx.take_counts());
            self.spare.push(cx.then(Pass::default(), [0usize; 0]));
        }
        counts
    }
}
