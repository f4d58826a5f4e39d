//! Lower bounds of a layout's time, from the [costs](crate::block) of a block.
//!
//! ```text
//! M microbatches; F, B: one block forward and backward, for a microbatch
//! time ≥ M (F + B)·blocks of a rank + (F + B)·blocks before its first chunk      with halves of backward, F
//! ```
//! and M times the head for the rank that has it. A simulation of the table with these cells is a bound, too,
//! and a closer one.
use crate::block::{BlockCost, BlockTime};
use crate::hold::StateTimes;
use parallel::step::simulate::{StepTimes, simulate};
use parallel::step::{Cell, PassKind, Payload, Plan};
use parallel::{Error, Pipeline, Result};
use std::ops::Range;

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
        let chunks = plan.all_chunks();
        let mut ranks = vec![Self::default(); plan.ranks];
        for chunk in (0..chunks).rev() {
            let range = pipeline.blocks(blocks, chunk, chunks);
            let stage: &mut Self = &mut ranks[pipeline.schedule.rank_of(chunk, plan)];
            stage.chunks.push(range.len());
            stage.has_head |= chunk + 1 == chunks;
            (stage.before, stage.first) = (range.start, chunk);
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
    /// Lower bound of a step's seconds, under a schedule with backwards in `halves` or without, whose ranks
    /// have this work and these times of their state. Gradients are summed beside and after the last
    /// microbatch's backward.
    pub fn seconds(&self, ranks: &[StageWork], plan: &Plan, halves: bool, state: &StateTimes) -> f64 {
        let StateTimes { waits, update, sums, sums_of_ends } = *state;
        let Plan { slices, microbatches, .. } = *plan;
        let (microbatches, parts) = (microbatches as f64, slices as f64 / self.sliced() as f64);
        let [occupies, latency] = self.message.map(|seconds| if plan.ranks > 1 { seconds } else { 0.0 });
        let pass = |act, n: usize| {
            let pass = |block: &BlockTime| {
                (0..slices).map(|slice| block.pass(act, (slice, slices))).fold(f64::INFINITY, f64::min)
            };
            self.least(n, pass).max(n as f64 * waits[act] / slices as f64)
        };
        let work = |n: usize| {
            self.least(n, |block| block.acts.iter().map(work_of).sum()).max(n as f64 * (waits[0] + waits[1]))
        };
        let of_rank = |of: &StageWork| {
            // what it surely waits for before and after its cells: forwards, and backwards if they are whole
            let back = if halves { 0.0 } else { 1.0 };
            let passes = pass(0, of.before) + back * pass(1, of.before);
            let hops = (occupies / parts + latency) * of.first as f64 * (1.0 + back);
            let head = if of.has_head { self.head } else { 0.0 };
            let works: f64 = of.chunks.iter().map(|n| work(*n)).sum();
            let blocks = of.chunks.iter().sum::<usize>();
            let cells = microbatches * (works + head) + passes + hops;
            let ends = [of.first == 0, of.has_head].into_iter().zip(sums_of_ends);
            let ends: f64 = ends.map(|(has, sums)| if has { sums } else { 0.0 }).sum();
            let forward: f64 = of.chunks.iter().map(|n| pass(0, *n)).sum();
            let forwards = pass(0, of.before) + slices as f64 * forward;
            let summed = (microbatches - 1.0) * (works + head) + forwards + sums * blocks as f64 + ends;
            cells.max(summed) + update * blocks as f64
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
        let chunks = plan.all_chunks();
        if self.kinds.is_empty() {
            return Ok(0.0);
        }
        let few = (most / (chunks * plan.slices)).max(4 * plan.ranks).next_multiple_of(plan.ranks);
        let few = Plan { microbatches: few.min(plan.microbatches), ..*plan };
        let range = |chunk: usize| pipeline.blocks(blocks, chunk, chunks);
        let cells = Cells {
            of_chunks: (0..chunks).map(|chunk| self.cells(range(chunk), chunk + 1 == chunks, plan)).collect(),
            cost: self,
        };
        let makespan = simulate(pipeline.schedule, &few, &cells, &mut |_, _, _, _| {});
        let work = |rank: usize| -> f64 {
            let held = pipeline.schedule.chunks_of(rank, plan);
            held.into_iter().flat_map(|chunk| &cells.of_chunks[chunk]).map(work_of).sum()
        };
        let most = (0..plan.ranks).map(work).fold(0.0, f64::max);
        let more = (plan.microbatches - few.microbatches) as f64 * most;
        let least = (0..chunks).map(|chunk| range(chunk).len()).min().unwrap_or(0) * plan.chunks;
        let below = if few == *plan { BELOW } else { FIRST_BELOW };
        Ok((makespan.map_err(Error::new)?.makespan + more + update * least as f64) * below)
    }
    /// Seconds of a chunk's cells, by slice.
    fn cells(&self, blocks: Range<usize>, is_last: bool, plan: &Plan) -> Vec<[f64; 4]> {
        let seconds = |slice: usize, act: usize| {
            let head =
                if is_last && act == PassKind::F.number() { self.head / plan.slices as f64 } else { 0.0 };
            blocks.clone().map(|n| self.block(n).pass(act, (slice, plan.slices))).sum::<f64>() + head
        };
        (0..plan.slices).map(|slice| std::array::from_fn(|act| seconds(slice, act))).collect()
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
        self.of_chunks[usize::from(of.chunk)][usize::from(of.slice)][act.number()]
    }
    fn message(&self, _: usize, _: usize, _: Payload, plan: &Plan) -> Option<[f64; 2]> {
        let [occupies, waits] = self.cost.message;
        Some([occupies * self.cost.sliced() as f64 / plan.slices as f64, waits])
    }
}

#[cfg(test)]
mod tests;
