//! A step of a pipeline, one sequence a microbatch: either the blocks of shape L without embedding and head,
//! with a mean squared error loss, or the whole model. Its references are the same work on one rank, its
//! table, and its slowest stage:
//!
//! ```text
//! ideal     = unsplit ÷ K · (M + K − 1) ÷ M     of K even stages and M microbatches, as in GPipe and 1F1B
//! simulated = the table, with the cells' times in that very step, in the mean of all ranks and microbatches
//! slowest   = the longest total time of a rank's cells in that step ÷ M · (M + K − 1)
//! ```
//!
//! A step lasts from the first rank's start to the end of the last cell of any rank: gradient sums and
//! descent are not part of a table. All times come from the run's trace, which has a span for every cell.
use super::machine::{Bound, Probe, cores};
use super::model::metered;
use super::pass;
use super::scale::Scale;
use crate::pass::RATE;
use comm::{Event, TimeUse, Trace};
use kernels::{Kernels, Meta};
use layers::{Design, Shape};
use ops::{EvenValues, SGD};
use parallel::step::simulate::{CellTimes, simulate};
use parallel::step::{Cell, Plan};
use parallel::{
    Batch, BuildContext, Error, Layout, Network, Result, STEP, Schedule, Sequence, Trainer, measure, session,
};
use serde::Serialize;
use std::time::Duration;
use tensor::{Cpu, Phase};

/// References of a pipeline's step, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pipelined {
    /// The same work on one rank, while nothing else computes.
    pub unsplit_ms: f64,
    /// A rank's part of that time, with the bubble of even stages whose messages take no time.
    pub ideal_ms: f64,
    /// Step time as a multiple of `ideal_ms`.
    pub over_ideal: f64,
    /// The table, with the times of the step's own cells.
    pub simulated_ms: f64,
    /// Step time as a multiple of `simulated_ms`.
    pub over_simulated: f64,
    /// The slowest stage's time for a microbatch, times the M + K − 1 slots of `GPipe` and 1F1B with even
    /// stages.
    pub slowest_ms: f64,
    /// Step time as a multiple of `slowest_ms`.
    pub over_slowest: f64,
    /// Times of a cell: a forward, a whole backward, its input half, its weight half; 0 if the table has
    /// none.
    pub cells_ms: [f64; 4],
}

/// The best step and the best time of the same work on one rank, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct BestTimes {
    seconds: f64,
    simulated: f64,
    busiest: f64, // the largest total time of a rank's cells
    cells: [f64; 4],
    unsplit: f64,
    plan: Plan,
}

impl BestTimes {
    fn or(self, other: Self) -> Self {
        let best = if other.seconds < self.seconds { other } else { self };
        Self { unsplit: self.unsplit.min(other.unsplit), ..best }
    }
    pub(super) fn reported(&self) -> Pipelined {
        let [m, k] = [self.plan.microbatches, self.plan.ranks].map(|count| count as f64);
        let [ideal, slowest] = [self.unsplit / k, self.busiest].map(|stage| stage * (m + k - 1.0) / m);
        Pipelined {
            unsplit_ms: self.unsplit * 1e3,
            ideal_ms: ideal * 1e3,
            over_ideal: self.seconds / ideal,
            simulated_ms: self.simulated * 1e3,
            over_simulated: self.seconds / self.simulated,
            slowest_ms: slowest * 1e3,
            over_slowest: self.seconds / slowest,
            cells_ms: self.cells.map(|cell| cell * 1e3),
        }
    }
}

/// Selects the part of a shape that is split into stages.
pub(super) type Of = fn(Shape) -> Design;

/// Best seconds of a step in a turn. Measures the same work on one rank first; `best` holds the best of all
/// turns.
pub(super) fn seconds(layout: &Layout, of: Of, best: &mut Option<BestTimes>, scale: &Scale) -> Result<f64> {
    let unsplit = tried(&Layout::default(), of, scale)?.seconds;
    let turn = BestTimes { unsplit, ..tried(layout, of, scale)? };
    Ok(best.insert(best.map_or(turn, |best| best.or(turn))).seconds)
}

