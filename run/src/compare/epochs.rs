//! A classifier trained for the same epochs under each layout, with its accuracy after each, the time of the
//! run, and memory. A step is that of training: the same pictures under every layout. Only stages have
//! microbatches, one each: parts of a batch of 32 are small, and their products slower.
use super::partitioning::Partitioning;
use super::work::{Comparison, Data};
use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column, hidden};
use crate::train::data::TrainData;
use crate::train::epochs::EpochLine;
use crate::train::settings::Settings;
use crate::train::{StepLine, TrainRun, of_steps};
use comm::Axis;
use parallel::{Result, bail};
use serde::Serialize;
use std::sync::Mutex;

/// Largest difference of two layouts' accuracies after an epoch, as a fraction: gradient descent amplifies
/// the rounding in which layouts differ, to a few pictures.
const TOLERANCE: f64 = 0.003;

/// One layout's run.
#[derive(Clone, Debug, Serialize)]
pub struct EpochsRow {
    /// Readable label.
    pub name: String,
    /// The layout.
    pub layout: String,
    /// Microbatches of a step.
    microbatches: usize,
    /// Reports on its epochs.
    pub epochs: Vec<EpochLine>,
    /// Training time of all epochs in seconds; the tests are not counted.
    pub seconds: f64,
    /// Training pictures a second.
    pictures_per_second: f64,
    /// Time of the unsplit run ÷ the time of this one.
    pub speedup: f64,
    /// Peak bytes of each rank.
    peak_bytes: Vec<usize>,
    /// Largest difference to the unsplit run's accuracy after the same epoch, as a fraction.
    accuracy_difference: f64,
    /// True if no accuracy differs by more than 0.3 points.
    pub equal: bool,
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

impl RunRecord for EpochsRow {
    fn kind(&self) -> &'static str {
        "epochs"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let shown = |number, words| CellValue::Shown(number, words);
        let holds = self.peak_bytes.iter().max().copied().unwrap_or(0);
        let points = format!("{:.2} points", 100.0 * self.accuracy_difference);
        let equal = if self.equal { "equal".into() } else { format!("DIFFERENT by {points}") };
        let last = |cell: fn(&EpochLine) -> CellValue| self.epochs.last().map_or(CellValue::None, cell);
        vec![
            (column("name", layers::counted(self.epochs.len(), "epoch")), CellValue::word(&self.name)),
            (hidden("layout"), CellValue::word(&self.layout)),
            (column("seconds", "seconds"), shown(self.seconds, format!("{:.2}", self.seconds))),
            (
                column("pictures_per_second", "pictures/s"),
                shown(self.pictures_per_second, format!("{:.0}", self.pictures_per_second)),
            ),
            (column("speedup", "speed-up"), shown(self.speedup, format!("x{:.2}", self.speedup))),
            (column("peak_bytes", "holds"), CellValue::bytes(holds as u128)),
            (column("loss", "loss"), last(|line| CellValue::Shown(line.loss, format!("{:.4}", line.loss)))),
            (column("accuracy", "accuracy"), last(|line| CellValue::Shown(line.accuracy, accuracy(line)))),
            (column("equal", "to unsplit"), CellValue::Word(equal)),
        ]
    }
}

fn accuracy(line: &EpochLine) -> String {
    format!("{:.2} %", 100.0 * line.accuracy)
}

impl Comparison<'_> {
    /// Trains under each layout, the unsplit one first, with these settings, and tells the rows. A pipeline
    /// has so many microbatches, or one for each stage.
    ///
    /// # Errors
    /// If a layout does not fit, memory is too small, or a rank or the observer fails.
    pub fn run_epochs(
        &self,
        settings: &Settings,
        microbatches: Option<usize>,
        observer: &Observer,
    ) -> Result<Vec<EpochsRow>> {
        let Data::Digits(digits) = self.data else { bail!("a model of text has no epochs") };
        let source = TrainData::Digits(digits.clone());
        let run = |way: &Partitioning| {
            let stages = way.layout.size(Axis::Pp);
            let microbatches = if stages > 1 { microbatches.unwrap_or(stages) } else { 1 };
            let settings = Settings { microbatches, ..settings.clone() };
            TrainRun::of((self.model.clone(), &source), settings, way.layout, way.over(&self.network))
        };
        let runs: Vec<_> = self.all_ways().into_iter().map(|way| (way, run(&way))).collect();
        runs.iter().try_for_each(|(_, run)| run.ready())?;
        let mut rows: Vec<EpochsRow> = Vec::new();
        for (way, run) in &runs {
            rows.push(self.row_of((way, run), rows.first(), observer)?);
        }
        observer.rows(&rows)?;
        let first = format!("on {} test pictures\nafter epoch", digits.test.len());
        let heads: Vec<_> = [&*first].into_iter().chain(rows.iter().map(|row| &*row.layout)).collect();
        let after = |epoch: usize| {
            let of_rows = rows.iter().map(|row| accuracy(&row.epochs[epoch]));
            [(epoch + 1).to_string()].into_iter().chain(of_rows).collect()
        };
        observer.say("")?;
        observer.table(&heads, (0..rows.first().map_or(0, |row| row.epochs.len())).map(after))?;
        Ok(rows)
    }
    /// Trains under one layout.
    fn row_of(
        &self,
        (way, run): (&Partitioning, &TrainRun),
        unsplit: Option<&EpochsRow>,
        observer: &Observer,
    ) -> Result<EpochsRow> {
        let name = way.label();
        let told = Mutex::new((Vec::new(), Vec::new()));
        let step = |line: &StepLine| {
            let mut told = told.lock().expect("nothing panics under this lock");
            told.1.clone_from(&line.peak_bytes); // so far
            let Some(epoch) = &line.epoch else { return Ok(()) };
            told.0.push(epoch.clone());
            observer.doing(&format!("{name}: {epoch}"))
        };
        way.timed(&self.network, |_| run.train(&of_steps(&step)).map(drop))?;
        let (epochs, peak_bytes) = told.into_inner().expect("no rank is left");
        let names = [name, run.layout.to_string()];
        Ok(EpochsRow { peak_bytes, ..EpochsRow::of(names, run.settings.microbatches, epochs, unsplit) })
    }
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
