//! The search for the best layout: every layout of the [space](crate::space) is bounded, and those with the
//! lowest bounds are weighed first, until no bound is below the last of the best ten.
use crate::bound::{BlockCost, CostLine, has_halves, rests};
use crate::machine::Machine;
use crate::space::{ORDER, STATE, WORK, divisions, microbatches, powers, variants};
use crate::step::{KnownPrices, StepTime, TrainingJob};
use comm::Axis;
use kernels::Kernels;
use layers::TokenShards;
use parallel::step::{Cell, PassKind, Plan};
use parallel::{Layout, Result, Schedule};
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Number of layouts that a search returns at most.
pub(crate) const BEST: usize = 10;
/// Fraction of the bytes of a block's state that other choices cannot go below.
const STATE_BELOW: f64 = 0.98;

/// Measure of the best layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The shortest step.
    Time,
    /// The least memory of the fullest rank.
    Memory,
}

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
    /// Measure of the best layout.
    pub goal: Goal,
    /// True to bound nothing and weigh everything.
    pub all: bool,
}

/// A layout that was weighed, in microbatches.
#[derive(Clone, Debug)]
pub struct Weighed {
    /// The layout.
    pub layout: Layout,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// Time and memory of a step.
    pub step: StepTime,
}

/// Result of a search.
#[derive(Clone, Debug, Default)]
pub struct SearchResult {
    /// The best layouts, the best first.
    pub best: Vec<Weighed>,
    /// Number of layouts that were weighed.
    pub weighed: usize,
    /// Number of layouts whose bounds were enough.
    pub bounded: usize,
    /// Number of weighed layouts that do not fit into memory, or not at all.
    pub refused: usize,
    /// True if entries were tried that only save memory.
    pub needed: bool,
}

/// A layout of the space with its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    bound: f64,
    division: u32,
    work: u16,
    state: u16,
    order: u16,
    power: u8,   // of two: the sequences of a data rank in a microbatch
    tight: bool, // bounded with the layout's own state and data ranks
}

