//! Lower bounds of a layout's time and memory, from the program of a single block between two others.
//!
//! ```text
//! K stages, V chunks of a stage, M microbatches; F, B: one block forward and backward, for a microbatch
//! time ≥ M (F + B)·⌈blocks/K⌉
//! time ≥ M (F + B)·⌊blocks/K⌋ + (K − 1)(F + B)·⌊blocks/KV⌋      some stage begins with chunk K − 1 or later;
//!                                                              with halves of backward, (K − 1) F
//! time ≥ M ((F + B)·⌊blocks/K⌋ + head) + as above               of the last stage, from its first chunk on
//! bytes ≥ state of ⌊blocks/K⌋ blocks + what ⌊blocks/KV⌋ blocks save, as often as the schedule claims
//! ```
use crate::clock::{Clock, Lap, Part};
use crate::machine::Machine;
use crate::step::Job;
use comm::Axis;
use kernels::Kernels;
use layers::{Design, Shape};
use parallel::price::MoveCosts;
use parallel::step::{Action, PassKind, Plan};
use parallel::{Batch, Layout, Result};
use std::sync::Arc;

/// One block between two others, and what the last stage does beside its blocks, for one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Seconds forward.
    pub forward: f64,
    /// Seconds backward.
    pub backward: f64,
    /// Seconds of the head, forward and backward.
    pub head: f64,
    /// Seconds of the update of its parameters.
    pub update: f64,
    /// Bytes that forward saves for backward.
    pub saved: usize,
    /// Bytes of the state of its parameters, between steps.
    pub rests: usize,
}

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
        job: &Job,
        sequences: usize,
        machine: &Arc<Machine>,
    ) -> Result<Self> {
        let sizes: Vec<_> = layout.axes().into_iter().filter(|(axis, _)| *axis != Axis::Pp).collect();
        let staged = Layout::new(&[&[(Axis::Pp, STAGES)], &sizes[..]].concat())?;
        let words = layout.unscheduled().named();
        let staged = words.iter().try_fold(staged, |layout, word| layout.with(word))?;
        let design = three_blocks(&job.design);
        let batch = Batch::new(vec![job.sequence(); 3 * sequences], 3)?;
        let of_stage = |stage: usize| {
            let clock = Clock::new(machine, layout.ranks());
            let timing = (Some(clock.of_rank()), move || clock.lap());
            let rank = staged.rank_at(&[(Axis::Pp, stage)]);
            MoveCosts::new::<D>((&staged, rank), &design, job.optimizer, &batch, timing)
        };
        let (middle, last) = (of_stage(1)?, of_stage(STAGES - 1)?);
        let cell = |costs: &MoveCosts<Lap>, act, chunk| {
            costs.adds(act, chunk).map_or((0, 0.0), |(adds, lap)| (adds, lap.seconds))
        };
        let ((saved, forward), (_, backward)) =
            (cell(&middle, PassKind::F, 1), cell(&middle, PassKind::B, 1));
        let ended = [PassKind::F, PassKind::B].map(|act| cell(&last, act, STAGES - 1).1).iter().sum::<f64>();
        let update = middle.lap_of(Action::Update).map_or(0.0, |lap| lap.parts[Part::Kernels as usize]);
        let head = (ended - forward - backward).max(0.0);
        Ok(Self { forward, backward, head, update, saved: saved.max(0) as usize, rests: middle.rests() })
    }
    /// Lower bound of a step's seconds. `last` is the index of the first chunk on the rank of the last one.
    pub fn seconds(&self, blocks: usize, plan: &Plan, (halves, last): (bool, usize)) -> f64 {
        let Plan { ranks, chunks, slices, microbatches } = *plan;
        let (work, microbatches) = (self.forward + self.backward, microbatches as f64);
        let of_chunk = (blocks / (ranks * chunks)) as f64;
        let wait = if halves { self.forward } else { work } * of_chunk / slices as f64;
        let (few, most) = ((blocks / ranks) as f64, blocks.div_ceil(ranks) as f64);
        let of_any = microbatches * work * few + wait * (ranks - 1) as f64;
        let of_last = microbatches * (work * few + self.head) + wait * last as f64;
        (of_any.max(of_last).max(microbatches * work * most) + self.update * few) * BELOW
    }
    /// Lower bound of the peak bytes of the fullest rank, which has saved this number of chunks at once.
    pub fn bytes(&self, rests: usize, blocks: usize, plan: &Plan, saved: usize) -> usize {
        let of_chunk = blocks / (plan.ranks * plan.chunks);
        rests * (blocks / plan.ranks) + self.saved / plan.slices * of_chunk * saved
    }
}

/// Costs for any number of sequences in a microbatch: those of one and of two, and no less than the line through
/// both, on a machine whose times are [ideal](Machine::ideal).
#[derive(Clone, Copy, Debug, Default)]
pub struct CostLine([BlockCost; 2]);

impl CostLine {
    /// Prices a block for one and for two sequences on each data rank.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(layout: &Layout, job: &Job, ideal: &Arc<Machine>) -> Result<Self> {
        let of = |n: usize| BlockCost::new::<D>(layout, job, n * layout.size(Axis::Dp), ideal);
        Ok(Self([of(1)?, of(2)?]))
    }
    /// Lower bounds for this number of sequences on each data rank.
    pub fn at(&self, sequences: usize) -> BlockCost {
        let Self([one, two]) = self;
        let more = sequences.saturating_sub(1);
        let time = |a: f64, b: f64| (a + more as f64 * (b - a)).max(0.0);
        BlockCost {
            forward: time(one.forward, two.forward),
            backward: time(one.backward, two.backward),
            head: time(one.head, two.head),
            update: one.update.min(two.update),
            saved: one.saved + more * two.saved.saturating_sub(one.saved),
            rests: one.rests,
        }
    }
}

/// Stages of the model whose middle block is priced.
const STAGES: usize = 3;

/// Returns the same model with three blocks; of unlike blocks, the cheapest: without experts if some have none,
/// and with the window if some have one.
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

/// Bytes of the state of one block's parameters under a layout: those of [`BlockCost`], with sequences as short
/// as may be.
///
/// # Errors
/// If the layout does not fit.
pub fn rests<D: Kernels>(layout: &Layout, job: &Job, machine: &Arc<Machine>) -> Result<usize> {
    let job = Job { seq: 2 * layout.size(Axis::Cp), ..job.clone() };
    Ok(BlockCost::new::<D>(layout, &job, layout.size(Axis::Dp), machine)?.rests)
}
