//! `eval`: how well a model tells a text or given ids: mean loss, perplexity, tokens.
use crate::cli::args::{self, EvalArgs};
use crate::cli::watch::Watch;
use crate::cli::{corpus, model, show};
use crate::commands::train::settings::sequences;
use comm::Axis;
use kernels::{Kernels, Meta};
use layers::Shape;
use models::{Model, ids, text};
use parallel::At;
use parallel::number::Runs;
use parallel::{Batch, Layout, Result, Sequence, Trainer, bail, budget, in_number, price, session};
use serde::Serialize;
use tensor::{Real, Tensor, files};

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
    let largest = batch.largest();
    let dealt = |rank| Ok(largest.dealt(rank, data)?);
    let peak = price::peak_of_all(layout, dealt, |at: At<Meta<D>>| {
        program(&at, shape, &largest, &|_| ()).map(drop)
    })?;
    budget::fits(format_args!("evaluating under {layout}"), peak.all)?;
    let ranks = session::run((layout, &layout.world()?), model.values(), |at: At<D>| {
        let done = |n| {
            if at.mesh.rank() == 0 {
                watch(n, microbatches);
            }
        };
        let loss = program(&at, shape, &batch, &done)?;
        Ok(loss.read().expect("the host has values")[0].to_f64())
    })?;
    let (loss, tokens) = (ranks[0], batch.counted());
    if !loss.is_finite() {
        bail!("the loss is {loss}, no finite number; the weights may not be");
    }
    Ok(Evaluation { loss, perplexity: loss.exp(), tokens })
}

/// The mean loss of a batch, on one rank of any device.
fn program<D: Kernels>(
    at: &At<D>,
    shape: &Shape,
    batch: &Batch,
    done: &dyn Fn(usize),
) -> Result<Tensor<D::Wide>> {
    Trainer::evaluator(at, shape)?.evaluate(batch, done)
}

pub(crate) fn run(a: EvalArgs, json: bool) -> Result<bool> {
    let model = model(a.model.as_ref())?;
    let (vocabulary, positions) = (model.config.shape.vocabulary, model.config.positions);
    let all = match (&a.batch, &a.data) {
        (Some(file), _) => ids::read(file, vocabulary, positions)?,
        (None, data) => {
            let tokenizer = model.tokenizer()?;
            let seq = a.seq.unwrap_or(args::SEQ.min(positions));
            if seq == 0 || seq > positions {
                bail!("--seq is {seq}; it must be 1 to {positions}, the model's positions");
            }
            let text: Vec<u32> = match data {
                Some(file) => text::encode(&files::read(file)?, &file.display().to_string(), &tokenizer)?.ids,
                None => corpus(None, seq, &tokenizer)?.held_out,
            };
            if text.len() < 2 {
                let n = text.len();
                bail!("a text of {n} tokens; there must be 2 or more, one to tell the next");
            }
            sequences(text::windows(&text, seq))
        }
    };
    let watch = Watch::bar(0);
    let layout = a.layout.limited(a.memory.limit);
    let watching = |done, of| watch.part("evaluated", done, of);
    let evaluation = in_number!(a.number.name, D => evaluate::<D>(&model, &layout, all, &watching))?;
    watch.done();
    let Evaluation { loss, perplexity, tokens } = evaluation;
    show::one(json, &evaluation, || {
        format!("loss {loss:.6} nats a token, perplexity {perplexity:.4}, {tokens} tokens")
    });
    Ok(true)
}
