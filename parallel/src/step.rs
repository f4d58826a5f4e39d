//! Steps as data: what a schedule says ([`Cell`]), and what every rank does for it ([`Step`]).
//!
//! A schedule writes when each chunk of the model is gone through, forward and backward, for each microbatch. Sends, receives,
//! the wait for gradients and the update follow from that: nobody writes them.
//!
//! ```text
//! two stages, two microbatches, GPipe      rank 0   F0 F1 · · B0 B1
//!                                          rank 1   · F0 F1 B0 B1 ·
//! lowered, rank 1                          receive activation 0, F0, receive activation 1, F1,
//!                                          B0, send gradient 0, B1, send gradient 1, complete, update
//! ```
//!
//! Letters are those of `torch.distributed.pipelining`: `F` forward, `B` the whole backward, `I` its input half, `W` its weight
//! half. Source: Huang et al., "GPipe", §2.2, arXiv:1811.06965; Qi et al., "Zero bubble pipeline parallelism", §2,
//! arXiv:2401.10241 (the two halves).
mod check;
mod moves;
pub mod simulate;
pub mod table;

pub use check::{Needs, check};
pub use moves::{Move, moves};

use crate::Schedule;
use layers::model::shape::counted;
use std::fmt;
use std::mem::replace;

/// What is gone through: a chunk of the model, for a slice of the tokens of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// Which part of the model, counted from the embedding.
    pub chunk: u16,
    /// Which part of each sequence.
    pub slice: u16,
    /// Which microbatch.
    pub microbatch: u32,
}

impl Unit {
    /// A chunk, for whole sequences of a microbatch.
    pub fn new(chunk: usize, microbatch: u32) -> Self {
        Self { chunk: chunk as u16, slice: 0, microbatch }
    }
}

/// How it is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Forward.
    F,
    /// Backward, both halves.
    B,
    /// Backward, the input half.
    I,
    /// Backward, the weight half.
    W,
}

/// One cell of a schedule's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// How.
    pub act: Act,
    /// What.
    pub of: Unit,
}

impl Cell {
    /// Its name in a trace: "forward 3"; of a plan of several chunks or slices, "input half 3 of chunk 1, slice 0".
    pub fn within(self, plan: &Plan) -> impl fmt::Display {
        let act = self.act.name();
        let Unit { chunk, slice, microbatch } = self.of;
        let chunks = plan.chunks > 1;
        let slices = plan.slices > 1;
        fmt::from_fn(move |f| {
            write!(f, "{act} {microbatch}")?;
            if chunks {
                write!(f, " of chunk {chunk}")?;
            }
            if slices {
                write!(f, ", slice {slice}")?;
            }
            Ok(())
        })
    }
}

/// The sizes that a schedule is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ranks of the pipeline.
    pub ranks: usize,
    /// Chunks of the model on each rank.
    pub chunks: usize,
    /// Slices of each sequence.
    pub slices: usize,
    /// Microbatches of the step.
    pub microbatches: usize,
}

impl Plan {
    /// Of so many ranks with a chunk each, for whole sequences.
    pub fn whole(ranks: usize, microbatches: usize) -> Self {
        Self { ranks, chunks: 1, slices: 1, microbatches }
    }
    /// Chunks of the model on all ranks.
    pub fn all_chunks(&self) -> usize {
        self.ranks * self.chunks
    }
}

/// What travels between two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Forth, to the next chunk.
    Activation,
    /// Back, to the chunk before.
    Gradient,
}

impl Payload {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Payload::Activation => "activation",
            Payload::Gradient => "gradient",
        }
    }
    /// The unit that needs what this one gave.
    pub fn next(self, of: Unit) -> Unit {
        match self {
            Payload::Activation => Unit { chunk: of.chunk + 1, ..of },
            Payload::Gradient => Unit { chunk: of.chunk - 1, ..of },
        }
    }
}

impl Act {
    /// How names of cells in a trace begin.
    pub fn name(self) -> &'static str {
        match self {
            Act::F => "forward",
            Act::B => "backward",
            Act::I => "input half",
            Act::W => "weight half",
        }
    }
    /// What is given on to another chunk.
    pub fn gives(self) -> Payload {
        if self == Act::F { Payload::Activation } else { Payload::Gradient }
    }
}

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Goes through a chunk.
    Run {
        /// Which, and how.
        cell: Cell,
        /// Whether nothing more is added to this chunk's gradients in this step.
        last: bool,
        /// Whether this rank is done with the microbatch.
        done: bool,
    },
    /// Waits for what a unit needs, from this rank.
    Receive(Payload, Unit, usize),
    /// Starts to send what a unit needs, to this rank.
    Send(Payload, Unit, usize),
    /// Waits for the sums of this rank's gradients: nothing more is added to them in this step.
    Complete,
    /// Changes the weights of this rank's chunks.
    Update,
}

/// What this rank does in a step of training. A hand-over between two chunks of one rank sends nothing.
pub fn lowered(schedule: &dyn Schedule, plan: &Plan, rank: usize) -> Vec<Step> {
    let cells: Vec<Cell> = schedule.row(rank, plan).collect();
    let mut steps = carried(schedule, plan, rank, &cells);
    steps.extend([Step::Complete, Step::Update]);
    steps
}

/// What this rank does where nothing is learnt: the forwards alone.
pub fn forwards(schedule: &dyn Schedule, plan: &Plan, rank: usize) -> Vec<Step> {
    let cells: Vec<Cell> = schedule.row(rank, plan).filter(|cell| cell.act == Act::F).collect();
    carried(schedule, plan, rank, &cells)
}

