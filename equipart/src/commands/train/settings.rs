//! What a training run is begun with, and keeps when it is resumed.
use super::schedule::Warmup;
use crate::device::DeviceName;
use layers::{Design, Kind, Objective, Rates, Shape};
use models::text::{Corpus, Pair};
use models::{Config, Learner};
use parallel::number::NumberName;
use parallel::{Batch, Error, Result, Sequence, bail};
use serde::{Deserialize, Serialize};
use std::fmt;
use tensor::mix;

/// The most tokens that a step can have.
const MAX_TOKENS: u128 = 1 << 24;

/// Which optimizer a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// Plain gradient descent.
    Sgd,
    /// AdamW with β 0.9 and 0.95, ε 1e-8, decay 0.1.
    Adamw,
}

impl fmt::Display for OptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["sgd", "adamw"][*self as usize])
    }
}

/// What a run is begun with and keeps when it is resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Steps in all.
    pub steps: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a step.
    pub batch_size: usize,
    /// Parts that a step's sequences are cut into.
    pub microbatches: usize,
    /// The digest of a user's schedule table, if it goes by one.
    #[serde(default)]
    pub table: Option<u64>,
    /// The largest learning rate.
    pub lr: f64,
    /// Steps until it is reached.
    pub warmup: usize,
    /// Which optimizer.
    pub optimizer: OptimizerName,
    /// The largest norm of the gradient.
    pub clip: Option<f64>,
    /// Of fresh weights and of the batches.
    pub seed: u64,
    /// A hash of the text, or of the ids.
    pub text: u64,
    /// Whether the learning rate stays what it is.
    #[serde(default)]
    pub constant: bool,
    /// The last step's learning rate, as a part of the largest.
    #[serde(default = "tenth")]
    pub floor: f64,
    /// The rate of dropout everywhere; none: those of the model's configuration.
    #[serde(default)]
    pub dropout: Option<f64>,
    /// The share of a target that is spread over all ids.
    #[serde(default)]
    pub label_smoothing: f64,
    /// The weight of each token's squared log-sum-exp in the loss.
    #[serde(default)]
    pub z_loss: f64,
    /// The numbers of the run.
    #[serde(default)]
    pub number: NumberName,
    /// What it computes on. A run may go on on another device.
    #[serde(skip)]
    pub device: DeviceName,
}

impl Settings {
    /// The optimizer and the clip limit.
    pub fn optimizer(&self) -> (Kind, Option<f64>) {
        let kind = match self.optimizer {
            OptimizerName::Sgd => Kind::Sgd,
            OptimizerName::Adamw => Kind::ADAMW,
        };
        (kind, self.clip)
    }
    /// Whether the sizes are sizes of a step of a model with so many positions: checked before anything of theirs is allocated.
    ///
    /// # Errors
    /// One sentence on the first that is not.
    pub fn check(&self, positions: usize) -> Result<()> {
        let Self { seq, batch_size, .. } = *self;
        at_least_1(&[("seq", seq), ("batch-size", batch_size)])?;
        self.check_for(positions, seq, batch_size as u128 * seq as u128)
    }
    /// The same for a step of so many tokens, the longest sequence of which has so many.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_for(&self, positions: usize, longest: usize, tokens: u128) -> Result<()> {
        at_least_1(&[("steps", self.steps), ("microbatches", self.microbatches)])?;
        let Self { label_smoothing, z_loss, .. } = *self;
        if !(0.0..1.0).contains(&label_smoothing) {
            bail!("--label-smoothing is {label_smoothing}; it must be 0 or more and below 1");
        }
        if let Some(rate) = self.dropout.filter(|rate| !(0.0..1.0).contains(rate)) {
            bail!("--dropout is {rate}; it must be 0 or more and below 1, or config");
        }
        if !(z_loss.is_finite() && z_loss >= 0.0) {
            bail!("--z-loss is {z_loss}; it must be 0 or more");
        }
        if longest > positions {
            bail!("sequences of {longest} tokens; the model has {positions} positions");
        }
        if tokens > MAX_TOKENS {
            bail!("a step of {tokens} tokens; it can have {MAX_TOKENS} at most");
        }
        Ok(())
    }
    /// The shape of a model that learns by this loss, with this dropout.
    pub fn shape(&self, config: &Config) -> Shape {
        let everywhere = |rate| Rates { embedding: rate, attention: rate, residual: rate };
        let dropout = self.dropout.map_or(config.shape.dropout, everywhere);
        let loss = Objective { smoothing: self.label_smoothing, z: self.z_loss };
        Shape { dropout, loss, ..config.shape }
    }
    /// What is built of a model that learns so.
    pub fn design(&self, model: &Learner) -> Design {
        model.text.as_ref().map_or_else(|| model.design.clone(), |text| self.shape(&text.config).into())
    }
    /// The learning rate of each step.
    pub fn schedule(&self) -> Warmup {
        let floor = if self.constant { 1.0 } else { self.floor };
        Warmup { peak: self.lr, warmup: self.warmup, steps: self.steps, floor }
    }
    /// The batch of a step: the same whatever the layout.
    ///
    /// # Errors
    /// If there are fewer sequences than microbatches.
    pub fn batch(&self, corpus: &Corpus, step: usize) -> Result<Batch> {
        let pairs = corpus.batch(self.seed, step, self.batch_size, self.seq);
        Batch::new(sequences(pairs), self.microbatches)
    }
}

/// The part of the largest learning rate that a text's last step has.
pub(crate) fn tenth() -> f64 {
    0.1
}

/// Flags that count something.
pub(crate) fn at_least_1(flags: &[(&str, usize)]) -> Result<()> {
    match flags.iter().find(|(_, n)| *n == 0) {
        Some((flag, _)) => Err(Error::new(format!("--{flag} is 0; it must be at least 1"))),
        None => Ok(()),
    }
}

/// Pairs of ids and targets as sequences.
pub fn sequences(pairs: Vec<Pair>) -> Vec<Sequence> {
    pairs.into_iter().map(|(ids, targets)| Sequence::new(ids, targets)).collect()
}

/// A hash of a text, to know it again.
pub fn hash(corpus: &Corpus) -> u64 {
    corpus.train.iter().chain(&corpus.held_out).fold(1, |hash, &id| mix(hash ^ u64::from(id)))
}
