//! `compare --epochs`: a classifier trained for the same epochs under each layout, with its accuracy after
//! each, the time of the run, and memory. A step is that of `train`: the same pictures under every layout.
//! Only stages have microbatches, one each: parts of a batch of 32 are small, and their products slower.
use super::{CompareArgs, Comparison, Data};
use crate::cli::args::ModelName;
use crate::cli::out::line;
use crate::cli::watch::ProgressWatch;
use crate::cli::{out, show};
use crate::commands::train::TrainArgs;
use crate::draw::curves::{self, Quantity};
use comm::{Axis, readable};
use parallel::Result;
use run::train::data::TrainData;
use run::train::epochs::EpochLine;
use run::train::settings::Settings;
use run::train::{StepLine, TrainRun, of_steps};
use serde::Serialize;
use std::sync::Mutex;

/// Largest difference of two layouts' accuracies after an epoch, as a fraction: gradient descent amplifies
/// the rounding in which layouts differ, to a few pictures.
const TOLERANCE: f64 = 0.003;

/// One layout's run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EpochsRow {
    /// Readable label.
    name: String,
    /// The layout.
    layout: String,
    /// Microbatches of a step.
    microbatches: usize,
    /// Reports on its epochs.
    epochs: Vec<EpochLine>,
    /// Training time of all epochs in seconds; the tests are not counted.
    seconds: f64,
    /// Training pictures a second.
    pictures_per_second: f64,
    /// Time of the unsplit run ÷ the time of this one.
    speedup: f64,
    /// Peak bytes of each rank.
    peak_bytes: Vec<usize>,
    /// Largest difference to the unsplit run's accuracy after the same epoch, as a fraction.
    accuracy_difference: f64,
    /// True if no accuracy differs by more than 0.3 points.
    equal: bool,
}

impl EpochsRow {
    /// Returns the row of a run whose steps are those of an epoch's report, beside the unsplit run's, or its
    /// own if it is the first.
    fn of(way: [String; 2], microbatches: usize, epochs: Vec<EpochLine>, unsplit: Option<&Self>) -> Self {
        let seconds = epochs.iter().map(|line| line.seconds).sum::<f64>();
        let pictures: f64 = epochs.iter().map(|line| line.examples_per_second * line.seconds).sum();
        let known = unsplit.map_or(&epochs, |row| &row.epochs).iter().zip(&epochs);
        let difference = known.map(|(a, b)| (a.accuracy - b.accuracy).abs()).fold(0.0, f64::max);
        let [name, layout] = way;
        Self {
            name,
            layout,
            microbatches,
            seconds,
            pictures_per_second: pictures / seconds,
            speedup: unsplit.map_or(1.0, |row| row.seconds / seconds),
            peak_bytes: Vec::new(),
            accuracy_difference: difference,
            equal: difference < TOLERANCE + 1e-9,
            epochs,
        }
    }
}

/// Settings of `train --model mlp` for so many epochs.
fn settings(a: &CompareArgs, epochs: usize, source: &TrainData) -> Result<Settings> {
    let (model, epochs, optimizer) = (Some(ModelName::Mlp), Some(epochs), a.optimizer);
    let constants = a.constants.clone();
    let train = TrainArgs { optimizer, constants, model, epochs, ..TrainArgs::usual() };
    let settings = train.settings_for(source)?;
    Ok(Settings { number: a.number.name, device: a.number.device, ..settings })
}

/// Trains under each layout, the unsplit one first, and shows the rows. Returns whether all are equal.
///
/// # Errors
/// If a layout does not fit, memory is too small, a rank fails, or the picture cannot be written.
pub(super) fn run(work: &Comparison, a: &CompareArgs, epochs: usize, json: bool) -> Result<bool> {
    let Data::Digits(digits) = work.data else { unreachable!("a model of text has no epochs") };
    let (source, watch) = (TrainData::Digits(digits.clone()), ProgressWatch::spinner());
    let settings = settings(a, epochs, &source)?;
    let run = |way: &super::Partitioning| {
        let stages = way.layout.size(Axis::Pp);
        let microbatches = if stages > 1 { a.microbatches.unwrap_or(stages) } else { 1 };
        let settings = Settings { microbatches, ..settings.clone() };
        TrainRun::of((work.model.clone(), &source), settings, way.layout, way.over(&work.network))
    };
    let runs: Vec<_> = work.all_ways().into_iter().map(|way| (way, run(&way))).collect();
    runs.iter().try_for_each(|(_, run)| run.ready())?;
    let mut rows: Vec<EpochsRow> = Vec::new();
    for (way, run) in &runs {
        let name = way.label();
        let told = Mutex::new((Vec::new(), Vec::new()));
        let step = |line: &StepLine| {
            let mut told = told.lock().expect("nothing panics under this lock");
            told.1.clone_from(&line.peak_bytes); // so far
            if let Some(epoch) = &line.epoch {
                watch.say(&format!("{name}: {epoch}"));
                told.0.push(epoch.clone());
            }
            Ok(())
        };
        let trained = way.timed(&work.network, |_| run.train(&of_steps(&step)).map(drop));
        a.network.keep_trace(&work.network, trained)?;
        let (epochs, peak_bytes) = told.into_inner().expect("no rank is left");
        let names = [name, run.layout.to_string()];
        let row = EpochsRow::of(names, run.settings.microbatches, epochs, rows.first());
        rows.push(EpochsRow { peak_bytes, ..row });
    }
    watch.done();
    show::all(json, &rows, || tell(&rows, digits.test.len()));
    if let Some(file) = a.svg.as_ref().filter(|_| !out::is_silent()) {
        tensor::files::replace_file(file, picture(&rows).as_bytes())?;
    }
    Ok(rows.iter().all(|row| row.equal))
}

