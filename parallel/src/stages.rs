//! This rank's part of a model, and the one executor of pipeline steps: it runs cells and passes activations
//! and gradients from chunk to chunk. It knows neither what a chunk computes nor which schedule wrote the
//! cells.
mod at;
mod once;
mod passed;
pub mod turns;
mod versions;

pub use at::BuildContext;

use crate::pipeline::Pipeline;
use crate::step::{Action, ActionPhase, Cell, PassKind, Payload, Plan, StepMoves, Task, moves};
use crate::{Error, Result};
use comm::{Axis, Group, Mesh};
use kernels::Kernels;
use layers::{Chunk, Design, Half, Hooks, Input, Output, Params, StageRequest};
use ops::{Keeper, Param, PassContext, Region, ShardingStrategy, TokenShards, filled};
use passed::{Passed, Received, Sent, tags};
use std::rc::Rc;
use tensor::{Category, Scalar};
use versions::Versions;

/// This rank's chunks of a model.
pub struct Stages<D: Kernels> {
    device: D,
    chunks: Vec<usize>, // this rank's, by their index in the model
    stage: Chunk<D>,
    pipeline: Pipeline,
    mesh: Mesh<D::Place>,
    tp: usize, // tensor ranks
    tokens: TokenShards,
    keeper: Option<Keeper<D>>, // of values that are used for logits
    logits: Group<D::Place>,   // the stages, in the messages of logits
    regions: [Region; 2],      // of the stream within a stage, and between stages
    rooted: bool,              // only the first data rank keeps the parameters
    design: Rc<Design>,
    made: [Option<(Plan, Rc<StepMoves>)>; 2], // of inference, and of training: for the last plan
    begun: usize,                             // training steps since the pipeline was empty
    versions: Versions<D>,
    hooks: Vec<Box<dyn Hooks<D>>>,                         // of its strategies
    held: Vec<((Payload, Task), Passed<D>)>,               // by the task that needs it
    sent: Vec<((Payload, Task), Sent<D>)>,                 // not waited for yet
    coming: Vec<((Payload, Task), Received<D>)>,           // started, and not needed yet
    pub(crate) watch: Option<Box<dyn FnMut(ActionPhase)>>, // called before each move
}

