//! Whether a table can be: gone through on paper, without numbers, as the [executor](crate::Stages) goes through it.
//!
//! Rows by themselves: every unit forward once and backward once, on its rank, each cell after what it needs, the last
//! contribution to a chunk's gradients known as such. Rows together: every message sent is received, and no rank waits for
//! ever. What is refused is refused with the least that is wrong with it: two cells, or a cycle of ranks.
mod meet;

use super::{Act, Cell, Payload, Plan, Step, Unit, lowered};
use crate::Schedule;

/// What a table needs of those who run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Units that went forward and whose backward is not complete, at most at once: of each rank.
    pub saved: Vec<usize>,
    /// Messages of a kind from one rank to another that may be under way, at least, for no rank to wait for ever. A rank goes
    /// through its steps one after the other: to send, it waits until fewer are under way; to receive, until the message has
    /// come. With 0 nothing is ever under way: what is sent after a cell and received before the next is posted together,
    /// and a rank goes on when all of it has met the other side.
    pub under_way: usize,
}

/// Whether every unit goes forward once and backward once, whole or in both halves, on its rank and in an order in which no
/// rank waits for ever; and what that needs.
///
/// # Errors
/// One sentence on what is wrong: the cells, or the shortest cycle of ranks that wait for each other.
pub fn check(schedule: &dyn Schedule, plan: &Plan) -> Result<Needs, String> {
    schedule.fits(plan)?;
    let rank_of = |chunk: u16| schedule.rank_of(chunk as usize, plan);
    let cells: Vec<Vec<Cell>> = (0..plan.ranks).map(|rank| schedule.row(rank, plan).collect()).collect();
    let needs = complete(plan, rank_of, &cells).and_then(|()| {
        let rows: Vec<_> = (0..plan.ranks).map(|rank| before_the_end(schedule, plan, rank)).collect();
        let saved = in_order(plan, rank_of, &rows)?;
        Ok(Needs { saved, under_way: meet::under_way(plan, &rows)? })
    });
    needs.map_err(|why| format!("the schedule {}, {plan}: {why}", schedule.about().name))
}

/// What a rank does until its gradients are there.
fn before_the_end(schedule: &dyn Schedule, plan: &Plan, rank: usize) -> Vec<Step> {
    let mut steps = lowered(schedule, plan, rank);
    steps.retain(|step| !matches!(step, Step::Complete | Step::Update));
    steps
}

impl Plan {
    fn units(&self) -> usize {
        self.all_chunks() * self.slices * self.microbatches
    }
    /// The number of a unit of this step.
    pub(super) fn number(&self, of: Unit) -> usize {
        (of.chunk as usize * self.slices + of.slice as usize) * self.microbatches + of.microbatch as usize
    }
    fn has(&self, Unit { chunk, slice, microbatch }: Unit) -> bool {
        let (chunk, slice, microbatch) = (chunk as usize, slice as usize, microbatch as usize);
        chunk < self.all_chunks() && slice < self.slices && microbatch < self.microbatches
    }
}

/// Each cell once, on the rank that has its chunk.
fn complete(plan: &Plan, rank_of: impl Fn(u16) -> usize, rows: &[Vec<Cell>]) -> Result<(), String> {
    let mut times = vec![[0; 4]; plan.units()];
    for (rank, cell) in
        rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |cell| (rank, cell)))
    {
        if !plan.has(cell.of) {
            return Err(format!("{cell} is none of the step's"));
        }
        let at = rank_of(cell.of.chunk);
        if at != rank {
            return Err(format!("{cell} is in the row of rank {rank}, and its chunk on rank {at}"));
        }
        times[plan.number(cell.of)][cell.act as usize] += 1;
    }
    let wrong = |[f, b, i, w]: &[u32; 4]| *f != 1 || !matches!([b, i, w], [1, 0, 0] | [0, 1, 1]);
    let Some(number) = times.iter().position(wrong) else { return Ok(()) };
    let (rest, microbatch) = (number / plan.microbatches, (number % plan.microbatches) as u32);
    let of = Unit { slice: (rest % plan.slices) as u16, ..Unit::new(rest / plan.slices, microbatch) };
    let [f, b, i, w] = [Act::F, Act::B, Act::I, Act::W]
        .map(|act| format!("{} {}", Cell { act, of }, times[number][act as usize]));
    Err(format!(
        "of the cells of a unit there are {f}, {b}, {i} and {w}; it must be forward once, and backward once, whole or in both halves"
    ))
}

