//! `sparse`: features that ranks need not send each other. The time of a layer over a slow link, predicted
//! and measured; and a model that is trained on as more and more of them are left out.
use crate::cli::args::ModelName;
use crate::cli::files;
use crate::cli::pictures::{PicturesArgs, only_text, refuse};
use crate::cli::run::Run;
use crate::cli::start::RunStart;
use crate::views::Views;
use crate::views::view::RECORDS;
use algorithms::Link;
use clap::Args;
use draw::curves::{self, Quantity};
use models::TrainableModel;
use parallel::{Result, bail};
use run::sparse::{QualityRow, SparseRun, TimeRow};
use run::train::asked::AskedSettings;
use run::train::data::{DataFiles, TrainData};
use run::train::settings::{SEQ, Settings};
use std::path::PathBuf;

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

impl Run for SparseArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let a = self;
        let run = SparseRun {
            leave_out: a.leave_out.clone(),
            ranks: a.ranks,
            link: a.link,
            tokens: a.tokens,
            features: a.features,
        };
        a.unused()?;
        run.check()?;
        let times = run.times(views)?;
        let (quality, title) = if a.trains() {
            let (fresh, learnt, settings) = a.start(views)?;
            run.trained(fresh, (&learnt, &settings), a.out.as_deref(), views)?
        } else {
            (Vec::new(), "")
        };
        let draw = || picture(&times, &quality, title);
        files::picture(a.svg.as_ref(), "Both tables as curves.", views, draw)?;
        Ok(true)
    }
}

impl SparseArgs {
    fn trains(&self) -> bool {
        self.steps != Some(0) && self.epochs != Some(0)
    }
    /// Refuses flags of runs, if nothing is trained.
    fn unused(&self) -> Result<()> {
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
        Ok(())
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
