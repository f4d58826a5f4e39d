//! `price`: cost of a layout from shapes alone: the same program on the meta device, one rank at a time, so
//! the world can have any size.
use crate::cli::args::{DtypeArgs, RanksArgs, TableArgs, microbatches, offloads_on, optimizer};
use crate::cli::config;
use crate::cli::constants::ConstantArgs;
use crate::cli::pictures::{NamedModel, PicturesArgs, only_text};
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::Args;
use layers::OptimizerKind;
use models::Model;
use parallel::{Layout, Result, layout};
use plan::Machine;
use run::price::{PriceRun, read_routing};
use run::train::amount::DropoutRate;
use run::train::settings::{SEQ, Settings};
use std::path::PathBuf;

/// Help on the machine.
const MACHINE: &str =
    "Also print the time of a step on this machine: a100, a100-2022, h100, h200, or a file of JSON";

/// Compute a layout's peak memory, operations and traffic without running it
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct PriceArgs {
    /// A config.json [default: the embedded model's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// moe: the embedded model with experts; mlp: a plain classifier of 784 pixels and 10 classes [default:
    /// the model of --config]
    #[arg(long, conflicts_with = "config")]
    pub(crate) model: Option<NamedModel>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    #[arg(long, default_value_t, help = layout::grammar())]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) number: DtypeArgs,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Tokens of a sequence [default: 256]
    #[arg(long)]
    seq: Option<usize>,
    /// Sequences of a step [default: 8, or more if the microbatches need them]
    #[arg(long)]
    batch_size: Option<usize>,
    /// Print the largest batch size instead: the most sequences whose step, in as many microbatches, fits in
    /// --memory-limit, or without one in the free memory of this machine
    #[arg(long, conflicts_with_all = ["batch_size", "machine", "csv"])]
    largest_batch: bool,
    /// Microbatches of a step [default: 2 for each stage of a pipeline, if there are enough sequences; with
    /// --schedule, those of its table]
    #[arg(long)]
    pub(crate) microbatches: Option<usize>,
    /// The optimizer
    #[arg(long, value_name = "NAME", default_value = "adamw", value_parser = optimizer())]
    optimizer: OptimizerKind,
    #[command(flatten)]
    constants: ConstantArgs,
    /// Largest norm of the gradient; a larger one is scaled down to it [default: no limit]
    #[arg(long)]
    clip: Option<f64>,
    /// Dropout rate everywhere, or config for the rates of config.json [default: config]
    #[arg(long)]
    dropout: Option<DropoutRate>,
    /// Fraction of a target that is spread evenly over all ids [default: 0]
    #[arg(long)]
    label_smoothing: Option<f64>,
    /// Weight of each token's squared log-sum-exp in the loss [default: 0]
    #[arg(long)]
    z_loss: Option<f64>,
    /// File of tokens per expert, as eval --json prints them [default: an even load]
    #[arg(long, value_name = "FILE")]
    pub(crate) routing: Option<PathBuf>,
    #[arg(long, value_name = "NAME|FILE", help = MACHINE)]
    machine: Option<String>,
}

impl PriceArgs {
    /// # Errors
    /// If a constant is not the optimizer's, or out of range.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let data = self.layout.tokens().data_ranks();
        let usual = self.layout.usual_microbatches();
        let fit = |sequences: usize| usual.min(sequences / data).max(1);
        let microbatches = self.microbatches.unwrap_or_else(|| self.batch_size.map_or(usual, fit));
        Ok(Settings {
            steps: 1,
            seq: self.seq.unwrap_or(SEQ),
            batch_size: self.batch_size.unwrap_or_else(|| microbatches.saturating_mul(data).max(8)),
            microbatches,
            optimizer: self.constants.of(self.optimizer, 1.0)?,
            clip: self.clip,
            loss_scaling: self.number.name.loss_scaling(),
            dropout: self.dropout.as_ref().and_then(|rate| rate.0),
            label_smoothing: self.label_smoothing.unwrap_or(0.0),
            z_loss: self.z_loss.unwrap_or(0.0),
            number: self.number.name,
            device: self.number.device,
            ..Settings::default()
        })
    }
}

impl Run for PriceArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let mut a = self;
        a.layout = a.table.on(a.layout)?;
        a.microbatches = microbatches(&a.layout, a.microbatches)?;
        let settings: Settings = a.settings()?;
        let (design, positions) = if a.model == Some(NamedModel::Mlp) {
            only_text(&[
                ("seq", a.seq.is_some()),
                ("dropout", a.dropout.is_some()),
                ("label-smoothing", a.label_smoothing.is_some()),
                ("z-loss", a.z_loss.is_some()),
            ])?;
            (a.pictures.fresh(None, 0).design, settings.seq)
        } else {
            a.pictures.unused()?;
            let moe = a.model.map(|_| Ok(Model::moe()?.config));
            let config = moe.unwrap_or_else(|| config(a.config.as_deref()))?;
            (settings.shape(&config).into(), config.positions)
        };
        settings.check(positions)?;
        settings.check_clip(&a.layout)?;
        let shape = *design.shape().unwrap_or(&layers::Shape::LLAMA);
        let experts = a.routing.as_deref().map(|file| read_routing(file, &shape)).transpose()?;
        offloads_on(settings.device, &[a.layout])?;
        let layout = a.on_ranks.of(a.layout, &design)?;
        let machine = a.machine.as_deref().map(Machine::named).transpose()?;
        let run = PriceRun { design, experts, settings, layout };
        if a.largest_batch { run.tell_largest(views) } else { run.tell(machine, views) }?;
        Ok(true)
    }
}
