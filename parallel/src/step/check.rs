//! Checks that a table can run: walks through it without values, as the [executor](crate::Stages) runs it.
//!
//! Cells: every task runs forward once and backward once, on its rank, each cell after what it needs, and no
//! rank waits for ever. Actions, as lowered: the last contribution to a chunk's gradients is marked as such,
//! every message is received before the cell that needs it and in the order in which it was sent, and all
//! messages [meet](meet) although nothing buffers them. Versions ([`versions`]): in a schedule with updates
//! as cells, every update follows its microbatch's backward, and every version is there when a cell reads it.
//! A refusal names the smallest thing that is wrong: two cells, or a cycle of ranks.
pub(super) mod meet;
mod versions;

use super::cell::{Action, Cell, PassKind, Payload, Plan, Task, needed};
use super::lowered::lowered;
use super::schedule::Schedule;
use std::collections::{BTreeMap, VecDeque};

/// Peak needs of each rank that runs a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakNeeds {
    /// Tasks that ran forward and whose backward is not complete.
    pub saved: Vec<usize>,
    /// Messages that were received for later cells.
    pub waiting: Vec<usize>,
    /// Versions of the rank's weights, the latest among them.
    pub versions: Vec<usize>,
}

/// Checks that every task runs forward once and backward once, whole or in both halves, on its rank and in an
/// order in which no rank waits for ever. Returns the needs of the ranks.
///
/// # Errors
/// One sentence on what is wrong: the cells, or the shortest cycle of ranks that wait for each other.
pub fn check(schedule: &dyn Schedule, plan: &Plan) -> Result<PeakNeeds, String> {
    schedule.fits(plan)?;
    checked(schedule, plan).map(|(needs, _)| needs)
}

/// Does the same as [`check`], and also returns the actions of each rank in a training step.
pub(super) fn checked(schedule: &dyn Schedule, plan: &Plan) -> Result<(PeakNeeds, Vec<Vec<Action>>), String> {
    let rank_of = |chunk: u16| schedule.rank_of(chunk as usize, plan);
    let cells: Vec<Vec<Cell>> = (0..plan.ranks).map(|rank| schedule.row(rank, plan).collect()).collect();
    let checked = complete(plan, (rank_of, schedule.updates_each()), &cells).and_then(|()| {
        let rows = lowered(schedule, plan, true)?;
        let versions = versions::held(schedule, plan, &cells)?;
        Ok((PeakNeeds { versions, ..steps(plan, rank_of, &rows)? }, rows))
    });
    checked.map_err(|why| format!("the schedule {}, {plan}: {why}", schedule.about().name))
}

/// Checks that ranks can run these actions, and returns their needs.
fn steps(plan: &Plan, rank_of: impl Fn(u16) -> usize, rows: &[Vec<Action>]) -> Result<PeakNeeds, String> {
    let mut walk = RowWalk { plan, rank_of, rows, did: vec![[false; 4]; plan.units()] };
    let needs = (0..rows.len()).map(|rank| walk.row(rank)).collect::<Result<Vec<_>, _>>()?;
    meet::meet(rows)?;
    let (saved, waiting) = needs.into_iter().unzip();
    Ok(PeakNeeds { saved, waiting, versions: Vec::new() })
}

impl Plan {
    fn units(&self) -> usize {
        self.all_chunks() * self.slices * self.microbatches
    }
    /// Index of a task of this step.
    pub(super) fn number(&self, of: Task) -> usize {
        (of.chunk as usize * self.slices + of.slice as usize) * self.microbatches + of.microbatch as usize
    }
    pub(super) fn has(&self, Task { chunk, slice, microbatch }: Task) -> bool {
        let [chunk, slice] = [chunk, slice].map(usize::from);
        chunk < self.all_chunks() && slice < self.slices && (microbatch as usize) < self.microbatches
    }
}

/// Checks that the cells of every task are there once, on the rank that has its chunk; its update only if
/// `updates`.
fn complete(
    plan: &Plan,
    (rank_of, updates): (impl Fn(u16) -> usize, bool),
    rows: &[Vec<Cell>],
) -> Result<(), String> {
    let mut times = vec![[0; 4]; plan.units()]; // by part
    for (rank, cell) in
        rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |cell| (rank, cell)))
    {
        if !plan.has(cell.of) {
            return Err(format!("{cell} is outside of the step"));
        }
        let owner = rank_of(cell.of.chunk);
        if owner != rank {
            return Err(format!("{cell} is in the row of rank {rank}, but its chunk is on rank {owner}"));
        }
        times[plan.number(cell.of)][cell.act.parts()].iter_mut().for_each(|n| *n += 1);
    }
    let wanted = [1, 1, 1, u32::from(updates)];
    let Some(number) = times.iter().position(|times| *times != wanted) else { return Ok(()) };
    let (rest, microbatch) = (number / plan.microbatches, (number % plan.microbatches) as u32);
    let of = Task { slice: (rest % plan.slices) as u16, ..Task::new(rest / plan.slices, microbatch) };
    let usual = PassKind::ALL.into_iter().take(4 + usize::from(updates));
    let mut numbers: BTreeMap<_, _> = usual.map(|act| (Cell { act, of }, 0)).collect();
    for cell in rows.iter().flatten().filter(|cell| cell.of == of) {
        *numbers.entry(*cell).or_default() += 1;
    }
    let numbers: Vec<_> = numbers.iter().map(|(cell, number)| format!("{cell} {number}")).collect();
    let (last, first) = numbers.split_last().expect("the usual ones");
    let update = if updates { ", and one update" } else { "" };
    Err(format!(
        "the numbers of cells of a task are {} and {last}; it must have one forward, and one backward or both \
         of its halves{update}",
        first.join(", ")
    ))
}

