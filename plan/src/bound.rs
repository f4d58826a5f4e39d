//! Lower bounds of a layout's time, from the program of a single block between two others.
//!
//! ```text
//! M microbatches; F, B: one block forward and backward, for a microbatch
//! time ≥ M (F + B)·blocks of a rank + (F + B)·blocks before its first chunk      with halves of backward, F
//! ```
//! and M times the head for the rank that has it. A simulation of the table with these cells is a bound, too,
//! and a closer one.
use crate::clock::{Lap, Part, StepClock};
use crate::hold::StateTimes;
use crate::machine::Machine;
use crate::step::TrainingJob;
use comm::Axis;
use kernels::Kernels;
use layers::{Choice, Design, Shape, TokenShards};
use parallel::price::MoveCosts;
use parallel::step::simulate::{StepTimes, simulate};
use parallel::step::{Action, Cell, PassKind, Payload, Plan, Task};
use parallel::{Batch, Error, Layout, Pipeline, Result, Schedule, pipeline};
use std::iter::zip;
use std::ops::Range;
use std::sync::Arc;

/// Blocks between two others, and what the last stage does beside its blocks, for one microbatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Blocks by their number in the model, modulo their number here: more than one where every second block
    /// is unlike the others.
    pub blocks: Vec<BlockTime>,
    /// Seconds of the head, in the forward of the last chunk.
    pub head: f64,
    /// Seconds that a message occupies a link, and its latency.
    pub message: [f64; 2],
}

/// One block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockTime {
    /// Seconds by `PassKind as usize`, of each slice or of the whole; those of halves of a backward, if the
    /// layout's schedule has any.
    pub acts: Vec<[f64; 4]>,
    /// Seconds of attention within the whole, which slices of a sequence do not share evenly.
    pub attention: [f64; 4],
    /// Bytes that forward saves for backward, for the whole.
    pub saved: usize,
    /// Bytes that a backward needs beside them while it lasts, at least: whole, and whole or the input half.
    /// 0 for slices, and for halves that were not priced.
    pub needs: [usize; 2],
}

impl BlockTime {
    /// Seconds of a pass through a slice, at least.
    fn pass(&self, act: usize, (slice, slices): (usize, usize)) -> f64 {
        if self.acts.len() == slices {
            return self.acts[slice][act];
        }
        let whole: f64 = self.acts.iter().map(|acts| acts[act]).sum();
        (whole - self.attention[act]).max(0.0) / slices as f64
    }
}

/// Work of a rank of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StageWork {
    /// Numbers of blocks of its chunks.
    pub chunks: Vec<usize>,
    /// True if it has the head.
    pub has_head: bool,
    /// Number of blocks before its first chunk.
    pub before: usize,
    /// Index of its first chunk.
    pub first: usize,
}

impl StageWork {
    /// Returns what the ranks do; of those with as many blocks, the one that waits for most.
    pub fn of_ranks(pipeline: &Pipeline, blocks: usize, plan: &Plan) -> Vec<Self> {
        let all = plan.all_chunks();
        let mut ranks = vec![Self::default(); plan.ranks];
        for chunk in (0..all).rev() {
            let (own, rank) = (pipeline.blocks(blocks, chunk, all), pipeline.schedule.rank_of(chunk, plan));
            let at: &mut Self = &mut ranks[rank];
            at.chunks.push(own.len());
            at.has_head |= chunk + 1 == all;
            (at.before, at.first) = (own.start, chunk);
        }
        ranks.sort_unstable();
        ranks.reverse();
        ranks.dedup_by(|a, b| (&a.chunks, a.has_head) == (&b.chunks, b.has_head));
        ranks
    }
}

/// The most forwards of a table that is simulated for a bound.
const MOST_FORWARDS: usize = 1 << 13;
/// Factor by which a bound lies below what it bounds, for sums in another order.
const BELOW: f64 = 1.0 - 1e-9;
/// The same for a step of which the first microbatches are simulated, as ranks may wait less later.
const FIRST_BELOW: f64 = 0.99;

