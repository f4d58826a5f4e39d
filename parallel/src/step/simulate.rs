//! Simulates when each cell of a table runs, given the times of cells and messages. On links that take no
//! time, with `K` ranks, `M` microbatches and times `F`, `B` (input half) and `W` of a rank's part:
//!
//! | schedule | the step's bubble | where |
//! |---|---|---|
//! | naive | M (K − 1)(F + B + W) | always |
//! | `GPipe`, 1F1B | (K − 1)(F + B + W), of the makespan (K − 1)/(M + K − 1) | always |
//! | interleaved, looped breadth-first | (K − 1)(F + B + W)/V, of `V` chunks | `K` divides `M`; K ≤ M |
//! | `Seq1F1B` | (K − 1)(F + B + W)/S, of `S` slices | always |
//! | ZB-H1 | (K − 1)(F + B − W) | W ≤ F and K ≤ M |
//! | ZB-H2 | (K − 1)(F + B − 2W), or 0 if that is less | W ≤ F and 2K − 1 ≤ M |
//! | ZB-V | 0 | F = B = W and 2K − 1 ≤ M |
//!
//! Source: Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241 (the bubble, as
//! `cost − M (F + B + W)` with the cost of the stage that takes longest).
use super::cell::{Action, Cell, PassKind, Payload, Plan, needed};
use super::schedule::Schedule;
use std::iter::{Peekable, successors};

/// Times of each cell and of each message of a step.
pub trait StepTimes {
    /// Time of the `n`th cell of a rank.
    fn cell(&self, rank: usize, n: usize, cell: Cell) -> f64;
    /// Time that a message occupies the link from one rank to another, and time that it is under way after
    /// that; `None` if messages take no time.
    fn message(&self, _from: usize, _to: usize, _what: Payload, _plan: &Plan) -> Option<[f64; 2]> {
        None
    }
    /// Number by which all times are multiplied, so that whole numbers stay whole.
    fn parts(&self, _: &Plan) -> f64 {
        1.0
    }
    /// Amount that a cell adds to the saved activations, in units of what its forward saved.
    fn saves(&self, _: PassKind) -> f64 {
        0.0
    }
}

/// Times of cells and messages that are the same on all ranks, in any one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellTimes {
    /// Times of a rank's whole part of the model for a whole microbatch, by [`PassKind::number`]. A cell
    /// takes a fraction: one divided by chunks times slices.
    pub acts: [f64; PassKind::ALL.len()],
    /// Time that a message is under way after the link is free for the next one.
    pub latency: f64,
    /// Time that a message of a whole microbatch occupies a link.
    pub message: f64,
    /// Fraction of what a forward saved that the input half frees; the weight half frees the rest.
    pub freed: f64,
}

impl CellTimes {
    /// Creates the times of a forward, the input half of its backward and the weight half; the whole backward
    /// takes the sum of both halves. Updates and messages take no time, and the input half frees nothing.
    pub fn new(f: f64, i: f64, w: f64) -> Self {
        Self { acts: [f, i + w, i, w, 0.0], latency: 0.0, message: 0.0, freed: 0.0 }
    }
    /// Every cell takes one tick, as tables are drawn.
    pub fn ticks(plan: &Plan) -> Self {
        let tick = (plan.chunks * plan.slices) as f64;
        Self { acts: [tick; 5], ..Self::new(tick, tick, tick) }
    }
    /// Returns the mean of the measured times of each act's cells; 0 for an act without cells.
    pub fn measured(plan: &Plan, took: impl IntoIterator<Item = (PassKind, f64)>) -> Self {
        let mut sums = [(0.0, 0.0); 5];
        for (act, took) in took {
            let (sum, cells) = &mut sums[act.number()];
            (*sum, *cells) = (*sum + took, *cells + 1.0);
        }
        let parts = (plan.chunks * plan.slices) as f64;
        Self { acts: sums.map(|(sum, cells)| sum / f64::max(cells, 1.0) * parts), ..Self::new(0.0, 0.0, 0.0) }
    }
}

impl StepTimes for CellTimes {
    fn cell(&self, _: usize, _: usize, cell: Cell) -> f64 {
        self.acts[cell.act.number()]
    }
    fn message(&self, _: usize, _: usize, _: Payload, plan: &Plan) -> Option<[f64; 2]> {
        let parts = plan.chunks as f64; // a message is one slice, of the whole width
        let times = [self.message * parts, self.latency * parts * plan.slices as f64];
        (times != [0.0; 2]).then_some(times)
    }
    fn parts(&self, plan: &Plan) -> f64 {
        (plan.chunks * plan.slices) as f64
    }
    fn saves(&self, act: PassKind) -> f64 {
        [1.0, -self.freed, self.freed - 1.0, 0.0][act.parts()].iter().sum()
    }
}

