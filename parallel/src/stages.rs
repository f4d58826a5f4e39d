//! This rank's part of a model, and the one executor of steps: it runs cells, hands activations and gradients from chunk to
//! chunk, and knows nothing of what a chunk computes or of which schedule wrote the cells.
use crate::pipeline::{Alone, Schedule};
use crate::step::{Act, Cell, Payload, Plan, Step, Unit, forwards, lowered};
use crate::{Result, deal};
use comm::{Axis, Group, Mesh, Request, Tag};
use kernels::Kernels;
use layers::ops::{Region, Stream};
use layers::{Builder, Cx, Design, Half, Input, Keeper, Output, Param, Room, Stage, Strategy, Uses, Wanted};
use std::ops::Deref;
use std::rc::Rc;
use tensor::{Category, Tensor};

/// Where a model is built: the place of its layers, and the schedule of its stages.
pub struct At<'a, D: Kernels> {
    /// Where layers are built.
    pub builder: Builder<'a, D>,
    /// Who goes through which chunk when.
    pub schedule: &'static dyn Schedule,
}

impl<'a, D: Kernels> At<'a, D> {
    /// The same schedule, where these strategies, too, build what they build.
    #[must_use]
    pub fn with(self, strategies: impl IntoIterator<Item = &'a dyn Strategy<D>>) -> Self {
        Self { builder: self.builder.with(strategies), ..self }
    }
}

impl<'a, D: Kernels> Deref for At<'a, D> {
    type Target = Builder<'a, D>;
    fn deref(&self) -> &Builder<'a, D> {
        &self.builder
    }
}

impl<'a, D: Kernels> From<Builder<'a, D>> for At<'a, D> {
    /// A model that is not split into stages.
    fn from(builder: Builder<'a, D>) -> Self {
        Self { builder, schedule: &Alone }
    }
}

/// This rank's chunks of a model.
pub struct Stages<D: Kernels> {
    device: D,
    chunks: Vec<(usize, Box<dyn Stage<D>>)>, // each with its number
    schedule: &'static dyn Schedule,
    mesh: Mesh<D::Place>,
    keeper: Option<Keeper<D>>, // of values that are used for logits
    logits: Group<D::Place>,   // the stages, as logits meet them
    region: Region,
    design: Rc<Design>,
    steps: [Option<(Plan, Rc<[Step]>)>; 2], // of forwards alone, and of training: as made for the last plan
    held: Vec<(Payload, Unit, Stream<D>)>,  // by the unit that needs it
    sent: Vec<(Payload, Request<D>)>,       // not waited for yet, at most one of a kind
    room: Room<D>,                          // for lists of parameters
}

