//! `price`: what a layout costs, from shapes alone: the same program on the device without numbers, one rank at a
//! time, so a world of any size.
use crate::number::{NumberName, Runs, in_number};
use crate::settings::Settings;
use crate::{Config, Layout, Result};
use crate::{measure, memory};
use comm::{Axis, Ledger, Mesh};
use kernels::{Kernels, Meta};
use layers::{Chunk, Kind, Random, Shape};
use parallel::{Batch, Sequence, Trainer};
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use tensor::count::{self, Uncountable};
use tensor::{Category, Cpu, Device, Peaks, Phase};

/// The price of one rank's training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// The layout.
    pub layout: String,
    /// The numbers.
    pub number: NumberName,
    /// The rank.
    pub rank: usize,
    /// Peak bytes by category, each at its own moment, and of all together (`total`).
    pub peak_bytes: BTreeMap<&'static str, usize>,
    /// Floating point operations of a step: products and attention.
    pub flops: u64,
    /// Bytes this rank sends in a step, as if the ranks of each axis stood in a ring.
    pub traffic_bytes: usize,
    /// What it says in a step, by axis and operation.
    pub traffic: Vec<Said>,
}

/// What one rank says along one axis in one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// The axis.
    pub axis: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// How often.
    pub calls: usize,
    /// Bytes of the tensors given.
    pub payload_bytes: usize,
    /// Bytes that this rank sends.
    pub wire_bytes: usize,
}

fn said(ledger: &Ledger) -> Vec<Said> {
    let said = |(axes, op, t): (comm::Axes, comm::Op, comm::Traffic)| Said {
        axis: axes.name(),
        operation: op.name(),
        calls: t.calls,
        payload_bytes: t.payload,
        wire_bytes: t.bytes,
    };
    ledger.iter().map(said).collect()
}

/// Steps that are run: from the second on, everything a step holds is held.
const STEPS: usize = 2;

/// The program that is priced, on any device: peaks over all phases, operations and traffic of the last step.
///
/// # Errors
/// If the layout does not fit the shape or the batch.
pub fn program<D: Kernels>(
    (device, mesh): (&D, &Mesh<D::Place>),
    layout: &Layout,
    shape: &Shape,
    settings: &Settings,
) -> Result<(Peaks, u64, Ledger)> {
    let tokens = vec![0; settings.seq];
    let sequence = Sequence::new(tokens.clone(), tokens);
    let batch = Batch::new(vec![sequence; settings.batch_size], settings.microbatches)?;
    let at = layout.place(device, mesh, &Random { seed: 0 });
    let mut trainer = Trainer::new(&at, shape, settings.optimizer())?;
    let mut last = (0, Ledger::default());
    for _ in 0..STEPS {
        let (flops, mut said) = (device.meter().flops(), Ledger::default());
        measure::work(device, mesh, Phase::Step, || {
            let before = mesh.ledger();
            let report = trainer.step(&batch, settings.lr);
            said = mesh.ledger() - &before;
            report
        })?;
        last = (device.meter().flops() - flops, said);
    }
    Ok((device.meter().peaks_of_all(), last.0, last.1))
}

/// The price of every rank, in the settings' numbers.
///
/// # Errors
/// If the layout does not fit the shape or the batch, 64 bits do not count the bytes or the operations of a rank, or it
/// would hold more than [it may](Layout::memory_limit).
pub fn price(config: &Config, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    in_number!(settings.number, D => price_in::<D>(config, settings, layout))
}