/// The cells with what must come before them and go after them.
fn carried(schedule: &dyn Schedule, plan: &Plan, rank: usize, cells: &[Cell]) -> Vec<Step> {
    let neighbour = |chunk: Option<usize>| {
        let chunk = chunk.filter(|chunk| *chunk < plan.all_chunks())?;
        Some(schedule.rank_of(chunk, plan)).filter(|other| *other != rank)
    };
    let mut ended = vec![false; plan.all_chunks()];
    let mut there = vec![false; plan.microbatches]; // among the cells that come later
    let mut steps = Vec::new(); // the last one first
    for &cell in cells.iter().rev() {
        let chunk = cell.of.chunk as usize;
        let (before, after) = (neighbour(chunk.checked_sub(1)), neighbour(Some(chunk + 1)));
        let (from, to) = match cell.act {
            Act::F => (before, after),
            Act::B | Act::I => (after, before),
            Act::W => (None, None),
        };
        let last = matches!(cell.act, Act::B | Act::W) && !replace(&mut ended[chunk], true);
        let done = !replace(&mut there[cell.of.microbatch as usize], true);
        let what = cell.act.gives();
        steps.extend(to.map(|to| Step::Send(what, what.next(cell.of), to)));
        steps.push(Step::Run { cell, last, done });
        steps.extend(from.map(|from| Step::Receive(what, cell.of, from)));
    }
    steps.reverse();
    steps
}

impl fmt::Display for Cell {
    /// As `torch.distributed.pipelining` writes it: chunk, letter, microbatch; `.1` is the second slice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unit { chunk, slice, microbatch } = self.of;
        write!(f, "{chunk}{:?}{microbatch}", self.act)?;
        if slice > 0 { write!(f, ".{slice}") } else { Ok(()) }
    }
}

impl fmt::Display for Plan {
    /// "2 ranks, 1 microbatch".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", counted(self.ranks, "rank"), counted(self.microbatches, "microbatch"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, what, of, rank) = match self {
            Step::Run { cell, .. } => return write!(f, "run {cell}"),
            Step::Complete => return f.write_str("complete"),
            Step::Update => return f.write_str("update"),
            Step::Receive(what, of, from) => ("receive", what, of, format!("from rank {from}")),
            Step::Send(what, of, to) => ("send", what, of, format!("to rank {to}")),
        };
        write!(f, "{verb} {} of {} {rank} for chunk {}", what.name(), of.microbatch, of.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::gpipe::GPipe;

    const PLAN: Plan = Plan { ranks: 3, chunks: 1, slices: 1, microbatches: 2 };

    fn written(steps: &[Step]) -> String {
        let word = |step: &Step| match step {
            Step::Run { cell, last, done } => {
                format!("{cell}{}{}", if *last { " last" } else { "" }, if *done { " done" } else { "" })
            }
            Step::Receive(payload, of, from) => format!("{} {} from {from}", payload.name(), of.microbatch),
            Step::Send(payload, of, to) => {
                format!("{} {} for {} to {to}", payload.name(), of.microbatch, of.chunk)
            }
            end => end.to_string(),
        };
        steps.iter().map(word).collect::<Vec<_>>().join("; ")
    }

    /// The table of the middle stage, lowered by hand. Kills: a send to oneself or into nowhere, a gradient sent forth, a
    /// chunk that is complete too early, a microbatch that is put away while it is needed.
    #[test]
    fn a_stage_receives_what_it_needs_and_sends_what_it_gives() {
        let middle = "activation 0 from 0; 1F0; activation 0 for 2 to 2; activation 1 from 0; 1F1; activation 1 for 2 to 2; \
                      gradient 0 from 2; 1B0 done; gradient 0 for 0 to 0; gradient 1 from 2; 1B1 last done; gradient 1 for 0 to 0; \
                      complete; update";
        assert_eq!(written(&lowered(&GPipe, &PLAN, 1)), middle);
        let last = "activation 0 from 1; 2F0; activation 1 from 1; 2F1; 2B0 done; gradient 0 for 1 to 1; \
                    2B1 last done; gradient 1 for 1 to 1; complete; update";
        assert_eq!(written(&lowered(&GPipe, &PLAN, 2)), last);
        let forwards = written(&forwards(&GPipe, &PLAN, 0));
        assert_eq!(forwards, "0F0 done; activation 0 for 1 to 1; 0F1 done; activation 1 for 1 to 1");
    }

    /// Two chunks on one rank, and halves of a backward. Kills: sums that nobody waits for; a hand-over on one rank that is
    /// sent, a weight half that waits for a message, gradients that are complete with the input half.
    #[test]
    fn what_stays_on_a_rank_is_not_sent() {
        struct Folded;
        impl Schedule for Folded {
            fn about(&self) -> &'static layers::About {
                GPipe.about()
            }
            fn rank_of(&self, _: usize, _: &Plan) -> usize {
                0
            }
            fn row(&self, _: usize, _: &Plan) -> Box<dyn Iterator<Item = Cell>> {
                let cell = |(act, chunk)| Cell { act, of: Unit::new(chunk, 0) };
                let cells = [(Act::F, 0), (Act::F, 1), (Act::I, 1), (Act::I, 0), (Act::W, 1), (Act::W, 0)];
                Box::new(cells.map(cell).into_iter())
            }
        }
        let plan = Plan { ranks: 1, chunks: 2, slices: 1, microbatches: 1 };
        assert_eq!(
            written(&lowered(&Folded, &plan, 0)),
            "0F0; 1F0; 1I0; 0I0; 1W0 last; 0W0 last done; complete; update"
        );
    }
}
