//! `schedule --partition RANKS`: profiles a model's parts, and splits them into replicated stages as PipeDream
//! does.
use crate::cli::watch::ProgressWatch;
use crate::cli::{out, show};
use bench::parts;
use clap::Args;
use comm::readable;
use layers::counted;
use models::Model;
use parallel::dtype::DtypeName;
use parallel::{Result, bail, with_dtype};
use plan::partition::{ModelProfile, Partition};
use serde_json::json;

/// The most ranks, and the most sequences of a microbatch.
const MOST: [usize; 2] = [4096, 64];
/// Number of microbatches of a simulated step.
const SIMULATED: usize = 64;

/// Flags of the partitioner.
#[derive(Args, Debug)]
pub(super) struct PartitionArgs {
    /// Measure the blocks of --model on this machine, and split them into stages over at most this number of
    /// ranks, with more ranks for slower stages, as PipeDream does
    #[arg(long = "partition", value_name = "RANKS", requires = "model", conflicts_with_all = [
        "kind", "stages", "microbatches", "chunks", "slices", "times", "link", "file", "svg", "csv",
    ])]
    pub(super) ranks: Option<usize>,
    /// With --partition, sequences of a microbatch
    #[arg(long, default_value_t = 4, requires = "ranks")]
    sequences: usize,
}

impl PartitionArgs {
    /// Profiles a model on sequences of `seq` tokens, and prints its best stages on at most `ranks` ranks.
    ///
    /// # Errors
    /// If a number does not fit the model, or the model cannot be trained here.
    pub(super) fn run(&self, ranks: usize, (model, seq): (&Model, usize), dtype: DtypeName, as_json: bool) -> Result<bool> {
        let (sequences, blocks) = (self.sequences, model.config.shape.blocks);
        if !(1..=MOST[1]).contains(&sequences) {
            bail!("--sequences is {sequences}; it must be 1 to {}", MOST[1]);
        }
        let most = MOST[0].min(blocks * sequences);
        if !(1..=most).contains(&ranks) {
            bail!(
                "--partition is {ranks}; it must be 1 to {most}: {} on at most {} each, one for each sequence of a \
                 microbatch (--sequences)",
                counted(blocks, "block"),
                counted(sequences, "rank"),
            );
        }
        let watch = ProgressWatch::spinner();
        watch.say(&format!("training steps of {}", counted(blocks, "block")));
        let shape = model.config.shape;
        let profile = with_dtype!(dtype, D => parts::profile::<D>((shape, model.values()), [sequences, seq]))?;
        watch.done();
        let partition = profile.partition(ranks, sequences);
        let simulated = match partition.replicas() {
            Some(_) => None,
            None => Some(partition.simulated(&profile, SIMULATED)?),
        };
        let found = Found { profile, partition, simulated };
        if as_json { found.json([sequences, seq]) } else { found.say(&model.origin, [sequences, seq]) }
        Ok(true)
    }
}

/// A profile, its best partition, and the simulated microbatches per second of stages that no layout has.
struct Found {
    profile: ModelProfile,
    partition: Partition,
    simulated: Option<f64>,
}

impl Found {
    /// Returns the layout of stages with equal numbers of ranks, and the blocks of each stage if there are
    /// several.
    fn layout(&self) -> Option<(String, Option<String>)> {
        let stages = &self.partition.stages;
        let split: Vec<_> = stages.iter().map(|stage| stage.parts.len().to_string()).collect();
        Some(match (self.partition.replicas()?, stages.len()) {
            (1, 1) => ("none".into(), None),
            (m, 1) => (format!("dp={m}"), None),
            (1, k) => (format!("pp={k}:pipedream"), Some(split.join(","))),
            (m, k) => (format!("dp={m},pp={k}:pipedream"), Some(split.join(","))),
        })
    }
    fn speedup(&self) -> f64 {
        self.profile.seconds() / self.partition.bottleneck
    }
    fn json(&self, [sequences, seq]: [usize; 2]) {
        let (layout, split) = self.layout().unzip();
        show::json(&json!({
            "sequences": sequences, "seq": seq, "parts": self.profile.parts, "bandwidth": self.profile.bandwidth,
            "stages": self.partition.stages, "bottleneck": self.partition.bottleneck, "speedup": self.speedup(),
            "layout": layout, "split": split.flatten(), "microbatches_per_second": 1.0 / self.partition.bottleneck,
            "simulated_microbatches_per_second": self.simulated,
        }));
    }
    fn say(&self, origin: &str, [sequences, seq]: [usize; 2]) {
        let Self { profile, partition, simulated } = self;
        let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
        let bytes = |bytes: usize| readable(bytes as u128);
        out::line(&format!(
            "The model is {origin}. Its parts on one rank, for a microbatch of {}, each time the median of {} steps:\n",
            format_args!("{} of {}", counted(sequences, "sequence"), counted(seq, "token")),
            parts::STEPS,
        ));
        let rows = profile.parts.iter().enumerate().map(|(block, part)| {
            let activation = if part.activation_bytes == 0 { "-".into() } else { bytes(part.activation_bytes) };
            vec![format!("block {block}"), ms(part.seconds()), activation, bytes(part.weight_bytes)]
        });
        out::line(&show::table(&["part", "ms", "activation", "weights"], rows).to_string());
        out::line(&format!("\nA message between two ranks has {}/s. The best stages:\n", bytes(profile.bandwidth as usize)));
        let share = |seconds: f64| format!("{:.0} %", 100.0 * seconds / partition.bottleneck);
        let rows = partition.stages.iter().enumerate().map(|(stage, of)| {
            let sent = match 2.0 * profile.message(of.parts.start) {
                0.0 => "-".into(),
                sent => ms(sent),
            };
            let blocks = match of.parts.len() {
                1 => of.parts.start.to_string(),
                _ => format!("{} to {}", of.parts.start, of.parts.end - 1),
            };
            vec![format!("stage {stage}"), blocks, of.ranks.to_string(), ms(of.seconds), share(of.seconds), sent]
        });
        let head = ["stage", "blocks", "ranks", "ms", "of bottleneck", "ms of messages from before"];
        out::line(&show::table(&head, rows).to_string());
        out::line(&format!(
            "\nThe bottleneck takes {} ms a microbatch: {:.2} times the speed of one rank.",
            ms(partition.bottleneck),
            self.speedup()
        ));
        let ends = match (self.layout(), simulated) {
            (Some((layout, None)), _) => format!("It runs: train --layout {layout}"),
            (Some((layout, Some(split))), _) => format!("It runs: train --layout {layout} --split {split}"),
            (None, rate) => format!(
                "No layout runs stages with different numbers of ranks, so a step of {SIMULATED} microbatches is simulated under \
                 1F1B:\n{:.1} microbatches per second; the bottleneck allows {:.1}.",
                rate.unwrap_or_default(),
                1.0 / partition.bottleneck,
            ),
        };
        out::line(&ends);
    }
}
