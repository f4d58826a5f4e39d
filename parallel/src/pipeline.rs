//! Pipeline schedules: which rank runs which part of the model when. A schedule is rows of cells, one row for
//! each rank of the pipeline; the [executor](crate::Trainer) runs the actions [lowered](crate::step::lowered)
//! from them.
use crate::lists::list;
use crate::step::{Cell, Plan, Schedule, check};
use layers::{Choice, Design, StrategyInfo};
use ops::{AtRest, ShardingStrategy, deal};
use std::ops::Range;

list! { dyn Schedule, |schedule| schedule.about();
    one_f_one_b::OneForwardOneBackward,
    naive::NaivePipeline,
    gpipe::GPipe,
    interleaved::Interleaved,
    looped_bfs::LoopedBfs,
    zb_h1::ZbH1,
    zb_h2::ZbH2,
    zb_v::ZbV,
    dualpipe_v::DualPipeV,
    seq1f1b::Seq1F1B,
    pipedream::PipeDream,
    pipedream_vertical::PipeDreamVertical,
}

pub mod phases;
pub mod table;

/// A schedule, with the number that a layout gives it.
#[derive(Clone, Copy)]
pub struct Pipeline {
    /// Order in which ranks run their chunks.
    pub schedule: &'static dyn Schedule,
    /// Number that the layout gives it: 2 in `interleaved/2`.
    pub number: Option<usize>,
    /// Number of the model's blocks in each chunk, if they are not dealt evenly.
    pub split: Option<&'static [usize]>,
}

impl Pipeline {
    /// A model in one stage.
    pub const ALONE: Self = Self { schedule: &Alone, number: None, split: None };

    /// Sizes of the schedule's table.
    pub fn plan(&self, ranks: usize, microbatches: usize) -> Plan {
        self.schedule.plan(ranks, microbatches, self.number)
    }
    /// Range of the model's `blocks` blocks in a chunk.
    pub fn blocks(&self, blocks: usize, chunk: usize, chunks: usize) -> Range<usize> {
        let Some(split) = self.split else { return deal(blocks, chunk, chunks) };
        let first = split[..chunk].iter().sum();
        first..first + split[chunk]
    }
    /// Limit of the gradients' norm that training with it may have: none if stages update by themselves.
    pub fn clip(&self, limit: Option<f64>) -> Option<f64> {
        limit.filter(|_| !self.schedule.updates_each())
    }
    /// Checks that versions of a design's weights can be kept, if each microbatch is an update and parameters
    /// rest like this.
    ///
    /// # Errors
    /// One sentence on the first thing that has no versions.
    pub fn fits(&self, design: &Design, rests: ShardingStrategy) -> Result<(), String> {
        if !self.schedule.updates_each() {
            return Ok(());
        }
        let name = self.schedule.about().name;
        if [rests.value, rests.gradient].iter().any(|rest| *rest != AtRest::Whole) {
            return Err(format!(
                "{name} keeps versions of whole weights, but this layout shards values or gradients at rest, or \
                 keeps them on one rank; wanted zero1, or no strategy of the data ranks"
            ));
        }
        let experts = design.shape().and_then(|shape| shape.experts);
        if let Some(pooled) = experts.map(|experts| experts.balance.pooled).filter(|pooled| *pooled != 0.0) {
            return Err(format!(
                "{name} finishes microbatches after their step, but the balance of this model's experts over all \
                 blocks, {pooled}, adds to the loss of a step on the way back; wanted 0, or another schedule"
            ));
        }
        if design.shape().is_some_and(|shape| shape.tied) {
            return Err(format!(
                "{name} updates each stage by itself, but this model's head is tied to the embedding of the first \
                 stage; wanted a model with a head of its own, or another schedule"
            ));
        }
        Ok(())
    }
    /// Checks that a step with this number of microbatches has a table that all ranks can run.
    ///
    /// # Errors
    /// One sentence on the first thing that is wrong.
    pub fn check(&self, ranks: usize, microbatches: usize) -> Result<(), String> {
        check(self.schedule, &self.plan(ranks, microbatches)).map(drop)
    }
}

impl From<&'static dyn Schedule> for Pipeline {
    fn from(schedule: &'static dyn Schedule) -> Self {
        Self { schedule, ..Self::ALONE }
    }
}

/// Schedule of a model that is not split into stages: each microbatch forward and backward, one after the
/// other.
pub struct Alone;

static ALONE: StrategyInfo = StrategyInfo {
    name: "one stage",
    word: "none",
    hints: &[("", "")],
    ..StrategyInfo::of(None, Choice::Schedule)
};

impl Schedule for Alone {
    fn about(&self) -> &'static StrategyInfo {
        &ALONE
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        naive::NaivePipeline.row(rank, plan)
    }
}

#[cfg(test)]
mod tests;
