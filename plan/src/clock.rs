//! Clock of a shape-only rank on a machine: adds up the time of its kernels and calls as they come.
//!
//! ```text
//! kernel            now += its time                         slower while a started call is under way
//! call              now = max(now, link free) + its time
//! started call      ends at max(when it started, link free) + its time; waiting moves now to its end
//! move of state     the same, over the rank's link to its host or file
//! ```
//! Messages between pipeline stages are not waited for here: the [simulation](crate::step) of all stages
//! does.
use crate::machine::{KernelRates, Machine};
use comm::{Axes, Axis, CallClock, GhostCall, Op};
use ops::TokenShards;
use parallel::session::RankClock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tensor::{KernelKind, KernelWork, StoreKind};

tensor::listed! {
    /// Use of a rank's time.
    Part {
        /// Matrix products.
        Products = "products",
        /// Attention.
        Attention = "attention",
        /// All other kernels.
        Kernels = "other kernels",
        /// Waiting for tensor ranks.
        Tp = "tp",
        /// Waiting for the ranks that share a sequence.
        Cp = "cp",
        /// Waiting for the ranks that share experts.
        Ep = "ep",
        /// Waiting for data ranks: sums of gradients, gathered weights.
        Dp = "dp",
        /// Waiting for other stages, apart from the bubble.
        Pp = "pp",
        /// Waiting for offloaded state.
        Offload = "offload",
    }
}

impl Part {
    /// The use of a kernel's time.
    #[must_use]
    pub fn of(kind: KernelKind) -> Self {
        match kind {
            KernelKind::Product => Part::Products,
            KernelKind::Attention => Part::Attention,
            _ => Part::Kernels,
        }
    }
}

/// Number of uses.
pub const PARTS: usize = Part::ALL.len();

/// Time that a clock has counted since it was last read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lap {
    /// Seconds.
    pub seconds: f64,
    /// Seconds by use.
    pub parts: [f64; PARTS],
    /// Floating point operations.
    pub flops: u64,
    /// Bytes that the rank sent.
    pub sent: usize,
    /// A message to another stage: seconds that it occupies its link, and its latency.
    pub message: Option<[f64; 2]>,
    /// Calls that were started and not waited for yet: seconds after the lap's start, and seconds that each
    /// takes.
    pub late: Vec<(f64, f64)>,
}

/// Clock of one rank.
pub struct StepClock {
    machine: Arc<Machine>,
    slower: f64,
    state: Mutex<ClockState>,
}

#[derive(Default)]
struct ClockState {
    now: f64,
    began: f64, // of the lap
    lap: Lap,
    free: Vec<f64>,                     // time from which each level's link is free
    started: Vec<Option<UnderWayCall>>, // by number, until they are waited for
    moves: Vec<f64>,                    // their ends, by number
    rates: HashMap<(&'static str, &'static str, usize), KernelRates>, // by name, dtype and features
    last: Option<(KernelWork, f64)>,    // the last kernel and its seconds: those of experts are alike
}

#[derive(Clone, Copy)]
struct UnderWayCall {
    level: usize,
    at: f64,
    takes: f64,
    end: f64,
    part: Part,
}

