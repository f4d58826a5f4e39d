//! The training loop of `train`, with checkpoints; a resumed run continues as if it had not stopped.
use super::data::{TrainData, held_out};
use super::epochs::{self, EpochLine};
use super::settings::Settings;
use super::state::{self, State};
use crate::device::in_device;
use bench::profile;
use layers::LayerCounts;
use models::TrainableModel;
use parallel::dtype::RunDevice;
use parallel::dump::{self, Provenance, Recorded};
use parallel::measure;
use parallel::{BuildContext, Layout, Network, Result, Trainer, bail, session};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use tensor::{Phase, Real};

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
    /// Checkpoint to resume from.
    pub resume: Option<State>,
    /// Steps between checkpoints; there is one at the end in any case.
    pub checkpoint_every: usize,
    /// Stop after this number of steps of this run; the schedule does not change.
    pub stop_after: Option<usize>,
    /// Folder for activations, gradients and weights of the last step; prepared before.
    pub dump: Option<PathBuf>,
}

/// Report on a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepLine {
    /// Steps done.
    pub step: usize,
    /// The step's mean loss, before it, in nats a token.
    pub loss: f64,
    /// Training tokens a second, since the previous step.
    pub tokens_per_second: f64,
    /// Peak bytes so far, of each rank.
    pub peak_bytes: Vec<usize>,
    /// Report on the epoch, if this step ends one.
    #[serde(skip)]
    pub epoch: Option<EpochLine>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Steps done, including those of earlier runs.
    pub steps: usize,
    /// Bits a byte on the held-out text; `None` if there is no such text, or it is too short for the data
    /// ranks.
    pub held_out_bits_per_byte: Option<f64>,
    /// Tokens per expert, in the steps of this run.
    pub experts: LayerCounts,
}

/// Callbacks: one receives every step, the other the number of evaluated parts of the held-out text and of
/// all parts.
type Watches<'a> = (&'a (dyn Fn(&StepLine) + Sync), &'a (dyn Fn(usize, usize) + Sync));

impl TrainRun<'_> {
    /// Trains in the settings' dtype, from the initial weights of an f32 run: in f64 the result is the truth
    /// of the f32 run. On rank 0, `step` receives every step, and `evaluated` the number of evaluated parts
    /// of the held-out text and of all parts.
    ///
    /// # Errors
    /// If the settings, the layout and the model do not fit, a rank fails, or a checkpoint cannot be written.
    pub fn train(
        &self,
        step: &(dyn Fn(&StepLine) + Sync),
        evaluated: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Finished> {
        in_device!((self.settings.device, self.settings.number), D => self.train_in::<D>((step, evaluated)))
    }
    fn train_in<D: RunDevice>(&self, watches: Watches) -> Result<Finished> {
        self.ready_in::<D>()?;
        let world = self.network.world(&self.layout, "training")?;
        let (design, optimizer) = (self.settings.design(&self.model), self.settings.optimizer());
        let values = state::InF32(self.model.values());
        let ranks = session::run((&self.layout, &world), &values, |at: BuildContext<D>| {
            let mut trainer = Trainer::new(&at, &design, optimizer)?.seeded(self.settings.seed);
            if let Some(state) = &self.resume {
                state.restore(&mut trainer)?;
            }
            self.network.agrees(at.mesh)?;
            let work = || self.on_rank(&at, &mut trainer, watches);
            let (done, _) = measure::work(&at, Phase::Step, work)?;
            Ok(done)
        })?;
        let all = ranks.iter().map(|(finished, _)| finished.experts.clone());
        let finished = Finished { experts: all.collect(), ..ranks[0].0.clone() };
        if let Some(dir) = &self.dump {
            let layout = self.layout.to_string();
            let about = Provenance { layout, step: Some(finished.steps - 1), ..Provenance::default() };
            let seen = ranks.into_iter().filter_map(|(_, seen)| seen).collect();
            dump::write(dir, &self.model.entries(), seen, &about)?;
        }
        Ok(finished)
    }
    fn on_rank<D: RunDevice>(
        &self,
        at: &BuildContext<D>,
        trainer: &mut Trainer<D>,
        (watch, evaluated): Watches,
    ) -> Result<(Finished, Option<Recorded<D::Elem>>)> {
        let (device, mesh, mut seen) = (at.device, at.mesh, None);
        let (schedule, done) = (self.settings.learning_rate(), self.resume.as_ref().map_or(0, State::steps));
        let until = self.stop_after.map_or(usize::MAX, |n| done.saturating_add(n)).min(self.settings.steps);
        let (mut clock, mut epoch) = (Instant::now(), None);
        for step in done..until {
            let batch = self.source.batch(&self.settings, step, &mut epoch)?;
            let profile = (self.network.profile && profile::is_taken(step - done))
                .then(|| mesh.profile(device.place()));
            let report = if self.dump.is_some() && step + 1 == until {
                let (report, all) = dump::step(trainer, mesh, &batch, schedule.at(step))?;
                seen = Some(all);
                report
            } else {
                trainer.step(&batch, schedule.at(step))?
            };
            drop(profile);
            let loss = report.loss.read().expect("the host has values")[0].to_f64();
            if !loss.is_finite() {
                bail!("the loss of step {step} is {loss}; a smaller --lr may help");
            }
            let peak_bytes = mesh.world().all_gather_values(&[device.meter().peaks_of_all().total])?.concat();
            let tokens_per_second = batch.tokens() as f64 / clock.elapsed().as_secs_f64();
            let mut line = StepLine { step: step + 1, loss, tokens_per_second, peak_bytes, epoch: None };
            if let (TrainData::Digits(digits), Some(epoch)) = (self.source, &mut epoch) {
                epoch.learnt(loss, &batch);
                if line.step.is_multiple_of(epochs::steps(digits, self.settings.batch_size)) {
                    line.epoch = Some(epoch.judged(&digits.test, trainer)?);
                }
            }
            if mesh.rank() == 0 {
                watch(&line);
            }
            clock = Instant::now();
            let now = (step + 1) % self.checkpoint_every == 0 || step + 1 == until;
            if let (Some(dir), true) = (&self.out, now) {
                let _span = mesh.span("checkpoint");
                state::save(dir, &self.settings, &self.model, trainer)?;
            }
        }
        let experts = self.network.of_all(mesh, trainer.take_counts())?.into_iter().collect();
        let held_out_bits_per_byte = match self.source {
            TrainData::Text(corpus) => {
                let reported = |done, of| {
                    if mesh.rank() == 0 {
                        evaluated(done, of);
                    }
                };
                held_out(trainer, (corpus, self.settings.seq), &reported)?
            }
            TrainData::Ids(_) | TrainData::Digits(_) => None,
        };
        Ok((Finished { steps: until, held_out_bits_per_byte, experts }, seen))
    }
}