fn price_in<D: Runs>(config: &Config, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    let shape = &settings.shape(config);
    layout.fits(shape)?;
    settings.check(config)?;
    let run = |rank, device: &Meta<D>| program((device, &layout.ghost(rank)?), layout, shape, settings);
    let on_rank = |rank| {
        let (peaks, flops, ledger) = Uncountable::caught(|| run(rank, &Meta::default()))??;
        let mut peak_bytes: BTreeMap<_, _> =
            Category::ALL.iter().map(|c| (c.name(), peaks.category[*c as usize])).collect();
        peak_bytes.insert("total", peaks.total);
        let (traffic_bytes, traffic) = (Uncountable::caught(|| ledger.wire_bytes())?, said(&ledger));
        let (layout, number) = (layout.to_string(), settings.number);
        Ok(Price { layout, number, rank, peak_bytes, flops, traffic_bytes, traffic })
    };
    let prices = (0..layout.ranks()).map(on_rank).collect::<Result<Vec<_>>>()?;
    let most = prices.iter().map(|price| (price.rank, price.peak_bytes["total"]));
    if let Some((rank, bytes)) = most.max_by_key(|(_, bytes)| *bytes) {
        memory::within(layout, (rank, bytes), |device| run(rank, device).map(drop))?;
    }
    Ok(prices)
}

/// What ranks hold at most, each at its own moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes of all of them together.
    pub all: u128,
    /// Bytes of the one that holds the most.
    pub largest: usize,
}

/// What ranks hold at most, if every rank runs this program. Ranks that
/// stand alike along all axes but dp's, and are `dealt` the same there, are priced once.
///
/// # Errors
/// What the program gives, and if 64 bits do not count the bytes of a rank, or one would hold more than it may.
pub fn peak_of_all<D: Kernels, K: Ord>(
    layout: &Layout,
    dealt: impl Fn(usize) -> Result<K>,
    program: impl Fn(&Meta<D>, &Mesh<tensor::Nowhere>) -> Result<()>,
) -> Result<Peak> {
    let (mut kinds, mut total, mut most) = (BTreeMap::new(), 0, (0, 0));
    for rank in 0..layout.ranks() {
        let (device, mesh) = (Meta::default(), layout.ghost(rank)?);
        let (data, others): (Vec<_>, Vec<_>) =
            mesh.coordinates().into_iter().partition(|(axis, _)| *axis == Axis::SEQUENCES);
        let kind = (others, dealt(data[0].1)?);
        total += match kinds.entry(kind) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                Uncountable::caught(|| program(&device, &mesh))??;
                let peak = device.meter().peaks_of_all().total;
                most = if peak > most.1 { (rank, peak) } else { most };
                *new.insert(peak as u128)
            }
        };
    }
    let mesh = layout.ghost(most.0)?;
    memory::within(layout, most, |device| program(device, &mesh))?;
    Ok(Peak { all: total, largest: most.1 })
}

/// What ranks hold at most that train on such batches, and do what comes `after` with what was learnt.
///
/// # Errors
/// As [`peak_of_all`].
pub fn training<D: Kernels>(
    layout: &Layout,
    shape: &Shape,
    optimizer: (Kind, Option<f64>),
    batch: &Batch,
    after: impl Fn(&mut Trainer<Meta<D>>, &Mesh<tensor::Nowhere>) -> Result<()>,
) -> Result<Peak> {
    let dealt = |rank| Ok(batch.dealt(rank, layout.size(Axis::SEQUENCES))?);
    peak_of_all(layout, dealt, |device, mesh| {
        let at = layout.place(device, mesh, &Random { seed: 0 });
        let mut trainer = Trainer::new(&at, shape, optimizer)?;
        (0..STEPS).try_for_each(|_| trainer.step(batch, 0.0).map(drop))?;
        after(&mut trainer, mesh)
    })
}

/// How many numbers the parameters of a model have, all together.
///
/// # Errors
/// As [`sizes`].
pub fn parameters(shape: &Shape) -> Result<usize> {
    let sizes = sizes(shape)?;
    Ok(Uncountable::caught(|| count::sum("the parameters of a model", sizes))?)
}

/// How many numbers each parameter of a model has, in program order.
///
/// # Errors
/// If a size is none of a model, or 64 bits do not count the bytes of all.
pub fn sizes(shape: &Shape) -> Result<Vec<usize>> {
    let (device, mesh) = (Meta::<Cpu<f32>>::default(), Mesh::alone());
    let at = Layout::UNSPLIT.place(&device, &mesh, &Random { seed: 0 });
    let mut model = Uncountable::caught(|| Chunk::whole(&at, shape))??;
    Ok(model.params().into_iter().map(|p| p.shape().into_iter().product()).collect())
}
