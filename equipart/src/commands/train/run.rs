//! `train`: learns text, or given ids, with checkpoints that a later run resumes as if nothing had happened.
use super::epochs::{self, Epoch, EpochLine};
use super::settings::{self, Settings, at_least_1, sequences};
use super::state::{self, State};
use crate::device::in_device;
use bench::profile;
use comm::Mesh;
use kernels::Kernels;
use layers::{Draw, LayerCounts, Numbers, Values, Wide};
use models::digits::Digits;
use models::text::{self, Corpus};
use models::{Learner, ids};
use parallel::dump::{self, Provenance, Seen};
use parallel::measure::{self, Taken};
use parallel::number::Runs;
use parallel::{At, Batch, Layout, Network, Result, Sequence, Trainer, bail, budget, price, session};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use tensor::{Phase, Real, Scalar};

/// Everything a run needs.
pub struct TrainRun<'a> {
    /// Weights to begin with, and the model's sizes.
    pub model: Learner,
    /// What is learnt.
    pub source: &'a TrainData,
    /// How it is learnt.
    pub settings: Settings,
    /// Over which ranks.
    pub layout: Layout,
    /// What lies between them.
    pub network: Network,
    /// Where checkpoints go; it has been prepared.
    pub out: Option<PathBuf>,
    /// Where the run goes on from.
    pub resume: Option<State>,
    /// A checkpoint after every so many steps, and at the end.
    pub checkpoint_every: usize,
    /// Stop after so many steps of this run, though the schedule goes on.
    pub stop_after: Option<usize>,
    /// Where activations, gradients and weights of the last step go; it has been prepared.
    pub dump: Option<PathBuf>,
}

/// What is learnt.
pub enum TrainData {
    /// Pieces of a text, drawn anew for each step.
    Text(Corpus),
    /// The same sequences in every step.
    Ids(Vec<Sequence>),
    /// Pictures, each of them once an epoch.
    Digits(Digits),
}

impl TrainData {
    /// A hash, to know it again.
    pub(crate) fn hash(&self) -> u64 {
        match self {
            TrainData::Text(corpus) => settings::hash(corpus),
            TrainData::Ids(sequences) => ids::hash(sequences),
            TrainData::Digits(digits) => digits.hash(),
        }
    }
    /// The batch of a step: the same whatever the layout.
    fn batch(&self, settings: &Settings, step: usize, epoch: &mut Option<Epoch>) -> Result<Batch> {
        match self {
            TrainData::Digits(digits) => epochs::batch(digits, settings, step, epoch),
            TrainData::Text(corpus) => settings.batch(corpus, step),
            TrainData::Ids(sequences) => Batch::new(sequences.clone(), settings.microbatches),
        }
    }
}

/// What is told of a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepLine {
    /// Steps done.
    pub step: usize,
    /// The step's mean loss, before it, in nats a token.
    pub loss: f64,
    /// Tokens learnt a second, since the step before.
    pub tokens_per_second: f64,
    /// Peak bytes so far, of each rank.
    pub peak_bytes: Vec<usize>,
    /// Of the epoch that it ends, if it does.
    #[serde(skip)]
    pub epoch: Option<EpochLine>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A step is done.
    Step(&'a StepLine),
    /// So many of these parts of the held-out text are evaluated.
    Evaluated(usize, usize),
}

/// What a run ends with.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Steps done, with those of earlier runs.
    pub steps: usize,
    /// Bits a byte on the held-out text; none if there is none, or it is too short for the data ranks.
    pub held_out_bits_per_byte: Option<f64>,
    /// How often each expert was chosen in the steps of this run.
    pub experts: LayerCounts,
}

