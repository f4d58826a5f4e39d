//! Checks of a run before anything is built.
use super::data::{TrainData, held_out_batch};
use super::epochs;
use super::evaluations::Evaluations;
use super::run::TrainRun;
use super::settings::{Settings, at_least_1};
use super::state::State;
use crate::event::Observer;
use crate::in_device;
use bench::profile;
use comm::Axis;
use kernels::Kernels;
use layers::counted;
use ops::Wide;
use parallel::dtype::RunDevice;
use parallel::{Layout, Result, bail, budget, price};
use tensor::Scalar;

/// Reason why f64 has no checkpoints; printed after the dtype.
pub const NO_CHECKPOINTS: &str = "keeps no checkpoints, as they hold f32; leave out --out and --resume \
     (--model begins with the weights of a checkpoint)";

impl TrainRun<'_> {
    /// Checks the run before anything is built.
    ///
    /// # Errors
    /// One sentence on the first thing that does not fit.
    pub fn check(&self) -> Result<()> {
        let Settings { steps, .. } = self.settings;
        self.layout.fits(&self.model.design)?;
        self.network.fits(&[self.layout])?;
        self.source.check(&self.settings, self.model.positions())?;
        let every = ("checkpoint-every", self.checkpoint_every);
        let stop = self.stop_after.filter(|_| !self.only_evaluates()).unwrap_or(1);
        at_least_1(&[every, ("check-every", self.check_every.unwrap_or(1)), ("stop-after", stop)])?;
        if let Some(every) = self.check_every.filter(|_| self.layout.ranks() == 1) {
            bail!(
                "--check-every is {every}, but {} has 1 rank, which compares nothing; leave it out",
                self.layout
            );
        }
        self.settings.check_clip(&self.layout)?;
        let pipeline = self.layout.pipeline();
        if self.dump.is_some() && pipeline.schedule.updates_each() {
            bail!(
                "--dump is for a step with one update, but {} updates after each microbatch",
                pipeline.schedule.about().name
            );
        }
        if let TrainData::Text(corpus) = self.source {
            corpus.fits(self.model.design.outputs())?;
        }
        self.settings.learning_rate().validate()?;
        self.source.batch(&self.settings, 0, &mut None)?.deals(&self.layout.tokens())?;
        let done = self.resume.as_ref().map_or(0, State::steps);
        if done >= steps && !self.only_evaluates() {
            let flag = if let TrainData::Digits(_) = self.source { "--epochs" } else { "--steps" };
            let done = counted(done, "step");
            bail!("the run has done {done} and ends at {steps}; give a larger {flag} to continue");
        }
        self.check_evaluations()?;
        let left = steps.saturating_sub(done);
        let now = self.stop_after.map_or(left, |n| n.min(left));
        if self.network.profile == profile::MOST && now <= profile::WARM {
            bail!("--profile needs more than {}; this run has {now}", counted(profile::WARM, "step"));
        }
        Ok(())
    }
    /// True if a resumed run does no step.
    fn only_evaluates(&self) -> bool {
        self.stop_after == Some(0) && self.resume.is_some()
    }
    /// Returns the number of microbatches with which a resumed run goes on, if its layout cannot deal those
    /// that it began with: the next that it can. The batch of a step stays. A note says so.
    ///
    /// # Errors
    /// That of the observer.
    pub fn fitting_microbatches(&self, observer: &Observer) -> Result<Option<usize>> {
        let begun = self.settings.microbatches;
        let fixed = self.layout.table().is_some() || self.layout.pipeline().schedule.updates_each();
        let deals = |microbatches: &usize| {
            let settings = Settings { microbatches: *microbatches, ..self.settings.clone() };
            let batch = self.source.batch(&settings, 0, &mut None);
            batch.and_then(|batch| batch.deals(&self.layout.tokens())).is_ok()
        };
        let is_wrong = begun > self.settings.batch_size; // a file says so; no run begins like this
        if self.resume.is_none() || fixed || is_wrong || deals(&begun) {
            return Ok(None);
        }
        let Some(fits) = (1..begun).rev().find(deals) else { return Ok(None) };
        let (layout, batch) = (self.layout, counted(self.settings.batch_size, "sequence"));
        let experts = if self.model.design.shape().is_some_and(|shape| shape.experts.is_some()) {
            "; their number matters to the balance and the capacity of experts"
        } else {
            ""
        };
        let begun = counted(begun, "microbatch");
        observer.note(&format!(
            "note: {layout} cannot deal {batch} in {begun}; the run goes on with {fits}{experts}"
        ))?;
        Ok(Some(fits))
    }
    /// Checks the run as [`check`](Self::check) does, and that its memory is free.
    ///
    /// # Errors
    /// As [`check`](Self::check); if memory is too small, with both numbers of bytes; or if checkpoints,
    /// which are f32, are requested for a wider dtype.
    pub fn ready(&self) -> Result<()> {
        in_device!((self.settings.device, self.settings.number), D => self.ready_in::<D>())
    }
    pub(super) fn ready_in<D: RunDevice>(&self) -> Result<()> {
        self.check()?;
        if (self.out.is_some() || self.resume.is_some()) && Wide::<D>::NAME != f32::NAME {
            bail!("a run in {} {NO_CHECKPOINTS}", D::Elem::NAME);
        }
        let layout = self.layout;
        let peak = self.peak::<D>(&self.layout, &self.settings)?;
        let here = self.network.here(&layout);
        let ranks = layout.ranks();
        budget::fits::<D::Place>(format_args!("training under {layout}"), [here, ranks], peak.all)?;
        layout.has_room((peak.away / ranks as u128) as u64 * here as u64)
    }
    /// Peak of a layout's ranks with these settings: in steps, while the held-out text is evaluated, and
    /// while a checkpoint is saved.
    pub(super) fn peak<D: Kernels>(&self, layout: &Layout, settings: &Settings) -> Result<price::Peak> {
        let design = settings.design(&self.model).reaching(self.source.longest(settings));
        let batch = self.source.batch(settings, 0, &mut None)?;
        let held_out = match self.source {
            TrainData::Text(corpus) => held_out_batch(corpus, settings.seq, layout.tokens().data_ranks())?,
            TrainData::Digits(digits) if !digits.test.is_empty() => Some(epochs::judged(&digits.test, 0)?),
            TrainData::Ids(_) | TrainData::Digits(_) => None,
        };
        let largest = held_out.map(|batch| batch.largest(layout.size(Axis::Pp)));
        let batches = (&batch, largest.as_ref());
        price::training_and::<D>(layout, design, settings.optimizer(), batches, |trainer, _| {
            largest.as_ref().map_or(Ok(()), |batch| trainer.evaluate(batch, &|_| ()).map(drop))?;
            let Some(_) = &self.out else { return Ok(()) };
            price::saving(trainer, self.saves.background.then_some(&batch))
        })
    }
    /// Checks that the run has something to evaluate, and that it has not ended.
    fn check_evaluations(&self) -> Result<()> {
        let Evaluations { every, patience, .. } = self.evaluations;
        at_least_1(&[("eval-every", every.unwrap_or(1)), ("patience", patience.unwrap_or(1))])?;
        if patience.is_some() && self.dump.is_some() {
            bail!(
                "--dump keeps the last step, but --patience leaves it open which one that is; leave one out"
            );
        }
        if let Some(why) = self.evaluations.ended(self.source).filter(|_| !self.only_evaluates()) {
            bail!("{why}; give a larger --patience to continue");
        }
        match (self.source, every) {
            (TrainData::Ids(_), _) if every.or(patience).is_some() => {
                bail!(
                    "--eval-every and --patience need a held-out text, but --batch has none; leave them out"
                )
            }
            (TrainData::Text(_), None) if patience.is_some() => {
                bail!("--patience counts evaluations on the held-out text; give --eval-every too")
            }
            (TrainData::Text(corpus), Some(_)) => {
                let (seq, data) = (self.settings.seq, self.layout.tokens().data_ranks());
                if held_out_batch(corpus, seq, data)?.is_none() {
                    bail!(
                        "--eval-every needs a sequence of held-out text for each of the {data} data ranks; the \
                         held-out text has {}, and sequences have {seq}",
                        counted(corpus.held_out.len(), "token")
                    );
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
