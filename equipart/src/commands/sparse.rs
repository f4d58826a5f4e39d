//! `sparse`: features that ranks need not send each other. The time of a layer over a slow link, predicted
//! and measured; and a model that is trained on as more and more of them are left out.
mod timed;

use crate::cli::args::ModelName;
use crate::cli::pictures::{PicturesArgs, only_text, refuse};
use crate::cli::run::Run;
use crate::cli::start::RunStart;
use crate::terminal::out;
use crate::views::Views;
use crate::views::view::RECORDS;
use algorithms::Link;
use clap::Args;
use comm::Axis;
use draw::curves::{self, Quantity};
use models::TrainableModel;
use parallel::{Error, Layout, Network, Result, bail, budget};
use plan::sparse::{SparseLayer, zero_weights};
use run::event::{CellValue, RecordColumn, RunRecord, column};
use run::train::asked::AskedSettings;
use run::train::data::{DataFiles, TrainData};
use run::train::settings::{SEQ, Settings};
use run::train::{StepLine, TrainRun, of_steps, state};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tensor::{Host, files};
use timed::LayerSize;

/// Help on the columns.
const MORE: &str = "\
The first table is about one layer: the messages and products of the equations (8) to (12) of DISCO (arXiv:2302.11180), \
their\nprediction and a measurement; then the whole layer, with its outputs gathered, beside the dense one with its \
all-reduce.\nThe second table is about a model: from the second row on, each run begins with the weights of the one \
before, and so\ndoes the dense model's. \
Its zero weights are a row layer's share; all other layers, experts included, have none.";

/// Training steps of a run of a model of text.
const STEPS: usize = 100;

/// Leave features out of messages: the time of a layer, and what a model loses
#[derive(Args, Debug)]
#[command(after_help = MORE)]
pub(crate) struct SparseArgs {
    /// Percentages of features to leave out, in rising order
    #[arg(long, value_name = "S,S,...", value_delimiter = ',', default_value = "0,25,50,75,90")]
    leave_out: Vec<usize>,
    /// Number of tensor ranks
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// The slow link between the ranks of the timed layer
    #[arg(long, value_name = "LATENCY,BANDWIDTH", default_value = "20us,50MB/s")]
    link: Link,
    /// Tokens of the timed layer
    #[arg(long, default_value_t = 256)]
    tokens: usize,
    /// Inputs, and outputs, of the timed layer
    #[arg(long, default_value_t = 1024)]
    features: usize,
    /// Model to train, as in train: a folder, embedded or moe [default: fresh weights]; or mlp, a classifier
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    model: Option<ModelName>,
    #[command(flatten)]
    pictures: PicturesArgs,
    /// Data to train on, as in train
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Training steps of each run of a model of text; 0: train nothing [default: 100]
    #[arg(long)]
    steps: Option<usize>,
    /// With --model mlp: epochs of each run [default: 1]
    #[arg(long)]
    epochs: Option<usize>,
    /// Keep the folder of each run here, as dense-S and sparse-S
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Draw both tables to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A layer that leaves out a share of its features.
#[derive(Clone, Copy, Debug, Serialize)]
struct TimeRow {
    left_out_percent: usize,
    messages_seconds: f64,
    products_seconds: f64,
    predicted_seconds: f64,
    measured_seconds: f64,
    whole_layer_seconds: f64,
    dense_layer_seconds: f64,
}

/// A model that leaves out a share of its features, beside a dense one that was trained for as long.
#[derive(Clone, Copy, Debug, Serialize)]
struct QualityRow {
    left_out_percent: usize,
    zero_weights: f64,
    sparse: f64,
    dense: f64,
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

impl Run for SparseArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        self.check()?;
        let times = self.times(views)?;
        let (quality, title) = if self.trains() { self.trained(views)? } else { (Vec::new(), "") };
        if let Some(file) = self.svg.as_ref().filter(|_| !out::is_silent()) {
            let svg = picture(&times, &quality, title);
            files::replace_file(file, svg.as_bytes())?;
            views.picture("Both tables as curves.", &svg)?;
        }
        Ok(true)
    }
}

