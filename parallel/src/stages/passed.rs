//! Messages from chunk to chunk: the residual stream or its gradient, and the row beside it if a strategy has
//! one (`layers/src/build/hooks.rs`). The row is a message of its own, in a wide dtype: a narrow one cannot
//! count that far.
use crate::Result;
use crate::step::{Payload, Plan, Task};
use comm::{Group, Request, Tag};
use kernels::Kernels;
use ops::{Region, Stream};
use tensor::Tensor;

/// Output of a chunk for the next one.
pub(super) struct Passed<D: Kernels> {
    pub(super) x: Stream<D>,
    pub(super) row: Option<Tensor<D::Wide>>,
}

/// Messages under way to another rank.
pub(super) struct Sent<D: Kernels>(Request<D>, Option<Request<D::Wide>>);

/// Messages under way to this rank.
pub(super) struct Received<D: Kernels> {
    share: Request<D>,
    rows: usize, // on all ranks together
    region: Region,
    row: Option<Request<D::Wide>>,
}

impl<D: Kernels> Passed<D> {
    /// Starts sending both to a rank of the group.
    #[track_caller]
    pub(super) fn start_send(
        self,
        group: &Group<D::Place>,
        to: usize,
        (tag, of_row): (Tag, Tag),
    ) -> Result<Sent<D>> {
        let x = group.start_send(to, self.x.share().clone(), tag)?;
        Ok(Sent(x, self.row.map(|row| group.start_send(to, row, of_row)).transpose()?))
    }
    /// Starts receiving both from a rank of the group: this rank's tokens of a stream of this shape, and a
    /// row of `row` elements.
    pub(super) fn start_receive(
        device: &D,
        (group, from, (tag, of_row)): (&Group<D::Place>, usize, (Tag, Tag)),
        ([rows, cols], region): ([usize; 2], Region),
        row: Option<usize>,
    ) -> Result<Received<D>> {
        let share = group.start_receive(device, from, region.mine(rows).len(), cols, tag)?;
        let wide: &D::Wide = device.wide();
        let row = row.map(|n| group.start_receive(wide, from, 1, n, of_row)).transpose()?;
        Ok(Received { share, rows, region, row })
    }
}

impl<D: Kernels> Sent<D> {
    /// Waits until the receiver has both.
    pub(super) fn wait(self) -> Result<()> {
        self.0.wait()?;
        if let Some(row) = self.1 {
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

/// Tags of a message and of the row beside it, unique among microbatches in flight.
pub(super) fn tags(payload: Payload, of: Task, plan: &Plan) -> (Tag, Tag) {
    let microbatch = of.microbatch as usize + plan.microbatches * of.chunk.saturating_sub(1) as usize;
    let number = microbatch * plan.slices + of.slice as usize;
    let row = if payload == Payload::Activation { "row beside" } else { "row back" };
    (Tag::new(payload.name(), number), Tag::new(row, number))
}
