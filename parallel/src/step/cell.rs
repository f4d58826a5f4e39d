//! Cells of a schedule and actions of a rank, as data.
use layers::counted;
use std::fmt;
use std::ops::Range;

/// A task: a chunk of the model, for a slice of the tokens of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    /// Index of the chunk, counted from the embedding.
    pub chunk: u16,
    /// Index of the slice of each sequence.
    pub slice: u16,
    /// Index of the microbatch.
    pub microbatch: u32,
}

impl Task {
    /// The task of a chunk for whole sequences of a microbatch.
    pub fn new(chunk: usize, microbatch: u32) -> Self {
        Self { chunk: chunk as u16, slice: 0, microbatch }
    }
}

/// Kind of a cell: a pass through a chunk, or other work on a task. The set is open: a schedule may have
/// kinds of its own, which a strategy beside it [runs](layers::Hooks::run).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PassKind {
    /// Number in [`ALL`](Self::ALL) of the kind whose time its cells take: of itself, if it is there.
    pub like: u8,
    /// Letter in tables.
    pub letter: char,
    /// Start of a cell's name in a trace.
    pub name: &'static str,
    /// Parts of a task that it does, of forward, input half, weight half and update: from one, to before
    /// another. Its cell stands behind the part before; one from 1 to before 1 does none, behind the forward.
    pub parts: [u8; 2],
}

/// One cell of a schedule's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Pass of the cell.
    pub act: PassKind,
    /// Task of the cell.
    pub of: Task,
}

impl Cell {
    /// Returns its output for another chunk, and the task that needs it.
    pub fn gives(self, plan: &Plan) -> Option<(Payload, Task)> {
        let Self { act, of } = self;
        let what = act.gives();
        let next = if what == Payload::Activation { Some(of.chunk + 1) } else { of.chunk.checked_sub(1) };
        let chunk = next.filter(|next| act.passes() && (*next as usize) < plan.all_chunks())?;
        Some((what, Task { chunk, ..of }))
    }
    /// Returns its name in a trace: "forward 3"; if the plan has several chunks or slices, "input half 3 of
    /// chunk 1, slice 0".
    pub fn within(self, plan: &Plan) -> impl fmt::Display {
        let act = self.act.name;
        let Task { chunk, slice, .. } = self.of;
        let microbatch = plan.in_flight(self.of);
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

/// Sizes of a schedule's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Plan {
    /// Number of ranks of the pipeline.
    pub ranks: usize,
    /// Number of chunks of the model on each rank.
    pub chunks: usize,
    /// Number of slices of each sequence.
    pub slices: usize,
    /// Number of microbatches of the step.
    pub microbatches: usize,
}

impl Plan {
    /// The plan of `ranks` ranks with one chunk each, for whole sequences.
    pub fn whole(ranks: usize, microbatches: usize) -> Self {
        Self { ranks, chunks: 1, slices: 1, microbatches }
    }
    /// Number of chunks of the model on all ranks.
    pub fn all_chunks(&self) -> usize {
        self.ranks * self.chunks
    }
    /// Number of a task's microbatch among those that can be in flight, if the plan is of these.
    pub(crate) fn in_flight(&self, of: Task) -> usize {
        of.microbatch as usize % self.microbatches
    }
}

/// Data passed between two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Passed forward, to the next chunk.
    Activation,
    /// Passed backward, to the chunk before.
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

impl PassKind {
    /// Forward.
    pub const F: Self = Self { like: 0, letter: 'F', name: "forward", parts: [0, 1] };
    /// Backward, both halves.
    pub const B: Self = Self { like: 1, letter: 'B', name: "backward", parts: [1, 3] };
    /// Backward, the input half.
    pub const I: Self = Self { like: 2, letter: 'I', name: "input half", parts: [1, 2] };
    /// Backward, the weight half.
    pub const W: Self = Self { like: 3, letter: 'W', name: "weight half", parts: [2, 3] };
    /// Update of the chunk's weights with the gradient of a microbatch; schedules without such cells update
    /// all weights once, at the end of the step.
    pub const U: Self = Self { like: 4, letter: 'U', name: "update", parts: [3, 4] };
    /// Kinds that the executor runs, by their [number](Self::number).
    pub const ALL: [Self; 5] = [Self::F, Self::B, Self::I, Self::W, Self::U];

