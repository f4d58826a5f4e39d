//! Pictures of digits as what is learnt.
//!
//! An epoch shows every picture once, in an order that is a hash of the seed and the epoch; what is left over makes a smaller
//! last batch. Its loss is the mean over its examples, each as it was before its own step; its accuracy is that on the test
//! pictures, after it.
//!
//! Two layouts round differently, and descent makes small differences larger, the more the larger its steps: at the
//! default rate, two runs' last losses part in the fourth digit, at three times that rate in the third.
use super::settings::Settings;
use models::digits::{Digits, Set, order};
use parallel::number::Runs;
use parallel::{Batch, Result, Trainer};
use serde::Serialize;
use std::time::Instant;

/// How many pictures are judged at once.
const TOGETHER: usize = 1000;

/// Pictures to learn from, and who is told of each epoch, on rank 0.
#[derive(Clone, Copy)]
pub struct Pictures<'a> {
    /// What is learnt, and what judges.
    pub digits: &'a Digits,
    /// Told of each epoch when it is over.
    pub watch: &'a (dyn Fn(&EpochLine) + Sync),
}

/// What is told of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochLine {
    /// Epochs done.
    pub epoch: usize,
    /// The mean loss of its examples, each before its own step, in nats.
    pub loss: f64,
    /// The share of the test pictures that are told right, after it.
    pub accuracy: f64,
    /// How long it learnt, the test not counted.
    pub seconds: f64,
    /// Pictures learnt a second.
    pub examples_per_second: f64,
}

/// An epoch under way.
pub(crate) struct Epoch {
    order: Vec<usize>,
    number: usize,
    sum: f64,
    learnt: usize,
    clock: Instant,
}

/// Steps of an epoch of so many pictures.
pub(crate) fn steps(digits: &Digits, batch_size: usize) -> usize {
    digits.train.len().div_ceil(batch_size.max(1))
}

impl Pictures<'_> {
    /// The batch of a step, the same whatever the layout; the epoch that it is of is begun, if it is another.
    pub(crate) fn batch(&self, settings: &Settings, step: usize, epoch: &mut Option<Epoch>) -> Result<Batch> {
        let (n, each) = (self.digits.train.len(), steps(self.digits, settings.batch_size));
        let (number, part) = (step / each, step % each);
        if epoch.as_ref().is_none_or(|epoch| epoch.number != number) {
            let order = order(settings.seed, number, n);
            *epoch = Some(Epoch { order, number, sum: 0.0, learnt: 0, clock: Instant::now() });
        }
        let order = epoch.as_ref().map_or(&[][..], |epoch| &epoch.order);
        let which = order.chunks(settings.batch_size.max(1)).nth(part).unwrap_or_default();
        let examples = which.iter().map(|&i| self.digits.train.example(i)).collect();
        // The last batch of an epoch may have fewer pictures than there are microbatches.
        let least = if which.len() < settings.batch_size { which.len() } else { usize::MAX };
        Batch::new(examples, settings.microbatches.min(least))
    }
    /// A step is done; at the end of its epoch the test pictures are told.
    pub(crate) fn learnt<D: Runs>(
        &self,
        (epoch, loss, batch): (&mut Option<Epoch>, f64, &Batch),
        trainer: &mut Trainer<D>,
        told: bool,
    ) -> Result<()> {
        let Some(now) = epoch else { return Ok(()) };
        now.sum += loss * batch.tokens() as f64;
        now.learnt += batch.tokens();
        if !told {
            return Ok(());
        }
        let (seconds, learnt, test) =
            (now.clock.elapsed().as_secs_f64(), now.learnt as f64, &self.digits.test);
        let mut right = 0;
        for first in (0..test.len()).step_by(TOGETHER) {
            right += trainer.correct(&judged(test, first)?, &|_| ())?;
        }
        let accuracy = right as f64 / test.len().max(1) as f64;
        let (loss, examples_per_second) = (now.sum / learnt, learnt / seconds);
        let line = EpochLine { epoch: now.number + 1, loss, accuracy, seconds, examples_per_second };
        if trainer.parts().2.rank() == 0 {
            (self.watch)(&line);
        }
        Ok(())
    }
}

/// Some of a set that are judged together, from this one on.
pub(crate) fn judged(set: &Set, first: usize) -> Result<Batch> {
    let some = first..set.len().min(first + TOGETHER);
    Batch::new(some.map(|i| set.example(i)).collect(), 1)
}
