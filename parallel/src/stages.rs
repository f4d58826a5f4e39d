//! This rank's part of a model, and the one executor of pipeline steps: it runs cells and passes activations
//! and gradients from chunk to chunk. It knows neither what a chunk computes nor which schedule wrote the
//! cells.
mod at;
mod cells;
mod logits;
mod messages;
mod passed;
pub(crate) mod run;
pub mod turns;
mod versions;

pub use at::BuildContext;

use crate::Result;
use crate::pipeline::Pipeline;
use crate::step::{ActionPhase, Cell, PassKind, Plan, StepMoves, Task};
use comm::{Axis, Group, Mesh};
use kernels::Kernels;
use layers::{Chunk, Design, Hooks, Input, Output, Params, StageRequest};
use ops::{Keeper, Param, Partial, PassContext, Region, ShardingStrategy, Stream, TokenShards, filled};
use passed::{Keyed, Passed, Received, Sent};
use std::rc::Rc;
use tensor::{Category, Scalar, Tensor};
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
    keeper: Keeper<D>,
    logits: Group<D::Place>, // the stages, in the messages of logits
    regions: [Region; 2],    // of the stream within a stage, and between stages
    rooted: bool,            // only the first data rank keeps the parameters
    design: Rc<Design>,
    made: [Option<(Plan, Rc<StepMoves>)>; 2], // of inference, and of training: for the last plan
    begun: usize,                             // training steps since the pipeline was empty
    versions: Versions<D>,
    hooks: Vec<Box<dyn Hooks<D>>>,                         // of its strategies
    ready: Keyed<Passed<D>>,                               // by the task that needs it
    sends: Keyed<Sent<D>>,                                 // not waited for yet
    receives: Keyed<Received<D>>,                          // started, and not needed yet
    pub(crate) watch: Option<Box<dyn FnMut(ActionPhase)>>, // called before each move
}

/// Source of what enters the model in a step. A task's microbatch is numbered since the pipeline was empty.
pub(crate) trait Feed<D: Kernels> {
    /// Returns the context of a slice of a microbatch, created on first use.
    fn cx(&mut self, of: Task) -> Result<&PassContext<D>>;
    /// Returns the input of the model.
    fn input(&mut self, of: Task) -> Result<Input<D>>;
    /// Returns the kind of output wanted at the model's end.
    fn wanted(&mut self, of: Task) -> Result<StageRequest<D>>;
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
            keeper: Keeper::new(at.rests),
            logits: stages.named("logits"),
            regions: [at.region, between],
            rooted: at.rests == ShardingStrategy::ROOT,
            hooks: at.strategies.iter().filter_map(|strategy| strategy.hooks(at, &design)).collect(),
            design,
            made: [None, None],
            begun: 0,
            versions: Versions::new(),
            ready: Keyed::new(),
            sends: Keyed::new(),
            receives: Keyed::new(),
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
    /// Parameters, their keeper and the work of strategies after an update, for a change of the weights.
    pub(crate) fn learning(&mut self) -> (Params<'_, D>, &mut Keeper<D>, &[Box<dyn Hooks<D>>]) {
        (self.stage.params(), &mut self.keeper, &self.hooks)
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
    /// Runs a cell, a pass through a chunk, and returns what leaves the model there.
    fn cell(
        &mut self,
        cell: Cell,
        last: bool,
        plan: &Plan,
        feed: &mut dyn Feed<D>,
    ) -> Result<ModelOutput<D>> {
        let Cell { act, of } = cell;
        let number = of.chunk as usize;
        let forward = act.does(PassKind::F);
        let end = number + 1 == plan.all_chunks();
        let comes = if forward { number > 0 } else { !end && act.passes() };
        let came = comes.then(|| self.ready.take((act.gives(), of)));
        let (came, row) = came.map(|passed| (passed.x, passed.row)).unzip();
        let (input, dy) = if forward {
            (Some(came.map_or_else(|| feed.input(of), |x| Ok(Input::Activation(x)))?), None)
        } else {
            (None, came)
        };
        let wanted = if end && forward { Some(feed.wanted(of)?) } else { None };
        let cx = feed.cx(of)?;
        let beside = self::row(&self.hooks, cx.pass().learns);
        match (row, beside) {
            (Some(row), _) => *cx.beside() = row,
            (None, Some((_, n))) if forward => {
                let none = <D::Wide as tensor::Device>::Elem::ZERO;
                *cx.beside() = Some(filled(self.device.wide(), Category::Buffers, [1, n], none));
            }
            _ => {}
        }
        let span = cx.pass().learns.then(|| self.mesh.span(cell.within(plan)));
        let run = self.chunks.iter().position(|n| *n == number).expect("a chunk of this rank");
        let Self { stage, keeper, .. } = self;
        if self.rooted && forward {
            stage.params().into_iter().try_for_each(Param::replicate)?;
        }
        let run = (&mut *stage, run);
        let out = cells::run((act, number), run, (cx, keeper), (input, wanted), (dy, last), &self.hooks)?;
        let (mut output, given) = ModelOutput::split(out);
        if self.rooted && act.adds() {
            stage.params().into_iter().try_for_each(Param::reduce)?;
        }
        if let (Some((hooks, _)), true) = (beside, end && forward) {
            let row = cx.beside().take().expect("the row began with the microbatch");
            *cx.beside() = Some(hooks.turn(cx, row)?);
        }
        drop(span);
        let row = if act.passes() && !(end && forward) { cx.beside().take() } else { None };
        output.losses[1] = cx.take_loss();
        if let (Some(name), Some(x)) = (cell.gives(plan), given) {
            self.ready.insert(name, Passed { x, row });
        }
        Ok(output)
    }
}

/// Output of the model in a cell.
pub(crate) struct ModelOutput<D: Kernels> {
    /// Parts of the loss: of the model's end, and of layers.
    pub(crate) losses: [Option<Partial<D::Wide>>; 2],
    /// Logits, if they were wanted.
    pub(crate) logits: Option<Tensor<D>>,
}

impl<D: Kernels> ModelOutput<D> {
    fn none() -> Self {
        Self { losses: [None, None], logits: None }
    }
    /// True if anything leaves the model.
    fn is_some(&self) -> bool {
        self.logits.is_some() || self.losses.iter().any(Option::is_some)
    }
    /// Splits the output of a chunk into what leaves the model, and the input of the next chunk.
    fn split(output: Option<Output<D>>) -> (Self, Option<Stream<D>>) {
        match output {
            None => (Self::none(), None),
            Some(Output::Activation(y)) => (Self::none(), Some(y)),
            Some(Output::Loss(loss)) => (Self { losses: [Some(loss), None], logits: None }, None),
            Some(Output::Logits(logits)) => (Self { logits: Some(logits), ..Self::none() }, None),
        }
    }
}

/// The hooks with a row beside the stream, if a pass learns, and the number of elements of the row.
fn row<D: Kernels>(hooks: &[Box<dyn Hooks<D>>], learns: bool) -> Option<(&dyn Hooks<D>, usize)> {
    hooks.iter().filter(|_| learns).find_map(|hooks| Some((&**hooks, hooks.row()?)))
}

#[cfg(test)]
mod tests;