impl BlockCost {
    /// Prices the middle ones of some blocks, each a stage of such a [layout](staged), with `sequences`
    /// sequences in a microbatch; and the head, or takes it for nothing.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(
        (staged, unlike): (&Layout, usize),
        job: &TrainingJob,
        (sequences, has_head): (usize, bool),
        machine: &Arc<Machine>,
    ) -> Result<Self> {
        let stages = unlike + 2;
        let of_stage = |stage: usize| stage_of::<D>(staged, job, (stage, sequences, false), machine);
        let middle = (1..=unlike).map(of_stage).collect::<Result<Vec<_>>>()?;
        let last = has_head.then(|| of_stage(stages - 1)).transpose()?;
        let slices = staged.pipeline().plan(stages, stages).slices;
        let times = (1..=unlike).zip(&middle).map(|(stage, costs)| block_time(costs, stage, slices));
        let mut blocks: Vec<_> = times.collect();
        if has_halves(staged) {
            let whole = staged.unscheduled(); // some schedules have both
            for (stage, block) in (1..=unlike).zip(&mut blocks) {
                let costs = stage_of::<D>(&whole, job, (stage, sequences, false), machine)?;
                let BlockTime { acts, needs, .. } = block_time(&costs, stage, 1);
                block.acts[0][1] = acts[0][1];
                block.needs = [needs[0], block.needs[1].min(needs[0])];
            }
        }
        blocks.rotate_right(1 % unlike); // the first stage's block, number 0, is like the last one here
        let of_last = |slice: usize| {
            let lap = last.as_ref().and_then(|last| lap(last, (PassKind::F, stages - 1, slice)));
            let like = &blocks[(stages - 1) % unlike].acts[slice];
            lap.map_or(0.0, |lap| lap.seconds - like[PassKind::F as usize])
        };
        let head: f64 = (0..slices).map(of_last).sum();
        let sent = middle[0].cost(Action::Send(Payload::Activation, Task::new(2, 0), 2), true);
        let message = sent.and_then(|(_, lap)| lap.message).unwrap_or_default();
        Ok(Self { blocks, head: head.max(0.0), message })
    }
    /// Number of slices that were priced one by one.
    fn sliced(&self) -> usize {
        self.blocks.first().map_or(1, |block| block.acts.len())
    }
    /// The least sum over `n` consecutive blocks.
    pub(crate) fn least(&self, n: usize, of: impl Fn(&BlockTime) -> f64) -> f64 {
        let (sum, least) = self
            .blocks
            .iter()
            .map(of)
            .fold((0.0, f64::INFINITY), |(sum, least), one| (sum + one, f64::min(least, one)));
        let (whole, rest) = (n / self.blocks.len().max(1), n % self.blocks.len().max(1));
        whole as f64 * sum + if rest > 0 { rest as f64 * least } else { 0.0 }
    }
    /// Lower bound of a step's seconds, under a schedule with backwards in `halves` or without, whose ranks
    /// have this work and these times of their state. Gradients are summed beside and after the last
    /// microbatch's backward.
    pub fn seconds(&self, ranks: &[StageWork], plan: &Plan, halves: bool, state: &StateTimes) -> f64 {
        let StateTimes { waits, update, sums, sums_of_ends } = *state;
        let Plan { slices, microbatches, .. } = *plan;
        let (microbatches, parts) = (microbatches as f64, slices as f64 / self.sliced() as f64);
        let [occupies, latency] = self.message.map(|seconds| if plan.ranks > 1 { seconds } else { 0.0 });
        let pass = |act, n: usize| {
            let of = |block: &BlockTime| {
                let each = (0..slices).map(|slice| block.pass(act, (slice, slices)));
                each.fold(f64::INFINITY, f64::min)
            };
            self.least(n, of).max(n as f64 * waits[act] / slices as f64)
        };
        let work = |n: usize| {
            let computing = self.least(n, |block| block.acts.iter().map(work_of).sum());
            computing.max(n as f64 * (waits[0] + waits[1]))
        };
        let of_rank = |of: &StageWork| {
            // what it surely waits for before and after its cells: forwards, and backwards if they are whole
            let back = if halves { 0.0 } else { 1.0 };
            let passes = pass(0, of.before) + back * pass(1, of.before);
            let hops = (occupies / parts + latency) * of.first as f64 * (1.0 + back);
            let head = if of.has_head { self.head } else { 0.0 };
            let works: f64 = of.chunks.iter().map(|n| work(*n)).sum();
            let own = of.chunks.iter().sum::<usize>();
            let cells = microbatches * (works + head) + passes + hops;
            let ends = [of.first == 0, of.has_head].into_iter().zip(sums_of_ends);
            let ends: f64 = ends.map(|(has, sums)| if has { sums } else { 0.0 }).sum();
            let forwards = pass(0, of.before) + slices as f64 * pass(0, own);
            let summed = (microbatches - 1.0) * (works + head) + forwards + sums * own as f64 + ends;
            cells.max(summed) + update * own as f64
        };
        let of_link = microbatches * occupies * self.sliced() as f64;
        ranks.iter().map(of_rank).fold(of_link, f64::max) * BELOW
    }
    /// Lower bound of a step's seconds by the simulation of its table: cells without embedding and without
    /// sums of gradients. Of a long step the first microbatches are simulated; each of the others takes at
    /// least the time of its cells on the rank that has most.
    ///
    /// # Errors
    /// If ranks wait for each other.
    pub fn simulated(&self, pipeline: &Pipeline, blocks: usize, plan: &Plan, update: f64) -> Result<f64> {
        self.simulated_first(MOST_FORWARDS, pipeline, (blocks, update), plan)
    }
    fn simulated_first(
        &self,
        most: usize,
        pipeline: &Pipeline,
        (blocks, update): (usize, f64),
        plan: &Plan,
    ) -> Result<f64> {
        let all = plan.all_chunks();
        if self.blocks.is_empty() {
            return Ok(0.0);
        }
        let few = (most / (all * plan.slices)).max(4 * plan.ranks).next_multiple_of(plan.ranks);
        let few = Plan { microbatches: few.min(plan.microbatches), ..*plan };
        let of = |chunk: usize| pipeline.blocks(blocks, chunk, all);
        let cells = Cells {
            of_chunks: (0..all).map(|chunk| self.cells(of(chunk), chunk + 1 == all, plan)).collect(),
            cost: self,
        };
        let makespan = simulate(pipeline.schedule, &few, &cells, &mut |_, _, _, _| {});
        let work = |rank: usize| -> f64 {
            let own = pipeline.schedule.chunks_of(rank, plan);
            own.into_iter().flat_map(|chunk| &cells.of_chunks[chunk]).map(work_of).sum()
        };
        let most = (0..plan.ranks).map(work).fold(0.0, f64::max);
        let more = (plan.microbatches - few.microbatches) as f64 * most;
        let least = (0..all).map(|chunk| of(chunk).len()).min().unwrap_or(0) * plan.chunks;
        let below = if few == *plan { BELOW } else { FIRST_BELOW };
        Ok((makespan.map_err(Error::new)?.makespan + more + update * least as f64) * below)
    }
    /// Seconds of a chunk's cells, by slice.
    fn cells(&self, blocks: Range<usize>, is_last: bool, plan: &Plan) -> Vec<[f64; 4]> {
        let of = |slice: usize, act: usize| {
            let each =
                blocks.clone().map(|n| self.blocks[n % self.blocks.len()].pass(act, (slice, plan.slices)));
            let head =
                if is_last && act == PassKind::F as usize { self.head / plan.slices as f64 } else { 0.0 };
            each.sum::<f64>() + head
        };
        (0..plan.slices).map(|slice| std::array::from_fn(|act| of(slice, act))).collect()
    }
}

