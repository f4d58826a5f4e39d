//! `eval`: how well a model tells a text or given ids: mean loss, perplexity, tokens.
use crate::{Error, Layout, Model, Result};
use layers::Kind;
use parallel::{Batch, Sequence, Trainer};
use serde::Serialize;
use tensor::{Cpu, Real};

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

/// Evaluates sequences under a layout.
///
/// # Errors
/// If the layout does not fit the model, there are fewer sequences than data ranks, or a rank fails.
pub fn evaluate(model: &Model, layout: &Layout, sequences: Vec<Sequence>) -> Result<Evaluation> {
    let shape = &model.config.shape;
    layout.fits(shape)?;
    let data = layout.size(comm::Axis::Dp);
    let microbatches = sequences.len().div_ceil(TOGETHER * data).min(sequences.len() / data).max(1);
    let batch = Batch::new(sequences, microbatches)?;
    let ranks = layout.world()?.run(|device: Cpu<f32>, mesh| {
        let at = layout.place(&device, &mesh, model.values());
        let mut trainer = Trainer::new(&at, shape, (Kind::Sgd, None))?;
        Ok::<_, parallel::Error>(trainer.evaluate(&batch)?.read().expect("the host has values")[0].to_f64())
    })?;
    let (loss, tokens) = (ranks[0], batch.counted());
    if !loss.is_finite() {
        return Err(Error::new(format!("the loss is {loss}, no finite number; the weights may not be")));
    }
    Ok(Evaluation { loss, perplexity: loss.exp(), tokens })
}
