//! `train --model mlp`: a plain classifier learns what digits are, from pictures.
//!
//! A pixel `x` is given as `(x/255 − 0.1307)/0.3081`, which makes MNIST's mean 0 and its deviation 1. An epoch shows
//! every picture once, in an order that is a hash of the seed and the epoch; what is left over makes a smaller last
//! batch. Its loss is the mean over its examples, each as it was before its own step; its accuracy is that on the test
//! pictures, after it.
//!
//! Two layouts round differently, and descent makes small differences larger, the more the larger its steps: at the
//! default rate, two runs' last losses part in the fourth digit, at three times that rate in the third.
use crate::commands::train::schedule::Warmup;
use crate::commands::train::settings::{OptimizerName, at_least_1};
use comm::Axis;
use kernels::Meta;
use layers::{Kind, Random};
use models::digits::{Digits, Set};
use parallel::At;
use parallel::classify::{MOST, fits, sizes};
use parallel::{ClassifierTrainer, Examples, Layout, Network, Result, bail, budget, deal, price, session};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use tensor::{Cpu, Real, mix};

pub mod folder;

/// The last step's learning rate, as a part of the largest.
pub const FLOOR: f64 = 0.3;
/// How many pictures are judged at once.
const TOGETHER: usize = 1000;

/// How it is learnt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Features of the layers between pixels and classes.
    pub hidden: Vec<usize>,
    /// How often every picture is shown.
    pub epochs: usize,
    /// Pictures of a step.
    pub batch_size: usize,
    /// Parts that a step's pictures are cut into, of the last step at most as many as there are pictures.
    pub microbatches: usize,
    /// The largest learning rate.
    pub lr: f64,
    /// Steps until it is reached; from there it falls to [`FLOOR`] of it on half a cosine.
    pub warmup: usize,
    /// Which optimizer.
    pub optimizer: OptimizerName,
    /// The largest norm of the gradient.
    pub clip: Option<f64>,
    /// Of fresh weights and of the order.
    pub seed: u64,
}

impl Default for Settings {
    /// Two layers of 512 features, three epochs, batches of 32, plain descent at 0.025.
    fn default() -> Self {
        Self {
            hidden: vec![512, 512],
            epochs: 3,
            batch_size: 32,
            microbatches: 1,
            lr: 0.025,
            warmup: 0,
            optimizer: OptimizerName::Sgd,
            clip: None,
            seed: 0,
        }
    }
}

/// Everything a run needs.
pub struct Run<'a> {
    /// What is learnt, and what judges.
    pub digits: &'a Digits,
    /// How.
    pub settings: Settings,
    /// Over which ranks.
    pub layout: Layout,
    /// What lies between them.
    pub network: Network,
    /// Where the model goes after every epoch; it has been prepared.
    pub out: Option<PathBuf>,
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

/// What a run is watched by, on rank 0.
pub trait Watch: Sync {
    /// A step is done.
    fn step(&self);
    /// An epoch is done.
    fn epoch(&self, line: &EpochLine);
}