impl TrainRun<'_> {
    /// What can be known to be wrong before anything is built.
    ///
    /// # Errors
    /// One sentence on the first thing that does not fit.
    pub fn check(&self) -> Result<()> {
        let Settings { steps, clip, .. } = self.settings;
        self.layout.fits(&self.model.design)?;
        self.network.fits(&[self.layout])?;
        match self.source {
            TrainData::Text(_) | TrainData::Digits(_) => self.settings.check(self.model.positions())?,
            TrainData::Ids(all) => {
                let longest = all.iter().flat_map(|s| s.documents.iter().copied()).max().unwrap_or(0);
                let tokens = all.iter().map(|s| s.ids.len() as u128).sum();
                self.settings.check_for(self.model.positions(), longest, tokens)?;
            }
        }
        let every = ("checkpoint-every", self.checkpoint_every);
        at_least_1(&[every, ("stop-after", self.stop_after.unwrap_or(1))])?;
        if let Some(clip) = clip.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
            bail!("--clip is {clip}; it must be a positive number");
        }
        if let TrainData::Text(corpus) = self.source {
            corpus.fits(self.model.design.outputs())?;
        }
        self.settings.schedule().validate()?;
        self.source.batch(&self.settings, 0, &mut None)?.deals(&self.layout.tokens())?;
        let done = self.resume.as_ref().map_or(0, State::steps);
        if done >= steps {
            let flag = if let TrainData::Digits(_) = self.source { "--epochs" } else { "--steps" };
            bail!(
                "{done} steps are done already, and the run ends at {steps}; a larger {flag} lets it go on"
            );
        }
        let now = self.stop_after.map_or(steps - done, |n| n.min(steps - done));
        if self.network.profile && now <= profile::WARM {
            bail!(
                "--profile is of the steps after the first {}, and this run has {now}; let it have more",
                profile::WARM
            );
        }
        Ok(())
    }
    /// The same, and whether the machine has the memory.
    ///
    /// # Errors
    /// As [`check`](Self::check); both numbers of bytes; and if checkpoints, which are f32, are asked of wider numbers.
    pub fn ready(&self) -> Result<()> {
        in_device!((self.settings.device, self.settings.number), D => self.ready_in::<D>())
    }
    fn ready_in<D: Runs>(&self) -> Result<()> {
        self.check()?;
        if (self.out.is_some() || self.resume.is_some()) && Wide::<D>::NAME != f32::NAME {
            bail!("a run in {} {NO_CHECKPOINTS}", D::Elem::NAME);
        }
        let (layout, all) = (self.layout, self.peak::<D>()?.all);
        budget::fits::<D::Place>(
            format_args!("training under {layout}"),
            [self.network.here(&layout), layout.ranks()],
            all,
        )
    }
    /// What ranks hold at most: in steps, when the held-out text is told, when a checkpoint is put together.
    fn peak<D: Kernels>(&self) -> Result<price::Peak> {
        let (design, batch) =
            (self.settings.design(&self.model), self.source.batch(&self.settings, 0, &mut None)?);
        let held_out = match self.source {
            TrainData::Text(corpus) => {
                held_out_batch(corpus, self.settings.seq, self.layout.tokens().data_ranks())?
            }
            TrainData::Digits(digits) if !digits.test.is_empty() => Some(epochs::judged(&digits.test, 0)?),
            TrainData::Ids(_) | TrainData::Digits(_) => None,
        };
        let largest = held_out.map(|batch| batch.largest());
        price::training::<D>(&self.layout, design, self.settings.optimizer(), &batch, |trainer, mesh| {
            largest.as_ref().map_or(Ok(()), |batch| trainer.evaluate(batch, &|_| ()).map(drop))?;
            if self.out.is_some() { price::gathering(trainer, mesh) } else { Ok(()) }
        })
    }
    /// Trains in the settings' numbers, from the weights that an f32 run begins with: in f64 that gives the truth of the
    /// f32 run. `watch` is told of every step, on rank 0.
    ///
    /// # Errors
    /// If the settings, the layout and the model do not fit, a rank fails, or a checkpoint cannot be written.
    pub fn train(&self, watch: &(dyn Fn(&StepLine) + Sync)) -> Result<Finished> {
        self.watched(&|progress| {
            if let Progress::Step(line) = progress {
                watch(line);
            }
        })
    }
    /// The same; `watch` is told of the evaluation, too.
    ///
    /// # Errors
    /// As [`train`](Self::train).
    pub fn watched(&self, watch: &(dyn Fn(Progress) + Sync)) -> Result<Finished> {
        in_device!((self.settings.device, self.settings.number), D => self.train_in::<D>(watch))
    }
    fn train_in<D: Runs>(&self, watch: &(dyn Fn(Progress) + Sync)) -> Result<Finished> {
        self.ready_in::<D>()?;
        let world = self.network.world(&self.layout, "training")?;
        let (design, optimizer) = (self.settings.design(&self.model), self.settings.optimizer());
        let values = InF32(self.model.values());
        let ranks = session::run((&self.layout, &world), &values, |at: At<D>| {
            let mut trainer = Trainer::new(&at, &design, optimizer)?.seeded(self.settings.seed);
            if let Some(state) = &self.resume {
                state.restore(&mut trainer)?;
            }
            self.network.agrees(at.mesh)?;
            let work = || self.on_rank(&at, &mut trainer, watch);
            let (done, _): (_, Taken) = measure::work(&at, Phase::Step, work)?;
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
    fn on_rank<D: Runs>(
        &self,
        at: &At<D>,
        trainer: &mut Trainer<D>,
        watch: &(dyn Fn(Progress) + Sync),
    ) -> Result<(Finished, Option<Seen<D::Elem>>)> {
        let (device, mesh, mut seen) = (at.device, at.mesh, None);
        let (schedule, done) = (self.settings.schedule(), self.resume.as_ref().map_or(0, State::steps));
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
            let peak_bytes = all_peaks(device, mesh)?;
            let tokens_per_second = batch.tokens() as f64 / clock.elapsed().as_secs_f64();
            let mut line = StepLine { step: step + 1, loss, tokens_per_second, peak_bytes, epoch: None };
            if let (TrainData::Digits(digits), Some(epoch)) = (self.source, &mut epoch) {
                epoch.learnt(loss, &batch);
                if line.step.is_multiple_of(epochs::steps(digits, self.settings.batch_size)) {
                    line.epoch = Some(epoch.judged(&digits.test, trainer)?);
                }
            }
            if mesh.rank() == 0 {
                watch(Progress::Step(&line));
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
                let told = |done, of| {
                    if mesh.rank() == 0 {
                        watch(Progress::Evaluated(done, of));
                    }
                };
                held_out(trainer, (corpus, self.settings.seq), &told)?
            }
            TrainData::Ids(_) | TrainData::Digits(_) => None,
        };
        Ok((Finished { steps: until, held_out_bits_per_byte, experts }, seen))
    }
}

/// Why f64 has no checkpoints: said after the number.
pub(crate) const NO_CHECKPOINTS: &str = "keeps no checkpoints, as they hold f32; leave out --out and --resume \
     (--model begins with the weights of a checkpoint)";

/// Weights as an f32 run has them, in any number: a fresh one's draws are rounded, too.
struct InF32<'a>(&'a (dyn Values<f32> + Sync));