/// What must have been before a cell: the cell, and the message with which it comes from another chunk.
pub(super) fn needed(Cell { act, of }: Cell, plan: &Plan) -> impl Iterator<Item = (Cell, Option<Payload>)> {
    let at = |act, chunk: Option<u16>, slice: Option<u16>| {
        let of = Unit { chunk: chunk?, slice: slice?, ..of };
        plan.has(of).then_some(Cell { act, of })
    };
    let (chunk, slice) = (Some(of.chunk), Some(of.slice));
    let all = match act {
        Act::F => [
            (at(Act::F, of.chunk.checked_sub(1), slice), Some(Payload::Activation)),
            (at(Act::F, chunk, of.slice.checked_sub(1)), None),
            (None, None),
        ],
        Act::B | Act::I => [
            (at(Act::F, chunk, slice), None),
            (at(Act::B, of.chunk.checked_add(1), slice), Some(Payload::Gradient)),
            (at(Act::B, chunk, of.slice.checked_add(1)), None),
        ],
        Act::W => [(at(Act::I, chunk, slice), None), (None, None), (None, None)],
    };
    all.into_iter().filter_map(|(cell, by)| Some((cell?, by)))
}

/// Each row's cells after what they need, and a chunk's gradients complete with their last contribution; the most units that each
/// rank has saved at once.
fn in_order(plan: &Plan, rank_of: impl Fn(u16) -> usize, rows: &[Vec<Step>]) -> Result<Vec<usize>, String> {
    let mut walk = Walk::new(plan, rank_of);
    rows.iter().enumerate().map(|(rank, row)| walk.row(rank, row)).collect()
}

/// Rows gone through one after the other, each in its own order.
struct Walk<'a, R> {
    plan: &'a Plan,
    rank_of: R,
    did: Vec<[bool; 4]>,  // by unit and act
    came: Vec<[bool; 2]>, // by unit and payload
    left: Vec<usize>,     // contributions to a chunk's gradients
}

impl<'a, R: Fn(u16) -> usize> Walk<'a, R> {
    fn new(plan: &'a Plan, rank_of: R) -> Self {
        let (units, contributions) = (plan.units(), plan.slices * plan.microbatches);
        let left = vec![contributions; plan.all_chunks()];
        Self { plan, rank_of, did: vec![[false; 4]; units], came: vec![[false; 2]; units], left }
    }
    /// Each cell after what it needs, each message after what gives it; the most units that the rank has saved at once.
    fn row(&mut self, rank: usize, row: &[Step]) -> Result<usize, String> {
        let (mut saved, mut peak) = (0_usize, 0);
        for step in row {
            match *step {
                Step::Run { cell, last, .. } => {
                    self.run(rank, cell, last)?;
                    saved += usize::from(cell.act == Act::F);
                    peak = peak.max(saved);
                    saved -= usize::from(cell.act.adds());
                }
                Step::Receive(what, of, _) => self.came[self.plan.number(of)][what as usize] = true,
                Step::Send(what, of, _) => {
                    let (act, chunk) = match what {
                        Payload::Activation => (Act::F, of.chunk - 1),
                        Payload::Gradient => (Act::B, of.chunk + 1),
                    };
                    let giver = Cell { act, of: Unit { chunk, ..of } };
                    if !self.has(giver) {
                        return Err(format!("rank {rank} is to {step} before {giver}"));
                    }
                }
                Step::Complete | Step::Update => {}
            }
        }
        Ok(peak)
    }
    /// Whether a cell has been; in place of a whole backward its input half will do.
    fn has(&self, Cell { act, of }: Cell) -> bool {
        let did = self.did[self.plan.number(of)];
        did[act as usize] || act == Act::B && did[Act::I as usize]
    }
    fn run(&mut self, rank: usize, cell: Cell, last: bool) -> Result<(), String> {
        let (unit, chunk) = (self.plan.number(cell.of), cell.of.chunk as usize);
        for (before, by) in needed(cell, self.plan) {
            match by.filter(|_| (self.rank_of)(before.of.chunk) != rank) {
                Some(what) if !self.came[unit][what as usize] => {
                    return Err(format!("rank {rank} has {cell} before it receives the {}", what.name()));
                }
                None if !self.has(before) => return Err(format!("rank {rank} has {cell} before {before}")),
                _ => {}
            }
        }
        self.did[unit][cell.act as usize] = true;
        self.left[chunk] -= usize::from(cell.act.adds());
        let n = self.left[chunk];
        if last != (cell.act.adds() && n == 0) {
            let are = if last { "are" } else { "are not" };
            return Err(format!(
                "the gradients of chunk {chunk} {are} complete with {cell}, and {n} are to come"
            ));
        }
        Ok(())
    }
}

impl Act {
    /// Whether it adds to the gradients of weights.
    fn adds(self) -> bool {
        matches!(self, Act::B | Act::W)
    }
}

#[cfg(test)]
mod tests;
