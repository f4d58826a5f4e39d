//! Checks of a card: every kernel beside the host's, layouts whose ranks share it, whole numbers under a
//! layout, and the speed of kernels and of a model.
use crate::compare::{Comparison, Data, Partitioning, compare};
use crate::device::DeviceName;
use crate::event::{CellValue, Observer, RecordColumn, RunEvent, RunRecord, column};
use crate::in_device;
use bench::{AtWork, SMALL};
use cuda::measure::{self, CardFigure, MeasureSize};
use cuda::{Card, CardProperties, Cuda, Gpu, checks};
use kernels::Heads;
use layers::Shape;
use models::text::Corpus;
use models::{Model, embedded};
use ops::SGD;
use parallel::dtype::DtypeName;
use parallel::{Error, Layout, Network, Result};
use prove::{Exact, exact};
use serde::Serialize;
use std::sync::Arc;
use tensor::{Bf16, OutOfMemory, PlaceError};

/// A Llama of 1.1 billion parameters. Source: Zhang et al., "`TinyLlama`", table 1, arXiv:2401.02385.
const LLAMA_1B: Shape = Shape {
    width: 2048,
    blocks: 22,
    heads: Heads::new(32, 4, 64),
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

/// One thing that was checked.
#[derive(Clone, Debug, Serialize)]
pub struct CheckRow {
    /// Its name.
    pub what: String,
    /// The outcome, in words.
    pub outcome: String,
    /// True if the outcome is as wanted; `None` if nothing is wanted.
    pub well: Option<bool>,
}

impl RunRecord for CheckRow {
    fn kind(&self) -> &'static str {
        "check"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let well = self.well.map_or("", |well| if well { "yes" } else { "NO" });
        vec![
            (column("what", "what"), CellValue::word(&self.what)),
            (column("outcome", "outcome"), CellValue::word(&self.outcome)),
            (column("well", "as wanted"), CellValue::word(well)),
        ]
    }
}

/// Compares every kernel with the host's in f64.
pub fn kernels(card: &Arc<Card>, observer: &Observer) -> Vec<CheckRow> {
    let line = |check: &checks::Check<Gpu>| {
        drop(observer.doing(&format!("checking {}", check.name))); // the results tell of an error
        let outcome = guarded(|| (check.run)(&Gpu::of(card)));
        let well = Some(outcome.is_ok());
        CheckRow {
            what: check.name.into(),
            outcome: outcome.err().unwrap_or_else(|| "as the host".into()),
            well,
        }
    };
    checks::all().map(line).collect()
}

/// Measures kernels, and a model at work.
///
/// # Errors
/// If the card fails.
pub fn figures(card: &Arc<Card>, small: bool, observer: &Observer) -> Result<Vec<CheckRow>> {
    let tell = |figure: &CardFigure| {
        let CheckRow { what, outcome, .. } = line(figure);
        drop(observer.doing(&format!("{what}: {outcome}")));
    };
    let figures =
        guarded(|| measure::all(&Gpu::of(card), MeasureSize::new(small), &tell)).map_err(Error::new)?;
    observer.doing("a model at work")?;
    Ok(figures.iter().chain(&at_work(&card.about, figures[0].rate, small)?).map(line).collect())
}

/// Returns the result of a check; a card that fails or runs out of memory is a result, too.
///
/// # Errors
/// That of the work, or of the card, in words.
pub fn guarded<T>(work: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    let failed = PlaceError::caught(|| OutOfMemory::caught(work));
    failed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?
}

/// Compares each layout, with all ranks on one card, with one rank.
///
/// # Errors
/// If the card has no memory for them.
pub fn layouts() -> Result<Vec<CheckRow>> {
    let model = Model::embedded()?;
    let corpus = {
        let seq = model.config.positions.min(64);
        Corpus::tokenized(embedded::CORPUS, "the embedded text", seq, &model.tokenizer()?)?
    };
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
    let rows = compare::<Cuda<f32>>(&work, &|_: &RunEvent| Ok(()))?;
    let summary = |layout: &&str| {
        let matching: Vec<_> = rows.iter().filter(|row| row.layout == **layout).collect();
        let worst = matching.iter().map(|row| row.error_ratio).fold(0.0, f64::max);
        let tokens = matching.iter().all(|row| row.tokens_equal != Some(false) || row.tie.is_some());
        let well = !matching.is_empty() && tokens && worst <= 4.0 && matching.iter().all(|row| row.equal);
        let tokens = if tokens { "tokens equal" } else { "other tokens" };
        let outcome = format!("{tokens}, error x{worst:.2} of one rank's");
        CheckRow { what: format!("{layout} on one card"), outcome, well: Some(well) }
    };
    Ok(LAYOUTS.iter().map(summary).collect())
}

/// Checks a layout on whole numbers, which a card adds exactly: its linear layers and collectives equal the
/// field's oracle bit for bit.
///
/// # Errors
/// If the layout does not fit, or a rank fails.
pub fn whole_numbers(
    layout: &Layout,
    numbers: &[DtypeName],
    device: DeviceName,
    observer: &Observer,
) -> Result<Vec<CheckRow>> {
    let mut rows = Vec::new();
    for &number in numbers {
        let watch = |what: &str| drop(observer.doing(what));
        let both = in_device!((device, number), D => exact::<D>(layout, &watch))?;
        let row = |(what, seen): (&str, Exact)| {
            let Exact { tensors, elements, first_difference } = seen;
            let well = Some(first_difference.is_none());
            let equal = || format!("{tensors} tensors, {elements} elements equal the oracle's bit for bit");
            let outcome = first_difference.unwrap_or_else(equal);
            CheckRow { what: format!("{what} of {layout}, {number}"), outcome, well }
        };
        let made = |(_, seen): &(&str, Exact)| seen.tensors > 0;
        rows.extend(["linear layers", "collectives"].into_iter().zip(both).filter(made).map(row));
    }
    Ok(rows)
}

/// Measures a model of a billion parameters in bf16: a training step, and decoding of single tokens.
fn at_work(about: &CardProperties, copy: f64, small: bool) -> Result<[CardFigure; 2]> {
    let measure = AtWork::measure::<Cuda<Bf16>>;
    let AtWork { step, flops, token, weights } =
        if small { measure(SMALL, [2, 16], [4, 4], 1)? } else { measure(LLAMA_1B, [4, 2048], [32, 64], 3)? };
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

fn line(figure: &CardFigure) -> CheckRow {
    let CardFigure { name, rate, unit, beside, wanted } = figure;
    let part = figure.part();
    let beside = match (beside, part) {
        (Some((_, what)), Some(part)) => format!(", {part:.2} of {what} ({wanted:.2} wanted)"),
        _ => String::new(),
    };
    CheckRow {
        what: name.clone(),
        outcome: format!("{rate:.1} {unit}{beside}"),
        well: part.map(|part| part >= *wanted),
    }
}
