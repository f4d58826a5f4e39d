//! Lower bounds of a layout's memory: the state of blocks and of both ends of the model, and what a rank of a
//! table has saved at once.
//!
//! ```text
//! bytes ≥ state of ⌊blocks/K⌋ blocks and of the ends on the rank
//!         + what ⌊blocks/KV⌋ blocks save · chunks saved at once
//!         + gradients of chunks that have had a backward
//!         + what the backward of one block needs while it lasts
//! ```
use crate::bound::{BlockCost, run, stage_of, staged};
use crate::clock::{PARTS, Part};
use crate::machine::Machine;
use crate::step::TrainingJob;
use kernels::Kernels;
use layers::TokenShards;
use parallel::step::{Action, ActionPhase, Cell, PassKind, Plan};
use parallel::{Layout, Result, Schedule};
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StateBytes {
    /// Bytes of a block.
    pub block: HeldBytes,
    /// Bytes of what the first and the last stage have beside their blocks.
    pub ends: [HeldBytes; 2],
    /// Seconds that they take.
    pub times: StateTimes,
    /// Seconds of a block's forward and backward, by use: of very short sequences, so that no call and no
    /// kernel that this state adds to them is hidden.
    passes: [[f64; PARTS]; 2],
}

/// Contents of a rank at some time of a table: chunks, or slices of them, that are saved, if the input
/// half of a backward frees them; chunks with gradients; and the ends of the model on the rank.
pub type HeldChunks = (usize, usize, [bool; 2]);

/// State of a stage of one block.
struct StageState {
    held: HeldBytes,
    passes: [[f64; PARTS]; 2],
    update: f64,
    sums: f64,
}

/// Fraction of measured calls once a step that other choices cannot go below.
const BELOW: f64 = 0.9;

impl StateBytes {
    /// Measures a layout's state of parameters, with sequences as short as may be.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(layout: &Layout, job: &TrainingJob, machine: &Arc<Machine>) -> Result<Self> {
        let job = TrainingJob { seq: 2 * layout.size(TokenShards::CONTEXT), ..job.clone() };
        let (staged, unlike) = staged(&layout.unscheduled())?;
        let sequences = layout.size(TokenShards::SEQUENCES);
        let of_stage = |stage: usize| -> Result<StageState> {
            let costs = stage_of::<D>(&staged, &job, (stage, sequences, true), machine)?;
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
        let sums = |end: &StageState| (end.sums - block.sums).max(0.0) * BELOW;
        let times = StateTimes {
            waits: block.passes.map(|parts| parts[Part::Dp as usize]),
            update: block.update,
            sums: block.sums * BELOW,
            sums_of_ends: [sums(&first), sums(&last)],
        };
        Ok(Self { block: block.held, ends: [beside(&first), beside(&last)], times, passes: block.passes })
    }
    /// Returns true if a block's forward and backward do the same as with the other state.
    pub(crate) fn passes_as(&self, other: &Self) -> bool {
        let near = |a: &f64, b: &f64| (a - b).abs() <= 1e-9 * a.max(*b);
        zip(self.passes.as_flattened(), other.passes.as_flattened()).all(|(a, b)| near(a, b))
    }
}

impl BlockCost {
    /// Lower bound of the peak bytes of the fullest rank, which has these chunks at once, under a schedule with
    /// backwards in `halves` or without.
    pub fn bytes(
        &self,
        state: &StateBytes,
        blocks: usize,
        (plan, halves): (&Plan, bool),
        held: &[HeldChunks],
    ) -> usize {
        let of_chunk = blocks / (plan.ranks * plan.chunks);
        let saved = self.least(of_chunk, |block| block.saved as f64) as usize / plan.slices;
        let needs = self.least(of_chunk.min(1), |block| block.needs[usize::from(halves)] as f64) as usize;
        let rests = state.block[0] * (blocks / plan.ranks);
        let most = held.iter().map(|(chunks, begun, has)| {
            // both ends on one rank may share their parameters
            let ends = [0, 1]
                .map(|of| (0..2).filter(|end| has[*end]).map(|end| state.ends[end][of]).max().unwrap_or(0));
            let gradients =
                state.block[1] * of_chunk * begun + if *begun == plan.chunks { ends[1] } else { 0 };
            // what is saved is so until a backward begins
            let needs = if *chunks > 0 && plan.slices == 1 { needs } else { 0 };
            rests + ends[0] + saved * chunks + gradients + needs
        });
        most.max().unwrap_or(0)
    }
}

/// Returns what ranks have at once: of each rank with an end of the model, and of the one with most, the
/// times at which it has most. None if there is no such table.
pub fn held(schedule: &dyn Schedule, plan: &Plan) -> Vec<HeldChunks> {
    let all = plan.all_chunks();
    if schedule.fits(plan).is_err() {
        return Vec::new();
    }
    let mut found = BTreeSet::new();
    for rank in 0..plan.ranks {
        let has = [0, all - 1].map(|end| schedule.rank_of(end, plan) == rank);
        let (mut now, mut begun, mut most) = (0usize, BTreeSet::new(), vec![None; plan.chunks + 1]);
        for Cell { act, of } in schedule.row(rank, plan) {
            now = if act == PassKind::F { now + 1 } else { now - usize::from(act != PassKind::W) };
            if act.adds() {
                begun.insert(of.chunk);
            }
            most[begun.len()] = most[begun.len()].max(Some(now));
        }
        let times = most.iter().enumerate().filter_map(|(begun, most)| Some(((*most)?, begun, has)));
        found.extend(times);
    }
    let all: Vec<HeldChunks> = found.iter().copied().collect();
    let less = |(a, b, has): &HeldChunks, (c, d, more): &HeldChunks| {
        a <= c && b <= d && has[0] <= more[0] && has[1] <= more[1] && (a, b, has) != (c, d, more)
    };
    found.retain(|one| !all.iter().any(|other| less(one, other)));
    found.into_iter().collect()
}