/// The microbatches of a step, as the executor requests them.
pub(crate) trait Microbatches<D: Kernels> {
    /// Returns the context of a slice of a microbatch, created on first use.
    fn cx(&mut self, of: Task) -> Result<&PassContext<D>>;
    /// Returns the input of the model.
    fn input(&mut self, of: Task) -> Result<Input<D>>;
    /// Returns the kind of output wanted at the model's end.
    fn wanted(&mut self, of: Task) -> Result<StageRequest<D>>;
    /// Receives the output of the model.
    fn ended(&mut self, of: Task, output: Output<D>);
    /// Changes the weights with the gradient of one microbatch.
    fn update_each(
        &mut self,
        _: Task,
        _: &[Box<dyn Hooks<D>>],
        _: &mut Keeper<D>,
        _: &mut [&mut Param<D>],
    ) -> Result<()> {
        Ok(())
    }
    /// Called when this rank has finished a microbatch.
    fn done(&mut self, _: usize) {}
    /// Called when all microbatches have run backward, before the sums of their gradients are waited for.
    fn complete(&mut self) -> Result<()> {
        Ok(())
    }
    /// Called when all gradients are summed; changes the weights.
    fn update(&mut self, _: &[Box<dyn Hooks<D>>], _: &mut Keeper<D>, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
}

impl<D: Kernels> Stages<D> {
    /// Builds this rank's chunks of the model.
    ///
    /// # Errors
    /// If the ranks do not fit the design, or its initial values are missing.
    pub fn new(at: &BuildContext<D>, design: impl Into<Design>) -> Result<Self> {
        let design = Rc::new(design.into());
        let [stages, layers] = [Axis::Pp, Axis::Tp].map(|axis| at.mesh.group(axis));
        let plan = at.pipeline.plan(stages.size(), 1);
        let schedule = at.pipeline.schedule;
        let ends = [0, plan.all_chunks() - 1].map(|chunk| schedule.rank_of(chunk, &plan));
        let at_an_end = ends[0] != ends[1] && ends.contains(&stages.rank());
        let ends = if at_an_end { Some(stages.subgroup(&ends)?) } else { None };
        let chunks = schedule.chunks_of(stages.rank(), &plan);
        let parts: Vec<_> = chunks
            .iter()
            .map(|chunk| at.pipeline.blocks(design.parts(layers.size()), *chunk, plan.all_chunks()))
            .collect();
        let between = if at.region == Region::Whole { Region::tokens(layers) } else { at.region };
        Ok(Self {
            device: at.device.clone(),
            stage: design.stage(at, &parts, ends.as_ref())?,
            chunks,
            pipeline: at.pipeline,
            mesh: at.mesh.clone(),
            tp: layers.size(),
            tokens: at.tokens,
            keeper: Some(Keeper::new(at.rests)),
            logits: stages.named("logits"),
            regions: [at.region, between],
            rooted: at.rests == ShardingStrategy::ROOT,
            hooks: at.strategies.iter().filter_map(|strategy| strategy.hooks(at, &design)).collect(),
            design,
            made: [None, None],
            begun: 0,
            versions: Versions::new(),
            held: Vec::new(),
            sent: Vec::new(),
            coming: Vec::new(),
            watch: None,
        })
    }
    /// This rank's parameters, in program order.
    pub fn params(&mut self) -> Params<'_, D> {
        self.stage.params()
    }
    /// The design that the model was built from.
    pub fn design(&self) -> &Rc<Design> {
        &self.design
    }
    /// The tokens of this rank.
    pub fn tokens(&self) -> TokenShards {
        self.tokens
    }
    /// Runs all microbatches of a step, in the order of the schedule. Without training, sequences are not cut
    /// into slices. Under a schedule that keeps the pipeline full, runs the last microbatches of the steps
    /// before, too, and leaves some of its own for the next step, which must have as many, or for
    /// [`empty`](Self::empty).
    pub(crate) fn run(
        &mut self,
        microbatches: usize,
        learns: bool,
        work: &mut dyn Microbatches<D>,
        keeper: &mut Keeper<D>,
    ) -> Result<()> {
        let plan =
            Plan { slices: self.slices(learns), ..self.pipeline.plan(self.logits.size(), microbatches) };
        let moves = self.table(plan, learns)?;
        let step = if learns { self.begun } else { 0 };
        let known = step.min(moves.steps.len() - 1);
        self.go(&moves.steps[known].clone(), &plan, step - known, learns, work, keeper)?;
        if learns && self.pipeline.schedule.carries(&plan) > 0 {
            self.begun += 1;
        } else if learns {
            self.versions.end(&mut self.stage.params());
        }
        Ok(())
    }
    /// Number of microbatches of the steps that have begun and are not finished; 0 if the pipeline is empty.
    pub(crate) fn in_flight(&self) -> usize {
        self.made[1].as_ref().filter(|_| self.begun > 0).map_or(0, |(plan, _)| plan.microbatches)
    }
    /// Finishes the microbatches in flight, and gives the parameters their latest version.
    pub(crate) fn empty(&mut self, work: &mut dyn Microbatches<D>, keeper: &mut Keeper<D>) -> Result<()> {
        if let (Some((plan, moves)), Some(last)) = (self.made[1].clone(), self.begun.checked_sub(1)) {
            let known = last.min(moves.ends.len() - 1);
            self.go(&moves.ends[known].clone(), &plan, last - known, true, work, keeper)?;
            self.versions.end(&mut self.stage.params());
            self.begun = 0;
        }
        Ok(())
    }
    /// Runs moves of a step of this plan, which are those of a step `later` steps before.
    fn go(
        &mut self,
        moves: &[ActionPhase],
        plan: &Plan,
        later: usize,
        learns: bool,
        work: &mut dyn Microbatches<D>,
        keeper: &mut Keeper<D>,
    ) -> Result<()> {
        let stages = self.mesh.group(Axis::Pp).clone();
        let steps = 1 + self.pipeline.schedule.carries(plan).div_ceil(plan.microbatches);
        let [first, ring] = [later, steps].map(|steps| (steps * plan.microbatches) as u32);
        let since_empty = |of: Task| Task { microbatch: of.microbatch + first, ..of };
        // for the caller, microbatches in flight have numbers below `ring`, which are then used again
        let in_flight = |of: Task| Task { microbatch: (of.microbatch + first) % ring, ..of };
        let all = &Plan { microbatches: ring as usize, ..*plan };
        for &at in moves {
            if let Some(watch) = &mut self.watch {
                watch(at);
            }
            match at {
                ActionPhase::Begin(Action::Run { cell, last, .. }) => {
                    if learns && self.updates_each() {
                        let cell = Cell { of: since_empty(cell.of), ..cell };
                        self.versions.before(cell, (&self.pipeline, plan), &mut self.stage.params());
                    }
                    let task = in_flight(cell.of);
                    if cell.act == PassKind::U {
                        self.update(task, plan, work, keeper)?;
                    } else {
                        self.cell(Cell { of: task, ..cell }, last, plan, work, keeper)?;
                    }
                }
                ActionPhase::End(Action::Run { cell, .. }) => {
                    work.done(in_flight(cell.of).microbatch as usize);
                }
                ActionPhase::Begin(Action::Receive(payload, task, from)) => {
                    let task = in_flight(task);
                    let rows = work.cx(task)?.rows();
                    let coming = self.receive(payload, task, from, (rows, learns), &stages, all)?;
                    self.coming.push(((payload, task), coming));
                }
                ActionPhase::End(Action::Receive(payload, task, _)) => {
                    self.received((payload, in_flight(task)))?;
                }
                ActionPhase::Begin(Action::Send(payload, task, to)) => {
                    let task = in_flight(task);
                    let Passed { x, row } = named(&mut self.held, (payload, task));
                    let passed = Passed { x: x.in_region(self.regions[1]), row };
                    let sent = passed.start_send(&stages, to, tags(payload, task, all))?;
                    self.sent.push(((payload, task), sent));
                }
                ActionPhase::End(Action::Send(payload, task, _)) => {
                    named(&mut self.sent, (payload, in_flight(task))).wait()?;
                }
                ActionPhase::Begin(Action::Complete) => {
                    work.complete()?;
                    keeper.finish(&mut self.stage.params())?;
                }
                ActionPhase::Begin(Action::Update) => {
                    work.update(&self.hooks, keeper, &mut self.stage.params())?;
                }
                ActionPhase::End(Action::Complete | Action::Update) => {}
            }
        }
        Ok(())
    }
    /// Waits for a message, and keeps it in the region of the stage's input.
    fn received(&mut self, of: (Payload, Task)) -> Result<()> {
        let Passed { x, row } = named(&mut self.coming, of).wait()?;
        let lies_right = x.region() == self.regions[0];
        let x = if lies_right { x } else { x.gather(self.mesh.group(Axis::Tp))?.into() };
        self.held.push((of, Passed { x, row }));
        Ok(())
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
    /// Returns true if each microbatch is an update.
    pub(crate) fn updates_each(&self) -> bool {
        self.pipeline.schedule.updates_each()
    }
    /// Number of microbatches that a step with this number of them leaves in the pipeline.
    pub(crate) fn carries(&self, microbatches: usize) -> usize {
        self.pipeline.schedule.carries(&self.pipeline.plan(self.logits.size(), microbatches))
    }
    /// Number of slices that the schedule cuts sequences into; 1 without training.
    pub(crate) fn slices(&self, learns: bool) -> usize {
        if learns { self.pipeline.plan(self.logits.size(), 1).slices } else { 1 }
    }
    /// Starts receiving the message that a task needs: `rows` rows, in a step that trains or not.
    fn receive(
        &self,
        payload: Payload,
        task: Task,
        from: usize,
        (rows, learns): (usize, bool),
        stages: &Group<D::Place>,
        plan: &Plan,
    ) -> Result<Received<D>> {
        let behind = task.chunk as usize + usize::from(payload == Payload::Gradient);
        let part = self.pipeline.blocks(self.design.parts(self.tp), behind, plan.all_chunks()).start;
        let width = self.design.width(self.design.start(part, self.tp));
        let from = (stages, from, tags(payload, task, plan));
        let row = row(&self.hooks, learns).map(|(_, n)| n);
        Passed::start_receive(&self.device, from, ([rows, width], self.regions[1]), row)
    }
    /// Runs an update cell: waits for the sums of a microbatch's gradient, and changes the weights.
    fn update(
        &mut self,
        of: Task,
        plan: &Plan,
        work: &mut dyn Microbatches<D>,
        keeper: &mut Keeper<D>,
    ) -> Result<()> {
        let _span = self.mesh.span(Cell { act: PassKind::U, of }.within(plan));
        let params = &mut self.stage.params();
        keeper.finish(params)?;
        work.update_each(of, &self.hooks, keeper, params)?;
        self.versions.updated();
        Ok(())
    }
    /// Runs a cell: a pass through a chunk.
    fn cell(
        &mut self,
        Cell { act, of }: Cell,
        last: bool,
        plan: &Plan,
        work: &mut dyn Microbatches<D>,
        keeper: &mut Keeper<D>,
    ) -> Result<()> {
        let number = of.chunk as usize;
        let end = number + 1 == plan.all_chunks();
        let comes = if act == PassKind::F { number > 0 } else { !end && act.passes() };
        let (came, row) =
            comes.then(|| named(&mut self.held, (act.gives(), of))).map(|p| (p.x, p.row)).unzip();
        let (input, dy) = match act {
            PassKind::F => (Some(came.map_or_else(|| work.input(of), |x| Ok(Input::Activation(x)))?), None),
            _ => (None, came),
        };
        let wanted = if end && act == PassKind::F { Some(work.wanted(of)?) } else { None };
        let cx = work.cx(of)?;
        let beside = self::row(&self.hooks, cx.pass().learns);
        match (row, beside) {
            (Some(row), _) => *cx.beside() = row,
            (None, Some((_, n))) if act == PassKind::F => {
                let none = <D::Wide as tensor::Device>::Elem::ZERO;
                *cx.beside() = Some(filled(self.device.wide(), Category::Buffers, [1, n], none));
            }
            _ => {}
        }
        let span = cx.pass().learns.then(|| self.mesh.span(Cell { act, of }.within(plan)));
        if self.rooted && act == PassKind::F {
            self.stage.params().into_iter().try_for_each(Param::replicate)?;
        }
        let run = self.chunks.iter().position(|n| *n == number).expect("a chunk of this rank");
        let stage = &mut self.stage;
        let mut ended = None;
        let given = match (act, input) {
            (PassKind::F, input) => {
                match stage.forward(run, cx, keeper, input.expect("taken above"), wanted)? {
                    Output::Activation(y) => Some(y),
                    output => {
                        ended = Some(output);
                        None
                    }
                }
            }
            (PassKind::B, _) => stage.backward(run, cx, keeper, dy, Half::Both, last)?,
            (PassKind::I, _) => stage.backward(run, cx, keeper, dy, Half::Input, last)?,
            (PassKind::W, _) => {
                stage.backward_weight(run, cx, keeper, last)?;
                None
            }
            (PassKind::U, _) => unreachable!("it is no pass through a chunk"),
        };
        if self.rooted && act == PassKind::B {
            self.stage.params().into_iter().try_for_each(Param::reduce)?;
        }
        if let (Some((hooks, _)), true) = (beside, end && act == PassKind::F) {
            let row = cx.beside().take().expect("the row began with the microbatch");
            *cx.beside() = Some(hooks.turn(cx, row)?);
        }
        drop(span);
        let row = if end && act == PassKind::F { None } else { cx.beside().take() };
        let added = cx.take_loss().map(Output::Loss); // of layers
        ended.into_iter().chain(added).for_each(|output| work.ended(of, output));
        self.held.extend(Cell { act, of }.gives(plan).zip(given).map(|(name, x)| (name, Passed { x, row })));
        Ok(())
    }
}

/// The hooks with a row beside the stream, if a pass learns, and the number of elements of the row.
fn row<D: Kernels>(hooks: &[Box<dyn Hooks<D>>], learns: bool) -> Option<(&dyn Hooks<D>, usize)> {
    hooks.iter().filter(|_| learns).find_map(|hooks| Some((&**hooks, hooks.row()?)))
}

/// Takes the entry of this name.
fn named<M>(all: &mut Vec<((Payload, Task), M)>, name: (Payload, Task)) -> M {
    let index = all.iter().position(|(of, _)| *of == name);
    all.remove(index.expect("the data of a task has arrived")).1
}

#[cfg(test)]
mod tests;
