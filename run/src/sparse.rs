//! Features that ranks need not send each other: the time of a layer over a slow link, predicted and
//! measured, and models that are trained as more and more of them are left out.
mod timed;

use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column};
use crate::train::data::TrainData;
use crate::train::settings::Settings;
use crate::train::{StepLine, TrainRun, of_steps, state};
use algorithms::Link;
use comm::Axis;
use models::TrainableModel;
use parallel::{Error, Layout, Network, Result, bail, budget};
use plan::sparse::{SparseLayer, zero_weights};
use serde::Serialize;
use std::path::Path;
use std::sync::Mutex;
use tensor::Host;
use timed::LayerSize;

/// Shares of features to leave out, and the layer that is timed.
pub struct SparseRun {
    /// Percentages of features to leave out, in rising order.
    pub leave_out: Vec<usize>,
    /// Number of tensor ranks.
    pub ranks: usize,
    /// The slow link between them.
    pub link: Link,
    /// Tokens of the timed layer.
    pub tokens: usize,
    /// Inputs, and outputs, of the timed layer.
    pub features: usize,
}

/// A layer that leaves out a share of its features.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TimeRow {
    /// Percentage of features that are left out.
    pub left_out_percent: usize,
    /// Seconds of its messages, predicted.
    pub messages_seconds: f64,
    /// Seconds of its products, predicted.
    pub products_seconds: f64,
    /// Seconds of both, predicted.
    pub predicted_seconds: f64,
    /// Seconds of both, measured.
    pub measured_seconds: f64,
    /// Seconds with its outputs gathered.
    pub whole_layer_seconds: f64,
    /// Seconds of the dense layer.
    pub dense_layer_seconds: f64,
}

/// A model that leaves out a share of its features, beside a dense one that was trained for as long.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QualityRow {
    /// Percentage of features that are left out.
    pub left_out_percent: usize,
    /// Share of a row layer's weights that are 0.
    pub zero_weights: f64,
    /// Quality of the sparse model.
    pub sparse: f64,
    /// Quality of the dense one.
    pub dense: f64,
}

fn percent(left_out: usize) -> CellValue {
    CellValue::Shown(left_out as f64, format!("{left_out} %"))
}

impl RunRecord for TimeRow {
    fn kind(&self) -> &'static str {
        "time"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let ms = |seconds: f64| CellValue::Shown(seconds, format!("{:.2}", 1e3 * seconds));
        vec![
            (column("left_out_percent", "left out"), percent(self.left_out_percent)),
            (column("messages_seconds", "messages"), ms(self.messages_seconds)),
            (column("products_seconds", "products"), ms(self.products_seconds)),
            (column("predicted_seconds", "predicted"), ms(self.predicted_seconds)),
            (column("measured_seconds", "measured"), ms(self.measured_seconds)),
            (column("whole_layer_seconds", "layer"), ms(self.whole_layer_seconds)),
            (column("dense_layer_seconds", "dense layer"), ms(self.dense_layer_seconds)),
        ]
    }
}

impl RunRecord for QualityRow {
    fn kind(&self) -> &'static str {
        "quality"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let value = |value: f64| CellValue::Shown(value, format!("{value:.3}"));
        let zero = CellValue::Shown(self.zero_weights, format!("{:.1} %", 100.0 * self.zero_weights));
        vec![
            (column("left_out_percent", "left out"), percent(self.left_out_percent)),
            (column("zero_weights", "zero weights"), zero),
            (column("sparse", "sparse"), value(self.sparse)),
            (column("dense", "dense, as long"), value(self.dense)),
        ]
    }
}

