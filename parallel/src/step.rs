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

#[cfg(test)]
pub(crate) use check::meet::meet;
pub use check::{Needs, check};
pub use moves::{Move, moves};

use crate::Schedule;
use layers::counted;
use simulate::{Times, simulate};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// How.
    pub act: Act,
    /// What.
    pub of: Unit,
}

impl Cell {
    /// What it gives to another chunk, and the unit that needs that.
    pub fn gives(self, plan: &Plan) -> Option<(Payload, Unit)> {
        let Self { act, of } = self;
        let what = act.gives();
        let next = if what == Payload::Activation { Some(of.chunk + 1) } else { of.chunk.checked_sub(1) };
        let chunk = next.filter(|next| act != Act::W && (*next as usize) < plan.all_chunks())?;
        Some((what, Unit { chunk, ..of }))
    }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// What passes from chunk to chunk: what such a cell needs of one neighbour, and gives to the other.
    pub fn gives(self) -> Payload {
        if self == Act::F { Payload::Activation } else { Payload::Gradient }
    }
    /// Whether it adds to the gradients of weights.
    fn adds(self) -> bool {
        matches!(self, Act::B | Act::W)
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

impl Step {
    /// Whether it receives what this cell needs.
    fn is_for(&self, Cell { act, of }: Cell) -> bool {
        matches!(self, Step::Receive(what, unit, _) if (*what, *unit) == (act.gives(), of))
    }
}

/// What each rank does in a step of training, or where nothing `learns`, in its forwards alone. A hand-over between two chunks
/// of one rank sends nothing.
///
/// A cell takes a tick: the next one of its rank in which all that the cell needs is there. What the cells of a tick give is sent
/// behind them, and their receivers receive it in that tick, too: behind their own cell of it, or the last one before. So
/// messages of earlier ticks wait for nothing that comes later, and no rank needs a buffer for what it sends.
///
/// # Errors
/// If ranks wait for each other, or a rank for what it does later.
pub fn lowered(schedule: &dyn Schedule, plan: &Plan, learns: bool) -> Result<Vec<Vec<Step>>, String> {
    let mut cells = Vec::new();
    let mut see = |rank, cell: Cell, tick: f64, _| {
        if learns || cell.act == Act::F {
            cells.push((tick as usize, rank, cell));
        }
    };
    simulate(schedule, plan, &Times::ticks(plan), &mut see)?;
    cells.sort_unstable_by_key(|(tick, rank, _)| (*tick, *rank));
    let mut rows = vec![Vec::new(); plan.ranks];
    for tick in cells.chunk_by(|one, other| one.0 == other.0) {
        let mut messages = Vec::new();
        for &(_, rank, cell) in tick {
            rows[rank].push(Step::Run { cell, last: false, done: false });
            let given = cell
                .gives(plan)
                .map(|(what, of)| (rank, what, of, schedule.rank_of(of.chunk as usize, plan)));
            messages.extend(given.filter(|(from, .., to)| from != to));
        }
        let sends = messages.iter().map(|&(from, what, of, to)| (from, Step::Send(what, of, to)));
        let receives = messages.iter().map(|&(from, what, of, to)| (to, Step::Receive(what, of, from)));
        for (rank, step) in sends.chain(receives) {
            rows[rank].push(step);
        }
    }
    for row in &mut rows {
        mark(row, plan);
        row.extend([Step::Complete, Step::Update].iter().filter(|_| learns));
    }
    Ok(rows)
}

/// Marks the cells of a row after which nothing is added to the gradients of their chunk, or a microbatch is done.
fn mark(row: &mut [Step], plan: &Plan) {
    let (mut ended, mut there) = (vec![false; plan.all_chunks()], vec![false; plan.microbatches]);
    for step in row.iter_mut().rev() {
        if let Step::Run { cell: Cell { act, of }, last, done } = step {
            *last = act.adds() && !replace(&mut ended[of.chunk as usize], true);
            *done = !replace(&mut there[of.microbatch as usize], true);
        }
    }
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
    use crate::pipeline::{gpipe::GPipe, zb_h2::ZbH2};

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
        let rows = lowered(&GPipe, &PLAN, true).unwrap();
        assert_eq!(written(&rows[1]), middle);
        let last = "activation 0 from 1; 2F0; activation 1 from 1; 2F1; 2B0 done; gradient 0 for 1 to 1; \
                    2B1 last done; gradient 1 for 1 to 1; complete; update";
        assert_eq!(written(&rows[2]), last);
        let forwards = written(&lowered(&GPipe, &PLAN, false).unwrap()[0]);
        assert_eq!(forwards, "0F0 done; activation 0 for 1 to 1; 0F1 done; activation 1 for 1 to 1");
    }

    /// ZB-H2 on two ranks: the first is three forwards ahead, and its fourth comes while the other still has three cells before the
    /// one that needs it. Kills: a receive that stands where its message is needed and not where it is sent, behind which two
    /// sends would wait for each other; one that stands before its receiver's cell of that tick.
    #[test]
    fn a_message_is_received_in_the_tick_in_which_it_is_sent() {
        let rows = lowered(&ZbH2, &Plan::whole(2, 4), true).unwrap();
        let last = "activation 0 from 0; 1F0; activation 1 from 0; 1I0; gradient 0 for 0 to 0; activation 2 from 0; 1F1; 1I1; \
                    gradient 1 for 0 to 0; 1F2; activation 3 from 0; 1I2; gradient 2 for 0 to 0; 1W0 done; 1F3; 1I3; \
                    gradient 3 for 0 to 0; 1W1 done; 1W2 done; 1W3 last done; complete; update";
        assert_eq!(written(&rows[1]), last);
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
            written(&lowered(&Folded, &plan, true).unwrap()[0]),
            "0F0; 1F0; 1I0; 0I0; 1W0 last; 0W0 last done; complete; update"
        );
    }
}
