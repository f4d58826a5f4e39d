//! The trait of schedules, and the claims of their papers.
use super::cell::{Cell, PassKind, Plan};
use layers::StrategyInfo;

/// Order in which ranks run the chunks of a model, as a table.
pub trait Schedule: Sync {
    /// Its description.
    fn about(&self) -> &'static StrategyInfo;
    /// Sizes of its table for this number of ranks and of microbatches. `_number` is the one that a layout
    /// gives it, such as 2 in `interleaved/2`.
    fn plan(&self, ranks: usize, microbatches: usize, _number: Option<usize>) -> Plan {
        Plan::whole(ranks, microbatches)
    }
    /// Checks that there is a table for these sizes.
    ///
    /// # Errors
    /// One sentence on what does not fit, and what would.
    fn fits(&self, _: &Plan) -> Result<(), String> {
        Ok(())
    }
    /// The rank that has a chunk.
    fn rank_of(&self, chunk: usize, plan: &Plan) -> usize {
        chunk % plan.ranks
    }
    /// Chunks that a rank has.
    fn chunks_of(&self, rank: usize, plan: &Plan) -> Vec<usize> {
        (0..plan.all_chunks()).filter(|chunk| self.rank_of(*chunk, plan) == rank).collect()
    }
    /// Cells of a rank, in the order in which it runs them.
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>>;
    /// Returns true if its rows have update cells, one after the backward of each microbatch. By default all
    /// weights are updated once, at the end of the step.
    fn updates_each(&self) -> bool {
        false
    }
    /// Returns the version of the weights that a forward or backward reads: the number of updates of its
    /// chunk before it, since the pipeline was empty.
    fn version(&self, _: Cell, _: &Plan) -> usize {
        0
    }
    /// Returns the version that a cell reads, if its weights change within the step and it is no update.
    fn read_by(&self, cell: Cell, plan: &Plan) -> Option<usize> {
        (self.updates_each() && !cell.act.does(PassKind::U)).then(|| self.version(cell, plan))
    }
    /// Returns the most versions of its weights that a rank holds at once, the latest among them.
    fn versions(&self, _rank: usize, _: &Plan) -> usize {
        1
    }
    /// Number of microbatches that have begun and are not finished when the next step begins. By default a
    /// step leaves the pipeline empty.
    fn carries(&self, _: &Plan) -> usize {
        0
    }
    /// Claims of its paper about its tables, which tests check; every schedule of the list has some.
    fn claims(&self) -> Option<Claims> {
        None
    }
}

/// Claims of a paper about a schedule's tables.
pub struct Claims {
    /// Number of chunks, or slices of them, that a rank has saved at once in a step of 2K microbatches or
    /// more. In a step of fewer, it is at most this number.
    pub saved: fn(rank: usize, plan: &Plan) -> usize,
    /// Number of messages that wait on a rank for their cells, in such a step.
    pub waiting: fn(plan: &Plan) -> Waiting,
    /// Time that ranks wait from their first cell to their last, for the tables of which the paper states it.
    /// None if the schedule has no closed form.
    pub bubble: Option<Bubble>,
}

/// Time that ranks wait under a table, given the times of a forward, an input half and a weight half of a
/// whole part. None for a table of which the paper does not state it.
pub type Bubble = fn(plan: &Plan, times: [f64; 3]) -> Option<f64>;

/// Number of waiting messages: on the first rank, on those between, and on the last; 0 on a rank alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Exactly these numbers.
    Exactly([usize; 3]),
    /// At most these numbers.
    AtMost([usize; 3]),
}
