//! Messages from chunk to chunk: the residual stream or its gradient, and the row beside it if a strategy has
//! one (`layers/src/build/hooks.rs`). The row is a message of its own, in a wide dtype: a narrow one cannot
//! count that far.
use crate::Result;
use crate::step::{Payload, Plan, Task};
use comm::{Request, Tag};
use kernels::Kernels;
use ops::{Region, Stream};
use tensor::Tensor;

/// Output of a chunk for the next one.
pub(super) struct Passed<D: Kernels> {
    pub(super) x: Stream<D>,
    pub(super) row: Option<Tensor<D::Wide>>,
}

/// Messages under way to another rank.
pub(super) struct Sent<D: Kernels> {
    pub(super) x: Request<D>,
    pub(super) row: Option<Request<D::Wide>>,
}

/// Messages under way to this rank.
pub(super) struct Received<D: Kernels> {
    pub(super) share: Request<D>,
    pub(super) rows: usize, // on all ranks together
    pub(super) region: Region,
    pub(super) row: Option<Request<D::Wide>>,
}

/// Values, each by the task that needs it. Few are there at once, and the list takes no memory for one more.
pub(super) struct Keyed<M>(Vec<((Payload, Task), M)>);

impl<M> Keyed<M> {
    /// No values.
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }
    /// Adds the value for a task.
    pub(super) fn insert(&mut self, of: (Payload, Task), value: M) {
        self.0.push((of, value));
    }
    /// Takes the value for a task.
    pub(super) fn take(&mut self, of: (Payload, Task)) -> M {
        let index = self.0.iter().position(|(name, _)| *name == of);
        self.0.remove(index.expect("the data of a task has arrived")).1
    }
}

impl<D: Kernels> Sent<D> {
    /// Waits until the receiver has both.
    pub(super) fn wait(self) -> Result<()> {
        self.x.wait()?;
        if let Some(row) = self.row {
            row.wait()?;
        }
        Ok(())
    }
}

impl<D: Kernels> Received<D> {
    /// Waits for both and returns them.
    pub(super) fn wait(self) -> Result<Passed<D>> {
        let x = Stream::sent(self.share.wait()?, self.rows, self.region);
        Ok(Passed { x, row: self.row.map(Request::wait).transpose()? })
    }
}

/// Tags of a message and of the row beside it, unique among the plan's microbatches, which are in flight.
pub(super) fn tags((payload, of): (Payload, Task), plan: &Plan) -> [Tag; 2] {
    let microbatch = plan.in_flight(of) + plan.microbatches * of.chunk.saturating_sub(1) as usize;
    let number = microbatch * plan.slices + of.slice as usize;
    let row = if payload == Payload::Activation { "row beside" } else { "row back" };
    [payload.name(), row].map(|what| Tag::new(what, number))
}
