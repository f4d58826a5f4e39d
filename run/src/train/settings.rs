//! Settings of a training run; a resumed run keeps them.
use super::schedule::{LearningRate, LrSchedule};
use crate::device::DeviceName;
use layers::{Design, Objective, OptimizerKind, Rates, Shape, counted};
use models::text::{Corpus, TokenPair};
use models::{Config, TrainableModel};
use ops::{ADAMW, GradientScaling, LossScaling};
use parallel::dtype::DtypeName;
use parallel::{Batch, Error, Layout, Result, Sequence, bail};
use plan::step::TrainingJob;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt::Display;
use tensor::mix;

/// The most tokens of a step.
const MAX_TOKENS: u128 = 1 << 24;

/// Settings of a training run; a resumed run keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Total number of steps.
    pub steps: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a step.
    pub batch_size: usize,
    /// Parts that a step's sequences are cut into.
    pub microbatches: usize,
    /// Digest of the user's schedule table, if there is one.
    #[serde(default)]
    pub table: Option<u64>,
    /// The largest learning rate.
    pub lr: f64,
    /// Steps until the largest learning rate is reached.
    pub warmup: usize,
    /// The optimizer.
    #[serde(deserialize_with = "ops::optimizer::list::deserialize")]
    pub optimizer: OptimizerKind,
    /// The largest norm of the gradient.
    pub clip: Option<f64>,
    /// Loss scaling as the run begins, if its dtype needs any.
    #[serde(default)]
    pub loss_scaling: Option<LossScaling>,
    /// Seed of fresh weights and of the batches.
    pub seed: u64,
    /// Hash of the training data.
    pub text: u64,
    /// Course of the learning rate after its warm-up.
    #[serde(default, alias = "constant", deserialize_with = "LrSchedule::stored")]
    pub lr_schedule: LrSchedule,
    /// The last step's learning rate, as a fraction of the largest; a constant rate ignores it.
    #[serde(default = "tenth")]
    pub floor: f64,
    /// Dropout rate everywhere; `None`: the rates of the model's configuration.
    #[serde(default)]
    pub dropout: Option<f64>,
    /// Fraction of a target that is spread over all ids.
    #[serde(default)]
    pub label_smoothing: f64,
    /// The weight of each token's squared log-sum-exp in the loss.
    #[serde(default)]
    pub z_loss: f64,
    /// Dtype of the run.
    #[serde(default)]
    pub number: DtypeName,
    /// Device of the run. A resumed run may use another device.
    #[serde(skip)]
    pub device: DeviceName,
}

/// Usual number of tokens of a sequence.
pub const SEQ: usize = 256;

impl Default for Settings {
    /// The usual settings of a run on a text.
    fn default() -> Self {
        Self {
            steps: 200,
            seq: SEQ,
            batch_size: 8,
            microbatches: 1,
            table: None,
            lr: 1e-3,
            warmup: 0,
            optimizer: ADAMW,
            clip: None,
            loss_scaling: None,
            seed: 0,
            text: 0,
            lr_schedule: LrSchedule::Cosine,
            floor: tenth(),
            dropout: None,
            label_smoothing: 0.0,
            z_loss: 0.0,
            number: DtypeName::F32,
            device: DeviceName::Cpu,
        }
    }
}

