//! Lower bounds of a layout's memory: the state of blocks and of both ends of the model, and what a rank of a
//! table has saved at once.
//!
//! ```text
//! bytes ≥ state of the rank's blocks and of the ends on it
//!         + what the blocks of saved chunks have saved, and those halfway through their backward
//!         + gradients of chunks that have had a backward
//!         + what the backward of one block needs while it lasts
//! ```
use crate::block::{BlockCost, BlockTime, first_of_kinds, run, stage_of, staged};
use crate::clock::{PARTS, Part};
use crate::machine::Machine;
use crate::step::TrainingJob;
use kernels::Kernels;
use ops::TokenShards;
use parallel::step::{Action, ActionPhase, Cell, PassKind, Plan};
use parallel::{Layout, Pipeline, Result};
use std::collections::BTreeSet;
use std::iter::zip;
use std::sync::Arc;

/// Bytes that rest between steps, and those of gradients from the first backward on.
type HeldBytes = [usize; 2];

/// Seconds that a layout's state of parameters takes, at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StateTimes {
    /// Seconds that data ranks wait for each other in the forward and the backward of a block.
    pub waits: [f64; 2],
    /// Seconds of the kernels of a block's update.
    pub update: f64,
    /// Seconds of calls between data ranks once a step, for a block's gradients and parameters.
    pub sums: f64,
    /// Seconds of these calls for what the first and the last stage have beside their blocks.
    pub sums_of_ends: [f64; 2],
}

/// Bytes of parameters' state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateBytes {
    /// Bytes of a block of each kind of the model, and the number of these blocks.
    pub blocks: Vec<(HeldBytes, usize)>,
    /// Bytes of what the first and the last stage have beside their blocks.
    pub ends: [HeldBytes; 2],
    /// Seconds that they take.
    pub times: StateTimes,
    /// Seconds of a block's forward and backward, by use: of very short sequences, so that no call and no
    /// kernel that this state adds to them is hidden.
    pub(crate) passes: [[f64; PARTS]; 2],
}

/// Contents of a rank at some time of a table. Chunks are counted by size: those of `⌊blocks/KV⌋` blocks, and
/// those with one more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldChunks {
    /// Blocks of the rank.
    pub blocks: usize,
    /// Ends of the model on the rank.
    pub ends: [bool; 2],
    /// Chunks, or slices of them, that a forward has saved and no backward, or input half, has freed.
    pub saved: [usize; 2],
    /// Chunks, or slices of them, between both halves of their backward.
    pub halfway: [usize; 2],
    /// Chunks that have had a backward, and so have gradients.
    pub begun: [usize; 2],
    /// True if a backward or its input half begins now.
    pub begins: bool,
}

impl HeldChunks {
    /// True if another time has as much of everything.
    fn is_within(&self, other: &Self) -> bool {
        let flags = |of: &Self| [of.ends[0], of.ends[1], of.begins];
        let counts = |of: &Self| [of.saved, of.halfway, of.begun];
        self.blocks <= other.blocks
            && zip(flags(self), flags(other)).all(|(a, b)| a <= b)
            && zip(counts(self).as_flattened(), counts(other).as_flattened()).all(|(a, b)| a <= b)
    }
}

/// State of a stage of one block.
struct StageState {
    held: HeldBytes,
    passes: [[f64; PARTS]; 2],
    update: f64,
    sums: f64,
}

/// Fraction of measured calls and kernels once a step that other choices cannot go below: some are once a
/// stage, which here has one block.
const OF_ONCE_BELOW: f64 = 0.9;

