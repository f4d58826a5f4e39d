//! Schedules of a pipeline: who goes through which part of the model when. A schedule is rows of cells, one row for each rank
//! of the pipeline; the [executor](crate::Trainer) runs what is [lowered](crate::step::lowered) from them.
use crate::deal;
use crate::step::{Act, Cell, Plan, Unit, check};
use crate::strategies::list;
use layers::{About, Choice, Takes};
use std::ops::Range;

list! { dyn Schedule, |schedule| schedule.about();
    one_f_one_b::OneForwardOneBackward,
    naive::Naive,
    gpipe::GPipe,
    interleaved::Interleaved,
    looped_bfs::LoopedBfs,
    zb_h1::ZbH1,
    zb_h2::ZbH2,
    zb_v::ZbV,
    dualpipe_v::DualPipeV,
    seq1f1b::Seq1F1B,
}

pub mod phases;

/// A way to go through the chunks of a model, as a table.
pub trait Schedule: Sync {
    /// Its description.
    fn about(&self) -> &'static About;
    /// The sizes of its table for so many ranks and microbatches, of the number that a layout gives it: `interleaved/2`.
    fn plan(&self, ranks: usize, microbatches: usize, _number: Option<usize>) -> Plan {
        Plan::whole(ranks, microbatches)
    }
    /// Whether there is such a table for these sizes.
    ///
    /// # Errors
    /// One sentence on what does not fit, with what would.
    fn fits(&self, _: &Plan) -> Result<(), String> {
        Ok(())
    }
    /// The rank that has a chunk.
    fn rank_of(&self, chunk: usize, plan: &Plan) -> usize {
        chunk % plan.ranks
    }
    /// A rank's cells, in the order in which it goes through them.
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>>;
    /// What its paper says of its tables, which tests hold against them: every schedule of the list says it.
    fn claims(&self) -> Option<Claims> {
        None
    }
}

/// What a paper says of a schedule's tables.
pub struct Claims {
    /// How many chunks, or slices of them, a rank has saved at once: of a step of 2K microbatches or more. Of fewer, no more.
    pub saved: fn(rank: usize, plan: &Plan) -> usize,
    /// How many messages wait on a rank for their cells, in such a step.
    pub waiting: fn(plan: &Plan) -> Waiting,
    /// How long ranks wait from their first cell to their last, if a forward, an input half and a weight half of a whole part
    /// take these times: of tables of which the paper says it. None of a schedule without a closed form.
    pub bubble: Option<Bubble>,
}

/// The time that ranks wait under a table, if a forward, an input half and a weight half take these.
pub type Bubble = fn(plan: &Plan, times: [f64; 3]) -> Option<f64>;

/// Messages that wait, on the first rank, on those between, and on the last; on a rank alone none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// As many.
    Exactly([usize; 3]),
    /// As many or fewer.
    AtMost([usize; 3]),
}

/// A schedule, with the number that a layout gives it.
#[derive(Clone, Copy)]
pub struct Pipeline {
    /// Who goes through which chunk when.
    pub schedule: &'static dyn Schedule,
    /// `interleaved/2`: 2.
    pub number: Option<usize>,
    /// How many of the model's blocks each chunk has, where they are not dealt evenly.
    pub split: Option<&'static [usize]>,
}

impl Pipeline {
    /// A model in one stage.
    pub const ALONE: Self = Self { schedule: &Alone, number: None, split: None };

    /// The sizes of the schedule's table.
    pub fn plan(&self, ranks: usize, microbatches: usize) -> Plan {
        self.schedule.plan(ranks, microbatches, self.number)
    }
    /// Which of so many blocks a chunk has.
    pub fn blocks(&self, blocks: usize, chunk: usize, chunks: usize) -> Range<usize> {
        let Some(split) = self.split else { return deal(blocks, chunk, chunks) };
        let first = split[..chunk].iter().sum();
        first..first + split[chunk]
    }
    /// Whether there is a table for a step of so many microbatches that all ranks can go through.
    ///
    /// # Errors
    /// One sentence on what is wrong first.
    pub fn check(&self, ranks: usize, microbatches: usize) -> Result<(), String> {
        check(self.schedule, &self.plan(ranks, microbatches)).map(drop)
    }
}

impl From<&'static dyn Schedule> for Pipeline {
    fn from(schedule: &'static dyn Schedule) -> Self {
        Self { schedule, ..Self::ALONE }
    }
}

/// The schedule of a model that is not split into stages: each microbatch forward and backward, one after the other.
pub struct Alone;

static ALONE: About = About {
    name: "one stage",
    axis: None,
    choice: Choice::Schedule,
    word: "none",
    takes: Takes::Nothing,
    shares: |_, _| vec![],
    paper: "",
    chapter: None,
    hints: &[("", "")],
};

impl Schedule for Alone {
    fn about(&self) -> &'static About {
        &ALONE
    }
    fn row(&self, _: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let both = |m| [Act::F, Act::B].map(|act| Cell { act, of: Unit::new(0, m) });
        Box::new((0..plan.microbatches as u32).flat_map(both))
    }
}

#[cfg(test)]
mod tests;