impl Eq for Candidate {}
impl Ord for Candidate {
    /// The lowest bound is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        let rest = |c: &Self| (c.division, c.work, c.state, c.order, c.power);
        other.bound.total_cmp(&self.bound).then_with(|| rest(other).cmp(&rest(self)))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Numbers of ranks along the axes, with the variants of each kind of choice.
struct Division {
    work: Vec<Layout>,
    state: Vec<Layout>,
    order: Vec<Layout>,
}

/// Key of a block's costs: the layout of a stage, sequences of a microbatch, halves of a backward.
type BlockKey = (Layout, usize, bool);

impl LayoutSearch<'_> {
    /// Searches; entries that only save memory are tried if nothing else fits.
    pub fn find<D: Kernels>(&self) -> SearchResult {
        let found = self.among::<D>(false);
        if !found.best.is_empty() {
            return found;
        }
        let more = self.among::<D>(true);
        let (weighed, bounded) = (found.weighed + more.weighed, found.bounded + more.bounded);
        SearchResult { needed: true, weighed, bounded, refused: found.refused + more.refused, ..more }
    }
    fn among<D: Kernels>(&self, needed: bool) -> SearchResult {
        let design = &self.job.design;
        let with = |layout: &Layout| {
            let of = |choices| variants(*layout, choices, design, needed);
            Ok(Division { work: of(WORK), state: of(STATE), order: of(ORDER) })
        };
        let divided = divisions(self.ranks, design, [self.job.batch_size, self.job.seq]);
        let mut all: Vec<_> = measured(divided, with).into_iter().collect();
        all.sort_unstable_by_key(|(layout, _)| *layout);
        let all: Vec<_> = all.into_iter().map(|(_, division)| division).collect();
        let (mut heap, mut found) = self.bounded::<D>(&all);
        let (mut known, mut tight) = (KnownPrices::default(), HashMap::new());
        while let Some(next) = heap.pop() {
            if !self.all && found.best.len() == BEST && next.bound >= self.score(&found.best[BEST - 1]) {
                found.bounded += heap.len() + 1;
                break;
            }
            let Some(layout) = layout_of(&all[next.division as usize], &next) else {
                found.refused += 1;
                continue;
            };
            let microbatches = self.microbatches(&layout, next.power);
            if !next.tight && !self.all {
                heap.push(self.tightened::<D>(&layout, next, &mut tight));
                continue;
            }
            found.weighed += 1;
            let Ok(step) = known.step::<D>(&layout, self.job, (microbatches, self.memory), self.machine)
            else {
                found.refused += 1; // a table or a batch that does not fit
                continue;
            };
            let weighed = Weighed { layout, microbatches, step };
            if weighed.step.peak > self.memory {
                found.refused += 1;
                continue;
            }
            let at = found.best.partition_point(|best| self.order(best, &weighed) != Ordering::Greater);
            found.best.insert(at, weighed);
            found.best.truncate(BEST);
        }
        found
    }
    fn microbatches(&self, layout: &Layout, power: u8) -> usize {
        microbatches([self.job.batch_size, layout.size(TokenShards::SEQUENCES)], power)
    }
    /// Returns a candidate with a tighter bound.
    fn tightened<D: Kernels>(
        &self,
        layout: &Layout,
        of: Candidate,
        known: &mut HashMap<BlockKey, BlockCost>,
    ) -> Candidate {
        if self.goal == Goal::Memory {
            return Candidate { tight: true, ..of };
        }
        let microbatches = self.microbatches(layout, of.power);
        let (sequences, blocks) = (self.job.batch_size.div_ceil(microbatches), self.job.design.parts());
        let halves = has_halves(layout);
        let key = (state_key(&layout.unscheduled()), sequences, halves);
        let cost = *known.entry(key).or_insert_with(|| {
            BlockCost::new::<D>(layout, self.job, sequences, self.machine).unwrap_or_default()
        });
        let pipeline = layout.pipeline();
        let plan = pipeline.plan(layout.size(Axis::Pp), microbatches);
        let closed = cost.seconds(blocks, &plan, (halves, first_beside_last(pipeline.schedule, &plan)));
        let bound = cost.simulated(&pipeline, blocks, &plan).unwrap_or(0.0).max(closed);
        Candidate { bound: bound.max(of.bound), tight: true, ..of }
    }
    fn score(&self, of: &Weighed) -> f64 {
        match self.goal {
            Goal::Time => of.step.seconds,
            Goal::Memory => of.step.peak as f64,
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
    /// Returns all candidates that may fit, and the counts so far.
    fn bounded<D: Kernels>(&self, all: &[Division]) -> (BinaryHeap<Candidate>, SearchResult) {
        let (job, blocks) = (self.job, self.job.design.parts());
        let states: BTreeSet<Layout> = all.iter().flat_map(|d| &d.state).map(state_key).collect();
        let states = measured(states, |layout| rests::<D>(layout, job, self.machine));
        let keys: BTreeSet<_> =
            self.roomy(all, &states).flat_map(|division| division.work.iter().map(block_key)).collect();
        let ideal = Arc::new(self.machine.ideal());
        let costs = measured(keys, |layout| CostLine::new::<D>(layout, job, &ideal));
        let (mut heap, mut found) = (Vec::new(), SearchResult::default());
        let mut rows = HashMap::new(); // chunks saved at once, by schedule and sizes
        for (number, division) in all.iter().enumerate() {
            let dp = division.work[0].size(TokenShards::SEQUENCES);
            let pp = division.work[0].size(Axis::Pp);
            let lines: Vec<CostLine> = division
                .work
                .iter()
                .map(|work| costs.get(&block_key(work)).copied().unwrap_or_default())
                .collect();
            let state_bytes: Vec<usize> = division
                .state
                .iter()
                .map(|state| {
                    (states.get(&state_key(state)).copied().unwrap_or(0) as f64 * STATE_BELOW) as usize
                })
                .collect();
            for (o, order) in division.order.iter().enumerate() {
                let (pipeline, halves) = (order.pipeline(), has_halves(order));
                for power in powers(job.batch_size, dp) {
                    let microbatches = self.microbatches(order, power);
                    let sequences = job.batch_size.div_ceil(microbatches);
                    // where ranks share experts, the tokens of all count
                    let most = if order.shares_experts() { sequences / dp } else { sequences.div_ceil(dp) };
                    let plan = pipeline.plan(pp, microbatches);
                    let key = (pipeline.schedule.about().word, plan);
                    let saved = *rows.entry(key).or_insert_with(|| saved(pipeline.schedule, &plan));
                    let last = first_beside_last(pipeline.schedule, &plan);
                    for (w, line) in lines.iter().enumerate() {
                        let cost = line.at(most);
                        let seconds = cost.seconds(blocks, &plan, (halves, last));
                        for (s, &state) in state_bytes.iter().enumerate() {
                            let bytes = cost.bytes(state, blocks, &plan, saved);
                            if bytes > self.memory && !self.all {
                                found.bounded += 1;
                                continue;
                            }
                            let bound = if self.goal == Goal::Time { seconds } else { bytes as f64 };
                            heap.push(Candidate {
                                bound,
                                division: number as u32,
                                work: w as u16,
                                state: s as u16,
                                order: o as u16,
                                power,
                                tight: false,
                            });
                        }
                    }
                }
            }
        }
        (heap.into(), found)
    }
    /// Divisions under which the state of a stage's blocks alone may fit.
    fn roomy<'a>(
        &self,
        all: &'a [Division],
        states: &HashMap<Layout, usize>,
    ) -> impl Iterator<Item = &'a Division> {
        let blocks = self.job.design.parts();
        all.iter().filter(move |division| {
            let least =
                division.state.iter().map(|layout| states.get(&state_key(layout)).copied().unwrap_or(0));
            let of_stage = blocks / division.work[0].size(Axis::Pp) * least.min().unwrap_or(0);
            self.all || of_stage as f64 * STATE_BELOW <= self.memory as f64
        })
    }
}