/// Builds the model and its training step, and runs it `times` times.
fn steps<D: Kernels>(at: &BuildContext<D>, design: Design, times: usize, scale: &Scale) -> Result<()> {
    let [microbatches, tokens] = scale.pipeline;
    let sequence = |m: u64| {
        if design.features().is_some() {
            return pass::features(scale, m, tokens);
        }
        let [read, learnt] = [2 * m, 2 * m + 1].map(|salt| pass::ids(scale, salt, tokens));
        Sequence::new(read, learnt)
    };
    let batch = Batch::new((0..microbatches as u64).map(sequence).collect(), microbatches)?;
    let mut trainer = Trainer::new(at, design, (SGD, None))?;
    (0..times).try_for_each(|_| measure::work(at, Phase::Step, || trainer.step(&batch, RATE)).map(drop))
}

/// The best step under a layout, after one that is not counted.
fn tried(layout: &Layout, of: Of, scale: &Scale) -> Result<BestTimes> {
    let trace = Trace::new();
    let network = Network { trace: Some(trace.clone()), ..Network::default() };
    let world = network.world(layout, "a pipeline of shape L")?;
    let design = || of(scale.shape);
    session::run((layout, &world), &EvenValues, |at: BuildContext<Cpu<f32>>| {
        steps(&at, design(), 1 + scale.tries, scale)
    })?;
    let (ranks, plan) = (&trace.runs()[0].ranks, layout.pipeline().plan(layout.ranks(), scale.pipeline[0]));
    let steps = (1..=scale.tries).map(|warm| step(ranks, 1 + warm, layout, plan));
    steps.reduce(|best, step| Ok(best?.or(step?))).expect("a step is tried")
}

/// Reads a step of a run.
fn step(ranks: &[Vec<Event>], number: usize, layout: &Layout, plan: Plan) -> Result<BestTimes> {
    let schedule = layout.pipeline().schedule;
    let (mut from, mut to, mut took) = (Duration::MAX, Duration::ZERO, Vec::new());
    let mut busiest = Duration::ZERO;
    for (rank, events) in ranks.iter().enumerate() {
        let (began, cells) = cells(events, (rank, number), schedule, &plan)?;
        from = from.min(began);
        took.extend(cells.iter().map(|(cell, event)| (cell.act, event.took().as_secs_f64())));
        to = cells.iter().map(|(_, event)| event.to).fold(to, Duration::max);
        busiest = busiest.max(cells.iter().map(|(_, event)| event.took()).sum());
    }
    let times = CellTimes::measured(&plan, took);
    let [cells @ .., _] = times.acts.map(|act| act / (plan.chunks * plan.slices) as f64);
    let simulated = simulate(schedule, &plan, &times, &mut |_, _, _, _| ()).map_err(Error::new)?.makespan;
    let [seconds, busiest] = [to.saturating_sub(from), busiest].map(|time| time.as_secs_f64());
    Ok(BestTimes { seconds, simulated, busiest, cells, unsplit: f64::INFINITY, plan })
}

