//! `gpu-check`: checks that a GPU computes the same as the host, and measures its speed: every kernel,
//! layouts on one card, products beside NVIDIA's library, a model at work. It needs the program and nothing
//! else.
use super::Run;
use crate::cli::watch::ProgressWatch;
use crate::cli::{self, out, show};
use run::compare::{Comparison, Data, Partitioning, compare};
use bench::{AtWork, SMALL};
use clap::{Args, ValueEnum};
use cuda::measure::{self, CardFigure, MeasureSize};
use cuda::{Card, CardProperties, Cuda, Gpu, checks};
use kernels::Heads;
use layers::{SGD, Shape};
use models::Model;
use parallel::{Error, Layout, Network, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tensor::{Bf16, OutOfMemory, PlaceError};

/// Compare every kernel of a GPU with the host, check layouts on it, and measure its speed
#[derive(Args, Debug)]
pub(crate) struct GpuCheckArgs {
    /// File of the report, as JSON
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    pub(crate) out: PathBuf,
    /// Run only this part; may be repeated
    #[arg(long, value_name = "PART", value_enum)]
    pub(crate) only: Vec<CheckPart>,
    /// Measure small sizes, to test that all figures run
    #[arg(long)]
    pub(crate) small: bool,
}

/// A Llama of 1.1 billion parameters. Source: Zhang et al., "`TinyLlama`", table 1, arXiv:2401.02385.
const LLAMA_1B: Shape = Shape {
    width: 2048,
    blocks: 22,
    heads: Heads { queries: 32, keys: 4, dim: 64 },
    hidden: 5632,
    vocabulary: 32_000,
    ..Shape::LLAMA
};
/// TFLOP/s of dense bf16 products with sums in f32 on an H100 or H200. Source: NVIDIA, "H200 Tensor Core
/// GPU", data sheet: 1 979 with sparsity.
const PEAK: f64 = 989.5;
/// Layouts whose ranks use one card together.
const LAYOUTS: [&str; 7] =
    ["tp=2,sp", "cp=2,recompute", "dp=2", "pp=2", "dp=2:zero3", "tp=2,dp=2", "tp=2,dp=2:zero1,pp=2"];

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TableLine {
    pub(crate) what: String,
    pub(crate) outcome: String,
    /// True if the outcome is as wanted; `None` if nothing is wanted.
    pub(crate) well: Option<bool>,
}

impl TableLine {
    pub(crate) const HEAD: [&str; 3] = ["what", "outcome", "as wanted"];

    pub(crate) fn cells(&self) -> Vec<String> {
        let well = self.well.map_or("", |well| if well { "yes" } else { "NO" });
        vec![self.what.clone(), self.outcome.clone(), well.into()]
    }
}

/// Report of all checks.
#[derive(Debug, Serialize)]
struct CheckReport {
    card: String,
    cuda: String,
    seconds: f64,
    lines: Vec<TableLine>,
}

/// Part of the checks; the doc of each variant is its help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckPart {
    /// every kernel, compared with the host's
    Kernels,
    /// layouts with all ranks on the card, compared with one rank
    Layouts,
    /// the speed of kernels, and of a model
    Figures,
}

impl Run for GpuCheckArgs {
    fn run(self, json: bool) -> Result<bool> {
        let a = self;
        let (begin, card) = (Instant::now(), Card::open(0).map_err(|error| Error::new(error.to_string()))?);
        let (watch, asked) = (ProgressWatch::spinner(), |part| a.only.is_empty() || a.only.contains(&part));
        let mut lines = Vec::new();
        if asked(CheckPart::Kernels) {
            lines.extend(kernels(&card, &watch));
        }
        if asked(CheckPart::Layouts) {
            watch.say("comparing layouts");
            lines.extend(layouts()?);
        }
        let right = lines.iter().all(|line| line.well == Some(true));
        if asked(CheckPart::Figures) {
            lines.extend(figures(&card, a.small, &watch)?);
        }
        watch.done();
        let CardProperties { name, cuda: (major, minor), .. } = &card.about;
        let report = CheckReport {
            card: name.clone(),
            cuda: format!("{major}.{minor}"),
            seconds: begin.elapsed().as_secs_f64(),
            lines,
        };
        let text = serde_json::to_string_pretty(&report).expect("strings and numbers");
        tensor::files::replace_file(&a.out, text.as_bytes())?;
        if json {
            show::json(&report);
            return Ok(right);
        }
        let CheckReport { card, cuda, seconds, lines } = &report;
        out::line(&show::table(&TableLine::HEAD, lines.iter().map(TableLine::cells)).to_string());
        out::line(&format!("{card}, CUDA {cuda}, {seconds:.0} s; also in {}", a.out.display()));
        Ok(right)
    }
}

