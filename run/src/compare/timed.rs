//! Time of each row's work. Rows take turns, so that other load of the machine affects all of them alike,
//! until each was measured for the given seconds. The results are the median of its runs and half of the
//! distance between their quartiles.
use super::partitioning::Partitioning;
use super::row::{LayoutRow, Rate, Workload};
use super::work::{Comparison, LR, trainer};
use crate::event::Observer;
use models::Model;
use models::generate::{Generated, Prompts};
use parallel::dtype::RunDevice;
use parallel::measure::{self, FEWEST, PeakBytes, RankMeasurements};
use parallel::{Batch, BuildContext, Network, Result, Trainer, session};
use std::time::Instant;
use tensor::{Bf16, Phase, Scalar};

/// The most runs of one turn, which builds the model once.
const RUNS: usize = 8;

/// Times of one row's runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowTimes {
    /// The median, in seconds.
    pub(super) median: f64,
    /// Half of the distance between the quartiles, as a fraction of the median; `None` for fewer than three
    /// runs.
    pub(super) spread: Option<f64>,
    /// Number of runs.
    pub(super) runs: usize,
}

impl RowTimes {
    pub(super) fn of(seconds: Vec<f64>) -> Self {
        let runs = seconds.len();
        let (median, spread) = measure::median_and_spread(seconds);
        Self { median, spread, runs }
    }
}

/// Runs rows in turn until each was measured for `seconds` in all, and at least three times; once each for 0
/// seconds. `turn` receives the row and a number of runs, and returns the result of the last run and the
/// seconds of each; the last result of each row is kept.
pub(super) fn in_turn<T>(
    rows: usize,
    seconds: f64,
    mut turn: impl FnMut(usize, usize) -> Result<(T, Vec<f64>)>,
) -> Result<Vec<(T, RowTimes)>> {
    let runs = if seconds > 0.0 { RUNS } else { 1 };
    let mut turns: Vec<_> = (0..rows).map(|row| turn(row, runs)).collect::<Result<_>>()?;
    let lacks = |times: &[f64]| {
        let took: f64 = times.iter().sum();
        let runs = ((seconds - took) * times.len() as f64 / took).ceil().max(0.0) as usize;
        runs.max(FEWEST.saturating_sub(times.len())).min(RUNS)
    };
    while seconds > 0.0 && turns.iter().any(|(_, times)| lacks(times) > 0) {
        for (row, (last, times)) in turns.iter_mut().enumerate().filter(|(_, (_, times))| lacks(times) > 0) {
            let (made, more) = turn(row, lacks(times))?;
            *last = made;
            times.extend(more);
        }
    }
    Ok(turns.into_iter().map(|(made, times)| (made, RowTimes::of(times))).collect())
}

/// Generates each way and measures it. With a trace, each way has one more run, which is traced.
pub(super) fn generating<D: RunDevice>(
    (work, model): (&Comparison, &Model),
    ways: &[Partitioning],
    request: &Prompts,
    observer: &Observer,
) -> Result<Vec<(Generated<D::Elem>, RowTimes)>> {
    let untraced = work.network.untraced();
    observer.doing("generating, rows in turn")?;
    let timed = in_turn(ways.len(), work.seconds, |row, runs| {
        let mut generated = ways[row].generate::<D>((model, &untraced), (request, runs))?;
        let seconds = generated.iter().map(|generated| measure::seconds(&generated.taken)).collect();
        Ok((generated.pop().expect("it ran"), seconds))
    })?;
    if work.network.trace.is_some() {
        ways.iter().try_for_each(|way| way.generate::<D>((model, &work.network), (request, 1)).map(drop))?;
    }
    Ok(timed)
}

/// Runs training steps each way and measures them on each rank, except the first step of a turn,
/// which allocates the memory. With a trace, each way has one more turn, which is traced.
pub(super) fn steps<D: RunDevice>(
    work: &Comparison,
    ways: &[Partitioning],
    batch: &Batch,
    observer: &Observer,
) -> Result<Vec<(Vec<RankMeasurements>, RowTimes)>> {
    let untraced = work.network.untraced();
    let turn = |way: &Partitioning, over: &Network, counted: usize| {
        way.timed(over, |over| -> Result<(Vec<RankMeasurements>, Vec<f64>)> {
            let world = over.world(&way.layout, "training")?;
            let split = (way.scheme::<D>(), &world);
            let ranks = session::run(split, work.model.values(), |at: BuildContext<D>| {
                let mut trainer = trainer(work, &at)?;
                if trainer.overlaps() {
                    return over.of_all(at.mesh, overlapping(&at, &mut trainer, batch, counted)?);
                }
                let step =
                    |_| measure::work(&at, Phase::Step, || trainer.step(batch, LR)).map(|(_, taken)| taken);
                over.of_all(at.mesh, (0..=counted).map(step).collect::<Result<Vec<_>>>()?)
            })?;
            let ranks = ranks.concat();
            let seconds = |step: usize| ranks.iter().map(|steps| steps[step].seconds).fold(0.0, f64::max);
            let last = ranks.iter().map(|steps: &Vec<RankMeasurements>| steps[counted]).collect();
            Ok((last, (1..=counted).map(seconds).collect()))
        })
    };
    observer.doing("training, rows in turn")?;
    let timed = in_turn(ways.len(), work.seconds, |row, runs| turn(&ways[row], &untraced, runs))?;
    if work.network.trace.is_some() {
        ways.iter().try_for_each(|way| turn(way, &work.network, 1).map(drop))?;
    }
    Ok(timed)
}

