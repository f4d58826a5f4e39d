//! `share`: the cores that a model should get. Its time on every share of this machine's cores, predicted
//! and measured; and several models, each on cores of its own, beside one after the other.
mod forwards;
mod pins;
mod process;

use crate::cli;
use crate::cli::args::ModelName;
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::Args;
use forwards::Forward;
use parallel::measure::median;
use parallel::{Result, bail};
use plan::share::{knee, slope, throughput};
use process::Worker;
use run::event::{CellValue, RecordColumn, RunRecord, column, hidden};
use run::records;
use serde::Serialize;
use std::ops::Range;

/// Help on the columns.
const MORE: &str = "\
E is the time of a forward on S cores; A = 1/(E·S) is the throughput of a core, -1/(E²·S) its slope (equations (13) \
and (14) of\nD-STACK, arXiv:2304.13541). The knee is the S with the steepest slope. Each rank is pinned to a core; for \
less than a core\nit is paused for a part of the time.";

/// Find the cores that models should get: their times on shares of this machine, predicted and measured
#[derive(Args, Debug)]
#[command(after_help = MORE)]
pub(crate) struct ShareArgs {
    /// Models of text: folders, embedded or moe
    #[arg(value_name = "DIR|NAME", default_value = "embedded", value_parser = ModelName::parser())]
    models: Vec<ModelName>,
    /// Tokens of a forward, for all models or for each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "256")]
    tokens: Vec<usize>,
    /// Seconds that each share is measured, in each of five rounds; rounded up to whole periods of 40 ms
    #[arg(long, default_value_t = 0.24, conflicts_with_all = ["cores", "forwards"])]
    seconds: f64,
    /// Only run the model on these cores, --forwards times, and print the seconds
    #[arg(long, value_name = "CORE,CORE,...", value_delimiter = ',', requires = "forwards")]
    cores: Option<Vec<usize>>,
    /// With --cores: number of forwards
    #[arg(long, requires = "cores")]
    forwards: Option<usize>,
}

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

/// Seconds of some forwards.
#[derive(Serialize)]
struct ForwardTime {
    seconds: f64,
}

records!(KneeRow: "knee", ForwardTime: "forwards");

/// The most tokens of a forward.
const MOST: usize = 1 << 16;
/// Rounds of all shares.
const ROUNDS: usize = 5;
/// Shares of less than a core.
const PARTS: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

impl Run for ShareArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let cores = pins::cores()?;
        self.check(&cores)?;
        if let (Some(cores), Some(forwards)) = (&self.cores, self.forwards) {
            let forward = Forward::new(cli::model(self.models.first())?, self.tokens[0]);
            let seconds = forward.run(cores, forwards, &process::ready)?;
            views.record(&ForwardTime { seconds })?;
            views.say(&format!("{seconds}"))?;
            return Ok(true);
        }
        let mut of_models = Vec::new();
        for (number, name) in self.models.iter().enumerate() {
            let forward = Forward::new(cli::model(Some(name))?, self.tokens(number));
            let worker = Worker { model: name.clone(), tokens: forward.tokens };
            forward.fits(&worker.label(), cores.len())?;
            of_models.push((self.rows((&forward.counted()?, &worker), &cores, views)?, worker));
        }
        let knees: Vec<_> = of_models.iter().map(|(rows, worker)| knees(worker, rows)).collect();
        for ((rows, worker), knee) in of_models.iter().zip(&knees) {
            views.say(&format!("{}:", worker.label()))?;
            views.rows(rows)?;
            views.record(knee)?;
            let KneeRow { predicted_knee, measured_knee, .. } = knee;
            views.say(&format!("knee: {predicted_knee} predicted, {measured_knee} measured\n"))?;
        }
        if of_models.len() > 1 {
            views.rows(&self.together(&of_models, &knees, &cores)?)?;
        }
        Ok(true)
    }
}

