//! Prices: cost of a layout from shapes alone. The same program runs on the meta device, one rank at a time,
//! so the world can have any size.
mod cost;
mod methods;
mod report;
mod routing;
mod row;
pub mod seconds;

pub use cost::{Cost, Price, RankTraffic};
pub use routing::read as read_routing;
pub use row::PriceRow;

use self::methods::Method;
use self::seconds::MachineTime;
use crate::event::Observer;
use crate::in_device;
use crate::records;
use crate::train::TrainRun;
use crate::train::settings::Settings;
use comm::Ledger;
use kernels::{Kernels, Meta, MetaOf};
use layers::{Builder, Design};
use models::Config;
use ops::LayerCounts;
use parallel::dtype::RunDevice;
use parallel::price::kinds::kinds;
use parallel::price::largest::{LargestBatch, Search, Unknown};
use parallel::price::{STEPS, peak_of_all, with_fitting_blocks};
use parallel::{Batch, BuildContext, Layout, Result, Trainer, budget, measure, session};
use plan::Machine;
use plan::spans::{RankSpan, spans_of_step};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::count::Overflow;
use tensor::{Category, Phase, Scalar};

/// The training step of a layout, to be priced.
pub struct PriceRun {
    /// The model.
    pub design: Design,
    /// Tokens of each expert, if their load is not even.
    pub experts: Option<LayerCounts>,
    /// Settings of the step.
    pub settings: Settings,
    /// The layout.
    pub layout: Layout,
}

impl PriceRun {
    /// The step of a training run.
    #[must_use]
    pub fn step_of(run: &TrainRun) -> Self {
        let design = run.settings.design(&run.model);
        Self { design, experts: None, settings: run.settings.clone(), layout: run.layout }
    }
    fn of(&self) -> LoadedDesign<'_> {
        (&self.design, self.experts.as_ref())
    }
    /// Returns the prices of the kinds of ranks.
    ///
    /// # Errors
    /// If the layout does not fit the model or the batch, or its memory limit is too small.
    pub fn prices(&self) -> Result<Vec<Price>> {
        let Self { settings, layout, .. } = self;
        in_device!((settings.device, settings.number), D => kinds_in::<D>(self.of(), settings, layout))
    }
    /// Returns the prices of all ranks, or, of more than so many, of their kinds.
    ///
    /// # Errors
    /// Those of [`prices`](Self::prices).
    pub fn prices_of_each(&self, most: usize) -> Result<Vec<PriceRow>> {
        let Self { settings, layout, .. } = self;
        let each = || in_device!((settings.device, settings.number), D => price_in::<D>(self.of(), settings, layout));
        let prices = if layout.ranks() <= most { each()? } else { self.prices()? };
        Ok(PriceRow::all(prices, None))
    }
    /// Returns the kernels and calls of rank 0 in a step, at the times that a machine's file predicts.
    ///
    /// # Errors
    /// If the layout does not fit the model or the batch.
    pub fn spans(&self, machine: &Arc<Machine>) -> Result<Vec<RankSpan>> {
        let Self { settings, layout, design, .. } = self;
        in_device!((settings.device, settings.number), D =>
            spans_of_step::<D>(layout, &settings.job(design), settings.microbatches, machine))
    }
    /// Tells the prices of the kinds of ranks, the time of the step on a machine, and the methods of
    /// attention that fit the layout.
    ///
    /// # Errors
    /// Those of [`prices`](Self::prices).
    pub fn tell(&self, machine: Option<Machine>, observer: &Observer) -> Result<()> {
        let Self { settings, layout, design, .. } = self;
        let prices = self.prices()?;
        let time = machine.map(|machine| {
            in_device!((settings.device, settings.number), D =>
                MachineTime::of::<D>(layout, &settings.job(design), settings.microbatches, machine))
        });
        let time = time.transpose()?;
        let rows = PriceRow::all(prices, time.as_ref());
        observer.records(&rows)?;
        report::tell(&rows, settings, observer)?;
        time.map_or(Ok(()), |time| observer.say(&time.to_string()))?;
        if !observer.wants_words() {
            return Ok(());
        }
        let all = in_device!((settings.device, settings.number), D => methods_in::<D>(self.of(), settings, layout))?;
        methods::tell(&all, observer)
    }
    /// Tells the largest batch in the settings' number of microbatches.
    ///
    /// # Errors
    /// If the layout does not fit, or not even the smallest batch is within the memory.
    pub fn tell_largest(&self, observer: &Observer) -> Result<()> {
        let Self { settings, layout, .. } = self;
        let found = in_device!((settings.device, settings.number), D =>
            largest_in::<D>(self.of(), settings, layout, observer))?;
        observer.record(&found)?;
        observer.say(&format!("The largest batch in {} under {layout} has {found}", settings.number))
    }
}

