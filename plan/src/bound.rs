//! Lower bounds of a layout's time and memory, from the program of a single block between two others.
//!
//! ```text
//! K stages, V chunks of a stage, M microbatches; F, B: one block forward and backward, for a microbatch
//! time ≥ M (F + B)·⌈blocks/K⌉
//! time ≥ M (F + B)·⌊blocks/K⌋ + (K − 1)(F + B)·⌊blocks/KV⌋      some stage begins with chunk K − 1 or later;
//!                                                              with halves of backward, (K − 1) F
//! time ≥ M ((F + B)·⌊blocks/K⌋ + head) + as above               of the last stage, from its first chunk on
//! bytes ≥ state of ⌊blocks/K⌋ blocks + what ⌊blocks/KV⌋ blocks save, as often as the table has them saved
//! ```
//! A simulation of the table with these cells is a bound, too, and a closer one.
use crate::clock::{Part, StepClock};
use crate::machine::Machine;
use crate::step::TrainingJob;
use comm::Axis;
use kernels::Kernels;
use layers::{Design, Shape, TokenShards};
use parallel::price::MoveCosts;
use parallel::step::simulate::{StepTimes, simulate};
use parallel::step::{Action, Cell, PassKind, Payload, Plan, Task};
use parallel::{Batch, Error, Layout, Pipeline, Result, Schedule, pipeline};
use std::sync::Arc;

/// One block between two others, and what the last stage does beside its blocks, for one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Seconds by `PassKind as usize`; both halves of a backward, or the whole, as the layout's schedule has
    /// them.
    pub acts: [f64; 4],
    /// Seconds of attention within each, which slices of a sequence do not share evenly.
    pub attention: [f64; 4],
    /// Seconds of the head, in the forward of the last chunk.
    pub head: f64,
    /// Seconds of the update of its parameters.
    pub update: f64,
    /// Seconds that a message occupies a link, and its latency.
    pub message: [f64; 2],
    /// Bytes that forward saves for backward.
    pub saved: usize,
    /// Bytes of the state of its parameters, between steps.
    pub rests: usize,
}

/// The most forwards of a table that is simulated for a bound: with more, waiting is a small part.
const MOST_FORWARDS: usize = 1 << 15;
/// Factor by which a bound lies below what it bounds, for sums in another order.
const BELOW: f64 = 1.0 - 1e-9;