impl StepClock {
    /// Creates the clock of one of `ranks` ranks.
    pub fn new(machine: &Arc<Machine>, ranks: usize) -> Arc<Self> {
        let state = ClockState { free: vec![0.0; machine.levels.len()], ..ClockState::default() };
        Arc::new(Self { machine: machine.clone(), slower: machine.slower(ranks), state: state.into() })
    }
    /// The clock of both the kernels and the calls of a rank.
    pub fn of_rank(self: &Arc<Self>) -> RankClock {
        (self.clone(), self.clone())
    }
    /// Returns the lap since the last call.
    pub fn lap(&self) -> Lap {
        self.change(|state| {
            let began = std::mem::replace(&mut state.began, state.now);
            let is_new = |of: &&UnderWayCall| of.at >= began;
            let late = state.started.iter().flatten().filter(is_new).map(|of| (of.at - began, of.takes));
            let late = late.collect();
            Lap { seconds: state.now - began, late, ..std::mem::take(&mut state.lap) }
        })
    }
    /// Seconds since the clock was made.
    pub fn now(&self) -> f64 {
        self.change(|state| state.now)
    }
    /// Level of links, and begin and end on its link, of a call that was started and not waited for; `None`
    /// of a message to another stage.
    pub fn under_way(&self, number: usize) -> Option<(usize, [f64; 2])> {
        self.change(|state| state.started[number].map(|of| (of.level, [of.end - of.takes, of.end])))
    }
    fn change<T>(&self, work: impl FnOnce(&mut ClockState) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClockState {
    /// Moves the clock to a later time, for this use.
    fn until(&mut self, time: f64, part: Part) {
        if time > self.now {
            self.lap.parts[part as usize] += time - self.now;
            self.now = time;
        }
    }
    /// Occupies a level's link for a call that begins now. Returns its end.
    fn over(&mut self, level: usize, takes: f64) -> f64 {
        self.free[level] = self.free[level].max(self.now) + takes;
        self.free[level]
    }
}

impl tensor::Clock for StepClock {
    fn kernel(&self, work: &KernelWork) {
        self.change(|state| {
            state.lap.flops += work.flops;
            let known = state.last.filter(|(last, _)| last == work).map(|(_, seconds)| seconds);
            let alone = known.unwrap_or_else(|| {
                let key = (work.name, work.dtype, work.features);
                let rates = state.rates.entry(key).or_insert_with(|| self.machine.rates(work));
                self.machine.kernel(rates, work) * self.slower
            });
            state.last = Some((*work, alone));
            let speed = self.machine.overlap.value;
            let busy = state.free.iter().fold(0.0, |a: f64, b| a.max(*b));
            let beside = (busy - state.now).clamp(0.0, alone / speed); // while calls are under way
            state.until(state.now + beside + (alone - beside * speed).max(0.0), Part::of(work.kind));
        });
    }
    fn start_move(&self, kind: StoreKind, bytes: usize) -> usize {
        let takes = self.machine.moves(kind, bytes) * self.slower;
        self.change(|state| {
            let free = state.moves.last().copied().unwrap_or_default();
            state.moves.push(free.max(state.now) + takes);
            state.moves.len() - 1
        })
    }
    fn finish_move(&self, number: usize) {
        self.change(|state| state.until(state.moves[number], Part::Offload));
    }
}

/// The use of the time of calls over these axes.
fn part_of(axes: Axes) -> Part {
    let has = |axis| axes.contains(axis);
    match () {
        () if has(TokenShards::SEQUENCES) || has(Axis::Edp) => Part::Dp,
        () if has(Axis::Pp) => Part::Pp,
        () if has(TokenShards::CONTEXT) => Part::Cp,
        () if has(Axis::Ep) || has(Axis::Etp) => Part::Ep,
        () => Part::Tp,
    }
}

/// True for a message between pipeline stages.
fn is_staged(call: &GhostCall) -> bool {
    call.axes == Axis::Pp && call.is_message()
}

impl CallClock for StepClock {
    fn call(&self, call: &GhostCall) {
        self.finish(self.start(call));
    }
    fn start(&self, call: &GhostCall) -> usize {
        let (level, takes) = self.machine.call(call);
        let takes = takes * self.slower; // cores that ranks share move the bytes, too
        self.change(|state| {
            state.lap.sent += if call.op == Op::Receive { 0 } else { call.bytes };
            let started = if is_staged(call) {
                if call.op == Op::Send {
                    let latency = self.machine.levels[level].latency.value;
                    let [moving, waiting] = state.lap.message.unwrap_or_default();
                    state.lap.message = Some([moving + takes - latency, latency.max(waiting)]);
                }
                None
            } else {
                // what a rank receives comes beside what it sends
                let end = if call.op == Op::Receive { state.now + takes } else { state.over(level, takes) };
                Some(UnderWayCall { level, at: state.now, takes, end, part: part_of(call.axes) })
            };
            state.started.push(started);
            state.started.len() - 1
        })
    }
    fn finish(&self, number: usize) {
        self.change(|state| {
            if let Some(UnderWayCall { end, part, .. }) = state.started[number].take() {
                state.until(end, part);
            }
        });
    }
}

/// Seconds in a unit that a reader can grasp.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 0.1 => format!("{s:.2} s"),
        s if s >= 1e-4 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}