    /// Number of the kind whose time its cells take.
    pub fn number(self) -> usize {
        self.like.into()
    }
    /// Parts of a task that it does, of the four.
    pub fn parts(self) -> Range<usize> {
        self.parts[0].into()..self.parts[1].into()
    }
    /// Returns true if it does all that another kind does, if that does anything.
    pub fn does(self, other: Self) -> bool {
        other.parts().all(|part| self.parts().contains(&part))
    }
    /// Returns true if it computes something that another chunk needs.
    pub fn passes(self) -> bool {
        self.does(Self::F) || self.does(Self::I)
    }
    /// Returns the data that such a cell needs from one neighbouring chunk, and gives to the other.
    pub fn gives(self) -> Payload {
        if self.does(Self::F) { Payload::Activation } else { Payload::Gradient }
    }
    /// Returns true if it adds to the gradients of weights.
    pub fn adds(self) -> bool {
        self.does(Self::W)
    }
}

/// Action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Runs a cell.
    Run {
        /// The cell.
        cell: Cell,
        /// True if nothing more is added to this chunk's gradients in this step.
        last: bool,
        /// True if this rank has finished the microbatch.
        done: bool,
    },
    /// Waits for the data that a task needs, from this rank.
    Receive(Payload, Task, usize),
    /// Starts sending the data that a task needs, to this rank.
    Send(Payload, Task, usize),
    /// Waits for the sums of this rank's gradients. Nothing more is added to them in this step.
    Complete,
    /// Changes the weights of this rank's chunks, at the end of a step without update cells.
    Update,
}

impl Action {
    /// Returns the same action on a microbatch this number later.
    pub(crate) fn later(self, microbatches: u32) -> Self {
        let later = |of: Task| Task { microbatch: of.microbatch + microbatches, ..of };
        match self {
            Action::Run { cell, last, done } => {
                Action::Run { cell: Cell { of: later(cell.of), ..cell }, last, done }
            }
            Action::Receive(what, of, from) => Action::Receive(what, later(of), from),
            Action::Send(what, of, to) => Action::Send(what, later(of), to),
            Action::Complete | Action::Update => self,
        }
    }
    /// Returns true if it receives the data that this cell needs.
    pub(crate) fn is_for(&self, Cell { act, of }: Cell) -> bool {
        matches!(self, Action::Receive(what, task, _) if act.passes() && (*what, *task) == (act.gives(), of))
    }
}

/// Returns the cells that must run before a cell, each with the data that it passes if it is of another
/// chunk.
pub(super) fn needed(Cell { act, of }: Cell, plan: &Plan) -> impl Iterator<Item = (Cell, Option<Payload>)> {
    let at = |act: Option<PassKind>, chunk: Option<u16>, slice: Option<u16>| {
        let of = Task { chunk: chunk?, slice: slice?, ..of };
        Some(Cell { act: act?, of }).filter(|_| plan.has(of))
    };
    let [chunk, slice] = [of.chunk, of.slice].map(Some);
    let before = act.parts().start.checked_sub(1).map(|part| [PassKind::F, PassKind::I, PassKind::B][part]);
    let forth = act.does(PassKind::F);
    let next_to = |n: u16| if forth { n.checked_sub(1) } else { n.checked_add(1) };
    let beside = act.passes().then_some(if forth { PassKind::F } else { PassKind::B });
    let needs = [
        (at(before, chunk, slice), None),
        (at(beside, next_to(of.chunk), slice), Some(act.gives())),
        (at(beside, chunk, next_to(of.slice)), None),
    ];
    needs.into_iter().filter_map(|(cell, by)| Some((cell?, by)))
}

impl fmt::Debug for PassKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.letter)
    }
}

impl fmt::Display for Cell {
    /// Written as in `torch.distributed.pipelining`: chunk, letter, microbatch; `.1` is the second slice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Task { chunk, slice, microbatch } = self.of;
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

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, what, of, rank) = match self {
            Action::Run { cell, .. } => return write!(f, "run {cell}"),
            Action::Complete => return f.write_str("complete"),
            Action::Update => return f.write_str("update"),
            Action::Receive(what, of, from) => ("receive", what, of, format!("from rank {from}")),
            Action::Send(what, of, to) => ("send", what, of, format!("to rank {to}")),
        };
        write!(f, "{verb} {} of {} {rank} for chunk {}", what.name(), of.microbatch, of.chunk)
    }
}
