//! Shares of this machine's cores: the time of a model on each, predicted and measured; and several models,
//! each on cores of its own, beside one after the other.
mod forwards;
mod pins;
mod process;

pub use forwards::Forward;
pub use pins::cores;
pub use process::{PERIOD, Worker};

use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column, hidden};
use crate::records;
use parallel::Result;
use parallel::measure::median;
use plan::share::{knee, slope, throughput};
use serde::Serialize;
use std::ops::Range;

/// A model on a share of the cores.
#[derive(Clone, Debug, Serialize)]
struct ShareRow {
    model: String,
    cores: f64,
    predicted_seconds: f64,
    measured_seconds: f64,
    throughput_of_a_core: f64,
    slope: f64,
}

/// A model at its knee.
#[derive(Clone, Debug, Serialize)]
struct KneeRow {
    model: String,
    predicted_knee: f64,
    measured_knee: f64,
}

/// A model beside others, each on its own cores, and in turns with them on all cores.
#[derive(Clone, Debug, Serialize)]
struct TogetherRow {
    model: String,
    cores: usize,
    together_forwards_per_second: f64,
    in_turns_forwards_per_second: f64,
}

impl RunRecord for ShareRow {
    fn kind(&self) -> &'static str {
        "share"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let Self { cores, predicted_seconds, measured_seconds, throughput_of_a_core: rate, slope, .. } =
            *self;
        let ms = |seconds: f64| CellValue::Shown(seconds, format!("{:.2}", 1e3 * seconds));
        let off = measured_seconds / predicted_seconds - 1.0;
        vec![
            (hidden("model"), CellValue::word(&self.model)),
            (column("cores", "S"), CellValue::Number(cores)),
            (column("predicted_seconds", "E, ms"), ms(predicted_seconds)),
            (column("measured_seconds", "measured"), ms(measured_seconds)),
            (column("off_by", "off by"), CellValue::Shown(off, format!("{:+.0} %", 100.0 * off))),
            (column("throughput_of_a_core", "A, 1/s"), CellValue::Shown(rate, format!("{rate:.1}"))),
            (column("slope", "slope, 1/s²"), CellValue::Shown(slope, format!("{slope:.0}"))),
        ]
    }
}

impl RunRecord for TogetherRow {
    fn kind(&self) -> &'static str {
        "together"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let [together, turns] = [self.together_forwards_per_second, self.in_turns_forwards_per_second];
        let rate = |rate: f64| CellValue::Shown(rate, format!("{rate:.1}"));
        let gain = together / turns;
        vec![
            (column("model", "forwards/s"), CellValue::word(&self.model)),
            (column("cores", "cores"), CellValue::Count(self.cores)),
            (column("together_forwards_per_second", "together"), rate(together)),
            (column("in_turns_forwards_per_second", "in turns, on all cores"), rate(turns)),
            (column("gain", "gain"), CellValue::Shown(gain, format!("x{gain:.2}"))),
        ]
    }
}

records!(KneeRow: "knee");

/// Rounds of all shares.
const ROUNDS: usize = 5;
/// Shares of less than a core.
const PARTS: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// A model, and its times on shares of the cores.
pub struct ModelShares<'a> {
    worker: Worker<'a>,
    rows: Vec<ShareRow>,
    knee: KneeRow,
}

impl<'a> ModelShares<'a> {
    /// Measures a model on every share of the cores, for so many seconds each, beside its prediction. The
    /// median of the rounds counts.
    ///
    /// # Errors
    /// If the model does not fit in the memory, or a forward fails.
    pub fn measured(
        forward: Forward,
        worker: Worker<'a>,
        (all, seconds): (&[usize], f64),
        observer: &Observer,
    ) -> Result<Self> {
        forward.fits(&worker.label, all.len())?;
        let forward = forward.counted()?;
        let whole = (1..=all.len()).filter(|cores| forwards::layout(&forward.model, *cores).is_ok());
        let shares: Vec<f64> = PARTS.into_iter().chain(whole.map(|cores| cores as f64)).collect();
        // seconds of the forward, of its calls, and of unsplit forwards on all of the cores at once
        let mut seen = vec![[const { Vec::new() }; 3]; shares.len()];
        let (mut kernels, parallel) = (Vec::new(), forward.parallel()?);
        for round in 1..=ROUNDS {
            observer.doing(&format!("{}, round {round} of {ROUNDS}", worker.label))?;
            let now = forward.kernels(all[0], &parallel)?;
            let one = now.seconds(1.0);
            kernels.push(now);
            for (cores, seen) in shares.iter().zip(&mut seen) {
                let pinned = &all[..cores.ceil() as usize];
                let part = cores.min(1.0);
                let forwards = ((process::periods(seconds) * part / one).ceil() as usize).max(2);
                seen[0].push(worker.start(pinned, forwards)?.end(part)?);
                if pinned.len() > 1 {
                    seen[1].push(forward.calls(pinned)?);
                    seen[2].push(worker.beside(pinned, forwards)?);
                }
            }
        }
        kernels.sort_by(|a, b| a.seconds(1.0).total_cmp(&b.seconds(1.0)));
        let kernels = &kernels[ROUNDS / 2];
        let alone = kernels.seconds(1.0);
        let row = |(cores, [measured, calls, beside]): (f64, [f64; 3])| ShareRow {
            model: worker.label.clone(),
            cores,
            predicted_seconds: kernels.seconds(cores) * (beside / alone).max(1.0) + calls,
            measured_seconds: measured,
            throughput_of_a_core: throughput(measured, cores),
            slope: slope(measured, cores),
        };
        let seen = seen.into_iter().map(|seen| seen.map(|times| median(times).unwrap_or(0.0)));
        let rows: Vec<_> = shares.into_iter().zip(seen).map(row).collect();
        let of = |seconds: fn(&ShareRow) -> f64| {
            knee(rows.iter().map(|row| (row.cores, seconds(row)))).expect("there are shares")
        };
        let knee = KneeRow {
            model: worker.label.clone(),
            predicted_knee: of(|row| row.predicted_seconds),
            measured_knee: of(|row| row.measured_seconds),
        };
        Ok(Self { worker, rows, knee })
    }
}