/// A walk through all rows, one after the other, each in its own order.
struct RowWalk<'a, R> {
    plan: &'a Plan,
    rank_of: R,
    rows: &'a [Vec<Action>],
    did: Vec<[bool; 4]>, // by task and part
}

/// Messages that wait on a rank, in the order in which they arrived, by kind and sender.
type Came = BTreeMap<(usize, usize), VecDeque<Task>>;

impl<R: Fn(u16) -> usize> RowWalk<'_, R> {
    /// Walks through a row. Checks that each cell is after what it needs, each message after the cell that
    /// gives it, and a chunk's gradients complete with their last contribution. Returns the peak numbers of
    /// saved tasks and of waiting messages.
    fn row(&mut self, rank: usize) -> Result<(usize, usize), String> {
        // missing contributions to gradients, by chunk
        let mut left = vec![self.plan.slices * self.plan.microbatches; self.plan.all_chunks()];
        let (mut came, mut given) = (Came::new(), Vec::new());
        let (mut saved, mut waiting, mut peaks) = (0_usize, 0_usize, (0, 0));
        let is_update =
            |step: &Action| matches!(step, Action::Run { cell, .. } if cell.act.does(PassKind::U));
        let updates = self.rows[rank].iter().any(is_update);
        for step in &self.rows[rank] {
            match *step {
                Action::Run { cell, last, .. } => {
                    waiting -= self.takes(rank, cell, &mut came)?;
                    self.did[self.plan.number(cell.of)][cell.act.parts()].fill(true);
                    let left = &mut left[cell.of.chunk as usize];
                    if updates {
                        *left = 1; // every contribution is the last one before an update
                    }
                    ends(cell, last, left)?;
                    given.extend(cell.gives(self.plan).filter(|(_, of)| (self.rank_of)(of.chunk) != rank));
                    saved += usize::from(cell.act.does(PassKind::F));
                    peaks.0 = saved.max(peaks.0);
                    saved -= usize::from(cell.act.adds());
                }
                Action::Receive(what, of, from) => {
                    came.entry((what as usize, from)).or_default().push_back(of);
                    waiting += 1;
                    peaks.1 = waiting.max(peaks.1);
                }
                Action::Send(what, of, _) => match given.iter().position(|one| *one == (what, of)) {
                    Some(at) => drop(given.swap_remove(at)),
                    None => return Err(format!("rank {rank} is to {step} before the cell that gives it")),
                },
                Action::Complete | Action::Update => {}
            }
        }
        if waiting > 0 {
            return Err(format!("rank {rank} receives {waiting} messages more than its cells need"));
        }
        Ok(peaks)
    }
    /// Takes the messages that a cell needs, each the first of its kind, and returns their number. Checks
    /// that what the cell needs of its own rank has run; an input half is enough in place of a whole
    /// backward.
    fn takes(&self, rank: usize, cell: Cell, came: &mut Came) -> Result<usize, String> {
        let mut taken = 0;
        for (before, by) in needed(cell, self.plan) {
            let from = (self.rank_of)(before.of.chunk);
            let Some(what) = by.filter(|_| from != rank) else {
                let part = cell.act.parts().start - usize::from(before.of == cell.of);
                if self.did[self.plan.number(before.of)][part] {
                    continue;
                }
                return Err(format!("rank {rank} has {cell} before {before}"));
            };
            match came.get_mut(&(what as usize, from)).and_then(VecDeque::pop_front) {
                Some(of) if of == cell.of => taken += 1,
                Some(of) => return Err(self.crossed(what, from, of, (rank, cell))),
                None => return Err(format!("rank {rank} has {cell} before it receives the {}", what.name())),
            }
        }
        Ok(taken)
    }
    /// Returns the error that a rank's cell needs another message than the one that is sent first.
    fn crossed(&self, what: Payload, from: usize, of: Task, (rank, cell): (usize, Cell)) -> String {
        let gives = |step: &Action| match step {
            Action::Run { cell, .. } if cell.gives(self.plan) == Some((what, of)) => {
                Some(format!(", at {cell}"))
            }
            _ => None,
        };
        let giver = self.rows[from].iter().find_map(gives).unwrap_or_default();
        let [send, receive] = [Action::Send(what, of, rank), Action::Receive(what, cell.of, from)];
        format!("rank {from} is first to {send}{giver}, but rank {rank} is first to {receive}, at {cell}")
    }
}

/// Checks that a cell is marked as the last that adds to a chunk's gradients exactly if it is.
fn ends(cell: Cell, last: bool, left: &mut usize) -> Result<(), String> {
    *left -= usize::from(cell.act.adds());
    if last == (cell.act.adds() && *left == 0) {
        return Ok(());
    }
    let (are, chunk) = (if last { "are" } else { "are not" }, cell.of.chunk);
    Err(format!(
        "the gradients of chunk {chunk} {are} marked complete with {cell}, and {left} contributions are \
         missing"
    ))
}

#[cfg(test)]
mod tests;