/// Measures steps of a pipeline that stays full, and the step before them. Its ranks do not wait for each
/// other between steps, so peaks are those of all steps, and bytes on the wire their mean.
fn overlapping<D: RunDevice>(
    at: &BuildContext<D>,
    trainer: &mut Trainer<D>,
    batch: &Batch,
    counted: usize,
) -> Result<Vec<RankMeasurements>> {
    let (filling, mut running, mut seconds) = (trainer.filling(batch), None, Vec::new());
    let steps = filling + 1 + counted;
    let ((), taken) = measure::work(at, Phase::Step, || {
        for _ in 0..steps {
            let start = Instant::now();
            trainer.next_step(&mut running, batch, LR)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        trainer.last_step(running).map(drop)
    })?;
    let each = |seconds: &f64| RankMeasurements { seconds: *seconds, wire: taken.wire / steps, ..taken };
    Ok(seconds[filling..].iter().map(each).collect())
}

/// Returns a row of work at this rate; the verdict is set later. `bytes`: of the rank that holds the most, in
/// f32 and bf16.
pub(super) fn row(
    workload: Workload,
    way: &Partitioning,
    taken: &[RankMeasurements],
    timed: RowTimes,
    rate: Rate,
    bytes: [usize; 2],
    error_ratio: f64,
) -> LayoutRow {
    let RowTimes { median: seconds, spread, runs } = timed;
    LayoutRow {
        workload,
        name: way.label(),
        layout: way.layout.to_string(),
        seconds,
        spread,
        runs,
        microbatches: None,
        prefill_seconds: None,
        rate,
        peak_bytes: PeakBytes::of(taken),
        traffic_bytes: measure::wire(taken),
        equal: false,
        note: None,
        never_ran: Vec::new(),
        tokens_equal: None,
        tie: None,
        other_number: Bf16::NAME,
        peak_bytes_by_number: [f32::NAME, Bf16::NAME].into_iter().zip(bytes).collect(),
        error_ratio,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a mean, the fastest run, the whole range, a spread of two runs.
    #[test]
    fn median_and_quartiles_are_told() {
        let of = |seconds: &[f64]| RowTimes::of(seconds.to_vec());
        assert_eq!(of(&[9.0]), RowTimes { median: 9.0, spread: None, runs: 1 });
        assert_eq!(of(&[3.0, 1.0]), RowTimes { median: 2.0, spread: None, runs: 2 });
        assert_eq!(of(&[4.0, 5.0, 90.0, 1.0, 3.0]), RowTimes { median: 4.0, spread: Some(0.25), runs: 5 });
    }

    /// Kills: rows measured one after the other, a row that continues after its seconds, fewer than three
    /// runs, an older result, turns that end late.
    #[test]
    fn rows_take_turns_until_each_has_its_seconds() {
        let (mut order, seconds) = (Vec::new(), [0.5, 0.0625, 0.25]);
        let mut turn = |row: usize, runs: usize| {
            order.push((row, runs));
            Ok((order.len(), vec![seconds[row]; runs]))
        };
        let once = in_turn(3, 0.0, &mut turn).unwrap();
        assert_eq!(
            once.iter().map(|(made, timed)| (*made, timed.runs)).collect::<Vec<_>>(),
            [(1, 1), (2, 1), (3, 1)]
        );
        let more = in_turn(3, 2.5, &mut turn).unwrap();
        assert_eq!(
            more.iter().map(|(made, timed)| (*made, timed.runs)).collect::<Vec<_>>(),
            [(4, 8), (11, 40), (8, 10)]
        );
        let eight = [(0, 8), (1, 8), (2, 8), (1, 8), (2, 2), (1, 8), (1, 8), (1, 8)];
        assert_eq!(order[3..], eight);
        let mut turn = |_, runs: usize| Ok(((), vec![9.0; runs.min(1)]));
        assert_eq!(in_turn(1, 1.0, &mut turn).unwrap()[0].1.runs, 3);
    }
}
