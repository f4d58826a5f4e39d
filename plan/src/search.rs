//! The search for the best layout: every layout of the [space](crate::space) is bounded, and those with the
//! lowest bounds are weighed first, until no bound is below the last of the best ten.
use crate::block::{CostLine, has_halves, staged};
use crate::bound::StageWork;
use crate::candidate::{Candidate, Division};
use crate::cores::each;
use crate::hold::{StateBytes, StateTimes};
use crate::kept::KeptPrices;
use crate::machine::Machine;
use crate::space::{block_key, divisions, few_data_ranks, head_key, microbatches, powers, state_key};
use crate::step::TrainingJob;
use crate::watch::{SearchEvent, SearchWatch, measured};
use crate::weighed::{Goal, SearchResult, Weighed};
use comm::Axis;
use kernels::Kernels;
use ops::TokenShards;
use parallel::Layout;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

/// Number of layouts that a search returns at most.
pub(crate) const BEST: usize = 10;
/// Fraction of the bytes of blocks and state that other choices cannot go below.
const BYTES_BELOW: f64 = 0.98;

/// A search.
pub struct LayoutSearch<'a> {
    /// Training job.
    pub job: &'a TrainingJob,
    /// The machine.
    pub machine: &'a Arc<Machine>,
    /// Bytes that a rank may hold.
    pub memory: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Microbatches of a step; `None` to try all numbers that are worth it.
    pub microbatches: Option<usize>,
    /// Measure of the best layout.
    pub goal: Goal,
    /// True to bound nothing and weigh everything.
    pub all: bool,
    /// Receiver of the search's events.
    pub watch: SearchWatch<'a>,
}

/// Levels of a bound, each closer and dearer: blocks on an ideal machine, on the machine itself, with the
/// layout's own state and slices, and these in a simulated table. After the last, a layout is weighed.
const IDEAL: u8 = 0;
const OF_WORK: u8 = 1;
const OWN: u8 = 2;
const WEIGHED: u8 = 3;
/// Number of candidates that are looked at together, on all cores.
const TOGETHER: usize = 32;

/// Result of a look at a candidate.
enum Seen {
    /// Its choices do not go together, or it does not fit.
    Refused { weighed: bool },
    /// A tighter bound; none if it surely does not fit into memory.
    Bounded(Option<Candidate>),
    /// Its step.
    Weighed(Box<Weighed>),
}