/// Result of a simulated step.
///
/// A rank's bubble is the time that it waits between its first and its last cell; the step's bubble is that
/// of the rank that waits longest. Ranks that start later may end later: the zero-bubble papers let the next
/// step begin rank by rank. Where rank 0 starts first and ends last, as in `GPipe` and 1F1B, the bubble is
/// the makespan without rank 0's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Time from the start, when the first chunk's forward begins, to the last cell's end.
    pub makespan: f64,
    /// Time that each rank waits between its first and its last cell.
    pub bubbles: Vec<f64>,
    /// The longest of them.
    pub bubble_time: f64,
    /// The longest bubble, as a fraction of the time between that rank's first and last cell.
    pub bubble_fraction: f64,
    /// Peak of what each rank has saved; 1 is what its whole part of the model saves for a microbatch.
    pub peak_saved: Vec<f64>,
}

/// Simulates a complete table.
///
/// A cell starts when its rank has finished the cell before it in its row, and what the cell needs is there:
/// the forward of the chunk before, or the backward (or its input half) of the chunk after, sent over a link
/// if it ran on another rank. A link carries one message after the other.
///
/// Calls `see` with each cell's rank, start and end: the cells of a rank in order, those of different ranks
/// in any.
///
/// # Errors
/// If ranks wait for ever: a cell that is before what it needs in its own row, or the shortest cycle of ranks
/// that wait for each other, each with what it waits to receive and for which cell.
pub fn simulate(
    schedule: &dyn Schedule,
    plan: &Plan,
    times: &dyn StepTimes,
    see: &mut dyn FnMut(usize, Cell, f64, f64),
) -> Result<Simulated, String> {
    let mut simulation = Simulation::new(schedule, plan, times);
    while let Some(rank) = simulation.can_go.pop() {
        simulation.go(rank, times, see);
    }
    simulation.stuck().map_or_else(|| Ok(simulation.simulated()), Err)
}

/// Change of a rank's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryChange {
    /// Bytes that stay held; below 0, bytes that are freed.
    pub adds: isize,
    /// Peak bytes needed meanwhile, beyond those held before.
    pub needs: usize,
}

/// Returns the peak bytes over these changes, one after the other.
pub fn peak(row: impl IntoIterator<Item = MemoryChange>) -> usize {
    let most = row.into_iter().scan(0, |held, MemoryChange { adds, needs }| {
        let most = *held + needs as isize;
        *held += adds;
        Some(most)
    });
    most.fold(0, isize::max) as usize
}

/// Progress of a rank through its row.
struct RankProgress {
    row: Peekable<Box<dyn Iterator<Item = Cell>>>,
    waits: bool,
    ran: usize, // its cells so far
    begun: Option<f64>,
    free: f64,   // the end of its last cell
    waited: f64, // since its first cell
    saved: f64,
    peak: f64,
}

/// Progress of all ranks. Times are multiplied by [`StepTimes::parts`].
struct Simulation {
    plan: Plan,
    rank_of: Vec<usize>,
    ranks: Vec<RankProgress>,
    can_go: Vec<usize>,
    /// Times at which a chunk's output arrives where it is needed, by payload, chunk, slice and microbatch;
    /// NaN before.
    arrivals: Vec<f64>,
    /// Times from which the link from one rank to another is free; none before the first message.
    links: Vec<f64>,
    parts: f64,
}

