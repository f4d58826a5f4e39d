//! Peak memory of a pipeline rank under any table, to the byte: the bytes held between steps, and the bytes
//! that each of its moves added on the meta device.
//!
//! ```text
//! peak = held between steps + most, over moves, of (what earlier ones added + what it needs while it lasts)
//! ```
//!
//! Moves of a kind, such as the input half of chunk 3, add the same for all microbatches but the first, which
//! starts the sum of losses. A chunk's last backward is a kind of its own: it starts the sums of gradients.
//! So a step of three microbatches shows what a step of many holds, but not what one of a single one holds.
//! Where each microbatch is an update, a step holds most in the middle, when the pipeline is full: its peak
//! is that of any longer one.
use crate::session::{self, RankClock};
use crate::step::simulate::{MemoryChange, peak};
use crate::step::{Action, ActionPhase, Cell, PassKind, Payload, Plan, Task, moves};
use crate::{Batch, BuildContext, Error, Result, Schedule, Scheme, Trainer, bail};
use comm::Axis;
use kernels::{Kernels, MetaOf};
use layers::{Design, OptimizerKind};
use ops::GradientScaling;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::iter::zip;
use std::rc::Rc;
use tensor::Device;

/// Measured moves of one rank: bytes, and for each kind of move the last lap of a clock.
#[derive(Clone, Debug)]
pub struct MoveCosts<L = ()> {
    stage: usize,
    own: Vec<usize>,      // its chunks
    built: usize,         // peak before the first step
    rests: usize,         // held between steps
    whole: Option<usize>, // peak of the step, if versions of weights come and go
    seen: HashMap<MoveKey, (MemoryChange, L)>,
}

/// A kind of move, and whether this is its first move of the step.
type MoveKey = (ActionPhase, bool);

/// A move, the peak before it and the bytes held then, and the lap that ended there.
type Watched<L> = (ActionPhase, [usize; 2], L);