impl ShareArgs {
    fn tokens(&self, model: usize) -> usize {
        self.tokens[if self.tokens.len() == 1 { 0 } else { model }]
    }
    fn check(&self, all: &[usize]) -> Result<()> {
        let Self { models, tokens, seconds, .. } = self;
        if self.cores.is_some() && models.len() > 1 {
            bail!("--cores runs one model; {} are given", models.len());
        }
        if models.len() > all.len() {
            let there = layers::counted(all.len(), "core");
            bail!("{} models are more than the {there} of this machine; each needs one", models.len());
        }
        if tokens.len() != 1 && tokens.len() != models.len() {
            bail!("--tokens has {} numbers for {}", tokens.len(), layers::counted(models.len(), "model"));
        }
        if let Some(bad) = tokens.iter().find(|tokens| !(1..=MOST).contains(*tokens)) {
            bail!("--tokens has {bad}; a forward has 1 to {MOST} tokens");
        }
        if self.forwards == Some(0) {
            bail!("--forwards is 0; it must be 1 or more");
        }
        let period = process::PERIOD.as_secs_f64();
        if !(period..=600.0).contains(seconds) {
            bail!("--seconds is {seconds}; it must be {period}, a period of a paused process, to 600");
        }
        if let Some(bad) = self.cores.iter().flatten().find(|core| !all.contains(core)) {
            bail!("--cores has {bad}, which this process may not use; it may use {all:?}");
        }
        Ok(())
    }
    /// Measures a model on every share, beside its prediction. The median of the rounds counts.
    fn rows(
        &self,
        (forward, worker): (&Forward, &Worker),
        all: &[usize],
        views: &Views,
    ) -> Result<Vec<ShareRow>> {
        let whole = (1..=all.len()).filter(|cores| forwards::layout(&forward.model, *cores).is_ok());
        let shares: Vec<f64> = PARTS.into_iter().chain(whole.map(|cores| cores as f64)).collect();
        // seconds of the forward, of its calls, and of unsplit forwards on all of the cores at once
        let mut seen = vec![[const { Vec::new() }; 3]; shares.len()];
        let (mut kernels, parallel) = (Vec::new(), forward.parallel()?);
        for round in 1..=ROUNDS {
            views.doing(&format!("{}, round {round} of {ROUNDS}", worker.label()))?;
            let now = forward.kernels(all[0], &parallel)?;
            let one = now.seconds(1.0);
            kernels.push(now);
            for (cores, seen) in shares.iter().zip(&mut seen) {
                let pinned = &all[..cores.ceil() as usize];
                let part = cores.min(1.0);
                let forwards = ((process::periods(self.seconds) * part / one).ceil() as usize).max(2);
                seen[0].push(worker.seconds(pinned, forwards, part)?);
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
            model: worker.label(),
            cores,
            predicted_seconds: kernels.seconds(cores) * (beside / alone).max(1.0) + calls,
            measured_seconds: measured,
            throughput_of_a_core: throughput(measured, cores),
            slope: slope(measured, cores),
        };
        Ok(shares
            .into_iter()
            .zip(seen.into_iter().map(|seen| seen.map(|times| median(times).unwrap_or(0.0))))
            .map(row)
            .collect())
    }
    /// Runs all models at once, each on as many cores as its knee says if there are enough, and compares them
    /// with turns of equal length on all cores.
    fn together(
        &self,
        of_models: &[(Vec<ShareRow>, Worker)],
        knees: &[KneeRow],
        all: &[usize],
    ) -> Result<Vec<TogetherRow>> {
        let wishes: Vec<_> = knees.iter().map(|knee| knee.measured_knee.ceil() as usize).collect();
        let rows: Vec<_> = of_models.iter().map(|(rows, _)| &rows[..]).collect();
        let mut running = Vec::new();
        for ((_, worker), part) in of_models.iter().zip(dealt(&rows, &wishes, all.len())) {
            let forwards = ((self.seconds / part.seconds).ceil() as usize).max(2);
            let (model, cores) = (worker.label(), part.cores.len());
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

fn knees(worker: &Worker, rows: &[ShareRow]) -> KneeRow {
    let of = |seconds: fn(&ShareRow) -> f64| {
        knee(rows.iter().map(|row| (row.cores, seconds(row)))).expect("there are shares")
    };
    KneeRow {
        model: worker.label(),
        predicted_knee: of(|row| row.predicted_seconds),
        measured_knee: of(|row| row.measured_seconds),
    }
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