impl Run<'_> {
    /// Pixels, features between, classes.
    pub fn sizes(&self) -> Vec<usize> {
        sizes(self.digits.pixels(), &self.settings.hidden, self.digits.classes())
    }
    /// Pictures of a whole step.
    fn batch(&self) -> usize {
        self.settings.batch_size.min(self.digits.train.len())
    }
    /// Steps of an epoch.
    fn steps_of_epoch(&self) -> usize {
        self.digits.train.len().div_ceil(self.batch().max(1))
    }
    /// Steps of the run.
    pub fn steps(&self) -> usize {
        self.settings.epochs.saturating_mul(self.steps_of_epoch())
    }
    fn schedule(&self) -> Warmup {
        Warmup { peak: self.settings.lr, warmup: self.settings.warmup, steps: self.steps(), floor: FLOOR }
    }
    /// What can be known to be wrong before anything is built.
    ///
    /// # Errors
    /// One sentence on the first thing that does not fit.
    pub fn check(&self) -> Result<()> {
        let Settings { epochs, batch_size, microbatches, clip, .. } = self.settings;
        at_least_1(&[("epochs", epochs), ("batch-size", batch_size), ("microbatches", microbatches)])?;
        if let Some(clip) = clip.filter(|c| !(c.is_finite() && *c > 0.0)) {
            bail!("--clip is {clip}; it must be a positive number");
        }
        self.schedule().validate()?;
        if self.batch() < microbatches {
            let n = self.batch();
            bail!("{n} pictures in {microbatches} microbatches: each needs at least one");
        }
        let sizes = self.sizes();
        fits(&self.layout, &sizes)?;
        self.network.fits(&[self.layout])?;
        let features = self.batch() as u128 * sizes.iter().map(|n| *n as u128).sum::<u128>();
        if features > MOST {
            bail!("a step of {} pictures has {features} features; {MOST} is the most", self.batch());
        }
        budget::fits(format_args!("training under {}", self.layout), self.bytes()?)
    }
    /// Bytes that all ranks hold at most in a step.
    fn bytes(&self) -> Result<u128> {
        let (sizes, rows, parts) = (self.sizes(), self.batch(), self.settings.microbatches);
        let part = |m| {
            let rows = deal(rows, m, parts).len();
            Examples { x: vec![0.0; rows * sizes[0]], labels: vec![0; rows] }
        };
        let (step, data) = ((0..parts).map(part).collect::<Vec<_>>(), self.layout.size(Axis::SEQUENCES));
        let dealt =
            |rank| Ok(step.iter().map(|m| deal(m.labels.len(), rank, data).len()).collect::<Vec<_>>());
        let peak = price::peak_of_all(&self.layout, dealt, |at: At<Meta<Cpu<f32>>>| {
            let mut trainer = ClassifierTrainer::new(&at, &sizes, self.optimizer())?;
            for _ in 0..2 {
                trainer.step(&step, 0.0)?; // the second holds all that later ones hold
            }
            Ok(())
        })?;
        Ok(peak.all)
    }
    fn optimizer(&self) -> (Kind, Option<f64>) {
        let kind = match self.settings.optimizer {
            OptimizerName::Sgd => Kind::Sgd,
            OptimizerName::Adamw => Kind::ADAMW,
        };
        (kind, self.settings.clip)
    }
    /// Learns; `watch` is told on rank 0. Returns what was told of each epoch.
    ///
    /// # Errors
    /// If something does not fit, a loss is no finite number, or the model cannot be written.
    pub fn train(&self, watch: &dyn Watch) -> Result<Vec<EpochLine>> {
        self.check()?;
        let (values, world) =
            (Random { seed: self.settings.seed }, self.network.world(&self.layout, "training")?);
        let ranks = session::run((&self.layout, &world), &values, |at: At<Cpu<f32>>| {
            let mut trainer = ClassifierTrainer::new(&at, &self.sizes(), self.optimizer())?;
            let watch = (at.mesh.rank() == 0).then_some(watch);
            let epochs = 0..self.settings.epochs;
            epochs.map(|epoch| self.epoch(epoch, &mut trainer, watch)).collect::<Result<Vec<_>>>()
        })?;
        Ok(ranks.into_iter().next().expect("a rank"))
    }
    fn epoch(
        &self,
        epoch: usize,
        trainer: &mut ClassifierTrainer<Cpu<f32>>,
        watch: Option<&dyn Watch>,
    ) -> Result<EpochLine> {
        let (clock, n, mut sum) = (Instant::now(), self.digits.train.len(), 0.0);
        let (schedule, done) = (self.schedule(), epoch * self.steps_of_epoch());
        for (step, batch) in order(self.settings.seed, epoch, n).chunks(self.batch()).enumerate() {
            let parts = self.settings.microbatches.min(batch.len());
            let microbatch = |m| examples(&self.digits.train, &batch[deal(batch.len(), m, parts)]);
            let report =
                trainer.step(&(0..parts).map(microbatch).collect::<Vec<_>>(), schedule.at(done + step))?;
            let loss = report.loss.read().expect("the host has values")[0].to_f64();
            if !loss.is_finite() {
                let epoch = epoch + 1;
                bail!("the loss of step {step} of epoch {epoch} is {loss}; a smaller --lr may help");
            }
            sum += loss * batch.len() as f64;
            watch.inspect(|w| w.step());
        }
        let (seconds, test) =
            (clock.elapsed().as_secs_f64(), (0..self.digits.test.len()).collect::<Vec<_>>());
        let mut right = 0;
        for some in test.chunks(TOGETHER) {
            right += trainer.correct(&examples(&self.digits.test, some))?;
        }
        if let Some(dir) = &self.out {
            folder::save(dir, &self.sizes(), epoch + 1, trainer)?;
        }
        let (loss, accuracy) = (sum / n as f64, right as f64 / test.len().max(1) as f64);
        let line =
            EpochLine { epoch: epoch + 1, loss, accuracy, seconds, examples_per_second: n as f64 / seconds };
        watch.inspect(|w| w.epoch(&line));
        Ok(line)
    }
}

/// The order in which an epoch shows so many pictures: a permutation by hash, the same under every layout.
pub fn order(seed: u64, epoch: usize, n: usize) -> Vec<usize> {
    let (mut order, hash) = ((0..n).collect::<Vec<_>>(), mix(mix(seed) ^ epoch as u64));
    for end in (1..n).rev() {
        order.swap(end, (mix(hash ^ end as u64) % (end as u64 + 1)) as usize);
    }
    order
}

/// What a pixel is given as.
fn feature(pixel: u8) -> f32 {
    (f32::from(pixel) / 255.0 - 0.1307) / 0.3081
}

/// These pictures of a set, as a classifier takes them.
fn examples(set: &Set, which: &[usize]) -> Examples<f32> {
    let mut x = Vec::with_capacity(which.len() * set.pixels());
    for &i in which {
        x.extend(set.image(i).iter().map(|&pixel| feature(pixel)));
    }
    Examples { x, labels: which.iter().map(|&i| u32::from(set.label(i))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a picture shown twice or never, an order that is the same in every epoch or for every seed.
    #[test]
    fn every_epoch_shows_every_picture_once_in_another_order() {
        let orders = [(0, 0), (0, 1), (1, 0)].map(|(seed, epoch)| order(seed, epoch, 100));
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
            assert!(order.iter().enumerate().filter(|(at, i)| at == *i).count() < 10);
        }
        assert!(orders[0] != orders[1] && orders[0] != orders[2]);
        assert_eq!((orders[0].clone(), order(3, 4, 0)), (order(0, 0, 100), vec![]));
    }

    /// Kills: pixels in another order or of another scale, another picture's label.
    #[test]
    fn pictures_become_examples() {
        let set = Digits::generated(1, 3, 0).train;
        let Examples { x, labels } = examples(&set, &[2, 0]);
        assert_eq!((x.len(), labels), (2 * 784, vec![u32::from(set.label(2)), u32::from(set.label(0))]));
        for (x, of) in x.chunks(784).zip([2, 0]) {
            assert!(x.iter().zip(set.image(of)).all(|(x, &pixel)| *x == feature(pixel)));
        }
        assert!((feature(0) + 0.424_213).abs() < 1e-5 && (feature(255) - 2.821_487).abs() < 1e-5);
    }
}