impl StateBytes {
    /// Measures a layout's state of parameters, with sequences as short as may be. If a model has several
    /// kinds of blocks, times are those of the fastest.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(layout: &Layout, job: &TrainingJob, machine: &Arc<Machine>) -> Result<Self> {
        let of_blocks = job.design.kinds();
        let mut kinds = first_of_kinds(&of_blocks).map(|block| {
            let count = of_blocks.iter().filter(|kind| **kind == of_blocks[block]).count();
            Self::of_kind::<D>(layout, job, (block, count), machine)
        });
        let first = kinds.next().expect("a model has blocks")?;
        kinds.try_fold(first, |all, kind| Ok(all.beside(&kind?)))
    }
    /// Returns the state of a model that has these kinds of blocks, and another one.
    fn beside(mut self, other: &Self) -> Self {
        let least = |a: [f64; 2], b: [f64; 2]| [a[0].min(b[0]), a[1].min(b[1])];
        let [a, b] = [self.times, other.times];
        self.times = StateTimes {
            waits: least(a.waits, b.waits),
            update: a.update.min(b.update),
            sums: a.sums.min(b.sums),
            sums_of_ends: least(a.sums_of_ends, b.sums_of_ends),
        };
        for (of, also) in zip(self.ends.as_flattened_mut(), other.ends.as_flattened()) {
            *of = *also.min(of);
        }
        for (of, also) in zip(self.passes.as_flattened_mut(), other.passes.as_flattened()) {
            *of += also;
        }
        self.blocks.extend(&other.blocks);
        self
    }
    fn of_kind<D: Kernels>(
        layout: &Layout,
        job: &TrainingJob,
        (block, count): (usize, usize),
        machine: &Arc<Machine>,
    ) -> Result<Self> {
        let job = TrainingJob { seq: 2 * layout.size(TokenShards::CONTEXT), ..job.clone() };
        let (staged, unlike) = staged(&layout.unscheduled())?;
        let sequences = layout.size(TokenShards::SEQUENCES);
        let of_stage = |stage: usize| -> Result<StageState> {
            let costs = stage_of::<D>(&staged, &job, (block, stage), (sequences, true), machine)?;
            let cost = |act, first| costs.cost(run(act, stage, 0), first);
            let adds = |first| cost(PassKind::B, first).map_or(0, |(change, _)| change.adds);
            let parts = |act| cost(act, false).map_or([0.0; PARTS], |(_, lap)| lap.parts);
            let held = [costs.rests(), (adds(true) - adds(false)).max(0) as usize];
            let update = costs.cost(Action::Update, true);
            let update = update.map_or(0.0, |(_, lap)| lap.parts[Part::Kernels as usize]);
            let passes = [PassKind::F, PassKind::B].map(parts);
            let of_data = |parts: &[f64; PARTS]| parts[Part::Dp as usize];
            let once = costs.all().map(|(at, lap)| match at {
                ActionPhase::Begin(Action::Run { cell, last: true, .. }) if cell.act == PassKind::B => {
                    of_data(&lap.parts) - of_data(&passes[1])
                }
                ActionPhase::Begin(Action::Run { .. }) => 0.0,
                _ => of_data(&lap.parts),
            });
            Ok(StageState { held, passes, update, sums: once.sum::<f64>().max(0.0) })
        };
        let [first, block, last] = [of_stage(0)?, of_stage(1)?, of_stage(unlike + 1)?];
        let beside = |end: &StageState| [0, 1].map(|i| end.held[i].saturating_sub(block.held[i]));
        let sums = |end: &StageState| (end.sums - block.sums).max(0.0) * OF_ONCE_BELOW;
        let times = StateTimes {
            waits: block.passes.map(|parts| parts[Part::Dp as usize]),
            update: block.update * OF_ONCE_BELOW,
            sums: block.sums * OF_ONCE_BELOW,
            sums_of_ends: [sums(&first), sums(&last)],
        };
        let ends = [beside(&first), beside(&last)];
        Ok(Self { blocks: vec![(block.held, count)], ends, times, passes: block.passes })
    }
    /// The least bytes of `n` blocks between steps, or with gradients.
    pub fn least(&self, n: usize, of: usize) -> usize {
        let mut costs: Vec<_> = self.blocks.iter().map(|(held, count)| (held[of], *count)).collect();
        costs.sort_unstable();
        let take = |left: &mut usize, (each, count): (usize, usize)| {
            let some = count.min(*left);
            *left -= some;
            Some(each * some)
        };
        costs.into_iter().scan(n, take).sum()
    }
    /// Returns true if a block's forward and backward do the same as with the other state.
    pub(crate) fn passes_as(&self, other: &Self) -> bool {
        let near = |a: &f64, b: &f64| (a - b).abs() <= 1e-9 * a.max(*b);
        zip(self.passes.as_flattened(), other.passes.as_flattened()).all(|(a, b)| near(a, b))
    }
}

