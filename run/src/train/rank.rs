//! A rank of a training run: its steps, one after the other or overlapping, with what is due between them.
use super::data::TrainData;
use super::epochs::{Epoch, EpochLine};
use super::evaluations::Evaluations;
use super::run::{Finished, RunFacts, StepLine, TrainRun};
use super::state::{Saver, State};
use crate::event::Observer;
use bench::profile;
use kernels::loss_scale;
use ops::LayerCounts;
use parallel::dtype::RunDevice;
use parallel::dump::{self, Recorded};
use parallel::{Batch, BuildContext, Result, RunningStep, Trainer, bail};
use std::collections::VecDeque;
use std::time::Instant;
use tensor::Real;

/// A step that has begun: its batch, its learning rate, and when its start was over.
struct BegunStep<D: RunDevice> {
    step: RunningStep<D>,
    batch: Batch,
    lr: f64,
    over: Instant,
}

/// A rank in its run.
pub(super) struct RankTraining<'r, D: RunDevice> {
    run: &'r TrainRun<'r>,
    facts: &'r RunFacts,
    at: &'r BuildContext<'r, D>,
    trainer: &'r mut Trainer<D>,
    observer: &'r Observer<'r>,
    /// Steps before this run, and those at which it ends.
    from: usize,
    until: usize,
    /// Steps that have begun, and those of them that go on.
    begun: usize,
    running: VecDeque<BegunStep<D>>,
    /// The last step that ended, and when.
    line: StepLine,
    clock: Instant,
    epoch: Option<Epoch>,
    evaluations: Evaluations,
    experts: LayerCounts,
    shown: Vec<EpochLine>,
    seen: Option<Recorded<D::Elem>>,
}

