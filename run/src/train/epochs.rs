//! Epochs over pictures of digits.
//!
//! An epoch shows every picture once, in an order that is a hash of the seed and the epoch; the remainder
//! makes a smaller last batch. Its loss is the mean over its examples, each before its own step; its accuracy
//! is measured on the test pictures after the epoch.
//!
//! Two layouts round differently, and gradient descent amplifies small differences, more so with larger
//! steps: at the default learning rate, the last losses of two runs differ in the fourth digit; at three
//! times that rate, in the third.
use super::settings::Settings;
use models::digits::{Digits, Set, order};
use parallel::dtype::RunDevice;
use parallel::{Batch, Result, Trainer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Instant;

/// Number of pictures evaluated at once.
const TOGETHER: usize = 1000;

/// Report on an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochLine {
    /// Epochs done.
    pub epoch: usize,
    /// Mean loss of its examples, each before its own step, in nats.
    pub loss: f64,
    /// Fraction of the test pictures classified correctly after the epoch.
    pub accuracy: f64,
    /// Training time in seconds; the test is not counted.
    pub seconds: f64,
    /// Training pictures a second.
    pub examples_per_second: f64,
}

/// Epochs that an earlier run has shown, the last in part.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochBefore {
    /// The whole ones.
    pub whole: Vec<EpochLine>,
    /// Number of the last one, from 1.
    pub epoch: usize,
    /// Seconds of its steps before.
    pub seconds: f64,
    /// Pictures of the whole epoch.
    pub pictures: usize,
}

impl EpochLine {
    /// Adds the seconds of an earlier run, if it began this epoch.
    #[must_use]
    pub fn after(self, before: &EpochBefore) -> Self {
        if before.epoch != self.epoch {
            return self;
        }
        let seconds = self.seconds + before.seconds;
        Self { seconds, examples_per_second: before.pictures as f64 / seconds, ..self }
    }
}

impl fmt::Display for EpochLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, loss, accuracy, seconds, examples_per_second } = self;
        let right = 100.0 * accuracy;
        write!(f, "epoch {epoch}: loss {loss:.4}, {right:.2} % right, {seconds:.1} s, ")?;
        write!(f, "{examples_per_second:.0} pictures/s")
    }
}

/// Losses of an epoch so far: a resumed run goes on with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochLosses {
    /// Sum of the pictures' losses, each before its own step, in nats.
    pub sum: f64,
    /// Number of pictures.
    pub pictures: usize,
}

/// A running epoch.
pub struct Epoch {
    order: Vec<usize>,
    number: usize,
    losses: EpochLosses,
    /// Pictures of a part of the epoch that an earlier run has shown.
    before: usize,
    clock: Instant,
}

/// Number of steps of an epoch.
pub fn steps(digits: &Digits, batch_size: usize) -> usize {
    digits.train.len().div_ceil(batch_size.max(1))
}

/// Returns the batch of a step, which does not depend on the layout. Begins a new epoch if the step belongs
/// to another one.
pub(crate) fn batch(
    digits: &Digits,
    settings: &Settings,
    step: usize,
    epoch: &mut Option<Epoch>,
) -> Result<Batch> {
    let each = steps(digits, settings.batch_size);
    let number = step / each;
    let epoch = match epoch {
        Some(epoch) if epoch.number == number => epoch,
        other => other.insert(Epoch {
            order: order(settings.seed, number, digits.train.len()),
            number,
            losses: EpochLosses::default(),
            before: 0,
            clock: Instant::now(),
        }),
    };
    let which = epoch.order.chunks(settings.batch_size.max(1)).nth(step % each).unwrap_or_default();
    // The last batch of an epoch may have fewer pictures than there are microbatches.
    let least = if which.len() < settings.batch_size { which.len() } else { usize::MAX };
    Batch::new(which.iter().map(|&i| digits.train.example(i)).collect(), settings.microbatches.min(least))
}

impl Epoch {
    /// Continues an epoch whose first part an earlier run has shown.
    pub(crate) fn continues(&mut self, losses: EpochLosses) {
        (self.losses, self.before) = (losses, losses.pictures);
    }
    /// Records a finished step, and returns the losses so far.
    pub(crate) fn learnt(&mut self, loss: f64, batch: &Batch) -> EpochLosses {
        self.losses.sum += loss * batch.tokens() as f64;
        self.losses.pictures += batch.tokens();
        self.losses
    }
    /// Evaluates the test pictures at the end of the epoch.
    pub(crate) fn judged<D: RunDevice>(&self, test: &Set, trainer: &mut Trainer<D>) -> Result<EpochLine> {
        let seconds = self.clock.elapsed().as_secs_f64();
        let EpochLosses { sum, pictures } = self.losses;
        let mut right = 0;
        for first in (0..test.len()).step_by(TOGETHER) {
            right += trainer.correct(&judged(test, first)?, &|_| ())?;
        }
        let accuracy = right as f64 / test.len().max(1) as f64;
        let loss = sum / pictures as f64;
        let examples_per_second = (pictures - self.before) as f64 / seconds;
        Ok(EpochLine { epoch: self.number + 1, loss, accuracy, seconds, examples_per_second })
    }
}

/// Batch of pictures of a set to evaluate together, from index `first` on.
pub(crate) fn judged(set: &Set, first: usize) -> Result<Batch> {
    Batch::new((first..set.len().min(first + TOGETHER)).map(|i| set.example(i)).collect(), 1)
}
