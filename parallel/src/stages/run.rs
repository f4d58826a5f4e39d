//! A step's moves on a rank, one after the other. What a move gives out goes to the caller, who asks for the
//! next: an iterator that is fed.
use super::{Feed, ModelOutput, Stages};
use crate::step::{Action, ActionPhase, PassKind, Plan, StepMoves, Task, moves};
use crate::{Error, Result};
use comm::TraceSpan;
use kernels::Kernels;
use std::rc::Rc;

/// Moves of a step that are still to be run. Microbatches are numbered since the pipeline was empty.
pub(crate) struct StageRun {
    moves: Rc<[ActionPhase]>,
    next: usize,
    first: u32, // microbatches before those of the table
    plan: Plan, // of all microbatches that can be in flight
    learns: bool,
    empties: bool, // true if the pipeline is empty at the end
}

/// Event of a step, for its caller.
pub(crate) enum StepEvent<D: Kernels> {
    /// The model's output, or a part of the loss from layers before its end.
    Output(Task, ModelOutput<D>),
    /// This rank has finished a microbatch.
    Done(Task),
    /// Nothing more is added to the gradients of a microbatch, which change the weights; the span is that of
    /// the update.
    UpdateEach(Task, TraceSpan),
    /// All microbatches have run backward; sums of gradients are still under way.
    Complete,
    /// The weights change.
    Update,
}

impl<D: Kernels> Stages<D> {
    /// Begins a step of all microbatches, in the order of the schedule. Without training, sequences are not
    /// cut into slices. Under a schedule that keeps the pipeline full, the step runs the last microbatches of
    /// the steps before, too, and leaves some of its own for the next step, which must have as many, or for
    /// [`empty`](Self::empty).
    pub(crate) fn begin(&mut self, microbatches: usize, learns: bool) -> Result<StageRun> {
        let plan =
            Plan { slices: self.slices(learns), ..self.pipeline.plan(self.logits.size(), microbatches) };
        let moves = self.table(plan, learns)?;
        let step = if learns { self.begun } else { 0 };
        let empties = self.pipeline.schedule.carries(&plan) == 0;
        Ok(self.of_step(&moves.steps, step, plan, [learns, learns && empties]))
    }
    /// Number of microbatches of the steps that have begun and are not finished; 0 if the pipeline is empty.
    pub(crate) fn in_flight(&self) -> usize {
        self.made[1].as_ref().filter(|_| self.begun > 0).map_or(0, |(plan, _)| plan.microbatches)
    }
    /// Begins to finish the microbatches in flight, if there are any; then the parameters get their latest
    /// version.
    pub(crate) fn empty(&self) -> Option<StageRun> {
        let (plan, moves) = self.made[1].as_ref()?;
        let last = self.begun.checked_sub(1)?;
        Some(self.of_step(&moves.ends, last, *plan, [true, true]))
    }
    /// The moves of step `step` since the pipeline was empty.
    fn of_step(
        &self,
        tables: &[Rc<[ActionPhase]>],
        step: usize,
        plan: Plan,
        [learns, empties]: [bool; 2],
    ) -> StageRun {
        let known = step.min(tables.len() - 1);
        let steps = 1 + self.pipeline.schedule.carries(&plan).div_ceil(plan.microbatches);
        StageRun {
            moves: tables[known].clone(),
            next: 0,
            first: ((step - known) * plan.microbatches) as u32,
            plan: Plan { microbatches: steps * plan.microbatches, ..plan },
            learns,
            empties,
        }
    }
    /// Runs moves of a step until one gives something out; returns `None` at the end of the step.
    pub(crate) fn next(
        &mut self,
        run: &mut StageRun,
        feed: &mut dyn Feed<D>,
    ) -> Result<Option<StepEvent<D>>> {
        while let Some(&at) = run.moves.get(run.next) {
            run.next += 1;
            if let Some(watch) = &mut self.watch {
                watch(at);
            }
            let given = match at {
                ActionPhase::Begin(action) => self.begin_action(action.later(run.first), run, feed)?,
                ActionPhase::End(action) => self.end_action(action.later(run.first))?,
            };
            if given.is_some() {
                return Ok(given);
            }
        }
        if run.empties {
            self.versions.end(&mut self.stage.params());
            self.begun = 0;
        } else if run.learns {
            self.begun += 1;
        }
        Ok(None)
    }
    fn begin_action(
        &mut self,
        action: Action,
        run: &StageRun,
        feed: &mut dyn Feed<D>,
    ) -> Result<Option<StepEvent<D>>> {
        match action {
            Action::Run { cell, last, .. } => {
                if run.learns && self.updates_each() {
                    self.versions.before(cell, (&self.pipeline, &run.plan), &mut self.stage.params());
                }
                if cell.act.does(PassKind::U) {
                    self.versions.updated();
                    let span = self.mesh.span(cell.within(&run.plan));
                    return Ok(Some(StepEvent::UpdateEach(cell.of, span)));
                }
                let output = self.cell(cell, last, &run.plan, feed)?;
                return Ok(output.is_some().then_some(StepEvent::Output(cell.of, output)));
            }
            Action::Receive(payload, task, from) => {
                let rows = feed.cx(task)?.rows();
                let received = self.start_receive((payload, task), from, (rows, run.learns), &run.plan)?;
                self.receives.insert((payload, task), received);
            }
            Action::Send(payload, task, to) => {
                let sent = self.start_send((payload, task), to, &run.plan)?;
                self.sends.insert((payload, task), sent);
            }
            Action::Complete => return Ok(Some(StepEvent::Complete)),
            Action::Update => return Ok(Some(StepEvent::Update)),
        }
        Ok(None)
    }
    fn end_action(&mut self, action: Action) -> Result<Option<StepEvent<D>>> {
        match action {
            Action::Run { cell, .. } => return Ok(Some(StepEvent::Done(cell.of))),
            Action::Receive(payload, task, _) => {
                let received = self.receives.take((payload, task));
                self.end_receive((payload, task), received)?;
            }
            Action::Send(payload, task, _) => self.sends.take((payload, task)).wait()?,
            Action::Complete | Action::Update => {}
        }
        Ok(None)
    }
    /// Returns this rank's moves for a plan, and keeps them for the next step. The whole table is checked
    /// first.
    fn table(&mut self, plan: Plan, learns: bool) -> Result<Rc<StepMoves>> {
        let made = &mut self.made[usize::from(learns)];
        if let Some((_, moves)) = made.as_ref().filter(|(of, _)| *of == plan) {
            return Ok(moves.clone());
        }
        let schedule = self.pipeline.schedule;
        let rank = self.logits.rank();
        let moves = if learns {
            StepMoves::new(schedule, &plan, rank)
        } else {
            let list = moves(schedule, &plan, rank, false);
            list.map(|all| StepMoves { steps: vec![all.into()], ends: Vec::new() })
        };
        Ok(made.insert((plan, Rc::new(moves.map_err(Error::new)?))).1.clone())
    }
}