impl SparseArgs {
    fn trains(&self) -> bool {
        self.steps != Some(0) && self.epochs != Some(0)
    }
    fn check(&self) -> Result<()> {
        let Self { leave_out, ranks, tokens, features, .. } = self;
        if let Some(bad) = leave_out.iter().find(|percent| **percent > 99) {
            bail!("--leave-out has {bad}; write percentages from 0 to 99");
        }
        if !leave_out.is_sorted_by(|a, b| a < b) {
            bail!("--leave-out is not in rising order; weights that have become 0 stay 0");
        }
        let unused = [
            ("out", self.out.is_some()),
            ("model", self.model.is_some()),
            ("data", self.data.is_some()),
            ("hidden", self.pictures.hidden.is_some()),
            ("epochs", self.epochs.is_some_and(|epochs| epochs > 0)),
            ("steps", self.steps.is_some_and(|steps| steps > 0)),
        ];
        if let Some((flag, _)) = unused.iter().find(|(_, given)| *given && !self.trains()) {
            let none = if self.steps == Some(0) { "steps" } else { "epochs" };
            bail!("--{flag} is for the runs of a model, and --{none} 0 trains nothing");
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
    /// Times the layer, and prints the first table.
    fn times(&self, views: &Views) -> Result<Vec<TimeRow>> {
        let Self { ranks, tokens, features, link, .. } = *self;
        let size = LayerSize { ranks, tokens, features };
        views.doing("timing a layer")?;
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
        views.records(&rows)?;
        views.say(&format!("{features}x{features}, {tokens} tokens, {ranks} ranks, {link}; in ms:"))?;
        views.table_of(&rows)?;
        let balance = 100.0 * layer.balance();
        views.say(&format!("Messages and products take equally long with {balance:.0} % left out.\n"))?;
        Ok(rows)
    }
    /// Trains the models, and prints the second table. Returns its rows, and what they measure.
    fn trained(&self, views: &Views) -> Result<(Vec<QualityRow>, &'static str)> {
        let (fresh, learnt, settings) = self.start(views)?;
        let title = match learnt {
            TrainData::Digits(_) => "accuracy on the test pictures, %",
            _ => "bits a byte on the held-out text",
        };
        let temporary = tempfile::tempdir().map_err(|why| Error::new(why.to_string()))?;
        let folder = self.out.as_deref().unwrap_or(temporary.path());
        let run = |model: &TrainableModel, (name, percent): (&str, usize), layout: String| {
            let dir = folder.join(format!("{name}-{percent}"));
            views.doing(&format!("training {layout}"))?;
            let layout = layout.parse::<Layout>()?;
            let run = TrainRun::of((model.clone(), &learnt), settings.clone(), layout, Network::default());
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
        views.say(&format!("{title}:"))?;
        views.rows(&rows)?;
        Ok((rows, title))
    }
    /// Returns the model to train, its data, and the settings of a run.
    fn start(&self, views: &Views) -> Result<(TrainableModel, TrainData, Settings)> {
        let is_mlp = self.model == Some(ModelName::Mlp);
        if is_mlp {
            only_text(&[("steps", self.steps.is_some())])?;
        } else {
            self.pictures.unused()?;
            refuse(&[("epochs", self.epochs.is_some())], "--model mlp; a model of text")?;
        }
        let files = DataFiles { data: self.data.iter().cloned().collect(), ..DataFiles::default() };
        let start = RunStart {
            model: self.model.as_ref(),
            config: None,
            begun: None,
            pictures: &self.pictures,
            files: &files,
            seed: 0,
            seq: SEQ,
        };
        let (fresh, learnt) = if is_mlp { start.pictures() } else { start.text() }?;
        let steps = self.steps.or(Some(STEPS));
        let epochs = self.epochs.or(Some(1));
        let asked = AskedSettings { steps, epochs, ..AskedSettings::default() };
        let settings = asked.settings(None, &learnt, views)?;
        Ok((fresh, learnt, settings))
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

/// Draws time and quality over the share of features that is left out.
fn picture(times: &[TimeRow], quality: &[QualityRow], title: &'static str) -> String {
    let over = |of: fn(&TimeRow) -> f64| {
        times.iter().map(|row| (row.left_out_percent, 1e3 * of(row))).collect::<Vec<_>>()
    };
    let curve = |of: fn(&QualityRow) -> f64| {
        quality.iter().map(|row| (row.left_out_percent, of(row))).collect::<Vec<_>>()
    };
    let names = ["sparse, measured", "sparse, predicted", "dense"].map(String::from);
    let quantities = [
        Quantity {
            title: "time of a layer, ms".into(),
            from_0: true,
            runs: vec![over(|row| row.measured_seconds), over(|row| row.predicted_seconds)],
        },
        Quantity {
            title: title.into(),
            from_0: false,
            runs: vec![curve(|row| row.sparse), vec![], curve(|row| row.dense)],
        },
    ];
    curves::draw("features left out of messages", (&names, "% left out"), &quantities, &[])
}