impl BlockCost {
    /// Prices the middle one of three blocks, each a stage, under this layout with three stages, with
    /// `sequences` sequences in a microbatch.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(
        layout: &Layout,
        job: &TrainingJob,
        sequences: usize,
        machine: &Arc<Machine>,
    ) -> Result<Self> {
        let sizes: Vec<_> = layout.axes().into_iter().filter(|(axis, _)| *axis != Axis::Pp).collect();
        let staged = Layout::new(&[&[(Axis::Pp, STAGES)], &sizes[..]].concat())?;
        let words = layout.unscheduled().named();
        let staged = words.iter().try_fold(staged, |layout, word| layout.with(word))?;
        let staged = if has_halves(layout) { halved(staged)? } else { staged };
        let design = three_blocks(&job.design);
        let batch = Batch::new(vec![job.sequence(); 3 * sequences], 3)?;
        let of_stage = |stage: usize| {
            let clock = StepClock::new(machine, layout.ranks());
            let timing = (Some(clock.of_rank()), move || clock.lap());
            let last = layout.size(TokenShards::SEQUENCES) - 1; // has the most sequences
            let rank = staged.rank_at(&[(Axis::Pp, stage), (TokenShards::SEQUENCES, last)]);
            MoveCosts::new::<D>((&staged, rank), &design, job.optimizer, &batch, timing)
        };
        let (middle, last) = (of_stage(1)?, of_stage(STAGES - 1)?);
        let lap = |act| middle.adds(act, 1).map(|(_, lap)| lap);
        let acts = ACTS.map(|act| lap(act).map_or(0.0, |lap| lap.seconds));
        let attention = ACTS.map(|act| lap(act).map_or(0.0, |lap| lap.parts[Part::Attention as usize]));
        let ended = last.adds(PassKind::F, STAGES - 1).map_or(0.0, |(_, lap)| lap.seconds);
        let update = middle.lap_of(Action::Update).map_or(0.0, |lap| lap.parts[Part::Kernels as usize]);
        let sent = middle.lap_of(Action::Send(Payload::Activation, Task::new(2, 0), 2));
        let message = sent.and_then(|lap| lap.message).unwrap_or_default();
        let saved = middle.adds(PassKind::F, 1).map_or(0, |(adds, _)| adds.max(0) as usize);
        let (head, rests) = ((ended - acts[0]).max(0.0), middle.rests());
        Ok(Self { acts, attention, head, update, message, saved, rests })
    }
    /// Lower bound of a step's seconds, under a schedule with backwards in `halves` or without. `last` is the
    /// index of the first chunk on the rank of the last one.
    pub fn seconds(&self, blocks: usize, plan: &Plan, (halves, last): (bool, usize)) -> f64 {
        let Plan { ranks, chunks, slices, microbatches } = *plan;
        let (work, microbatches) = (self.acts.iter().sum::<f64>(), microbatches as f64);
        let (of_chunk, parts) = ((blocks / (ranks * chunks)) as f64, slices as f64);
        let [occupies, latency] = self.message.map(|seconds| if ranks > 1 { seconds } else { 0.0 });
        let hop = occupies / parts + latency;
        let pass = |act: usize| {
            let uneven = if slices > 1 { self.attention[act] } else { 0.0 };
            (self.acts[act] - uneven) / parts * of_chunk + hop
        };
        // what ranks surely wait for before and after their cells: forwards, and backwards if they are whole
        let wait = pass(0) + if halves { 0.0 } else { pass(1) };
        let (few, most) = ((blocks / ranks) as f64, blocks.div_ceil(ranks) as f64);
        let of_any = microbatches * work * few + wait * (ranks - 1) as f64;
        let of_last = microbatches * (work * few + self.head) + wait * last as f64;
        let of_link = if ranks > 1 { microbatches * occupies } else { 0.0 };
        (of_any.max(of_last).max(microbatches * work * most).max(of_link) + self.update * few) * BELOW
    }
    /// Lower bound of a step's seconds by the simulation of its table: cells without embedding, without sums
    /// of gradients, and of slices without attention.
    ///
    /// # Errors
    /// If ranks wait for each other.
    pub fn simulated(&self, pipeline: &Pipeline, blocks: usize, plan: &Plan) -> Result<f64> {
        let all = plan.all_chunks();
        if all * plan.slices * plan.microbatches > MOST_FORWARDS {
            return Ok(0.0);
        }
        let blocks: Vec<_> = (0..all).map(|chunk| pipeline.blocks(blocks, chunk, all).len() as f64).collect();
        let cells = Cells { cost: self, blocks: &blocks, plan };
        let makespan = simulate(pipeline.schedule, plan, &cells, &mut |_, _, _, _| {});
        let least = blocks.iter().copied().fold(f64::INFINITY, f64::min) * plan.chunks as f64;
        Ok((makespan.map_err(Error::new)?.makespan + self.update * least) * BELOW)
    }
    /// Lower bound of the peak bytes of the fullest rank, which has saved this number of chunks at once.
    pub fn bytes(&self, rests: usize, blocks: usize, plan: &Plan, saved: usize) -> usize {
        let of_chunk = blocks / (plan.ranks * plan.chunks);
        rests * (blocks / plan.ranks) + self.saved / plan.slices * of_chunk * saved
    }
}

/// Cells of a table, as they cost at least.
struct Cells<'a> {
    cost: &'a BlockCost,
    blocks: &'a [f64], // by chunk
    plan: &'a Plan,
}

