//! Cells of a schedule and actions of a rank, as data.
use layers::counted;
use std::fmt;

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

/// Pass through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PassKind {
    /// Forward.
    F,
    /// Backward, both halves.
    B,
    /// Backward, the input half.
    I,
    /// Backward, the weight half.
    W,
    /// Update of the chunk's weights with the gradient of a microbatch; schedules without such cells update
    /// all weights once, at the end of the step.
    U,
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
        let act = self.act.name();
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
    /// All of them, in the order of `PassKind as usize`.
    pub const ALL: [Self; 5] = [Self::F, Self::B, Self::I, Self::W, Self::U];

    /// Start of a cell's name in a trace.
    pub fn name(self) -> &'static str {
        match self {
            PassKind::F => "forward",
            PassKind::B => "backward",
            PassKind::I => "input half",
            PassKind::W => "weight half",
            PassKind::U => "update",
        }
    }
    /// Returns true if it computes something that another chunk needs.
    pub fn passes(self) -> bool {
        !matches!(self, PassKind::W | PassKind::U)
    }
    /// Returns the data that such a cell needs from one neighbouring chunk, and gives to the other.
    pub fn gives(self) -> Payload {
        if self == PassKind::F { Payload::Activation } else { Payload::Gradient }
    }
    /// Returns true if it adds to the gradients of weights.
    pub fn adds(self) -> bool {
        matches!(self, PassKind::B | PassKind::W)
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
    let at = |act, chunk: Option<u16>, slice: Option<u16>| {
        let of = Task { chunk: chunk?, slice: slice?, ..of };
        plan.has(of).then_some(Cell { act, of })
    };
    let [chunk, slice] = [of.chunk, of.slice].map(Some);
    let needs = match act {
        PassKind::F => [
            (at(PassKind::F, of.chunk.checked_sub(1), slice), Some(Payload::Activation)),
            (at(PassKind::F, chunk, of.slice.checked_sub(1)), None),
            (None, None),
        ],
        PassKind::B | PassKind::I => [
            (at(PassKind::F, chunk, slice), None),
            (at(PassKind::B, of.chunk.checked_add(1), slice), Some(Payload::Gradient)),
            (at(PassKind::B, chunk, of.slice.checked_add(1)), None),
        ],
        PassKind::W => [(at(PassKind::I, chunk, slice), None), (None, None), (None, None)],
        PassKind::U => [(at(PassKind::B, chunk, slice), None), (None, None), (None, None)],
    };
    needs.into_iter().filter_map(|(cell, by)| Some((cell?, by)))
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