/// Seconds of a forward and its backward, whole or in halves.
fn work_of(&[forward, whole, input, weight]: &[f64; 4]) -> f64 {
    let halves = input + weight;
    forward + if whole > 0.0 && halves > 0.0 { whole.min(halves) } else { whole + halves }
}

/// Seconds of the cells of all chunks, by slice.
struct Cells<'a> {
    of_chunks: Vec<Vec<[f64; 4]>>,
    cost: &'a BlockCost,
}

impl StepTimes for Cells<'_> {
    fn cell(&self, _: usize, _: usize, Cell { act, of }: Cell) -> f64 {
        self.of_chunks[usize::from(of.chunk)][usize::from(of.slice)][act as usize]
    }
    fn message(&self, _: usize, _: usize, _: Payload, plan: &Plan) -> Option<[f64; 2]> {
        let [occupies, waits] = self.cost.message;
        Some([occupies * self.cost.sliced() as f64 / plan.slices as f64, waits])
    }
}

/// Returns the layout with a stage for each of the model's blocks, which are then the unlike ones and two
/// more, and the number of unlike ones. Its schedule has the layout's slices and halves of backwards.
///
/// # Errors
/// If the layout does not fit.
pub fn staged(layout: &Layout) -> Result<(Layout, usize)> {
    let recompute = layout.strategies().into_iter().find(|about| about.choice == Choice::Recompute);
    let unlike = recompute.and_then(|about| layout.number(about)).unwrap_or(1);
    let sizes: Vec<_> = layout.axes().into_iter().filter(|(axis, _)| *axis != Axis::Pp).collect();
    let bare = Layout::new(&[&[(Axis::Pp, unlike + 2)], &sizes[..]].concat())?;
    let plan = layout.pipeline().plan(layout.size(Axis::Pp), 1);
    let is_sliced = plan.slices > 1 && plan.chunks == 1;
    let words = if is_sliced { layout.named() } else { layout.unscheduled().named() };
    let staged = words.iter().try_fold(bare, |layout, word| layout.with(word))?;
    Ok((if has_halves(layout) && !is_sliced { halved(staged, unlike + 2)? } else { staged }, unlike))
}