/// Returns the first chunk on the rank of the last chunk.
fn first_beside_last(schedule: &dyn Schedule, plan: &Plan) -> usize {
    let rank = |chunk| schedule.rank_of(chunk, plan);
    let last = rank(plan.all_chunks() - 1);
    (0..plan.all_chunks()).find(|chunk| rank(*chunk) == last).unwrap_or(0)
}

/// Returns the most chunks, or slices of them, that a rank has saved at once, if the input half of a backward
/// frees them.
fn saved(schedule: &dyn Schedule, plan: &Plan) -> usize {
    let of_rank = |rank| {
        let mut now = 0usize;
        let change = |cell: Cell| {
            match cell.act {
                PassKind::F => now += 1,
                PassKind::B | PassKind::I => now -= 1,
                PassKind::W => {}
            }
            now
        };
        schedule.row(rank, plan).map(change).max().unwrap_or(0)
    };
    (0..plan.ranks).map(of_rank).max().unwrap_or(0)
}

/// Returns the layout without stages, which do not change a block's state.
fn state_key(layout: &Layout) -> Layout {
    resized(layout, &[Axis::Pp])
}

/// Returns the layout without stages, and without data ranks if they share no experts.
fn block_key(layout: &Layout) -> Layout {
    resized(layout, if layout.shares_experts() { &[Axis::Pp] } else { &[Axis::Pp, TokenShards::SEQUENCES] })
}

/// Returns the layout without these axes.
fn resized(layout: &Layout, without: &[Axis]) -> Layout {
    let sizes: Vec<_> = layout.axes().into_iter().filter(|(axis, _)| !without.contains(axis)).collect();
    let base = Layout::new(&sizes).expect("fewer ranks");
    layout.named().iter().fold(base, |layout, word| layout.with(word).unwrap_or(layout))
}

/// Returns a candidate's layout, if its choices go together.
fn layout_of(division: &Division, of: &Candidate) -> Option<Layout> {
    let [work, state, order] =
        [(&division.work, of.work), (&division.state, of.state), (&division.order, of.order)]
            .map(|(all, at)| all[at as usize]);
    let named = |layout: &Layout| layout.named();
    let words = named(&state).into_iter().chain(named(&order));
    words.into_iter().try_fold(work, |layout, word| layout.with(&word).ok())
}

/// Measures every key, on all cores. Keys that do not fit are left out.
fn measured<K: Clone + Eq + std::hash::Hash + Send + Sync, T: Send>(
    keys: impl IntoIterator<Item = K>,
    measure: impl Fn(&K) -> Result<T> + Sync,
) -> HashMap<K, T> {
    let (keys, next): (Vec<K>, _) = (keys.into_iter().collect(), AtomicUsize::new(0));
    let some = || {
        let mut done = Vec::new();
        while let Some(key) = keys.get(next.fetch_add(1, Relaxed)) {
            if let Ok(cost) = measure(key) {
                done.push((key.clone(), cost));
            }
        }
        done
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a price panics for nothing")).collect()
    });
    done.into_iter().collect()
}
