//! `price`: what a layout costs, from shapes alone: the same program on the device without numbers, one rank at a
//! time, so a world of any size.
use crate::measure;
use crate::settings::Settings;
use crate::{Config, Layout, Result};
use comm::Mesh;
use kernels::{Kernels, Meta};
use layers::{Random, Shape};
use parallel::{Batch, Sequence, Trainer};
use serde::Serialize;
use std::collections::BTreeMap;
use tensor::{Category, Cpu, Peaks, Phase};

/// The price of one rank's training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// The layout.
    pub layout: String,
    /// The rank.
    pub rank: usize,
    /// Peak bytes by category, each at its own moment, and of all together (`total`).
    pub peak_bytes: BTreeMap<&'static str, usize>,
    /// Floating point operations of a step: products and attention.
    pub flops: u64,
    /// Bytes this rank sends in a step, as if the ranks of each axis stood in a ring.
    pub traffic_bytes: usize,
}

/// Steps that are run: from the second on, everything a step holds is held.
const STEPS: usize = 2;

/// The program that is priced, on any device: peaks over all phases, operations and wire bytes of the last step.
///
/// # Errors
/// If the layout does not fit the shape or the batch.
pub fn program<D: Kernels>(
    (device, mesh): (&D, &Mesh<D>),
    layout: &Layout,
    shape: &Shape,
    settings: &Settings,
) -> Result<(Peaks, u64, usize)> {
    let tokens = vec![0; settings.seq];
    let sequence = Sequence::new(tokens.clone(), tokens);
    let batch = Batch::new(vec![sequence; settings.batch_size], settings.microbatches)?;
    let at = layout.place(device, mesh, &Random { seed: 0 });
    let mut trainer = Trainer::new(&at, shape, settings.optimizer())?;
    let mut last = (0, 0);
    for _ in 0..STEPS {
        let flops = device.meter().flops();
        let (_, taken) = measure::work(device, mesh, Phase::Step, || trainer.step(&batch, settings.lr))?;
        last = (device.meter().flops() - flops, taken.wire);
    }
    Ok((device.meter().peaks_of_all(), last.0, last.1))
}

/// The price of every rank, in f32.
///
/// # Errors
/// If the layout does not fit the shape or the batch.
pub fn price(config: &Config, settings: &Settings, layout: &Layout) -> Result<Vec<Price>> {
    let shape = &settings.shape(config);
    layout.fits(shape)?;
    settings.check(config)?;
    let on_rank = |rank| {
        let (device, mesh) = (Meta::<Cpu<f32>>::default(), Mesh::ghost(&layout.axes(), rank)?);
        let (peaks, flops, traffic_bytes) = program((&device, &mesh), layout, shape, settings)?;
        let mut peak_bytes: BTreeMap<_, _> =
            Category::ALL.iter().map(|c| (c.name(), peaks.category[*c as usize])).collect();
        peak_bytes.insert("total", peaks.total);
        Ok(Price { layout: layout.to_string(), rank, peak_bytes, flops, traffic_bytes })
    };
    (0..layout.ranks()).map(on_rank).collect()
}