impl<'r, D: RunDevice> RankTraining<'r, D> {
    /// Prepares the run of a rank.
    pub(super) fn new(
        (run, facts): (&'r TrainRun<'r>, &'r RunFacts),
        at: &'r BuildContext<'r, D>,
        trainer: &'r mut Trainer<D>,
        observer: &'r Observer<'r>,
    ) -> Self {
        let from = run.resume.as_ref().map_or(0, State::steps);
        let until = run.stop_after.map_or(usize::MAX, |n| from.saturating_add(n)).min(run.settings.steps);
        Self {
            run,
            facts,
            at,
            trainer,
            observer,
            from,
            until,
            begun: from,
            running: VecDeque::new(),
            line: StepLine { step: from, ..StepLine::default() },
            clock: Instant::now(),
            epoch: None,
            evaluations: run.evaluations,
            experts: LayerCounts::default(),
            shown: facts.epoch_before.iter().flat_map(|before| before.whole.clone()).collect(),
            seen: None,
        }
    }
    /// Trains until the run ends.
    ///
    /// # Errors
    /// If a loss is not finite, a call fails, or a checkpoint cannot be written.
    pub(super) fn train(mut self) -> Result<(Finished, Option<Recorded<D::Elem>>)> {
        let (run, mesh, observer) = (self.run, self.at.mesh, self.observer);
        let note = |words: &str| drop(observer.note(words)); // the next step tells of an error
        let saver = |dir| Saver::new((dir, &run.saves), (&run.settings, &run.model), mesh);
        let mut saver = run.out.as_deref().map(saver).transpose()?;
        let (mut copies, mut saved) = (None, run.resume.is_some());
        drop(mesh.take_waits()); // while the model was built
        if mesh.rank() == 0 {
            observer.steps(run.settings.steps)?;
        }
        while self.line.step < self.until && !self.evaluations.end() {
            self.begin()?;
            // Ranks must not wait for each other while a step of a full pipeline runs.
            let ends = !self.trainer.overlaps() || self.begun == self.until || run.is_due(self.begun);
            while self.running.len() > usize::from(!ends) {
                self.end()?;
            }
            if !ends {
                continue;
            }
            let is_last = self.line.step == self.until || self.evaluations.end();
            let is_due = is_last || saver.is_some() && self.line.step.is_multiple_of(run.checkpoint_every);
            let step = (self.line.step, is_due);
            if let Some(why) = run.compare((&mut *self.trainer, mesh), step, (&mut copies, &note))? {
                let last =
                    if saved { "continue from the last checkpoint with --resume" } else { "start again" };
                let differ = Some(format!("{why}; {last}"));
                return Ok((Finished { differ, ..Finished::default() }, None));
            }
            if let Some(saver) = &mut saver {
                let _span = is_due.then(|| mesh.span("checkpoint"));
                saved |= is_due;
                if is_due {
                    saver.save(self.trainer, &self.evaluations)?;
                }
                saver.advance(mesh, is_last)?;
            }
        }
        self.finished()
    }
    /// Begins the next step.
    fn begin(&mut self) -> Result<()> {
        let (run, step, mesh) = (self.run, self.begun, self.at.mesh);
        let lr = run.settings.learning_rate().at(step);
        let batch = run.source.batch(&run.settings, step, &mut self.epoch)?;
        let before = run.evaluations.epoch.filter(|_| step == self.from);
        if let (Some(losses), Some(epoch)) = (before, &mut self.epoch) {
            epoch.continues(losses);
        }
        let profiled = profile::WARM..profile::WARM + run.network.profile;
        let profile = profiled.contains(&(step - self.from)).then(|| mesh.profile(self.at.device.place()));
        let started = if run.dump.is_some() && step + 1 == self.until {
            let (report, seen) = dump::step(self.trainer, mesh, &batch, lr)?;
            self.seen = Some(seen);
            report.into()
        } else {
            self.trainer.start_step(&batch, lr)?
        };
        drop(profile);
        self.begun += 1;
        self.running.push_back(BegunStep { step: started, batch, lr, over: Instant::now() });
        Ok(())
    }
    /// Ends the first of the steps that go on, and tells of it.
    fn end(&mut self) -> Result<()> {
        let (run, mesh) = (self.run, self.at.mesh);
        if self.running.len() == 1 {
            self.trainer.drain()?;
            let peak = self.at.device.meter().peaks_of_all().total;
            self.line.peak_bytes = mesh.world().all_gather_values(&[peak])?.concat();
        }
        let BegunStep { step, batch, lr, over } = self.running.pop_front().expect("one runs");
        let report = step.wait()?;
        let loss = report.loss.read().expect("the host has values")[0].to_f64();
        let number = self.line.step + 1;
        if !loss.is_finite() {
            let advice = if number == 1 {
                "nothing was updated before it, so the model's values or dtype give it"
            } else {
                "a smaller --lr may help"
            };
            bail!("the loss of step {number} is {loss}; {advice}");
        }
        let scale = report.scale.map(loss_scale);
        let skipped = report.skipped;
        drop(report); // its values are not held beside an evaluation's
        let is_alone = self.running.is_empty();
        let end = if is_alone { Instant::now() } else { over };
        self.line = StepLine {
            step: number,
            loss,
            lr,
            loss_scale: scale,
            skipped,
            tokens_per_second: batch.tokens() as f64 / end.duration_since(self.clock).as_secs_f64(),
            peak_bytes: std::mem::take(&mut self.line.peak_bytes),
            of_pictures: matches!(run.source, TrainData::Digits(_)),
            ..StepLine::default()
        };
        self.evaluations.epoch = self.epoch.as_mut().map(|epoch| epoch.learnt(loss, &batch));
        self.experts.join(self.trainer.take_counts());
        if is_alone {
            let before = self.facts.epoch_before.as_ref();
            let line = (&mut self.line, self.epoch.as_ref());
            run.evaluate(self.trainer, line, &mut self.evaluations, before)?;
        }
        if mesh.rank() == 0 {
            self.shown.extend(self.line.epoch.clone());
            self.facts.tell(&self.line, self.observer)?;
        }
        self.clock = if is_alone { Instant::now() } else { end };
        Ok(())
    }
    /// Evaluates at the end, unless the last step did, and collects what ranks have counted.
    fn finished(self) -> Result<(Finished, Option<Recorded<D::Elem>>)> {
        let Self { run, trainer, observer, line, evaluations, .. } = self;
        let mesh = self.at.mesh;
        let waits = self.at.mesh.take_waits();
        let experts = run.network.of_all(mesh, self.experts)?.into_iter().collect();
        let reported = |done, of| {
            if mesh.rank() == 0 {
                drop(observer.progress("held-out text: evaluated", done, of));
            }
        };
        let held_out_bits_per_byte = match line.held_out_bits_per_byte {
            None => run.held_out(trainer, &reported)?,
            known => known,
        };
        let waits = run.network.of_all(mesh, waits)?.concat();
        let (steps, epochs, differ) = (line.step, self.shown, None);
        let finished =
            Finished { steps, held_out_bits_per_byte, experts, evaluations, epochs, waits, differ };
        Ok((finished, self.seen))
    }
}
