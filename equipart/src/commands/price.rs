//! `price`: cost of a layout from shapes alone: the same program on the meta device, one rank at a time, so
//! the world can have any size.
mod methods;
mod report;
mod routing;
pub(crate) mod seconds;

use self::methods::Method;
use super::Run;
use crate::cli::args::{DtypeArgs, RanksArgs, TableArgs, microbatches, offloads_on, optimizer};
use crate::cli::constants::ConstantArgs;
use crate::cli::out::{self, line};
use crate::cli::pictures::{NamedModel, PicturesArgs};
use crate::cli::{config, show};
use crate::commands::train::dropout::DropoutRate;
use clap::Args;
use comm::Ledger;
use kernels::{Kernels, Meta, MetaOf};
use layers::{Builder, Design, LayerCounts, OptimizerKind};
use models::{Config, Model};
use parallel::dtype::{DtypeName, RunDevice};
use parallel::price::kinds::kinds;
use parallel::price::largest::{LargestBatch, Search, Unknown};
use parallel::price::{STEPS, peak_of_all};
use parallel::{Batch, BuildContext, Layout, Result, Trainer, budget, layout, measure, session};
use plan::Machine;
use run::in_device;
use run::train::settings::{SEQ, Settings};
use seconds::{MACHINE, MachineTime};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::count::Overflow;
use tensor::{Category, Peaks, Phase, Scalar};

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
    /// Tokens of a sequence
    #[arg(long, default_value_t = SEQ)]
    seq: usize,
    /// Sequences of a step [default: 8, or more if the microbatches need them]
    #[arg(long)]
    batch_size: Option<usize>,
    /// Print the largest batch size instead: the most sequences whose step, in as many microbatches, fits in
    /// --memory-limit, or without one in the free memory of this machine
    #[arg(long, conflicts_with = "batch_size")]
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
    /// Dropout rate everywhere, or config for the rates of config.json
    #[arg(long, default_value = "config")]
    dropout: DropoutRate,
    /// Fraction of a target that is spread evenly over all ids
    #[arg(long, default_value_t = 0.0)]
    label_smoothing: f64,
    /// Weight of each token's squared log-sum-exp in the loss
    #[arg(long, default_value_t = 0.0)]
    z_loss: f64,
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
        let (data, usual) = (self.layout.tokens().data_ranks(), self.layout.usual_microbatches());
        let fit = |sequences: usize| usual.min(sequences / data).max(1);
        let microbatches = self.microbatches.unwrap_or_else(|| self.batch_size.map_or(usual, fit));
        Ok(Settings {
            steps: 1,
            seq: self.seq,
            batch_size: self.batch_size.unwrap_or_else(|| microbatches.saturating_mul(data).max(8)),
            microbatches,
            optimizer: self.constants.of(self.optimizer, 1.0)?,
            clip: self.layout.pipeline().clip(Some(1.0)),
            loss_scaling: self.number.name.loss_scaling(),
            dropout: self.dropout.0,
            label_smoothing: self.label_smoothing,
            z_loss: self.z_loss,
            number: self.number.name,
            device: self.number.device,
            ..Settings::default()
        })
    }
}

/// The price of the training step of a rank, and of all ranks like it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// The layout.
    pub layout: String,
    /// The dtype.
    pub number: DtypeName,
    /// The rank, the first of those that are alike.
    pub rank: usize,
    /// Number of ranks that are alike.
    pub ranks: usize,
    /// Microbatches of the step.
    pub microbatches: usize,
    /// Number of parameters of the whole model.
    pub parameters: usize,
    /// Peak bytes by category, each at its own time, and of all together (`total`).
    pub peak_bytes: BTreeMap<&'static str, usize>,
    /// Bytes of offloaded state, off the device; no category has them.
    pub away_bytes: usize,
    /// Bytes that a step moves between the device and the offloaded state, in both directions.
    pub moved_bytes: u64,
    /// Floating point operations of a step: products and attention.
    pub flops: u64,
    /// Bytes this rank sends in a step, as if the ranks of each axis formed a ring.
    pub traffic_bytes: usize,
    /// Its traffic in a step, by axis and operation.
    pub traffic: Vec<RankTraffic>,
}

/// Traffic of one rank along one axis in one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankTraffic {
    /// The axis.
    pub axis: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// Number of calls.
    pub calls: usize,
    /// Bytes of the tensors passed.
    pub payload_bytes: usize,
    /// Bytes that this rank sends.
    pub wire_bytes: usize,
}