impl LayoutSearch<'_> {
    /// Searches; entries that only save memory are tried if nothing else fits, and something does with them.
    pub fn find<D: Kernels>(&self) -> SearchResult {
        let ranks = &[self.ranks];
        self.find_in::<D>(ranks, &|needed| self.among::<D>(ranks, needed))
    }
    /// Searches as [`find`](Self::find) with `among`, which tries the layouts of these numbers of ranks.
    pub(crate) fn find_in<D: Kernels>(
        &self,
        numbers: &[usize],
        among: &dyn Fn(bool) -> SearchResult,
    ) -> SearchResult {
        let found = among(false);
        if !found.best.is_empty() || found.cut {
            return found;
        }
        let any = LayoutSearch { goal: Goal::Least, memory: usize::MAX, ..*self };
        let SearchResult { mut best, cut, .. } = any.among::<D>(numbers, true);
        best.truncate(1);
        let mut more = match (best.iter().any(|of| of.step.peak <= self.memory), cut) {
            (true, false) => among(true),
            (true, true) => SearchResult { best, cut, ..SearchResult::default() },
            (false, _) => SearchResult { least: best.pop(), cut, ..SearchResult::default() },
        };
        more.needed = true;
        more.count(&found);
        more
    }
    /// Searches the layouts of these numbers of ranks, with entries that only save memory if `needed`.
    pub(crate) fn among<D: Kernels>(&self, numbers: &[usize], needed: bool) -> SearchResult {
        let design = &self.job.design;
        let sizes = [self.job.batch_size, self.job.seq];
        let mut divided: Vec<_> = numbers.iter().flat_map(|n| divisions(*n, design, sizes)).collect();
        divided.sort_unstable();
        let mut divisions = each(divided, |layout| Division::new(*layout, design, needed));
        let states: BTreeSet<Layout> = divisions.iter().flat_map(|d| &d.state).map(state_key).collect();
        let states =
            measured(self.watch, states, |layout| StateBytes::new::<D>(layout, self.job, self.machine));
        let bytes = |state: &Layout| states.get(&state_key(state)).cloned().unwrap_or_default();
        for division in &mut divisions {
            division.set_bytes(bytes);
        }
        let kept = KeptPrices::default();
        let Some((mut heap, mut found)) = self.bounded::<D>(&divisions, &kept) else {
            return SearchResult { cut: true, ..SearchResult::default() };
        };
        let wanted = if self.goal == Goal::Least { 1 } else { BEST };
        loop {
            let last = found.best.get(wanted - 1).map_or(f64::INFINITY, |last| self.score(last));
            let can_be = |next: &Candidate| self.all || next.bound < last || last.is_infinite();
            let mut next = Vec::new();
            while next.len() < TOGETHER && heap.peek().is_some_and(can_be) {
                next.extend(heap.pop());
            }
            let left = || next.len() + heap.iter().filter(|next| can_be(next)).count();
            let goes_on =
                (self.watch)(&SearchEvent::Weighing { found: &found, left: &left, goal: self.goal });
            if next.is_empty() || !goes_on {
                found.bounded += next.len() + heap.len();
                found.cut = !next.is_empty();
                return found;
            }
            for seen in each(next, |next| self.look::<D>(&divisions[next.division as usize], *next, &kept)) {
                match seen {
                    Seen::Bounded(Some(tighter)) => heap.push(tighter),
                    Seen::Bounded(None) => found.bounded += 1,
                    Seen::Refused { weighed } => {
                        found.refused += 1;
                        found.weighed += usize::from(weighed);
                    }
                    Seen::Weighed(weighed) => {
                        found.weighed += 1;
                        let index = found.best.partition_point(|best| self.order(best, &weighed).is_le());
                        found.best.insert(index, *weighed);
                        found.best.truncate(BEST);
                    }
                }
            }
        }
    }
    /// Bounds a candidate tighter; if it is, weighs it.
    fn look<D: Kernels>(&self, division: &Division, of: Candidate, kept: &KeptPrices) -> Seen {
        let Some(layout) = division.layout(&of) else { return Seen::Refused { weighed: false } };
        if of.level < WEIGHED && !self.all {
            return Seen::Bounded(self.tightened::<D>((&layout, division), of, kept));
        }
        let microbatches = self.microbatches(layout.size(TokenShards::SEQUENCES), of.power);
        match kept.step::<D>(&layout, self.job, (microbatches, self.memory), self.machine) {
            Ok(step) if step.peak <= self.memory => {
                Seen::Weighed(Box::new(Weighed { layout, microbatches, step }))
            }
            _ => Seen::Refused { weighed: true },
        }
    }
    /// Returns the microbatches of a step in which a data rank has at most this power of two of sequences, or
    /// the given number.
    fn microbatches(&self, data_ranks: usize, power: u8) -> usize {
        self.microbatches.unwrap_or_else(|| microbatches([self.job.batch_size, data_ranks], power))
    }
    /// Returns the powers of two that are tried: one, if the microbatches are given and have a sequence for
    /// each data rank.
    fn powers(&self, data_ranks: usize) -> Vec<u8> {
        let is_enough = |given: usize| data_ranks.saturating_mul(given) <= self.job.batch_size;
        match self.microbatches {
            Some(given) => Vec::from_iter(is_enough(given).then_some(0)),
            None => powers(self.job.batch_size, data_ranks).collect(),
        }
    }
    /// Returns a candidate with a tighter bound, or none if it surely does not fit into memory.
    fn tightened<D: Kernels>(
        &self,
        (layout, division): (&Layout, &Division),
        of: Candidate,
        kept: &KeptPrices,
    ) -> Option<Candidate> {
        let of = Candidate { level: of.level + 1, ..of };
        let microbatches = self.microbatches(layout.size(TokenShards::SEQUENCES), of.power);
        let Some((staged, sequences)) = self.staged(division, &of, microbatches) else {
            return Some(Candidate { level: WEIGHED, ..of });
        };
        let cost = kept.block::<D>(staged, self.job, sequences, self.machine);
        let pipeline = layout.pipeline();
        let state = &division.bytes[of.state as usize];
        let (times, halves) = (least(state), has_halves(layout));
        let blocks = self.job.design.parts(layout.size(Axis::Tp));
        let plan = pipeline.plan(layout.size(Axis::Pp), microbatches);
        if of.level == OWN {
            let bytes = cost.bytes(state, blocks, (&plan, halves), &kept.held(&pipeline, blocks, &plan));
            if bytes as f64 * BYTES_BELOW > self.memory as f64 {
                return None;
            }
        }
        let bound = if of.level == WEIGHED {
            cost.simulated(&pipeline, blocks, &plan, times.update).unwrap_or(0.0)
        } else {
            cost.seconds(&StageWork::of_ranks(&pipeline, blocks, &plan), &plan, halves, &times)
        };
        Some(Candidate { bound: bound.max(of.bound), ..of })
    }
    /// Returns stages whose blocks bound those of a candidate, and the sequences of a microbatch on them:
    /// stages of its work alone, or its own. Layouts whose blocks do the same share them.
    fn staged(
        &self,
        division: &Division,
        of: &Candidate,
        microbatches: usize,
    ) -> Option<((Layout, usize), usize)> {
        let work = division.work[of.work as usize];
        let sequences = self.job.batch_size.div_ceil(microbatches);
        let alike = &division.alike[of.state as usize];
        let layout = if of.level == OF_WORK { Some(work) } else { division.layout_with(of, alike) };
        let layout = layout.filter(|_| self.goal == Goal::Time)?;
        if of.level > OF_WORK && *alike != division.state[0] {
            return Some((staged(&layout).ok()?, sequences));
        }
        let few = few_data_ranks(&layout);
        Some((staged(&few).ok()?, rank_sequences(&layout, sequences) * few.size(TokenShards::SEQUENCES)))
    }
    fn score(&self, of: &Weighed) -> f64 {
        match self.goal {
            Goal::Time => of.step.seconds,
            Goal::Memory | Goal::Least => of.step.peak as f64,
        }
    }
    /// Compares by the goal, then by the other goal, then as text.
    fn order(&self, a: &Weighed, b: &Weighed) -> Ordering {
        let other =
            |of: &Weighed| if self.goal == Goal::Time { of.step.peak as f64 } else { of.step.seconds };
        let text = |of: &Weighed| (of.layout.to_string(), of.microbatches);
        let numbers = self.score(a).total_cmp(&self.score(b)).then(other(a).total_cmp(&other(b)));
        numbers.then_with(|| text(a).cmp(&text(b)))
    }
    /// Returns all candidates that may fit, and the counts so far; none if the search is cut.
    fn bounded<D: Kernels>(
        &self,
        all: &[Division],
        kept: &KeptPrices,
    ) -> Option<(BinaryHeap<Candidate>, SearchResult)> {
        let job = self.job;
        let keys: BTreeSet<_> =
            self.roomy(all).flat_map(|division| division.work.iter().map(block_key)).collect();
        let ideal = Arc::new(self.machine.ideal());
        let heads: BTreeSet<_> = keys.iter().map(head_key).collect();
        let costs = measured(self.watch, keys, |layout| CostLine::new::<D>(layout, job, false, &ideal));
        let heads = measured(self.watch, heads, |layout| CostLine::new::<D>(layout, job, true, &ideal));
        if !(self.watch)(&SearchEvent::Pricing { left: 0 }) {
            return None;
        }
        let (mut heap, mut found) = (Vec::new(), SearchResult::default());
        for (number, division) in all.iter().enumerate() {
            let lines: Vec<CostLine> = division
                .work
                .iter()
                .map(|work| {
                    let key = block_key(work);
                    let cost = costs.get(&key).cloned().unwrap_or_default();
                    match heads.get(&head_key(&key)) {
                        Some(head) => cost.with_head(head),
                        None => cost,
                    }
                })
                .collect();
            self.candidates((number, division), &lines, kept, (&mut heap, &mut found));
        }
        Some((heap.into(), found))
    }
    /// Adds the candidates of a division whose work has these costs to a heap, and counts the others.
    fn candidates(
        &self,
        (number, division): (usize, &Division),
        lines: &[CostLine],
        kept: &KeptPrices,
        (heap, found): (&mut Vec<Candidate>, &mut SearchResult),
    ) {
        let blocks = self.job.design.parts(1);
        let work = &division.work[0];
        let [dp, pp] = [TokenShards::SEQUENCES, Axis::Pp].map(|axis| work.size(axis));
        let order = |order: &Layout| {
            let pipeline = order.pipeline();
            (pipeline, has_halves(order), StageWork::of_ranks(&pipeline, blocks, &pipeline.plan(pp, 1)))
        };
        let orders: Vec<_> = division.order.iter().map(order).collect();
        for power in self.powers(dp) {
            let microbatches = self.microbatches(dp, power);
            let most = rank_sequences(work, self.job.batch_size.div_ceil(microbatches));
            let costs: Vec<_> = lines.iter().map(|line| line.at(most)).collect();
            for (o, (pipeline, halves, ranks)) in orders.iter().enumerate() {
                let plan = pipeline.plan(pp, microbatches);
                let held = kept.held(pipeline, blocks, &plan);
                if held.is_empty() {
                    found.refused += lines.len() * division.bytes.len();
                    continue;
                }
                let states = || division.bytes.iter().enumerate();
                let pairs =
                    costs.iter().enumerate().flat_map(|cost| states().map(move |state| (cost, state)));
                for ((w, cost), (s, state)) in pairs {
                    let bytes = cost.bytes(state, blocks, (&plan, *halves), &held);
                    let bytes = (bytes as f64 * BYTES_BELOW) as usize;
                    if bytes > self.memory && !self.all {
                        found.bounded += 1;
                        continue;
                    }
                    let bound = match self.goal {
                        Goal::Time => cost.seconds(ranks, &plan, *halves, &least(state)),
                        Goal::Memory | Goal::Least => bytes as f64,
                    };
                    let [work, state, order] = [w, s, o].map(|at| at as u16);
                    heap.push(Candidate {
                        bound,
                        division: number as u32,
                        work,
                        state,
                        order,
                        power,
                        level: IDEAL,
                    });
                }
            }
        }
    }
    /// Divisions under which the state of a stage's blocks alone may fit.
    fn roomy<'a>(&self, all: &'a [Division]) -> impl Iterator<Item = &'a Division> {
        let blocks = self.job.design.parts(1);
        all.iter().filter(move |division| {
            let least = division
                .bytes
                .iter()
                .flat_map(|state| &state.blocks)
                .map(|(held, _)| held[0])
                .min()
                .unwrap_or(0);
            let of_stage = blocks / division.work[0].size(Axis::Pp) * least;
            self.all || of_stage as f64 * BYTES_BELOW <= self.memory as f64
        })
    }
}

/// Returns the sequences of a microbatch that bound what a data rank computes: the most that one has, or the
/// mean where ranks share experts, as the tokens of all count then.
fn rank_sequences(layout: &Layout, sequences: usize) -> usize {
    let ranks = layout.size(TokenShards::SEQUENCES);
    if layout.shares_experts() { sequences / ranks } else { sequences.div_ceil(ranks) }
}

/// Returns times of a state that other choices cannot go below.
fn least(of: &StateBytes) -> StateTimes {
    StateTimes { waits: of.times.waits.map(|seconds| seconds * BYTES_BELOW), ..of.times }
}