impl BlockCost {
    /// Lower bound of the peak bytes of the fullest rank, which has these chunks at once, under a schedule
    /// with backwards in `halves` or without.
    pub fn bytes(
        &self,
        state: &StateBytes,
        blocks: usize,
        (plan, halves): (&Plan, bool),
        held: &[HeldChunks],
    ) -> usize {
        let few = blocks / plan.all_chunks(); // of a chunk
        let of_chunks = |of: fn(&BlockTime) -> usize| {
            [few, few + 1].map(|n| self.least(n, |block| of(block) as f64) as usize)
        };
        let [saved, halfway] = [of_chunks(|block| block.saved), of_chunks(|block| block.halfway)];
        let product = |chunks: [usize; 2], bytes: [usize; 2]| chunks[0] * bytes[0] + chunks[1] * bytes[1];
        let needs = self.least(1, |block| block.needs[usize::from(halves)] as f64) as usize;
        let most = held.iter().map(|at| {
            // both ends on one rank may share their parameters
            let ends = [0, 1].map(|of| {
                (0..2).filter(|end| at.ends[*end]).map(|end| state.ends[end][of]).max().unwrap_or(0)
            });
            let begun = product(at.begun, [few, few + 1]);
            let gradients = state.least(begun, 1) + if begun == at.blocks { ends[1] } else { 0 };
            let saved = product(at.saved, saved) + product(at.halfway, halfway);
            let needs = if at.begins && plan.slices == 1 { needs } else { 0 };
            state.least(at.blocks, 0) + ends[0] + gradients + saved / plan.slices + needs
        });
        most.max().unwrap_or(0)
    }
}

/// Returns what the ranks of a pipeline over this number of blocks have at once, at the times at which one
/// has most. None if there is no such table.
pub fn held(pipeline: &Pipeline, blocks: usize, plan: &Plan) -> Vec<HeldChunks> {
    let schedule = pipeline.schedule;
    let chunks = plan.all_chunks();
    if schedule.fits(plan).is_err() {
        return Vec::new();
    }
    let sizes: Vec<usize> = (0..chunks).map(|chunk| pipeline.blocks(blocks, chunk, chunks).len()).collect();
    let mut most: Vec<HeldChunks> = Vec::new();
    let mut see = |at: &HeldChunks| {
        if !most.iter().any(|other| at.is_within(other)) {
            most.retain(|other| !other.is_within(at));
            most.push(*at);
        }
    };
    for rank in 0..plan.ranks {
        let held = schedule.chunks_of(rank, plan);
        let ends = [0, chunks - 1].map(|end| held.contains(&end));
        let of_rank = held.iter().map(|chunk| sizes[*chunk]).sum();
        let mut now = HeldChunks { blocks: of_rank, ends, ..HeldChunks::default() };
        let mut begun = BTreeSet::new();
        for Cell { act, of } in schedule.row(rank, plan) {
            let size = usize::from(sizes[usize::from(of.chunk)] > blocks / chunks);
            if act.does(PassKind::I) {
                see(&HeldChunks { begins: true, ..now });
                now.saved[size] -= 1;
            }
            now.saved[size] += usize::from(act.does(PassKind::F));
            now.halfway[size] += usize::from(act.does(PassKind::I));
            now.halfway[size] -= usize::from(act.adds());
            if act.adds() && begun.insert(of.chunk) {
                now.begun[size] += 1;
            }
            see(&now);
        }
    }
    most
}