fn rank_traffic(ledger: &Ledger) -> Vec<RankTraffic> {
    let rank_traffic = |(axes, op, t): (comm::Axes, comm::Op, comm::Traffic)| RankTraffic {
        axis: axes.name(),
        operation: op.name(),
        calls: t.calls,
        payload_bytes: t.payload,
        wire_bytes: t.bytes,
    };
    ledger.iter().map(rank_traffic).collect()
}

/// A batch of a step with these settings.
fn batch(design: &Design, settings: &Settings) -> Result<Batch> {
    Batch::new(vec![settings.job(design).sequence(); settings.batch_size], settings.microbatches)
}

/// Cost of the program that is priced.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Peaks over all phases.
    pub peaks: Peaks,
    /// Operations of the last step.
    pub flops: u64,
    /// Traffic of the last step.
    pub traffic: Ledger,
    /// Bytes of offloaded state, and bytes that the last step moves between it and the device.
    pub offloaded: (usize, u64),
}

/// Runs the program that is priced, on any device.
///
/// # Errors
/// If the batch does not fit, or ranks fail to communicate.
pub fn program<D: Kernels>(
    at: &BuildContext<D>,
    design: impl Into<Design>,
    settings: &Settings,
) -> Result<Cost> {
    let (meter, design) = (at.device.meter(), design.into());
    let batch = batch(&design, settings)?;
    batch.deals(&at.tokens)?;
    let mut trainer = Trainer::new(at, design, settings.optimizer())?;
    let (mut running, mut last) = (None, (0, 0, Ledger::default()));
    for _ in 0..STEPS + trainer.filling(&batch) {
        let (flops, moved, mut rank_traffic) = (meter.flops(), meter.moved(), Ledger::default());
        measure::work(at, Phase::Step, || {
            let before = at.mesh.ledger();
            let report = trainer.next_step(&mut running, &batch, settings.lr);
            rank_traffic = at.mesh.ledger() - &before;
            report
        })?;
        last = (meter.flops() - flops, meter.moved() - moved, rank_traffic);
    }
    trainer.last_step(running)?;
    let (flops, moved, traffic) = last;
    Ok(Cost { peaks: meter.peaks_of_all(), flops, traffic, offloaded: (meter.away(), moved) })
}

/// Returns the price of every rank, in the settings' dtype.
///
/// # Errors
/// If the layout does not fit the shape or the batch, or the bytes or the operations of a rank overflow 64
/// bits.
pub fn price(config: &Config, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    settings.check(config.positions)?;
    let design = settings.shape(config).into();
    in_device!((settings.device, settings.number), D => price_in::<D>((&design, None), settings, layout))
}

/// A design, and its expert load if that is not even.
type LoadedDesign<'a> = (&'a Design, Option<&'a LayerCounts>);

fn run<S: Scalar>(
    at: BuildContext<Meta<S>>,
    (design, counts): LoadedDesign,
    settings: &Settings,
) -> Result<Cost> {
    program(&BuildContext { builder: Builder { counts, ..at.builder }, ..at }, design, settings)
}

/// Returns the price of a rank.
fn rank_price<D: RunDevice>(
    of: LoadedDesign,
    settings: &Settings,
    layout: &Layout,
    rank: usize,
) -> Result<Price> {
    let run = |at: BuildContext<MetaOf<D>>| run(at, of, settings);
    let Cost { peaks, flops, traffic: ledger, offloaded } =
        session::ghost::<D, _>(layout, (rank, None), run)?;
    let mut peak_bytes: BTreeMap<_, _> =
        Category::ALL.iter().map(|c| (c.name(), peaks.category[*c as usize])).collect();
    peak_bytes.insert("total", peaks.total);
    let (traffic_bytes, traffic) = (Overflow::caught(|| ledger.wire_bytes())?, rank_traffic(&ledger));
    let (layout, number) = (layout.to_string(), settings.number);
    let (microbatches, (away_bytes, moved_bytes)) = (settings.microbatches, offloaded);
    Ok(Price {
        layout,
        number,
        rank,
        ranks: 1,
        microbatches,
        parameters: parallel::price::parameters(of.0)?,
        peak_bytes,
        away_bytes,
        moved_bytes,
        flops,
        traffic_bytes,
        traffic,
    })
}

/// Returns the price of every rank of a design.
fn price_in<D: RunDevice>(of: LoadedDesign, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    layout.fits(of.0)?;
    (0..layout.ranks()).map(|rank| rank_price::<D>(of, settings, layout, rank)).collect()
}