impl Settings {
    /// The optimizer, and how it scales gradients.
    pub fn optimizer(&self) -> (OptimizerKind, GradientScaling) {
        (self.optimizer, GradientScaling { clip: self.clip, loss: self.loss_scaling })
    }
    /// Reads the settings from a file. Files of earlier versions have the constants of `AdamW` beside the
    /// optimizer's name.
    pub fn read(text: &str) -> Option<Self> {
        let mut map: Map<String, Value> = serde_json::from_str(text).ok()?;
        if let Some(constants) = map.remove(ADAMW.name())
            && map.get("optimizer").is_some_and(|name| name == ADAMW.name())
        {
            map.insert("optimizer".into(), json!({ ADAMW.name(): constants }));
        }
        serde_json::from_value(map.into()).ok()
    }
    /// Returns what a step trains, for its time.
    pub fn job(&self, design: &Design) -> TrainingJob {
        let (seq, batch_size, dtype) = (self.seq, self.batch_size, self.number.name());
        TrainingJob { design: design.clone(), optimizer: self.optimizer(), seq, batch_size, dtype }
    }
    /// Validates the sizes of a step for a model with this number of positions, before anything is allocated.
    ///
    /// # Errors
    /// One sentence on the first invalid size.
    pub fn check(&self, positions: usize) -> Result<()> {
        let Self { seq, batch_size, .. } = *self;
        at_least_1(&[("seq", seq), ("batch-size", batch_size)])?;
        self.check_for(positions, seq, batch_size as u128 * seq as u128)
    }
    /// Validates a step of `tokens` tokens, whose longest sequence has `longest`.
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
            bail!(
                "the longest sequence has {}; the model has {}",
                counted(longest, "token"),
                counted(positions, "position")
            );
        }
        if tokens > MAX_TOKENS {
            bail!("the step has {tokens} tokens; it may have at most {MAX_TOKENS}");
        }
        Ok(())
    }
    /// Validates the largest norm of the gradient, for a layout.
    ///
    /// # Errors
    /// If it is not above 0, or the layout's schedule has no global norm.
    pub fn check_clip(&self, layout: &Layout) -> Result<()> {
        let (Some(clip), pipeline) = (self.clip, layout.pipeline()) else { return Ok(()) };
        if !(clip.is_finite() && clip > 0.0) {
            bail!("--clip is {clip}; it must be a positive number");
        }
        if pipeline.clip(self.clip).is_none() {
            bail!(
                "--clip is {clip}, but {} updates each stage by itself, so there is no global norm; leave it out",
                pipeline.schedule.about().name
            );
        }
        Ok(())
    }
    /// Returns the most sequences that a step may have.
    pub fn most_sequences(&self) -> usize {
        (MAX_TOKENS / self.seq.max(1) as u128) as usize
    }
    /// Returns the model's shape with this loss and dropout.
    pub fn shape(&self, config: &Config) -> Shape {
        let everywhere = |rate| Rates { embedding: rate, attention: rate, residual: rate };
        let dropout = self.dropout.map_or(config.shape.dropout, everywhere);
        Shape { dropout, loss: Objective { smoothing: self.label_smoothing, z: self.z_loss }, ..config.shape }
    }
    /// Returns the design of the model with this loss and dropout.
    pub fn design(&self, model: &TrainableModel) -> Design {
        model.text.as_ref().map_or_else(|| model.design.clone(), |text| self.shape(&text.config).into())
    }
    /// The learning rate.
    pub fn learning_rate(&self) -> LearningRate {
        let Self { lr: peak, warmup, steps, floor, lr_schedule: schedule, .. } = *self;
        LearningRate { schedule, peak, warmup, steps, floor }
    }
    /// Returns the batch of a step; it does not depend on the layout.
    ///
    /// # Errors
    /// If there are fewer sequences than microbatches.
    pub fn batch(&self, corpus: &Corpus, step: usize) -> Result<Batch> {
        Batch::new(sequences(corpus.batch(self.seed, step, self.batch_size, self.seq)), self.microbatches)
    }
}

/// Default of the last step's learning rate, as a fraction of the largest.
fn tenth() -> f64 {
    0.1
}

/// Validates that these flags are at least 1.
///
/// # Errors
/// The first that is 0.
pub fn at_least_1(flags: &[(&str, usize)]) -> Result<()> {
    match flags.iter().find(|(_, n)| *n == 0) {
        Some((flag, _)) => Err(Error::new(format!("--{flag} is 0; it must be at least 1"))),
        None => Ok(()),
    }
}

/// Refuses the first flag that is given; the flags apply only to `others`.
///
/// # Errors
/// The first that is given.
pub fn refuse(flags: &[(&str, bool)], others: &str) -> Result<()> {
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Error::new(format!("--{flag} is for {others} has no use for it"))),
        None => Ok(()),
    }
}

/// Describes a flag that differs from the setting of a run that has begun.
pub(super) fn differs_from(flag: &str, given: &impl Display, begun: &impl Display) -> String {
    format!("--{flag} is {given}, but the run to resume began with {begun}; leave it out")
}

/// Pairs of ids and targets as sequences.
pub fn sequences(pairs: Vec<TokenPair>) -> Vec<Sequence> {
    pairs.into_iter().map(|(ids, targets)| Sequence::new(ids, targets)).collect()
}

/// Hash that identifies a text.
pub fn hash(corpus: &Corpus) -> u64 {
    corpus.train.iter().chain(&corpus.held_out).fold(1, |hash, &id| mix(hash ^ u64::from(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: checkpoints of earlier versions that are refused, or that continue at another rate or with
    /// other constants; a schedule or a constant that is not stored.
    #[test]
    fn settings_of_older_checkpoints_are_read() {
        let old = |more: &str| {
            let text = r#"{"steps": 9, "seq": 4, "batch_size": 2, "microbatches": 1, "lr": 0.5, "warmup": 1,
                "optimizer": "adamw", "clip": null, "seed": 3, "text": 7"#;
            Settings::read(&format!("{text}{more}}}")).unwrap()
        };
        assert_eq!(old("").optimizer(), (ADAMW, None.into()));
        assert_eq!((old("").lr_schedule, old("").floor), (LrSchedule::Cosine, 0.1));
        assert_eq!(old(r#", "constant": false, "floor": 0.3"#).lr_schedule, LrSchedule::Cosine);
        let constant = old(r#", "constant": true"#);
        assert_eq!((constant.lr_schedule, constant.learning_rate().at(8)), (LrSchedule::Constant, 0.5));
        let beside = old(r#", "adamw": {"weight_decay": 0.25, "betas": [0.5, 0.75], "eps": 1e-6}"#);
        assert_eq!(beside.optimizer, ADAMW.with(&[0.5, 0.75, 1e-6, 0.25]));
        let new = Settings { lr_schedule: LrSchedule::Wsd, ..beside };
        let file = serde_json::to_string(&new).unwrap();
        assert_eq!(Settings::read(&file), Some(new));
        for wrong in ["0.75", "[0.75, 1.0]"] {
            assert_eq!(Settings::read(&file.replace("[0.5,0.75]", wrong)), None, "{wrong}");
        }
    }
}
