//! The messages of a rank to and from the other stages.
use super::passed::{Passed, Received, Sent, tags};
use super::{Stages, row};
use crate::Result;
use crate::step::{Payload, Plan, Task};
use comm::Axis;
use kernels::Kernels;

impl<D: Kernels> Stages<D> {
    /// Starts sending the data that a task needs to a rank of the stages.
    #[track_caller]
    pub(super) fn start_send(&mut self, of: (Payload, Task), to: usize, plan: &Plan) -> Result<Sent<D>> {
        let Passed { x, row } = self.ready.take(of);
        let stages = self.mesh.group(Axis::Pp);
        let [tag, of_row] = tags(of, plan);
        let x = stages.start_send(to, x.in_region(self.regions[1]).share().clone(), tag)?;
        Ok(Sent { x, row: row.map(|row| stages.start_send(to, row, of_row)).transpose()? })
    }
    /// Starts receiving the data that a task needs from a rank of the stages: `rows` rows, in a step that
    /// trains or not.
    #[track_caller]
    pub(super) fn start_receive(
        &self,
        of: (Payload, Task),
        from: usize,
        (rows, learns): (usize, bool),
        plan: &Plan,
    ) -> Result<Received<D>> {
        let behind = of.1.chunk as usize + usize::from(of.0 == Payload::Gradient);
        let part = self.pipeline.blocks(self.design.parts(self.tp), behind, plan.all_chunks()).start;
        let width = self.design.width(self.design.start(part, self.tp));
        let stages = self.mesh.group(Axis::Pp);
        let region = self.regions[1];
        let [tag, of_row] = tags(of, plan);
        let share = stages.start_receive(&self.device, from, region.mine(rows).len(), width, tag)?;
        let row = row(&self.hooks, learns)
            .map(|(_, n)| stages.start_receive(self.device.wide(), from, 1, n, of_row))
            .transpose()?;
        Ok(Received { share, rows, region, row })
    }
    /// Waits for the data that a task needs, and keeps it in the region of the stage's input.
    pub(super) fn end_receive(&mut self, of: (Payload, Task), received: Received<D>) -> Result<()> {
        let Passed { x, row } = received.wait()?;
        let lies_right = x.region() == self.regions[0];
        let x = if lies_right { x } else { x.gather(self.mesh.group(Axis::Tp))?.into() };
        self.ready.insert(of, Passed { x, row });
        Ok(())
    }
}