records!(LargestBatch: "largest batch");

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

/// Runs the program that is priced, on any device.
///
/// # Errors
/// If the batch does not fit, or ranks fail to communicate.
pub fn program<D: Kernels>(
    at: &BuildContext<D>,
    design: impl Into<Design>,
    settings: &Settings,
) -> Result<Cost> {
    let meter = at.device.meter();
    let design = design.into();
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
    let Cost { peaks, flops, traffic: ledger, offloaded } =
        session::ghost::<D, _>(layout, (rank, None), |at: BuildContext<MetaOf<D>>| run(at, of, settings))?;
    let mut peak_bytes: BTreeMap<_, _> =
        Category::ALL.iter().map(|c| (c.name(), peaks.category[*c as usize])).collect();
    peak_bytes.insert("total", peaks.total);
    let (traffic_bytes, traffic) = (Overflow::caught(|| ledger.wire_bytes())?, rank_traffic(&ledger));
    let (away_bytes, moved_bytes) = offloaded;
    Ok(Price {
        layout: layout.to_string(),
        number: settings.number,
        rank,
        ranks: 1,
        microbatches: settings.microbatches,
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
    let prices: Result<_> =
        (0..layout.ranks()).map(|rank| rank_price::<D>(of, settings, layout, rank)).collect();
    prices.map_err(|why| with_fitting_blocks::<D>(why, layout, of.0, &settings.optimizer))
}

/// Returns the prices of the kinds of ranks of a design.
fn kinds_in<D: RunDevice>(of: LoadedDesign, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    layout.fits(of.0)?;
    let price = |rank| Ok(Price { rank: 0, ..rank_price::<D>(of, settings, layout, rank)? });
    let kinds = kinds((layout, settings.optimizer.info().matrices.is_some()), price);
    let kinds = kinds.map_err(|why| with_fitting_blocks::<D>(why, layout, of.0, &settings.optimizer))?;
    let prices: Vec<_> =
        kinds.into_iter().map(|kind| Price { rank: kind.first, ranks: kind.ranks, ..kind.price }).collect();
    let most = prices.iter().map(|price| (price.rank, price.peak_bytes["total"]));
    if let Some(most) = most.max_by_key(|(_, bytes)| *bytes) {
        let run = |at: BuildContext<MetaOf<D>>| run(at, of, settings).map(drop);
        budget::check_limit::<D>(layout, most, run)?;
    }
    Ok(prices)
}

/// Returns the methods of attention that fit a layout whose ranks share tokens.
fn methods_in<D: RunDevice>(of: LoadedDesign, settings: &Settings, layout: &Layout) -> Result<Vec<Method>> {
    let fits = |layout: &Layout| layout.fits(of.0).is_ok();
    let run = |at: BuildContext<MetaOf<D>>| run(at, of, settings);
    methods::all(layout, fits, |layout, rank| session::ghost::<D, _>(layout, (rank, None), run))
}

/// Returns a report on the largest batch of a design in the settings' number of microbatches.
fn largest_in<D: RunDevice>(
    of: LoadedDesign,
    settings: &Settings,
    layout: &Layout,
    observer: &Observer,
) -> Result<LargestBatch> {
    let note = |words: &str| observer.note(words);
    layout.fits(of.0)?;
    let peak = |layout: &Layout, [batch_size, microbatches]: [usize; 2]| {
        let settings = Settings { batch_size, microbatches, ..settings.clone() };
        let batch = batch(of.0, &settings)?;
        peak_of_all::<D, _>(layout, |tokens| batch.dealt(&tokens), |at| run(at, of, &settings).map(drop))
    };
    let (ranks, numbers) = ([layout.ranks(); 2], [settings.most_sequences(), settings.microbatches]);
    let mut search = Search { layout, room: None, unknown: Unknown::BatchSize, numbers, peak: &peak };
    if layout.memory_limit().is_none() {
        settings.device.open(layout.ranks(), &|words| drop(note(words)))?;
        search.room = budget::room::<D::Place>(ranks);
        let least = settings.microbatches * layout.tokens().data_ranks();
        let bytes = peak(layout, [least, settings.microbatches])?.all;
        budget::fits::<D::Place>(format_args!("a training step under {layout}"), ranks, bytes)?;
    }
    search.report(search.find()?, of.0)
}