/// Returns the start of a step of a rank, and the step's cells with their events: its trace has them in the
/// order of the table's row.
pub(super) fn cells<'a>(
    events: &'a [Event],
    (rank, number): (usize, usize),
    schedule: &dyn Schedule,
    plan: &Plan,
) -> Result<(Duration, Vec<(Cell, &'a Event)>)> {
    let mut events = events.iter();
    let mut next = |name: String| {
        let found = events.find(|event| matches!(&event.what, TimeUse::Span(span) if *span == name));
        found.ok_or_else(|| Error::new(format!("rank {rank} did not run {name} in the order of its table")))
    };
    let began = next(format!("{STEP}{number}"))?.from;
    let cells = schedule.row(rank, plan).map(|cell| Ok((cell, next(cell.within(plan).to_string())?)));
    Ok((began, cells.collect::<Result<_>>()?))
}

/// Lower bound: the products and the attention of the step, at the peak of this number of cores.
pub(super) fn bound(layout: &Layout, of: Of, scale: &Scale) -> Result<Bound> {
    let cores = cores(layout.ranks());
    let flops =
        metered::<Cpu<f32>>(layout, |at: &BuildContext<Meta<f32>>| steps(at, of(scale.shape), 1, scale))?;
    Ok(vec![(Probe::Peak { cores }, flops / cores as f64)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { ranks: 2, chunks: 1, slices: 1, microbatches: 2 };

    fn event(name: &str, from: u64, to: u64) -> Event {
        let [from, to] = [from, to].map(Duration::from_millis);
        Event { what: TimeUse::Span(name.into()), from, to }
    }

    /// Two steps of two ranks; the test reads the second, which the second rank begins first.
    fn ranks() -> Vec<Vec<Event>> {
        let warm = [event("step 1", 0, 9), event("forward 0", 0, 2), event("backward 0", 3, 4)];
        let mut of = [
            vec![event("step 2", 12, 90), event("forward 0", 13, 20), event("forward 1", 20, 29)],
            vec![event("step 2", 10, 90), event("forward 0", 21, 30), event("backward 0", 30, 50)],
        ];
        of[0].extend([event("backward 0", 51, 71), event("backward 1", 71, 91)]);
        of[1].extend([event("forward 1", 50, 57), event("backward 1", 57, 69)]);
        of.map(|rank| [&warm[..], &rank].concat()).into()
    }

    /// Computed by hand: forwards of 8 ms and backwards of 18 in the mean; in 1F1B they make (2 + 1)(8 + 18).
    /// The first rank is busy for 56 ms, the second for 48. Kills: another step's cells, the time of one
    /// rank, the less busy rank, a mean of ranks that hides the last, update and bubble in a cell's time.
    #[test]
    fn a_step_ends_with_its_last_cell_and_its_table_has_the_mean_of_its_cells() {
        let layout = "pp=2:1f1b".parse().unwrap();
        let BestTimes { seconds, simulated, busiest, cells, .. } = step(&ranks(), 2, &layout, PLAN).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} for {b}");
        near(seconds, 0.091 - 0.010);
        near(simulated, 0.078);
        near(busiest, 0.007 + 0.009 + 0.020 + 0.020);
        cells.into_iter().zip([0.008, 0.018, 0.0, 0.0]).for_each(|(cell, wanted)| near(cell, wanted));
        let other = step(&ranks(), 2, &"pp=2:gpipe".parse().unwrap(), PLAN).unwrap_err().to_string();
        assert_eq!(other, "rank 1 did not run backward 0 in the order of its table");
    }

    /// Kills: an ideal with all of the work on each rank, or without its bubble; a ratio upside down; a worse
    /// turn kept, or one rank's time of another turn lost.
    #[test]
    fn the_best_of_both_is_told_beside_the_ideal() {
        let turn = |seconds, unsplit| {
            let (cells, plan) = ([0.5, 0.0, 0.25, 0.125], Plan { microbatches: 8, ..PLAN });
            BestTimes { seconds, simulated: 2.0, busiest: 2.0, cells, unsplit, plan }
        };
        for turns in [[turn(3.0, 4.5), turn(5.0, 4.0)], [turn(5.0, 4.0), turn(3.0, 4.5)]] {
            let best = turns[0].or(turns[1]);
            assert_eq!(best.seconds, 3.0);
            let wanted = Pipelined {
                unsplit_ms: 4000.0,
                ideal_ms: 2250.0,
                over_ideal: 3.0 / 2.25,
                simulated_ms: 2000.0,
                over_simulated: 1.5,
                slowest_ms: 2250.0,
                over_slowest: 3.0 / 2.25,
                cells_ms: [500.0, 0.0, 250.0, 125.0],
            };
            assert_eq!(best.reported(), wanted);
        }
    }
}
