//! Peak memory of a pipeline rank under any table, to the byte: the bytes held between steps, and the bytes
//! that each of its moves added on the meta device.
//!
//! ```text
//! peak = held between steps + most, over moves, of (what earlier ones added + what it needs while it lasts)
//! ```
//!
//! Moves of a kind, such as the input half of chunk 3, add the same for all microbatches but the first, which
//! starts the sum of losses. A chunk's last backward is a kind of its own: it starts the sums of gradients.
//! So a step of few microbatches shows what a step of many holds.
use crate::step::simulate::{MemoryChange, peak};
use crate::step::{Action, ActionPhase, Cell, PassKind, Plan, Task, moves};
use crate::{Batch, BuildContext, Error, Result, Schedule, Scheme, Trainer, bail, session};
use comm::Axis;
use kernels::{Kernels, Meta};
use layers::{Design, OptimizerKind};
use std::collections::{HashMap, HashSet};
use std::iter::zip;
use tensor::Device;

/// Measured memory of one rank.
#[derive(Clone, Debug)]
pub struct MemoryBytes {
    stage: usize,
    built: usize, // peak before the first step
    rests: usize, // held between steps
    seen: HashMap<MoveKey, MemoryChange>,
}

/// A kind of move, and whether this is its first move of the step.
type MoveKey = (ActionPhase, bool);

impl MemoryBytes {
    /// Measures a rank that trains on this batch, which must have three or more equal microbatches.
    ///
    /// # Errors
    /// The error of a step, or if moves of a kind do not add the same.
    pub fn new<'a, D: Kernels>(
        scheme: impl Into<Scheme<'a, D>>,
        rank: usize,
        design: impl Into<Design>,
        optimizer: (OptimizerKind, Option<f64>),
        batch: &Batch,
    ) -> Result<Self> {
        session::ghost(scheme, (rank, None), |at: BuildContext<Meta<D::Elem>>| {
            let (mut trainer, meter) = (Trainer::new(&at, design, optimizer)?, at.device.meter());
            let built = meter.peaks_of_all().total;
            trainer.step(batch, 0.0)?; // from the second step on, everything that a step holds is allocated
            trainer.model().watched = Some(Vec::new());
            let report = trainer.step(batch, 0.0)?;
            let end = meter.restart_phase();
            drop(report);
            let watched = trainer.model().watched.take().expect("put there above");
            let (stage, rests) = (at.mesh.group(Axis::Pp).rank(), watched[0].1[1]);
            let mut held = Self { stage, built, rests, seen: HashMap::new() };
            let ends = watched[1..].iter().map(|(_, end)| *end).chain([end]);
            let moves = watched.iter().map(|(at, _)| *at);
            for ((key, (_, [_, before])), [most, after]) in zip(zip(keys(moves), &watched), ends) {
                let adds = MemoryChange { adds: after as isize - *before as isize, needs: most - before };
                let known = *held.seen.entry(key).or_insert(adds);
                if known != adds {
                    bail!(
                        "{:?} on rank {rank} adds {known:?} for one microbatch, {adds:?} for another",
                        key.0
                    );
                }
            }
            Ok(held)
        })
    }
    /// Returns the peak bytes from the beginning on, if the rank trains under this schedule.
    ///
    /// # Errors
    /// If there is no such table, or it has a kind of cell that was not measured.
    pub fn peak(&self, schedule: &dyn Schedule, plan: &Plan) -> Result<usize> {
        let moves = moves(schedule, plan, self.stage, true).map_err(Error::new)?;
        let adds = |key: MoveKey| self.seen.get(&key).copied().ok_or_else(|| unseen(key));
        let adds = keys(moves.into_iter()).map(adds).collect::<Result<Vec<_>>>()?;
        Ok(self.built.max(self.rests + peak(adds)))
    }
    /// Returns the bytes that a cell adds to those held between the moves of a step, for a microbatch that is
    /// neither the first nor the last.
    pub fn adds(&self, act: PassKind, chunk: usize) -> Option<isize> {
        let cell = Cell { act, of: Task::new(chunk, 0) };
        let run = Action::Run { cell, last: false, done: false };
        self.seen.get(&(ActionPhase::Begin(run), false)).map(|adds| adds.adds)
    }
}

fn unseen((at, _): MoveKey) -> Error {
    let (ActionPhase::Begin(step) | ActionPhase::End(step)) = at;
    Error::new(format!("the memory to {step} is not known; measure a step with more microbatches"))
}

/// The kind of each of these moves of a step.
fn keys(moves: impl Iterator<Item = ActionPhase>) -> impl Iterator<Item = MoveKey> {
    let mut before = HashSet::new();
    moves.map(move |at| {
        let kind = kind(at);
        (kind, before.insert(kind))
    })
}

/// The kind of a move: the same move for the first microbatch.
fn kind(at: ActionPhase) -> ActionPhase {
    let any = |of: Task| Task { microbatch: 0, ..of };
    let step = |step| match step {
        Action::Run { cell, last, .. } => {
            Action::Run { cell: Cell { of: any(cell.of), ..cell }, last, done: false }
        }
        Action::Receive(what, of, from) => Action::Receive(what, any(of), from),
        Action::Send(what, of, to) => Action::Send(what, any(of), to),
        Action::Complete | Action::Update => step,
    };
    match at {
        ActionPhase::Begin(of) => ActionPhase::Begin(step(of)),
        ActionPhase::End(Action::Run { .. }) => {
            // any cell can be the last of its microbatch
            let cell = Cell { act: PassKind::F, of: Task::new(0, 0) };
            ActionPhase::End(Action::Run { cell, last: false, done: true })
        }
        ActionPhase::End(of) => ActionPhase::End(step(of)),
    }
}

#[cfg(test)]
mod tests;
