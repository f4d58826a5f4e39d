//! Stages with as many ranks as they need: profiles a model's parts, and splits them into replicated stages
//! as `PipeDream` does.
use crate::event::Observer;
use crate::records;
use bench::parts;
use layers::counted;
use models::Model;
use parallel::dtype::DtypeName;
use parallel::{Result, bail, with_dtype};
use plan::partition::{ModelProfile, Partition};
use serde::Serialize;
use serde_json::{Value, json};
use tensor::readable;

/// The most ranks, and the most sequences of a microbatch.
const MOST: [usize; 2] = [4096, 64];
/// Number of microbatches of a simulated step.
const SIMULATED: usize = 64;

/// A model to split into stages.
pub struct PartitionRun<'a> {
    /// The model.
    pub model: &'a Model,
    /// Sequences of a microbatch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// The most ranks.
    pub ranks: usize,
    /// Dtype of the run.
    pub dtype: DtypeName,
}

impl PartitionRun<'_> {
    /// Profiles the model, and tells its best stages.
    ///
    /// # Errors
    /// If a number does not fit the model, the model cannot be trained here, or the observer fails.
    pub fn run(&self, observer: &Observer) -> Result<()> {
        let Self { model, sequences, seq, ranks, dtype } = *self;
        let blocks = model.config.shape.blocks;
        if !(1..=MOST[1]).contains(&sequences) {
            bail!("--sequences is {sequences}; it must be 1 to {}", MOST[1]);
        }
        let most = MOST[0].min(blocks * sequences);
        if !(1..=most).contains(&ranks) {
            bail!(
                "--partition is {ranks}; it must be 1 to {most}: {} on at most {} each, one for each of --sequences",
                counted(blocks, "block"),
                counted(sequences, "rank")
            );
        }
        observer.note(&format!("profiling {}", counted(blocks, "block")))?;
        let shape = model.config.shape;
        let profile =
            with_dtype!(dtype, D => parts::profile::<D>((shape, model.values()), [sequences, seq]))?;
        let partition = profile.partition(ranks, sequences);
        let rate = 1.0 / partition.bottleneck;
        let speedup = profile.seconds() * rate;
        let layout = layout(&partition);
        let simulated = layout.is_none().then(|| partition.simulated(&profile, SIMULATED)).transpose()?;
        let (named, split) = layout.clone().unzip();
        observer.record(&FoundPartition(json!({
            "sequences": sequences, "seq": seq, "parts": profile.parts, "bandwidth": profile.bandwidth,
            "stages": partition.stages, "bottleneck": partition.bottleneck, "speedup": speedup, "layout": named,
            "split": split.flatten(), "microbatches_per_second": rate, "simulated_microbatches_per_second": simulated,
        })))?;
        let batch = format!("{} of {}", counted(sequences, "sequence"), counted(seq, "token"));
        let (origin, steps) = (&model.origin, parts::STEPS);
        let words = format!(
            "The model is {origin}. Its parts, on one rank and a microbatch of {batch}, median of {steps} steps:\n"
        );
        observer.say(&words)?;
        tables(&profile, &partition, observer)?;
        let ms = partition.bottleneck * 1e3;
        let words = format!(
            "\nThe bottleneck takes {ms:.3} ms a microbatch: {speedup:.2} times the speed of one rank."
        );
        observer.say(&words)?;
        let runs = match layout {
            Some((layout, None)) => format!("It runs: train --layout {layout}"),
            Some((layout, Some(split))) => format!("It runs: train --layout {layout} --split {split}"),
            None => format!(
                "No layout runs stages with different numbers of ranks. Simulated under 1F1B, {SIMULATED} microbatches a step, they run \
                 {:.2} microbatches per second;\nthe bottleneck allows {rate:.2}.",
                simulated.unwrap_or_default(),
            ),
        };
        observer.say(&runs)
    }
}

/// A partition that was found, and its speed.
#[derive(Serialize)]
struct FoundPartition(Value);

records!(FoundPartition: "partition");

/// Returns the layout of stages with equal numbers of ranks, and the blocks of each if there are several.
fn layout(Partition { stages, .. }: &Partition) -> Option<(String, Option<String>)> {
    let (m, k) = (stages[0].ranks, stages.len());
    let dp = (m > 1).then(|| format!("dp={m}"));
    let axes: Vec<_> = dp.into_iter().chain((k > 1).then(|| format!("pp={k}:pipedream"))).collect();
    let layout = if axes.is_empty() { "none".into() } else { axes.join(",") };
    let split: Vec<_> = stages.iter().map(|stage| stage.parts.len().to_string()).collect();
    stages.iter().all(|stage| stage.ranks == m).then(|| (layout, (k > 1).then(|| split.join(","))))
}

/// Tells the measured parts, and the stages.
fn tables(
    profile: &ModelProfile,
    Partition { stages, bottleneck }: &Partition,
    observer: &Observer,
) -> Result<()> {
    let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
    let bytes = |bytes: usize| readable(bytes as u128);
    let rows = profile.parts.iter().zip(0..).map(|(part, block)| {
        let sizes = [part.activation_bytes, part.weight_bytes].map(bytes);
        [vec![format!("block {block}"), ms(part.seconds())], sizes.into()].concat()
    });
    observer.table(&["part", "ms", "activation", "weights"], rows)?;
    let speed = bytes(profile.bandwidth as usize);
    let words = format!("\nTwo ranks pass {speed}/s. Stages, and messages from the stage before and back:\n");
    observer.say(&words)?;
    let rows = stages.iter().zip(0..).map(|(of, stage)| {
        vec![
            format!("stage {stage}"),
            of.parts.len().to_string(),
            of.ranks.to_string(),
            ms(of.seconds),
            format!("{:.0} %", 100.0 * of.seconds / bottleneck),
            ms(2.0 * profile.message(of.parts.start)),
        ]
    });
    observer.table(&["stage", "blocks", "ranks", "ms", "of bottleneck", "messages, ms"], rows)
}