/// Returns the prices of the kinds of ranks of a design.
fn kinds_in<D: RunDevice>(of: LoadedDesign, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    layout.fits(of.0)?;
    let price = |rank| Ok(Price { rank: 0, ..rank_price::<D>(of, settings, layout, rank)? });
    let all = kinds((layout, settings.optimizer.info().matrices.is_some()), price)?;
    let all: Vec<_> =
        all.into_iter().map(|kind| Price { rank: kind.first, ranks: kind.ranks, ..kind.price }).collect();
    let most = all.iter().map(|price| (price.rank, price.peak_bytes["total"]));
    if let Some(most) = most.max_by_key(|(_, bytes)| *bytes) {
        let run = |at: BuildContext<MetaOf<D>>| run(at, of, settings).map(drop);
        budget::check_limit::<D>(layout, most, run)?;
    }
    Ok(all)
}

/// Returns the methods of attention that fit a layout whose ranks share tokens.
fn methods_in<D: RunDevice>(of: LoadedDesign, settings: &Settings, layout: &Layout) -> Result<Vec<Method>> {
    let fits = |layout: &Layout| layout.fits(of.0).is_ok();
    let run = |at: BuildContext<MetaOf<D>>| run(at, of, settings);
    methods::all(layout, fits, |layout, rank| session::ghost::<D, _>(layout, (rank, None), run))
}

/// Returns a report on the largest batch of a design in the settings' number of microbatches.
fn largest_in<D: RunDevice>(of: LoadedDesign, settings: &Settings, layout: &Layout) -> Result<LargestBatch> {
    layout.fits(of.0)?;
    let peak = |layout: &Layout, [batch_size, microbatches]: [usize; 2]| {
        let settings = Settings { batch_size, microbatches, ..settings.clone() };
        let batch = batch(of.0, &settings)?;
        peak_of_all::<D, _>(layout, |tokens| batch.dealt(&tokens), |at| run(at, of, &settings).map(drop))
    };
    let (ranks, numbers) = ([layout.ranks(); 2], [settings.most_sequences(), settings.microbatches]);
    let mut search = Search { layout, room: None, unknown: Unknown::BatchSize, numbers, peak: &peak };
    if layout.memory_limit().is_none() {
        settings.device.open(layout.ranks(), &out::note)?;
        search.room = budget::room::<D::Place>(ranks);
        let least = settings.microbatches * layout.tokens().data_ranks();
        let all = peak(layout, [least, settings.microbatches])?.all;
        budget::fits::<D::Place>(format_args!("a training step under {layout}"), ranks, all)?;
    }
    search.report(search.find()?, of.0)
}

impl Run for PriceArgs {
    fn run(self, json: bool) -> Result<bool> {
        let mut a = self;
        a.layout = a.table.on(a.layout)?;
        a.microbatches = microbatches(&a.layout, a.microbatches)?;
        let settings: Settings = a.settings()?;
        let (design, positions) = if a.model == Some(NamedModel::Mlp) {
            (a.pictures.fresh(None, 0).design, settings.seq)
        } else {
            a.pictures.unused()?;
            let moe = a.model.map(|_| Ok(Model::moe()?.config));
            let config = moe.unwrap_or_else(|| config(a.config.as_deref()))?;
            (settings.shape(&config).into(), config.positions)
        };
        settings.check(positions)?;
        let shape = *design.shape().unwrap_or(&layers::Shape::LLAMA);
        let routing = a.routing.as_deref().map(|file| routing::read(file, &shape)).transpose()?;
        offloads_on(settings.device, &[a.layout])?;
        let (layout, of) = (a.on_ranks.of(a.layout, &design)?, (&design, routing.as_ref()));
        if a.largest_batch {
            let found =
                in_device!((settings.device, settings.number), D => largest_in::<D>(of, &settings, &layout))?;
            show::one(json, &found, || {
                format!("The largest batch in {} under {layout} has {found}", settings.number)
            });
            return Ok(true);
        }
        let machine = a.machine.as_deref().map(Machine::named).transpose()?;
        let prices =
            in_device!((settings.device, settings.number), D => kinds_in::<D>(of, &settings, &layout))?;
        let time = machine.map(|machine| {
            in_device!((settings.device, settings.number), D =>
                MachineTime::of::<D>(&layout, &settings.job(&design), settings.microbatches, machine))
        });
        let time = time.transpose()?;
        let methods = if json {
            Vec::new()
        } else {
            in_device!((settings.device, settings.number), D => methods_in::<D>(of, &settings, &layout))?
        };
        if json {
            for price in &prices {
                show::json(&TimedPrice { price, time: time.as_ref() });
            }
            return Ok(true);
        }
        report::print(&prices, &settings);
        if let Some(time) = time {
            line(&time.to_string());
        }
        if !methods.is_empty() {
            line(&methods::reported(&methods));
        }
        Ok(true)
    }
}

/// A price, and the time of the step if it is known.
#[derive(Serialize)]
struct TimedPrice<'a> {
    #[serde(flatten)]
    price: &'a Price,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a MachineTime>,
}
