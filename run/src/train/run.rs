//! The training loop of `train`, with checkpoints; a resumed run continues as if it had not stopped.
use super::data::{TrainData, held_out};
use super::epochs::{self, Epoch, EpochBefore, EpochLine};
use super::evaluations::Evaluations;
use super::rank::RankTraining;
use super::settings::Settings;
use super::state::{self, Saves, State};
use crate::event::Observer;
use crate::in_device;
use comm::RankWaits;
use models::TrainableModel;
use ops::LayerCounts;
use parallel::dtype::RunDevice;
use parallel::{BuildContext, Layout, Network, Result, Trainer, bail, measure, session};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::Phase;

/// A training run.
pub struct TrainRun<'a> {
    /// Initial weights, and the model's sizes.
    pub model: TrainableModel,
    /// Training data.
    pub source: &'a TrainData,
    /// Settings of the run.
    pub settings: Settings,
    /// Layout of the ranks.
    pub layout: Layout,
    /// Network between the ranks.
    pub network: Network,
    /// Folder of the checkpoints; prepared before.
    pub out: Option<PathBuf>,
    /// Options of saving them.
    pub saves: Saves,
    /// Checkpoint to resume from.
    pub resume: Option<State>,
    /// Evaluations during the run, and those before a resume.
    pub evaluations: Evaluations,
    /// Steps between checkpoints; there is one at the end in any case.
    pub checkpoint_every: usize,
    /// Steps between checks that copies of parameters are equal; no checks if none is given.
    pub check_every: Option<usize>,
    /// Stop after this number of steps of this run; the schedule does not change.
    pub stop_after: Option<usize>,
    /// Folder for activations, gradients and weights of the last step; prepared before.
    pub dump: Option<PathBuf>,
}

/// Facts that are found out before a run begins.
#[derive(Default)]
pub struct RunFacts {
    /// Epochs before a resume, and the first one of this run.
    pub epoch_before: Option<EpochBefore>,
    /// Bytes that a rank should not exceed, by the run's price.
    pub priced: Option<usize>,
}

impl RunFacts {
    /// Tells of a step, and of the epoch that it ends.
    pub(super) fn tell(&self, line: &StepLine, observer: &Observer) -> Result<()> {
        // the second step is the first that holds everything
        let priced = self.priced.filter(|_| line.step == 2);
        for (held, priced) in line.peak_bytes.iter().zip(priced.into_iter().cycle()).filter(|(a, b)| *a > b) {
            let note = format!("note: a rank holds {held} bytes, more than its price, {priced}");
            observer.note(&note)?;
        }
        observer.record(line)?;
        observer.records(&line.epoch)
    }
}

/// Report on a step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StepLine {
    /// Steps done.
    pub step: usize,
    /// The step's mean loss, before it, in nats a token.
    pub loss: f64,
    /// The step's learning rate.
    pub lr: f64,
    /// The step's loss scale, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// True if the gradients overflowed, so that nothing was updated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Training tokens a second, since the previous step.
    pub tokens_per_second: f64,
    /// Peak bytes so far, of each rank; if steps overlap, as of the last evaluation or checkpoint.
    pub peak_bytes: Vec<usize>,
    /// Bits a byte on the held-out text after the step, if it was evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_bits_per_byte: Option<f64>,
    /// Fraction of the test pictures classified correctly, if the step ends an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Report on the epoch, if this step ends one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochLine>,
    /// True if the run learns pictures: then its epochs are its results.
    #[serde(skip)]
    pub of_pictures: bool,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Steps done, including those of earlier runs.
    pub steps: usize,
    /// Bits a byte on the held-out text; `None` if there is no such text, or it is too short for the data
    /// ranks.
    pub held_out_bits_per_byte: Option<f64>,
    /// Tokens per expert, in the steps of this run.
    pub experts: LayerCounts,
    /// Evaluations during the run.
    pub evaluations: Evaluations,
    /// Epochs of this run and of those that it resumes, on rank 0.
    pub epochs: Vec<EpochLine>,
    /// Waits of all ranks for each other during the steps, if they were counted.
    pub waits: Vec<RankWaits>,
    /// Reason why the run ended early: copies of a parameter that differ.
    pub(super) differ: Option<String>,
}