/// Prints the runs, and the accuracy after each epoch.
fn tell(rows: &[EpochsRow], test: usize) {
    let accuracy = |line: &EpochLine| format!("{:.2} %", 100.0 * line.accuracy);
    let cells = |row: &EpochsRow| {
        let holds = row.peak_bytes.iter().max().copied().unwrap_or(0);
        let points = format!("{:.2} points", 100.0 * row.accuracy_difference);
        vec![
            row.name.clone(),
            format!("{:.2}", row.seconds),
            format!("{:.0}", row.pictures_per_second),
            format!("x{:.2}", row.speedup),
            readable(holds as u128),
            row.epochs.last().map_or("-".into(), |line| format!("{:.4}", line.loss)),
            row.epochs.last().map_or("-".into(), accuracy),
            if row.equal { "equal".into() } else { format!("DIFFERENT by {points}") },
        ]
    };
    let epochs = rows.first().map_or(0, |row| row.epochs.len());
    let title = layers::counted(epochs, "epoch");
    let head = [&title, "seconds", "pictures/s", "speed-up", "holds", "loss", "accuracy", "to unsplit"];
    line(&format!("{}", show::table(&head, rows.iter().map(cells))));
    let first = format!("on {test} test pictures\nafter epoch");
    let head: Vec<_> = [&first].into_iter().chain(rows.iter().map(|row| &row.layout)).collect();
    let head: Vec<_> = head.into_iter().map(String::as_str).collect();
    let after = |epoch: usize| {
        let of_rows = rows.iter().map(|row| accuracy(&row.epochs[epoch]));
        [(epoch + 1).to_string()].into_iter().chain(of_rows).collect()
    };
    line(&format!("\n{}", show::table(&head, (0..epochs).map(after))));
}

/// Draws accuracy, loss and time.
fn picture(rows: &[EpochsRow]) -> String {
    let of = |title: &str, number: fn(&EpochLine) -> f64| {
        let run = |row: &EpochsRow| row.epochs.iter().map(|line| (line.epoch, number(line))).collect();
        Quantity { title: title.to_owned(), from_0: false, runs: rows.iter().map(run).collect() }
    };
    let names: Vec<_> = rows.iter().map(|row| row.layout.clone()).collect();
    let time = |row: &EpochsRow| (row.seconds, format!("{:.2} s, x{:.2}", row.seconds, row.speedup));
    let quantities = [
        of("accuracy on the test pictures, %", |line| 100.0 * line.accuracy),
        of("loss, nats", |line| line.loss),
    ];
    let bars: Vec<_> = rows.iter().map(time).collect();
    curves::draw("a classifier, trained under each layout", (&names, "epochs"), &quantities, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a difference of the last epoch only, of a larger accuracy only, a limit of another size; a time
    /// or a rate of one epoch.
    #[test]
    fn an_accuracy_that_differs_by_more_than_a_third_of_a_point_marks_the_row() {
        let line = |epoch, accuracy| EpochLine {
            epoch,
            loss: 0.1,
            accuracy,
            seconds: 2.0,
            examples_per_second: 30.0,
        };
        let row = |accuracies: [f64; 2], unsplit: Option<&EpochsRow>| {
            let epochs = [1, 2].into_iter().zip(accuracies).map(|(epoch, accuracy)| line(epoch, accuracy));
            EpochsRow::of(Default::default(), 1, epochs.collect(), unsplit)
        };
        let unsplit = row([0.9, 0.95], None);
        assert!((unsplit.equal, unsplit.seconds, unsplit.pictures_per_second) == (true, 4.0, 30.0));
        for (accuracies, equal) in
            [([0.903, 0.947], true), ([0.8969, 0.95], false), ([0.9, 0.9531], false), ([0.9, 0.95], true)]
        {
            let row = row(accuracies, Some(&unsplit));
            assert!(row.equal == equal && row.speedup == 1.0, "{row:?}");
        }
    }
}
