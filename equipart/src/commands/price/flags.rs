//! Flags of price: settings of the step that is priced.
use crate::cli::args::{NumberArgs, RanksArgs, SEQ, TableArgs};
use crate::cli::pictures::{PicturesArgs, Plain};
use crate::commands::train::flags::DropoutRate;
use crate::commands::train::settings::{OptimizerName, Settings, tenth};
use clap::Args;
use parallel::{Layout, layout};
use std::path::PathBuf;

/// Tell a layout's peak memory, operations and traffic without running it
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct PriceArgs {
    /// A config.json [default: that of the embedded model]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// moe: the embedded model with experts; mlp: a plain classifier of 784 pixels and 10 classes [default: the model of
    /// --config]
    #[arg(long, conflicts_with = "config")]
    pub(crate) model: Option<Plain>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    #[arg(long, default_value_t, help = layout::grammar())]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) number: NumberArgs,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Tokens of a sequence
    #[arg(long, default_value_t = SEQ)]
    seq: usize,
    /// Sequences of a step [default: 8, or more if the microbatches need them]
    #[arg(long)]
    batch_size: Option<usize>,
    /// Parts that a step's sequences are cut into [default: 2 for each stage of a pipeline, as far as there are sequences;
    /// with --schedule as many as its table has]
    #[arg(long)]
    pub(crate) microbatches: Option<usize>,
    /// The optimizer
    #[arg(long, default_value = "adamw")]
    optimizer: OptimizerName,
    /// The rate of dropout everywhere, or config for what config.json says
    #[arg(long, default_value = "config")]
    dropout: DropoutRate,
    /// The share of a target that is spread over all ids alike
    #[arg(long, default_value_t = 0.0)]
    label_smoothing: f64,
    /// The weight of the square of each token's log-sum-exp in the loss
    #[arg(long, default_value_t = 0.0)]
    z_loss: f64,
    /// How often each expert is chosen, as eval --json tells it [default: all as often]
    #[arg(long, value_name = "FILE")]
    pub(crate) routing: Option<PathBuf>,
}

impl PriceArgs {
    pub(crate) fn settings(&self) -> Settings {
        let (data, usual) = (self.layout.tokens().data_ranks(), self.layout.usual_microbatches());
        let fit = |sequences: usize| usual.min(sequences / data).max(1);
        let microbatches = self.microbatches.unwrap_or_else(|| self.batch_size.map_or(usual, fit));
        Settings {
            steps: 1,
            seq: self.seq,
            batch_size: self.batch_size.unwrap_or_else(|| microbatches.saturating_mul(data).max(8)),
            microbatches,
            table: None,
            lr: 1e-3,
            warmup: 0,
            optimizer: self.optimizer,
            clip: Some(1.0),
            seed: 0,
            text: 0,
            constant: false,
            floor: tenth(),
            dropout: self.dropout.0,
            label_smoothing: self.label_smoothing,
            z_loss: self.z_loss,
            number: self.number.name,
            device: self.number.device,
        }
    }
}
