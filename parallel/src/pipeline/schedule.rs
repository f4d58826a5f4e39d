//! What a schedule is, and what its paper says of it.
use crate::step::{Cell, Plan};
use layers::About;

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