impl SparseRun {
    /// Checks the percentages and the sizes, and that the memory is there.
    ///
    /// # Errors
    /// One sentence on the first thing that does not fit.
    pub fn check(&self) -> Result<()> {
        let Self { leave_out, ranks, tokens, features, .. } = self;
        if let Some(bad) = leave_out.iter().find(|percent| **percent > 99) {
            bail!("--leave-out has {bad}; write percentages from 0 to 99");
        }
        if !leave_out.is_sorted_by(|a, b| a < b) {
            bail!("--leave-out is not in rising order; weights that have become 0 stay 0");
        }
        let sizes = [
            ("ranks", *ranks, 2, 1024),
            ("tokens", *tokens, 1, 1 << 20),
            ("features", *features, 1, 1 << 16),
        ];
        for (flag, seen, least, most) in sizes {
            if !(least..=most).contains(&seen) {
                bail!("--{flag} is {seen}; it must be {least} to {most}");
            }
        }
        if !features.is_multiple_of(*ranks) {
            bail!("--features is {features}; it must be a multiple of the ranks, {ranks}");
        }
        let sends = |percent: usize| parallel::tensor::sparse::sent_of(features / ranks, percent);
        if let Some(bad) = leave_out.iter().find(|percent| sends(**percent) == 0) {
            let share = features / ranks;
            bail!("--leave-out {bad} leaves a rank without input: none of {share} features would be sent");
        }
        let [n, tokens, features] = [*ranks, *tokens, *features].map(|size| size as u128);
        let held = 4 * features * (features + 5 * n * tokens); // the weight, and matrices of each rank
        budget::fits::<Host>("timing the layer", [*ranks; 2], held)
    }
    /// Times the layer, and tells the table.
    ///
    /// # Errors
    /// If a rank or the observer fails.
    pub fn times(&self, observer: &Observer) -> Result<Vec<TimeRow>> {
        let Self { ranks, tokens, features, link, .. } = *self;
        let size = LayerSize { ranks, tokens, features };
        observer.doing("timing a layer")?;
        let layer = SparseLayer {
            ranks,
            dense_products: size.products()?,
            bytes: (4 * tokens * (features - features / ranks)) as f64,
            bandwidth: link.bandwidth(),
        };
        let dense = size.dense(link)?;
        let row = |&percent: &usize| {
            let share = percent as f64 / 100.0;
            let seen = size.sparse(link, percent)?;
            Ok(TimeRow {
                left_out_percent: percent,
                messages_seconds: layer.messages(share),
                products_seconds: layer.products(share),
                predicted_seconds: layer.seconds(share),
                measured_seconds: seen.columns,
                whole_layer_seconds: seen.whole,
                dense_layer_seconds: dense,
            })
        };
        let rows = self.leave_out.iter().map(row).collect::<Result<Vec<_>>>()?;
        observer.records(&rows)?;
        observer.say(&format!("{features}x{features}, {tokens} tokens, {ranks} ranks, {link}; in ms:"))?;
        observer.table_of(&rows)?;
        let balance = 100.0 * layer.balance();
        observer.say(&format!("Messages and products take equally long with {balance:.0} % left out.\n"))?;
        Ok(rows)
    }
    /// Trains a sparse and a dense model for each percentage, and tells the table. Their folders are kept in
    /// `folder`, or go at the end. Returns the rows, and what they measure.
    ///
    /// # Errors
    /// If a run or the observer fails.
    pub fn trained(
        &self,
        fresh: TrainableModel,
        (learnt, settings): (&TrainData, &Settings),
        folder: Option<&Path>,
        observer: &Observer,
    ) -> Result<(Vec<QualityRow>, &'static str)> {
        let title = match learnt {
            TrainData::Digits(_) => "accuracy on the test pictures, %",
            _ => "bits a byte on the held-out text",
        };
        let temporary = tempfile::tempdir().map_err(|why| Error::new(why.to_string()))?;
        let folder = folder.unwrap_or(temporary.path());
        let run = |model: &TrainableModel, (name, percent): (&str, usize), layout: String| {
            let dir = folder.join(format!("{name}-{percent}"));
            observer.doing(&format!("training {layout}"))?;
            let layout = layout.parse::<Layout>()?;
            let run = TrainRun::of((model.clone(), learnt), settings.clone(), layout, Network::default());
            let run = TrainRun { out: Some(dir.clone()), ..run };
            run.ready()?;
            judged(&run, &dir)
        };
        let (mut last, mut rows) = ([fresh.clone(), fresh], Vec::new());
        for &percent in &self.leave_out {
            let ranks = self.ranks;
            let (sparse, next) =
                run(&last[0], ("sparse", percent), format!("{}={ranks}:sparse/{percent}", Axis::Tp))?;
            let (dense, also) = run(&last[1], ("dense", percent), format!("{}={ranks}", Axis::Tp))?;
            last = [next, also];
            let zero_weights = zero_weights(percent as f64 / 100.0, ranks);
            rows.push(QualityRow { left_out_percent: percent, zero_weights, sparse, dense });
        }
        observer.say(&format!("{title}:"))?;
        observer.rows(&rows)?;
        Ok((rows, title))
    }
}

/// Trains, and returns the run's last evaluation, and its model.
fn judged(run: &TrainRun, dir: &Path) -> Result<(f64, TrainableModel)> {
    let _lock = state::prepare(dir, None, &run.model)?;
    let accuracy = Mutex::new(None);
    let step = |done: &StepLine| {
        let mut last = accuracy.lock().expect("nothing panics under this lock");
        *last = done.accuracy.or(*last);
        Ok(())
    };
    let finished = run.train(&of_steps(step))?;
    let accuracy = accuracy.into_inner().expect("no rank is left").map(|right| 100.0 * right);
    let Some(value) = finished.held_out_bits_per_byte.or(accuracy) else {
        bail!("there is no held-out text, or it is too short; give a longer one with --data");
    };
    Ok((value, TrainableModel::read(dir)?))
}