impl Simulation {
    fn new(schedule: &dyn Schedule, plan: &Plan, times: &dyn StepTimes) -> Self {
        let row = |rank| schedule.row(rank, plan).peekable();
        let rank = |rank| RankProgress {
            row: row(rank),
            waits: false,
            ran: 0,
            begun: None,
            free: 0.0,
            waited: 0.0,
            saved: 0.0,
            peak: 0.0,
        };
        Self {
            plan: *plan,
            rank_of: (0..plan.all_chunks()).map(|chunk| schedule.rank_of(chunk, plan)).collect(),
            ranks: (0..plan.ranks).map(rank).collect(),
            can_go: (0..plan.ranks).rev().collect(),
            arrivals: vec![f64::NAN; 2 * plan.all_chunks() * plan.slices * plan.microbatches],
            links: Vec::new(),
            parts: times.parts(plan),
        }
    }
    /// Index of the arrival of a cell's output.
    fn slot(&self, cell: Cell) -> usize {
        self.plan.number(cell.of) + cell.act.gives() as usize * self.arrivals.len() / 2
    }
    /// Returns the time from which a cell can run, if it is known. What the cell needs of its own chunk is in
    /// its row, and so before it.
    fn ready(&self, cell: Cell) -> Option<f64> {
        needed(cell, &self.plan).try_fold(0.0, |ready: f64, (before, by)| {
            let arrival = Some(self.arrivals[self.slot(before)]).filter(|at| !at.is_nan())?;
            Some(if by.is_some() { ready.max(arrival) } else { ready })
        })
    }
    /// Runs a rank until it must wait.
    fn go(&mut self, rank: usize, times: &dyn StepTimes, see: &mut dyn FnMut(usize, Cell, f64, f64)) {
        let parts = self.parts;
        while let Some(&cell) = self.ranks[rank].row.peek() {
            let ready = self.ready(cell);
            let state = &mut self.ranks[rank];
            state.waits = ready.is_none();
            let Some(ready) = ready else { return };
            state.row.next();
            let start = state.free.max(ready);
            state.waited += if state.begun.is_some() { start - state.free } else { 0.0 };
            state.begun.get_or_insert(start);
            state.free = start + times.cell(rank, state.ran, cell);
            state.ran += 1;
            state.saved += times.saves(cell.act);
            state.peak = state.peak.max(state.saved);
            let end = state.free;
            see(rank, cell, start / parts, end / parts);
            if cell.act.passes() {
                self.give(rank, cell, end, times);
            }
        }
    }
    /// Returns why some ranks cannot continue, if there are any.
    fn stuck(&mut self) -> Option<String> {
        let next: Vec<_> = self.ranks.iter_mut().map(|at| at.row.peek().copied()).collect();
        // A rank's next cell, the cell that it lacks, and the rank that has that.
        let lacks = |rank: usize| {
            let cell = next[rank]?;
            let lacking = |(before, _): &(Cell, _)| self.arrivals[self.slot(*before)].is_nan();
            let (before, by) = needed(cell, &self.plan).find(lacking)?;
            Some((cell, before, by, self.rank_of[before.of.chunk as usize]))
        };
        let early = |rank| {
            let (cell, before, _, from) = lacks(rank)?;
            (from == rank).then(|| format!("rank {rank} has {cell} before {before}"))
        };
        let all = 0..next.len();
        let cycle = |start: usize| {
            let next = |&rank: &usize| lacks(rank).map(|(.., from)| from).filter(|from| *from != start);
            let way: Vec<_> = successors(Some(start), next).take(all.len() + 1).collect();
            way.last().and_then(|last| lacks(*last)).filter(|(.., from)| *from == start).map(|_| way)
        };
        let waits = |&rank: &usize| {
            let (cell, _, what, from) = lacks(rank)?;
            Some(format!("rank {rank} waits to {}, to run {cell}", Action::Receive(what?, cell.of, from)))
        };
        all.clone()
            .find_map(early)
            .or_else(|| {
                let shortest = all.clone().filter_map(cycle).min_by_key(Vec::len)?;
                Some(shortest.iter().filter_map(waits).collect::<Vec<_>>().join(", and "))
            })
            .or_else(|| {
                let (rank, cell) = next.iter().enumerate().find_map(|(rank, cell)| Some((rank, (*cell)?)))?;
                Some(format!("rank {rank} waits for ever to run {cell}"))
            })
    }
    /// Passes on a cell's output at its end.
    fn give(&mut self, rank: usize, cell: Cell, end: f64, times: &dyn StepTimes) {
        let receiver = cell.gives(&self.plan).map_or(rank, |(_, of)| self.rank_of[of.chunk as usize]);
        let slot = self.slot(cell);
        self.arrivals[slot] = end;
        if receiver == rank {
            return;
        }
        if let Some([occupies, under_way]) = times.message(rank, receiver, cell.act.gives(), &self.plan) {
            self.links.resize(self.plan.ranks * self.plan.ranks, 0.0);
            let free = &mut self.links[rank * self.plan.ranks + receiver];
            *free = free.max(end) + occupies;
            self.arrivals[slot] = *free + under_way;
        }
        if std::mem::take(&mut self.ranks[receiver].waits) {
            self.can_go.push(receiver);
        }
    }
    fn simulated(&self) -> Simulated {
        let parts = self.parts;
        let longest = self.ranks.iter().max_by(|a, b| a.waited.total_cmp(&b.waited));
        let span = |at: &RankProgress| at.free - at.begun.unwrap_or(at.free);
        Simulated {
            makespan: self.ranks.iter().map(|at| at.free).fold(0.0, f64::max) / parts,
            bubbles: self.ranks.iter().map(|at| at.waited / parts).collect(),
            bubble_time: longest.map_or(0.0, |at| at.waited / parts),
            bubble_fraction: longest.filter(|at| at.waited > 0.0).map_or(0.0, |at| at.waited / span(at)),
            peak_saved: self.ranks.iter().map(|at| at.peak / parts).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