impl<S: Scalar> Values<S> for InF32<'_> {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> layers::Result<Numbers<'_, S>> {
        Ok(self.0.of(name, shape, draw)?.map(|_, x| S::from_f64(f64::from(x))))
    }
}

/// Peak bytes so far, of each rank.
fn all_peaks<D: Runs>(device: &D, mesh: &Mesh<D::Place>) -> Result<Vec<usize>> {
    Ok(mesh.world().all_gather_values(&[device.meter().peaks_of_all().total])?.concat())
}

/// Bits a byte on the held-out text, in windows of `seq`: what all tokens but the first cost, over the bytes that they
/// stand for. None if there are fewer windows than data ranks. `told` is how many parts of how many are done.
///
/// # Errors
/// If ranks do not meet, or the loss is no finite number.
pub fn held_out<D: Runs>(
    trainer: &mut Trainer<D>,
    (corpus, seq): (&Corpus, usize),
    told: &dyn Fn(usize, usize),
) -> Result<Option<f64>> {
    let Some(batch) = held_out_batch(corpus, seq, trainer.model().tokens().data_ranks())? else {
        return Ok(None);
    };
    let targets = corpus.held_out.len() - 1;
    let parts = batch.microbatches().len();
    let nats =
        trainer.evaluate(&batch, &|done| told(done, parts))?.read().expect("the host has values")[0].to_f64();
    if !nats.is_finite() {
        bail!("the loss on the held-out text is {nats}; a smaller --lr may help");
    }
    let tokens_per_byte = targets as f64 / corpus.held_out_bytes.max(1) as f64;
    Ok(Some(nats * tokens_per_byte / std::f64::consts::LN_2))
}

/// The held-out text in windows of `seq`, eight at a time on each data rank; none if there are fewer than ranks.
fn held_out_batch(corpus: &Corpus, seq: usize, data: usize) -> Result<Option<Batch>> {
    let windows = sequences(text::windows(&corpus.held_out, seq));
    if windows.len() < data {
        return Ok(None);
    }
    let together = windows.len().div_ceil(8 * data).min(windows.len() / data);
    Ok(Some(Batch::new(windows, together)?))
}