impl StepTimes for Cells<'_> {
    fn cell(&self, _: usize, _: usize, Cell { act, of }: Cell) -> f64 {
        let (chunk, act, slices) = (of.chunk as usize, act as usize, self.plan.slices as f64);
        let uneven = if self.plan.slices > 1 { self.cost.attention[act] } else { 0.0 };
        let is_head = chunk + 1 == self.blocks.len() && act == PassKind::F as usize;
        let head = if is_head { self.cost.head } else { 0.0 };
        ((self.cost.acts[act] - uneven) * self.blocks[chunk] + head) / slices
    }
    fn message(&self, _: usize, _: usize, _: Payload, _: &Plan) -> Option<[f64; 2]> {
        let [occupies, waits] = self.cost.message;
        Some([occupies / self.plan.slices as f64, waits])
    }
}

/// True if the layout's schedule has backwards in halves.
pub fn has_halves(layout: &Layout) -> bool {
    let (pipeline, stages) = (layout.pipeline(), layout.size(Axis::Pp));
    pipeline.schedule.row(0, &pipeline.plan(stages, 1)).any(|cell| cell.act == PassKind::I)
}

/// Returns the layout with a schedule of one chunk a rank whose backwards are in halves.
fn halved(layout: Layout) -> Result<Layout> {
    let is_halved = |schedule: &&&dyn Schedule| {
        let plan = schedule.plan(STAGES, STAGES, None);
        plan.chunks == 1 && schedule.row(0, &plan).any(|cell| cell.act == PassKind::I)
    };
    pipeline::ALL.iter().find(is_halved).map_or(Ok(layout), |schedule| layout.with(schedule.about().word))
}

/// Costs for any number of sequences in a microbatch: those of one and of two, and no less than the line
/// through both, on a machine whose times are [ideal](Machine::ideal).
#[derive(Clone, Copy, Debug, Default)]
pub struct CostLine([BlockCost; 2]);

impl CostLine {
    /// Prices a block for one and for two sequences on each data rank.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(layout: &Layout, job: &TrainingJob, ideal: &Arc<Machine>) -> Result<Self> {
        let of = |n: usize| BlockCost::new::<D>(layout, job, n * layout.size(TokenShards::SEQUENCES), ideal);
        Ok(Self([of(1)?, of(2)?]))
    }
    /// Lower bounds for this number of sequences on each data rank.
    pub fn at(&self, sequences: usize) -> BlockCost {
        let Self([one, two]) = self;
        let more = sequences.saturating_sub(1);
        let time = |a: f64, b: f64| (a + more as f64 * (b - a)).max(0.0);
        BlockCost {
            acts: std::array::from_fn(|act| time(one.acts[act], two.acts[act])),
            head: time(one.head, two.head),
            update: one.update.min(two.update),
            saved: one.saved + more * two.saved.saturating_sub(one.saved),
            rests: one.rests,
            ..*one
        }
    }
}

/// The kinds of passes, by their numbers.
const ACTS: [PassKind; 4] = [PassKind::F, PassKind::B, PassKind::I, PassKind::W];

/// Stages of the model whose middle block is priced.
const STAGES: usize = 3;

/// Returns the same model with three blocks; of unlike blocks, the cheapest: without experts if some have
/// none, and with the window if some have one.
fn three_blocks(design: &Design) -> Design {
    let few = |shape: &Shape| {
        let all = |of: &dyn Fn(usize) -> bool| (0..shape.blocks).all(of);
        let experts = shape.experts.filter(|_| all(&|block| shape.experts(block).is_some()));
        let window = shape.window.map(|window| layers::Window { from: 0, ..window });
        Shape { blocks: STAGES, experts, window, ..*shape }
    };
    match design {
        Design::Transformer(shape) => Design::Transformer(few(shape)),
        Design::Blocks(shape) => Design::Blocks(few(shape)),
        Design::Classifier { .. } => design.clone(),
    }
}

/// Bytes of the state of one block's parameters under a layout: those of [`BlockCost`], with sequences as
/// short as may be.
///
/// # Errors
/// If the layout does not fit.
pub fn rests<D: Kernels>(layout: &Layout, job: &TrainingJob, machine: &Arc<Machine>) -> Result<usize> {
    let job = TrainingJob { seq: 2 * layout.size(TokenShards::CONTEXT), ..job.clone() };
    Ok(BlockCost::new::<D>(layout, &job, layout.size(TokenShards::SEQUENCES), machine)?.rests)
}