/// Tells the times of models on shares of the cores; of several models also their times at once, each on as
/// many cores as its knee says if there are enough, and in turns of equal length on all cores.
///
/// # Errors
/// If a forward fails.
pub fn tell(of_models: &[ModelShares], on: (&[usize], f64), observer: &Observer) -> Result<()> {
    for ModelShares { worker, rows, knee } in of_models {
        observer.say(&format!("{}:", worker.label))?;
        observer.rows(rows)?;
        observer.record(knee)?;
        let KneeRow { predicted_knee, measured_knee, .. } = knee;
        observer.say(&format!("knee: {predicted_knee} predicted, {measured_knee} measured\n"))?;
    }
    if of_models.len() > 1 { observer.rows(&together(of_models, on)?) } else { Ok(()) }
}

/// Runs all models at once.
fn together(of_models: &[ModelShares], (all, seconds): (&[usize], f64)) -> Result<Vec<TogetherRow>> {
    let wishes: Vec<_> = of_models.iter().map(|of| of.knee.measured_knee.ceil() as usize).collect();
    let rows: Vec<_> = of_models.iter().map(|of| &of.rows[..]).collect();
    let mut running = Vec::new();
    for (ModelShares { worker, .. }, part) in of_models.iter().zip(dealt(&rows, &wishes, all.len())) {
        let forwards = ((seconds / part.seconds).ceil() as usize).max(2);
        let (model, cores) = (worker.label.clone(), part.cores.len());
        let row = move |seconds: f64| TogetherRow {
            model,
            cores,
            together_forwards_per_second: 1.0 / seconds,
            in_turns_forwards_per_second: part.in_turns,
        };
        running.push((worker.start(&all[part.cores], forwards)?, row));
    }
    running.into_iter().map(|(process, row)| process.end(1.0).map(row)).collect()
}

/// A model's part of the cores.
#[derive(Debug, PartialEq)]
struct DealtCores {
    cores: Range<usize>,
    seconds: f64,  // of a forward on them
    in_turns: f64, // forwards a second on all cores, in turns of equal length with the others
}

/// Deals cores to models: as many as each wishes while there are enough, at least one, and no more than it
/// fits.
fn dealt(of_models: &[&[ShareRow]], wishes: &[usize], all: usize) -> Vec<DealtCores> {
    let (mut left, mut has) = (all - wishes.len(), vec![1; wishes.len()]);
    while left > 0 && wishes.iter().zip(&has).any(|(wish, has)| wish > has) {
        for (wish, has) in wishes.iter().zip(&mut has) {
            let more = usize::from(wish > has && left > 0);
            (*has, left) = (*has + more, left - more);
        }
    }
    let mut from = 0;
    let part = |(rows, has): (&&[ShareRow], usize)| {
        let on = |cores: usize| rows.iter().rfind(|row| row.cores <= cores as f64).expect("one core");
        let row = on(has);
        let begin = from;
        from += row.cores as usize;
        let in_turns = 1.0 / (of_models.len() as f64 * on(all).measured_seconds);
        DealtCores { cores: begin..from, seconds: row.measured_seconds, in_turns }
    };
    of_models.iter().zip(has).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models that fit 1, 2 and 4 cores. Kills: a core that two models get, one that no model wishes and
    /// gets, a turn as long as the whole time.
    #[test]
    fn models_get_cores_of_their_own() {
        let row = |cores: f64| ShareRow {
            model: String::new(),
            cores,
            predicted_seconds: 9.0,
            measured_seconds: 1.0 / cores,
            throughput_of_a_core: 9.0,
            slope: 9.0,
        };
        let rows = [0.5, 1.0, 2.0, 4.0].map(row);
        for (wishes, all, wanted) in [
            (&[2, 2][..], 4, &[0..2, 2..4][..]),
            (&[4, 1], 8, &[0..4, 4..5]),
            (&[3, 1], 4, &[0..2, 2..3]), // it fits no 3
            (&[4, 4, 4], 4, &[0..2, 2..3, 3..4]),
        ] {
            let models = vec![&rows[..]; wishes.len()];
            let seconds = |cores: &Range<usize>| 1.0 / cores.len() as f64;
            let in_turns = 4.0 / wishes.len() as f64;
            let part =
                |cores: &Range<usize>| DealtCores { seconds: seconds(cores), cores: cores.clone(), in_turns };
            let wanted: Vec<_> = wanted.iter().map(part).collect();
            assert_eq!(dealt(&models, wishes, all), wanted, "{wishes:?}");
        }
    }
}
