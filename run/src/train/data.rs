//! Training and evaluation data of a run: batches of a text, of given ids or of pictures, and the held-out
//! text.
use super::epochs::{self, Epoch};
use super::schedule::LrSchedule;
use super::settings::{self, Settings, sequences};
use layers::OptimizerKind;
use models::digits::Digits;
use models::ids;
use models::text::{self, Corpus};
use ops::{ADAMW, SGD};
use parallel::dtype::RunDevice;
use parallel::{Batch, Result, Sequence, Trainer, bail};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::Real;

/// Files of the training data, as flags name them, so alike on all ranks; without any, the data is embedded
/// or generated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataFiles {
    /// Sequences of token ids.
    pub batch: Option<PathBuf>,
    /// Texts, or a folder of pictures.
    pub data: Vec<PathBuf>,
    /// Field of the documents of files of JSON.
    pub field: Option<String>,
}

/// Training data.
pub enum TrainData {
    /// Windows of a text, drawn anew for each step.
    Text(Corpus),
    /// The same sequences in every step.
    Ids(Vec<Sequence>),
    /// Pictures, each of them once in an epoch.
    Digits(Digits),
}

impl TrainData {
    /// Hash that identifies the data.
    pub fn hash(&self) -> u64 {
        match self {
            TrainData::Text(corpus) => settings::hash(corpus),
            TrainData::Ids(sequences) => ids::hash(sequences),
            TrainData::Digits(digits) => digits.hash(),
        }
    }
    /// The usual settings of a run on this data. Given ids are learnt by plain gradient descent at a constant
    /// rate in one step; pictures by plain gradient descent, unless another optimizer is given, in three
    /// epochs.
    #[must_use]
    pub fn usual_settings(&self, optimizer: Option<OptimizerKind>) -> Settings {
        let usual = Settings { text: self.hash(), ..Settings::default() };
        match self {
            TrainData::Text(_) => Settings { optimizer: optimizer.unwrap_or(ADAMW), ..usual },
            TrainData::Ids(ids) => Settings {
                steps: 1,
                seq: Sequence::longest(ids),
                batch_size: ids.len(),
                lr: 1.0,
                optimizer: optimizer.unwrap_or(SGD),
                lr_schedule: LrSchedule::Constant,
                dropout: Some(0.0),
                ..usual
            },
            TrainData::Digits(digits) => {
                let optimizer = optimizer.unwrap_or(SGD);
                let batch_size = 32.min(digits.train.len());
                Settings {
                    steps: 3 * epochs::steps(digits, batch_size),
                    seq: 1,
                    batch_size,
                    lr: if optimizer == SGD { 0.025 } else { 1e-3 },
                    optimizer,
                    floor: 0.3,
                    ..usual
                }
            }
        }
    }
    /// Validates the sizes of a step on this data for a model with this number of positions.
    ///
    /// # Errors
    /// As [`Settings::check`].
    pub fn check(&self, settings: &Settings, positions: usize) -> Result<()> {
        let Self::Ids(all) = self else { return settings.check(positions) };
        let tokens = all.iter().map(|s| s.ids.len() as u128).sum();
        settings.check_for(positions, self.longest(settings), tokens)
    }
    /// Returns the number of tokens of the longest text of a step.
    pub fn longest(&self, settings: &Settings) -> usize {
        if let Self::Ids(all) = self { Sequence::longest(all) } else { settings.seq }
    }
    /// Returns the batch of a step; it does not depend on the layout.
    ///
    /// # Errors
    /// If there are fewer sequences than microbatches.
    pub fn batch(&self, settings: &Settings, step: usize, epoch: &mut Option<Epoch>) -> Result<Batch> {
        match self {
            TrainData::Digits(digits) => epochs::batch(digits, settings, step, epoch),
            TrainData::Text(corpus) => settings.batch(corpus, step),
            TrainData::Ids(sequences) => Batch::new(sequences.clone(), settings.microbatches),
        }
    }
}

/// Returns bits a byte on the held-out text, in windows of `seq`: the loss of all tokens but the first, over
/// the bytes they stand for. `None` if there are fewer windows than data ranks. `reported` receives the
/// number of finished parts and of all parts.
///
/// # Errors
/// If ranks fail to communicate, or the loss is not finite.
pub fn held_out<D: RunDevice>(
    trainer: &mut Trainer<D>,
    (corpus, seq): (&Corpus, usize),
    reported: &dyn Fn(usize, usize),
) -> Result<Option<f64>> {
    let Some(batch) = held_out_batch(corpus, seq, trainer.model().tokens().data_ranks())? else {
        return Ok(None);
    };
    let targets = corpus.held_out.len() - 1;
    let parts = batch.microbatches().len();
    let nats = trainer.evaluate(&batch, &|done| reported(done, parts))?.read().expect("the host has values")
        [0]
    .to_f64();
    if !nats.is_finite() {
        bail!("the loss on the held-out text is {nats}; a smaller --lr may help");
    }
    let tokens_per_byte = targets as f64 / corpus.held_out_bytes.max(1) as f64;
    Ok(Some(nats * tokens_per_byte / std::f64::consts::LN_2))
}

/// The held-out text in windows of `seq`, eight at a time on each data rank; `None` if there are fewer
/// windows than data ranks.
pub(super) fn held_out_batch(corpus: &Corpus, seq: usize, data: usize) -> Result<Option<Batch>> {
    let windows = sequences(text::windows(&corpus.held_out, seq));
    if windows.len() < data {
        return Ok(None);
    }
    let together = windows.len().div_ceil(8 * data).min(windows.len() / data);
    Ok(Some(Batch::new(windows, together)?))
}