/// The microbatches of a step, as the executor asks for them.
pub(crate) trait Work<D: Kernels> {
    /// The context of a microbatch, made when it is first asked for.
    fn cx(&mut self, microbatch: usize) -> Result<&Cx<D>>;
    /// What enters the model.
    fn input(&mut self, microbatch: usize) -> Result<Input<D>>;
    /// What the model's end is asked for.
    fn wanted(&mut self, microbatch: usize) -> Result<Wanted<D>>;
    /// What left the model.
    fn ended(&mut self, microbatch: usize, output: Output<D>);
    /// This rank is done with a microbatch.
    fn done(&mut self, _: usize) {}
    /// All microbatches are back, and a chunk's gradients are waited for next.
    fn complete(&mut self) -> Result<()> {
        Ok(())
    }
    /// All gradients are there, and weights change.
    fn update(&mut self, _: &mut dyn Uses<D>, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
}

impl<D: Kernels> Stages<D> {
    /// This rank's chunks of the model.
    ///
    /// # Errors
    /// If the ranks do not fit the design, or there are no such values.
    pub fn new(at: &At<D>, design: impl Into<Design>) -> Result<Self> {
        let design = Rc::new(design.into());
        let stages = at.mesh.group(Axis::STAGES);
        let plan = Plan::whole(stages.size(), 1);
        let rank_of = |chunk: usize| at.schedule.rank_of(chunk, &plan);
        let ends = [0, plan.all_chunks() - 1].map(rank_of);
        let at_an_end = ends[0] != ends[1] && ends.contains(&stages.rank());
        let ends = if at_an_end { Some(stages.subgroup(&ends)?) } else { None };
        let part = |chunk: usize| {
            let parts = deal(design.parts(), chunk, plan.all_chunks());
            Ok((chunk, design.stage(at, parts, ends.as_ref())?))
        };
        let mine = |chunk: &usize| rank_of(*chunk) == stages.rank();
        Ok(Self {
            device: at.device.clone(),
            chunks: (0..plan.all_chunks()).filter(mine).map(part).collect::<Result<_>>()?,
            schedule: at.schedule,
            mesh: at.mesh.clone(),
            keeper: Some(Keeper::new(at.rests)),
            logits: stages.named("logits"),
            region: at.region,
            design,
            steps: [None, None],
            held: Vec::new(),
            sent: Vec::new(),
            room: Room::default(),
        })
    }
    /// Appends this rank's parameters to a list, in program order.
    pub fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.chunks.iter_mut().for_each(|(_, chunk)| chunk.list(all));
    }
    /// This rank's parameters, in program order.
    pub fn params(&mut self) -> Vec<&mut Param<D>> {
        let mut all = Vec::new();
        self.list(&mut all);
        all
    }
    /// What it is built as.
    pub fn design(&self) -> &Rc<Design> {
        &self.design
    }
    /// Logits `[sequences, V]` of the last token of every sequence that has one, the same on every tensor rank and on every
    /// stage; with `all`, of every token `[B, V]`. Of a model that gives rows of features those rows.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn logits(&mut self, cx: &Cx<D>, input: impl Into<Input<D>>, all: bool) -> Result<Tensor<D>> {
        let mut once = Once { cx, input: Some(input.into()), all, logits: None };
        let mut keeper = self.keeper.take().expect("put back below");
        let outcome = self.run(1, false, &mut once, &mut keeper);
        self.keeper = Some(keeper);
        outcome?;
        let open = cx.tokens().iter().filter(|tokens| tokens.len > 0).count();
        let rows = if all { cx.rows() } else { open };
        let empty = || Tensor::empty(&self.device, Category::Activations, rows, self.design.outputs());
        let mut logits = once.logits.unwrap_or_else(empty);
        let plan = Plan::whole(self.logits.size(), 1);
        let last = self.schedule.rank_of(plan.all_chunks() - 1, &plan);
        self.logits.broadcast(&mut logits, last)?;
        Ok(logits)
    }
    /// All microbatches of a step, as the schedule has them.
    pub(crate) fn run(
        &mut self,
        microbatches: usize,
        learns: bool,
        work: &mut dyn Work<D>,
        uses: &mut dyn Uses<D>,
    ) -> Result<()> {
        let stages = self.mesh.group(Axis::STAGES).clone();
        let plan = Plan::whole(stages.size(), microbatches);
        let made = &mut self.steps[usize::from(learns)];
        if made.as_ref().is_none_or(|(of, _)| *of != plan) {
            let lower = if learns { lowered } else { forwards };
            *made = Some((plan, lower(self.schedule, &plan, stages.rank()).into()));
        }
        let steps = made.as_ref().map(|(_, steps)| steps.clone()).expect("just made");
        for step in steps.iter() {
            match *step {
                Step::Run { cell, last, done } => {
                    self.cell(cell, last, plan.all_chunks(), work, uses)?;
                    if done {
                        work.done(cell.of.microbatch as usize);
                    }
                }
                Step::Receive(payload, unit, from) => {
                    let rows = work.cx(unit.microbatch as usize)?.rows();
                    let behind = unit.chunk as usize + usize::from(payload == Payload::Gradient);
                    let width = self.design.width(deal(self.design.parts(), behind, plan.all_chunks()).start);
                    let from = (&stages, from, tag(payload, unit, &plan));
                    let x = Stream::receive(&self.device, from, [rows, width], self.region)?;
                    self.held.push((payload, unit, x));
                }
                Step::Send(payload, unit, to) => {
                    self.wait_for_sent(|kind| kind == payload)?;
                    let x = self.take(payload, unit);
                    let request = x.start_send(&stages, to, tag(payload, unit, &plan))?;
                    self.sent.push((payload, request));
                }
                Step::Complete(chunk) => {
                    self.wait_for_sent(|_| true)?;
                    work.complete()?;
                    let (at, Self { room, chunks, .. }) = (self.at(chunk), &mut *self);
                    room.with(|all| chunks[at].1.list(all), |params| uses.finish(params))?;
                }
                Step::Update => {
                    let Self { room, chunks, .. } = &mut *self;
                    let chunks = chunks.iter_mut().map(|(_, chunk)| chunk);
                    room.with(|all| chunks.for_each(|c| c.list(all)), |all| work.update(uses, all))?;
                }
            }
        }
        self.wait_for_sent(|_| true)
    }
    /// Goes through a chunk.
    fn cell(
        &mut self,
        Cell { act, of }: Cell,
        last: bool,
        chunks: usize,
        work: &mut dyn Work<D>,
        uses: &mut dyn Uses<D>,
    ) -> Result<()> {
        let (number, microbatch) = (of.chunk as usize, of.microbatch as usize);
        let (first, end) = (number == 0, number + 1 == chunks);
        let input = match act {
            Act::F if first => Some(work.input(microbatch)?),
            Act::F => Some(Input::Activation(self.take(Payload::Activation, of))),
            _ => None,
        };
        let dy = (!end && matches!(act, Act::B | Act::I)).then(|| self.take(Payload::Gradient, of));
        let wanted = if end && act == Act::F { Some(work.wanted(microbatch)?) } else { None };
        let cx = work.cx(microbatch)?;
        let pass = if act == Act::F { "forward" } else { "backward" };
        let span = cx.pass().learns.then(|| self.mesh.span(format_args!("{pass} {microbatch}")));
        let at = self.at(number);
        let chunk = &mut self.chunks[at].1;
        let given = match (act, input) {
            (Act::F, input) => match chunk.forward(cx, uses, input.expect("taken above"), wanted)? {
                Output::Activation(y) => Some(y),
                output => {
                    work.ended(microbatch, output);
                    None
                }
            },
            (Act::B, _) => chunk.backward(cx, uses, dy, Half::Both, last)?,
            (Act::I, _) => chunk.backward(cx, uses, dy, Half::Input, last)?,
            (Act::W, _) => {
                chunk.backward_weight(cx, uses, last)?;
                None
            }
        };
        drop(span);
        let next = |given| (act.gives(), act.gives().next(of), given);
        self.held.extend(given.map(next));
        Ok(())
    }
    /// Where a chunk is among those of this rank.
    fn at(&self, chunk: usize) -> usize {
        self.chunks.iter().position(|(n, _)| *n == chunk).expect("a chunk of this rank")
    }
    fn take(&mut self, payload: Payload, unit: Unit) -> Stream<D> {
        let at = self.held.iter().position(|(kind, of, _)| (*kind, *of) == (payload, unit));
        self.held.swap_remove(at.expect("what a unit needs has come")).2
    }
    /// Waits until what was sent of some kinds has been received.
    fn wait_for_sent(&mut self, kinds: impl Fn(Payload) -> bool) -> Result<()> {
        while let Some(at) = self.sent.iter().position(|(kind, _)| kinds(*kind)) {
            self.sent.swap_remove(at).1.wait()?;
        }
        Ok(())
    }
}

/// What a message carries, told apart from all others of the step.
fn tag(payload: Payload, of: Unit, plan: &Plan) -> Tag {
    let microbatch = of.microbatch as usize + plan.microbatches * of.chunk.saturating_sub(1) as usize;
    Tag::new(payload.name(), microbatch * plan.slices + of.slice as usize)
}

/// One call for logits.
struct Once<'a, D: Kernels> {
    cx: &'a Cx<D>,
    input: Option<Input<D>>,
    all: bool,
    logits: Option<Tensor<D>>,
}

impl<D: Kernels> Work<D> for Once<'_, D> {
    fn cx(&mut self, _: usize) -> Result<&Cx<D>> {
        Ok(self.cx)
    }
    fn input(&mut self, _: usize) -> Result<Input<D>> {
        Ok(self.input.take().expect("one microbatch"))
    }
    fn wanted(&mut self, _: usize) -> Result<Wanted<D>> {
        Ok(Wanted::Logits { all: self.all })
    }
    fn ended(&mut self, _: usize, output: Output<D>) {
        let Output::Logits(logits) = output else { unreachable!("logits are wanted") };
        self.logits = Some(logits);
    }
}
