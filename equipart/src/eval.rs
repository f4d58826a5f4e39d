//! `eval`: how well a model tells a text or given ids: mean loss, perplexity, tokens.
use crate::number::Runs;
use crate::{Error, Layout, Model, Result, memory, price};
use comm::{Axis, Mesh};
use kernels::{Kernels, Meta};
use layers::{Random, Shape, Values, Wide};
use parallel::{Batch, Sequence, Trainer};
use serde::Serialize;
use tensor::{Real, Tensor};

/// What a model makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The mean loss of a token, in nats.
    pub loss: f64,
    /// e^loss: among how many tokens, alike, the model chooses.
    pub perplexity: f64,
    /// Tokens that were to be told.
    pub tokens: usize,
}

/// Sequences evaluated together on each data rank.
const TOGETHER: usize = 8;

/// Evaluates sequences under a layout; `watch` is told how many parts of how many are done.
///
/// # Errors
/// If the layout does not fit the model, there are fewer sequences than data ranks, the machine has not the memory, or
/// a rank fails.
pub fn evaluate<D: Runs>(
    model: &Model,
    layout: &Layout,
    sequences: Vec<Sequence>,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Evaluation> {
    let shape = &model.config.shape;
    layout.fits(shape)?;
    let data = layout.size(Axis::SEQUENCES);
    let microbatches = sequences.len().div_ceil(TOGETHER * data).min(sequences.len() / data).max(1);
    let batch = Batch::new(sequences, microbatches)?;
    let (largest, none) = (batch.largest(), Random { seed: 0 });
    let dealt = |rank| Ok(largest.dealt(rank, data)?);
    let peak = price::peak_of_all(layout, dealt, |device: &Meta<D>, mesh| {
        program((device, mesh), layout, shape, &none, &largest, &|_| ()).map(drop)
    })?;
    memory::fits(&format!("evaluating under {layout}"), peak.all, memory::free())?;
    let ranks = layout.world()?.run(|device: D, mesh| {
        let done = |n| {
            if mesh.rank() == 0 {
                watch(n, microbatches);
            }
        };
        let loss = program((&device, &mesh), layout, shape, model.values(), &batch, &done)?;
        Ok::<_, Error>(loss.read().expect("the host has values")[0].to_f64())
    })?;
    let (loss, tokens) = (ranks[0], batch.counted());
    if !loss.is_finite() {
        return Err(Error::new(format!("the loss is {loss}, no finite number; the weights may not be")));
    }
    Ok(Evaluation { loss, perplexity: loss.exp(), tokens })
}

/// The mean loss of a batch, on one rank of any device.
fn program<D: Kernels>(
    (device, mesh): (&D, &Mesh<D::Place>),
    layout: &Layout,
    shape: &Shape,
    values: &dyn Values<Wide<D>>,
    batch: &Batch,
    done: &dyn Fn(usize),
) -> Result<Tensor<D::Wide>> {
    let at = layout.place(device, mesh, values);
    Ok(Trainer::evaluator(&at, shape)?.evaluate(batch, done)?)
}