impl<L: Clone + 'static> MoveCosts<L> {
    /// Measures a rank that trains on this batch, whose microbatches must be equal. `lap` returns what
    /// `clock` has counted since the last call.
    ///
    /// # Errors
    /// The error of a step, or if moves of a kind do not add the same.
    pub fn new<'a, D: Kernels>(
        at: (impl Into<Scheme<'a, D>>, usize),
        design: impl Into<Design>,
        optimizer: (OptimizerKind, impl Into<GradientScaling>),
        batch: &Batch,
        timing: (Option<RankClock>, impl Fn() -> L + 'static),
    ) -> Result<Self> {
        Self::of_step(at, design, optimizer, (batch, true), timing)
    }
    /// Measures a rank as [`MoveCosts::new`] does, in the first step or, if `warm`, in the second. From the
    /// second on, all that a step holds is allocated; cells that are neither the first nor the last of their
    /// kind cost the same in both.
    ///
    /// # Errors
    /// The error of a step, or if moves of a kind do not add the same.
    pub fn of_step<'a, D: Kernels>(
        (scheme, rank): (impl Into<Scheme<'a, D>>, usize),
        design: impl Into<Design>,
        (rule, scaling): (OptimizerKind, impl Into<GradientScaling>),
        (batch, warm): (&Batch, bool),
        (clock, lap): (Option<RankClock>, impl Fn() -> L + 'static),
    ) -> Result<Self> {
        let optimizer = (rule, scaling.into());
        session::timed(scheme, (rank, None), clock, |at: BuildContext<MetaOf<D>>| {
            let mut trainer = Trainer::new(&at, design, optimizer)?;
            let meter = at.device.meter();
            let built = meter.peaks_of_all().total;
            if warm {
                trainer.step(batch, 0.0)?;
            }
            let lap = Rc::new(lap);
            let watched = Rc::new(RefCell::new(Vec::<Watched<L>>::new()));
            let (device, inside, log) = (at.device.clone(), lap.clone(), watched.clone());
            let watch = move |at| log.borrow_mut().push((at, device.meter().restart_phase(), inside()));
            trainer.model().watch = Some(Box::new(watch));
            let report = trainer.step(batch, 0.0)?;
            let end = (meter.restart_phase(), lap());
            drop(report);
            trainer.model().watch = None;
            let watched = watched.take();
            let stages = at.mesh.group(Axis::Pp);
            let rests = watched[0].1[1];
            let plan = at.pipeline.plan(stages.size(), batch.microbatches().len());
            let chunks = at.pipeline.schedule.chunks_of(stages.rank(), &plan);
            let each = at.pipeline.schedule.updates_each();
            let mut held =
                Self { stage: stages.rank(), own: chunks, built, rests, whole: None, seen: HashMap::new() };
            let ends = watched[1..].iter().map(|(_, at, lap)| (*at, lap.clone())).chain([end]);
            let moves = keys(&held.own, watched.iter().map(|(at, ..)| *at));
            for ((key, (at, [_, before], _)), ([most, after], lap)) in zip(zip(moves, &watched), ends) {
                let adds = MemoryChange { adds: after as isize - *before as isize, needs: most - before };
                held.whole = each.then_some(held.whole.unwrap_or(0).max(most));
                let known = held.seen.insert(key, (adds, lap)).map_or(adds, |(known, _)| known);
                if known != adds && !each {
                    bail!("{at:?} on rank {rank} adds {known:?} for one microbatch, {adds:?} for another");
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
        Ok(self.peak_over(self.along(&self.own, &moves)?.map(|(adds, _)| *adds).collect::<Vec<_>>()))
    }
    /// Returns the peak bytes from the beginning on, over these changes of a step.
    pub fn peak_over(&self, changes: impl IntoIterator<Item = MemoryChange>) -> usize {
        self.built.max(self.whole.unwrap_or_else(|| self.rests + peak(changes)))
    }
    /// Returns what each of these moves costs on a rank that has the chunks `own`, which equal those of the
    /// measured rank one by one.
    ///
    /// # Errors
    /// If there is a kind of move that was not measured.
    pub fn along(
        &self,
        own: &[usize],
        moves: &[ActionPhase],
    ) -> Result<impl Iterator<Item = &(MemoryChange, L)>> {
        let known = |key: MoveKey| self.seen.get(&key).ok_or_else(|| unseen(key));
        Ok(keys(own, moves.iter().copied()).map(known).collect::<Result<Vec<_>>>()?.into_iter())
    }
    /// Returns what the beginning of an action costs: the first of its kind in a step, or a later one.
    pub fn cost(&self, action: Action, first: bool) -> Option<&(MemoryChange, L)> {
        self.seen.get(&(kind(&self.own, ActionPhase::Begin(action)), first))
    }
    /// Returns what each kind of move of the step costs, with the action that it begins or ends.
    pub fn all(&self) -> impl Iterator<Item = (&ActionPhase, &L)> {
        self.seen.iter().map(|((at, _), (_, lap))| (at, lap))
    }
    /// Bytes held between steps.
    pub fn rests(&self) -> usize {
        self.rests
    }
}

/// True if a step with moves `few` has every kind of move that a step with moves `many` has, on a rank with
/// these chunks.
pub fn shows(own: &[usize], few: &[ActionPhase], many: &[ActionPhase]) -> bool {
    let few: HashSet<_> = keys(own, few.iter().copied()).collect();
    keys(own, many.iter().copied()).all(|key| few.contains(&key))
}

fn unseen((at, _): MoveKey) -> Error {
    let (ActionPhase::Begin(step) | ActionPhase::End(step)) = at;
    Error::new(format!("the memory to {step} is not known; measure a step with more microbatches"))
}

/// The kind of each of these moves of a step on a rank with these chunks.
fn keys(own: &[usize], moves: impl Iterator<Item = ActionPhase>) -> impl Iterator<Item = MoveKey> {
    let mut before = HashSet::new();
    moves.map(move |at| {
        let kind = kind(own, at);
        (kind, before.insert(unless_last(kind)))
    })
}

/// The same move of a microbatch that is not the last: a last backward is also the first one, and starts its
/// chunk's gradients, only if there is one microbatch.
fn unless_last(at: ActionPhase) -> ActionPhase {
    match at {
        ActionPhase::Begin(Action::Run { cell, done, .. }) => {
            ActionPhase::Begin(Action::Run { cell, last: false, done })
        }
        other => other,
    }
}

/// The kind of a move: the same move for the first microbatch, with chunks counted on their rank, and any
/// other rank.
fn kind(own: &[usize], at: ActionPhase) -> ActionPhase {
    let any = |of: Task, chunk: usize| {
        let chunk = own.iter().position(|own| *own == chunk).unwrap_or(usize::MAX);
        Task { microbatch: 0, chunk: chunk as u16, ..of }
    };
    let step = |step| match step {
        Action::Run { cell, last, .. } => {
            Action::Run { cell: Cell { of: any(cell.of, cell.of.chunk.into()), ..cell }, last, done: false }
        }
        Action::Receive(what, of, _) => Action::Receive(what, any(of, of.chunk.into()), 0),
        // a message is named after the chunk that needs it, and comes from the one before or behind
        Action::Send(what @ Payload::Activation, of, _) => {
            Action::Send(what, any(of, usize::from(of.chunk) - 1), 0)
        }
        Action::Send(what, of, _) => Action::Send(what, any(of, usize::from(of.chunk) + 1), 0),
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