/// Prices a stage of such a layout.
pub(crate) fn stage_of<D: Kernels>(
    staged: &Layout,
    job: &TrainingJob,
    (stage, sequences, warm): (usize, usize, bool),
    machine: &Arc<Machine>,
) -> Result<MoveCosts<Lap>> {
    let stages = staged.size(Axis::Pp);
    let clock = StepClock::new(machine, staged.ranks() / stages);
    let microbatches = stages.max(3);
    let batch = Batch::new(vec![job.sequence(); microbatches * sequences], microbatches)?;
    let timing = (Some(clock.of_rank()), move || clock.lap());
    let last = staged.size(TokenShards::SEQUENCES) - 1; // has the most sequences
    let rank = staged.rank_at(&[(Axis::Pp, stage), (TokenShards::SEQUENCES, last)]);
    let design = few_blocks(&job.design, stages);
    MoveCosts::of_step::<D>((staged, rank), design, job.optimizer, (&batch, warm), timing)
}

/// Returns a middle stage's block.
fn block_time(costs: &MoveCosts<Lap>, stage: usize, slices: usize) -> BlockTime {
    let of = |act, slice| lap(costs, (act, stage, slice));
    let seconds = |slice| ACTS.map(|act| of(act, slice).map_or(0.0, |lap| lap.seconds));
    let attention = |act| of(act, 0).map_or(0.0, |lap| lap.parts[Part::Attention as usize]);
    let saved = |slice| costs.cost(run(PassKind::F, stage, slice), false).map_or(0, |(adds, _)| adds.adds);
    let needs = |act| costs.cost(run(act, stage, 0), false).map_or(0, |(adds, _)| adds.needs);
    BlockTime {
        acts: (0..slices).map(seconds).collect(),
        attention: if slices > 1 { [0.0; 4] } else { ACTS.map(attention) },
        saved: (0..slices).map(saved).sum::<isize>().max(0) as usize,
        needs: if slices > 1 { [0; 2] } else { [needs(PassKind::B), needs(PassKind::I)] },
    }
}

/// Runs a cell for a microbatch that is not the last.
pub(crate) fn run(act: PassKind, chunk: usize, slice: usize) -> Action {
    let of = Task { slice: slice as u16, ..Task::new(chunk, 0) };
    Action::Run { cell: Cell { act, of }, last: false, done: false }
}