impl<'a> TrainRun<'a> {
    /// A run under a layout that keeps no folder, and evaluates at its end only.
    pub fn of(
        (model, source): (TrainableModel, &'a TrainData),
        settings: Settings,
        layout: Layout,
        network: Network,
    ) -> Self {
        Self {
            model,
            source,
            settings,
            layout,
            network,
            out: None,
            saves: Saves::default(),
            resume: None,
            evaluations: Evaluations::default(),
            checkpoint_every: usize::MAX,
            check_every: None,
            stop_after: None,
            dump: None,
        }
    }
}

impl TrainRun<'_> {
    /// Trains in the settings' dtype, from the initial weights of an f32 run: in f64 the result is the truth
    /// of the f32 run.
    ///
    /// # Errors
    /// If the settings, the layout and the model do not fit, a rank or the observer fails, or a
    /// checkpoint cannot be written.
    pub fn train(&self, observer: &Observer) -> Result<Finished> {
        self.train_on(&RunFacts::default(), observer)
    }
    /// Trains as [`train`](Self::train) does, and tells of the run what these facts add.
    ///
    /// # Errors
    /// As [`train`](Self::train).
    pub fn train_on(&self, facts: &RunFacts, observer: &Observer) -> Result<Finished> {
        in_device!((self.settings.device, self.settings.number), D => self.train_in::<D>(facts, observer))
    }
    fn train_in<D: RunDevice>(&self, facts: &RunFacts, observer: &Observer) -> Result<Finished> {
        self.ready_in::<D>()?;
        let world = self.network.world(&self.layout, "training")?;
        let design = self.settings.design(&self.model).reaching(self.source.longest(&self.settings));
        let optimizer = self.settings.optimizer();
        let values = state::InF32(self.model.values());
        let ranks = session::run((&self.layout, &world), &values, |at: BuildContext<D>| {
            let mut trainer = Trainer::new(&at, &design, optimizer)?.seeded(self.settings.seed);
            if let Some(state) = &self.resume {
                state.restore(&mut trainer)?;
            }
            self.network.agrees(at.mesh)?;
            let work = || RankTraining::new((self, facts), &at, &mut trainer, observer).train();
            let (done, _) = measure::work(&at, Phase::Step, work)?;
            Ok(done)
        })?;
        if let Some(why) = &ranks[0].0.differ {
            bail!("{why}");
        }
        let experts = ranks.iter().map(|(finished, _)| finished.experts.clone());
        let waits = ranks.iter().flat_map(|(finished, _)| finished.waits.clone()).collect();
        let finished = Finished { experts: experts.collect(), waits, ..ranks[0].0.clone() };
        self.write_dump(ranks.into_iter().filter_map(|(_, seen)| seen).collect(), finished.steps)?;
        Ok(finished)
    }
    /// Returns bits a byte on the held-out text, if there is one.
    pub(super) fn held_out<D: RunDevice>(
        &self,
        trainer: &mut Trainer<D>,
        reported: &dyn Fn(usize, usize),
    ) -> Result<Option<f64>> {
        match self.source {
            TrainData::Text(corpus) => held_out(trainer, (corpus, self.settings.seq), reported),
            TrainData::Ids(_) | TrainData::Digits(_) => Ok(None),
        }
    }
    /// Returns true if an evaluation, a check or a checkpoint is due after this number of steps.
    pub(super) fn is_due(&self, steps: usize) -> bool {
        let epoch = match self.source {
            TrainData::Digits(digits) => Some(epochs::steps(digits, self.settings.batch_size)),
            TrainData::Text(_) | TrainData::Ids(_) => None,
        };
        [epoch, self.evaluations.every, self.check_every, self.out.as_ref().map(|_| self.checkpoint_every)]
            .into_iter()
            .flatten()
            .any(|every| steps.is_multiple_of(every))
    }
    /// Evaluates after a step, if it ends an epoch or an evaluation is due.
    pub(super) fn evaluate<D: RunDevice>(
        &self,
        trainer: &mut Trainer<D>,
        (line, epoch): (&mut StepLine, Option<&Epoch>),
        evaluations: &mut Evaluations,
        before: Option<&EpochBefore>,
    ) -> Result<()> {
        let ends = |steps: usize| line.step.is_multiple_of(steps);
        if let (TrainData::Digits(digits), Some(epoch)) = (self.source, epoch) {
            if ends(epochs::steps(digits, self.settings.batch_size)) {
                let judged = epoch.judged(&digits.test, trainer)?;
                line.accuracy = Some(judged.accuracy);
                let whole = before.into_iter().fold(judged, EpochLine::after);
                (line.epoch, evaluations.epoch) = (Some(whole), None);
            }
        } else if evaluations.every.is_some_and(ends) {
            line.held_out_bits_per_byte = self.held_out(trainer, &|_, _| ())?;
            drop(trainer.take_counts()); // of tokens that are not trained on
        }
        let wrong = line.accuracy.filter(|_| evaluations.patience.is_some()).map(|right| 1.0 - right);
        line.held_out_bits_per_byte.or(wrong).into_iter().for_each(|value| evaluations.add(value));
        Ok(())
    }
}