/// Compares every kernel with the host's in f64.
pub(crate) fn kernels(card: &Arc<Card>, watch: &ProgressWatch) -> Vec<TableLine> {
    let line = |check: &checks::Check<Gpu>| {
        watch.say(&format!("checking {}", check.name));
        let outcome = guarded(|| (check.run)(&Gpu::of(card)));
        let well = Some(outcome.is_ok());
        TableLine {
            what: check.name.into(),
            outcome: outcome.err().unwrap_or_else(|| "as the host".into()),
            well,
        }
    };
    checks::all().map(line).collect()
}

/// Measures kernels, and a model at work.
fn figures(card: &Arc<Card>, small: bool, watch: &ProgressWatch) -> Result<Vec<TableLine>> {
    let tell = |figure: &CardFigure| {
        let TableLine { what, outcome, .. } = line(figure);
        watch.say(&format!("{what}: {outcome}"));
    };
    let figures =
        guarded(|| measure::all(&Gpu::of(card), MeasureSize::new(small), &tell)).map_err(Error::new)?;
    watch.say("a model at work");
    let at_work = at_work(&card.about, figures[0].rate, small)?;
    Ok(figures.iter().chain(&at_work).map(line).collect())
}

/// Returns the result of a check; a card that fails or runs out of memory is a result, too.
pub(crate) fn guarded<T>(
    work: impl FnOnce() -> std::result::Result<T, String>,
) -> std::result::Result<T, String> {
    let failed = PlaceError::caught(|| OutOfMemory::caught(work));
    failed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?
}

/// Compares each layout, with all ranks on one card, with one rank.
fn layouts() -> Result<Vec<TableLine>> {
    let model = Model::embedded()?;
    let corpus = cli::corpus(None, model.config.positions.min(64), &model.tokenizer()?)?;
    let ways = LAYOUTS.iter().map(|layout| Ok(Partitioning::from(layout.parse::<Layout>()?)));
    let learner = model.clone().into();
    let work = Comparison {
        model: &learner,
        data: Data::Text(&model, &corpus),
        ways: ways.collect::<Result<_>>()?,
        learns: true,
        network: Network::default(),
        microbatches: 2,
        optimizer: SGD,
        seconds: 0.0,
    };
    let rows = compare::<Cuda<f32>>(&work, &|_| Ok(()))?;
    let of = |layout: &&str| {
        let own: Vec<_> = rows.iter().filter(|row| row.layout == **layout).collect();
        let worst = own.iter().map(|row| row.error_ratio).fold(0.0, f64::max);
        let tokens = own.iter().all(|row| row.tokens_equal != Some(false) || row.tie.is_some());
        let well = !own.is_empty() && tokens && worst <= 4.0 && own.iter().all(|row| row.equal);
        let tokens = if tokens { "tokens equal" } else { "other tokens" };
        let outcome = format!("{tokens}, error x{worst:.2} of one rank's");
        TableLine { what: format!("{layout} on one card"), outcome, well: Some(well) }
    };
    Ok(LAYOUTS.iter().map(of).collect())
}

/// Measures a model of a billion parameters in bf16: a training step, and decoding of single tokens.
fn at_work(about: &CardProperties, copy: f64, small: bool) -> Result<[CardFigure; 2]> {
    let of = AtWork::measure::<Cuda<Bf16>>;
    let AtWork { step, flops, token, weights } =
        if small { of(SMALL, [2, 16], [4, 4], 1)? } else { of(LLAMA_1B, [4, 2048], [32, 64], 3)? };
    let known = ["H100", "H200"].iter().any(|name| about.name.contains(name));
    Ok([
        CardFigure {
            name: "training step of 1.1 billion parameters, bf16".into(),
            rate: flops / step / 1e12,
            unit: "TFLOP/s",
            beside: known.then(|| (PEAK, "the data sheet's peak".into())),
            wanted: 0.45,
        },
        CardFigure {
            name: "decoding with 1.1 billion parameters, bf16".into(),
            rate: weights / token / 1e9,
            unit: "GB/s",
            beside: Some((copy, "a device copy".into())),
            wanted: 0.8,
        },
    ])
}

fn line(figure: &CardFigure) -> TableLine {
    let CardFigure { name, rate, unit, beside, wanted } = figure;
    let part = figure.part();
    let beside = match (beside, part) {
        (Some((_, what)), Some(part)) => format!(", {part:.2} of {what} ({wanted:.2} wanted)"),
        _ => String::new(),
    };
    TableLine {
        what: name.clone(),
        outcome: format!("{rate:.1} {unit}{beside}"),
        well: part.map(|part| part >= *wanted),
    }
}