fn lap(costs: &MoveCosts<Lap>, (act, chunk, slice): (PassKind, usize, usize)) -> Option<&Lap> {
    costs.cost(run(act, chunk, slice), false).map(|(_, lap)| lap)
}

/// True if the layout's schedule has backwards in halves.
pub fn has_halves(layout: &Layout) -> bool {
    let (pipeline, stages) = (layout.pipeline(), layout.size(Axis::Pp));
    pipeline.schedule.row(0, &pipeline.plan(stages, 1)).any(|cell| cell.act == PassKind::I)
}

/// Returns the layout with a schedule of one chunk a rank whose backwards are in halves.
fn halved(layout: Layout, stages: usize) -> Result<Layout> {
    let is_halved = |schedule: &&&dyn Schedule| {
        let plan = schedule.plan(stages, stages, None);
        plan.chunks == 1 && schedule.row(0, &plan).any(|cell| cell.act == PassKind::I)
    };
    pipeline::ALL.iter().find(is_halved).map_or(Ok(layout), |schedule| layout.with(schedule.about().word))
}

/// Costs for any number of sequences in a microbatch: those of one and of two, and no less than the line
/// through both, on a machine whose times are [ideal](Machine::ideal).
#[derive(Clone, Debug, Default)]
pub struct CostLine([BlockCost; 2]);

impl CostLine {
    /// Prices a block, and the head or nothing for it, for one and for two sequences on each data rank.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(
        layout: &Layout,
        job: &TrainingJob,
        has_head: bool,
        ideal: &Arc<Machine>,
    ) -> Result<Self> {
        let (staged, unlike) = staged(layout)?;
        let of = |n: usize| {
            let sequences = n * layout.size(TokenShards::SEQUENCES);
            BlockCost::new::<D>((&staged, unlike), job, (sequences, has_head), ideal)
        };
        Ok(Self([of(1)?, of(2)?]))
    }
    /// Returns the same block with another one's head.
    #[must_use]
    pub fn with_head(mut self, of: &Self) -> Self {
        zip(&mut self.0, &of.0).for_each(|(cost, other)| cost.head = other.head);
        self
    }
    /// Lower bounds for this number of sequences on each data rank.
    pub fn at(&self, sequences: usize) -> BlockCost {
        let Self([one, two]) = self;
        let more = sequences.saturating_sub(1);
        let time = |a: f64, b: f64| (a + more as f64 * (b - a)).max(0.0);
        let bytes = |a: usize, b: usize| a + more * b.saturating_sub(a);
        let acts = |a: &[f64; 4], b: &[f64; 4]| std::array::from_fn(|act| time(a[act], b[act]));
        let block = |(a, b): (&BlockTime, &BlockTime)| BlockTime {
            acts: zip(&a.acts, &b.acts).map(|(a, b)| acts(a, b)).collect(),
            attention: a.attention,
            saved: bytes(a.saved, b.saved),
            needs: std::array::from_fn(|of| bytes(a.needs[of], b.needs[of])),
        };
        BlockCost {
            blocks: zip(&one.blocks, &two.blocks).map(block).collect(),
            head: time(one.head, two.head),
            message: one.message,
        }
    }
}

/// The kinds of passes, by their numbers.
const ACTS: [PassKind; 4] = [PassKind::F, PassKind::B, PassKind::I, PassKind::W];

/// Returns the same model with few blocks; of unlike blocks, the cheapest: without experts if some have none,
/// and with the window if some have one.
fn few_blocks(design: &Design, blocks: usize) -> Design {
    let few = |shape: &Shape| {
        let all = |of: &dyn Fn(usize) -> bool| (0..shape.blocks).all(of);
        let experts = shape.experts.filter(|_| all(&|block| shape.experts(block).is_some()));
        let window = shape.window.map(|window| layers::Window { from: 0, ..window });
        Shape { blocks, experts, window, ..*shape }
    };
    match design {
        Design::Transformer(shape) => Design::Transformer(few(shape)),
        Design::Blocks(shape) => Design::Blocks(few(shape)),
        Design::Classifier { .. } => design.clone(),
    }
}

#[cfg(test)]
mod tests;
