//! Settings of a training run, as far as they are given.
use super::amount::{Amount, DropoutRate};
use super::constants::GivenConstants;
use super::data::TrainData;
use super::epochs;
use super::schedule::LrSchedule;
use super::settings::{SEQ, Settings, at_least_1, differs_from};
use super::state::State;
use crate::device::DeviceName;
use crate::event::Observer;
use layers::{OptimizerKind, counted};
use ops::LossScaling;
use parallel::dtype::DtypeName;
use parallel::pipeline::table::Table;
use parallel::price::largest::{LargestBatch, Unknown};
use parallel::{Error, Layout, Result, bail};
use std::fmt::Display;

/// Settings of a training run, as far as they are given. Others are the usual ones, or those of the run to
/// resume.
#[derive(Clone, Debug, Default)]
pub struct AskedSettings {
    /// Total number of steps.
    pub steps: Option<usize>,
    /// Epochs of pictures.
    pub epochs: Option<usize>,
    /// Tokens of a sequence.
    pub seq: Option<usize>,
    /// Sequences of a step.
    pub batch_size: Option<Amount>,
    /// Microbatches of a step.
    pub microbatches: Option<Amount>,
    /// The largest learning rate.
    pub lr: Option<f64>,
    /// Steps until it is reached.
    pub warmup: Option<usize>,
    /// Course of the learning rate after that.
    pub lr_schedule: Option<LrSchedule>,
    /// The last step's learning rate.
    pub min_lr: Option<f64>,
    /// The optimizer.
    pub optimizer: Option<OptimizerKind>,
    /// Its constants.
    pub constants: GivenConstants,
    /// The largest norm of the gradient.
    pub clip: Option<f64>,
    /// Loss scale of the first step.
    pub loss_scale: Option<u32>,
    /// Steps without overflow that double it.
    pub loss_scale_window: Option<u32>,
    /// Dropout rate.
    pub dropout: Option<DropoutRate>,
    /// Fraction of a target that is spread over all ids.
    pub label_smoothing: Option<f64>,
    /// The weight of each token's squared log-sum-exp in the loss.
    pub z_loss: Option<f64>,
    /// Seed of fresh weights, of the batches and of dropout.
    pub seed: Option<u64>,
    /// Dtype of the run.
    pub number: Option<DtypeName>,
    /// Device of the run.
    pub device: DeviceName,
    /// Layout, the unsplit one as long as none is planned.
    pub layout: Layout,
}

impl AskedSettings {
    /// Returns the number of a step that memory decides, if one is auto.
    ///
    /// # Errors
    /// If both are auto, or a table has the number.
    pub fn unknown(&self) -> Result<Option<Unknown>> {
        let autos = [self.batch_size, self.microbatches].map(|amount| amount == Some(Amount::Auto));
        match (autos, self.layout.table()) {
            ([true, true], _) => bail!("--batch-size and --microbatches are both auto; give one a number"),
            ([_, true], Some(_)) => {
                bail!("--microbatches is auto, but the table of --schedule has the number; leave it out")
            }
            ([true, _], _) => Ok(Some(Unknown::BatchSize)),
            ([_, true], _) => Ok(Some(Unknown::Microbatches)),
            _ => Ok(None),
        }
    }
    /// The same settings with the sizes of a step that memory has decided.
    #[must_use]
    pub fn sized(&self, found: &LargestBatch) -> Self {
        let [batch_size, microbatches] = [found.batch_size, found.microbatches].map(Amount::Number);
        Self { batch_size: Some(batch_size), microbatches: Some(microbatches), ..self.clone() }
    }
    /// Settings of a new run on this data, or of one that is resumed, which keeps the numbers that memory
    /// would decide. Notes say what changes.
    ///
    /// # Errors
    /// If a number is out of range, or a setting differs from that of the run to resume.
    pub fn settings(
        &self,
        resume: Option<&State>,
        learnt: &TrainData,
        observer: &Observer,
    ) -> Result<Settings> {
        let Some(state) = resume else { return self.of_new(learnt) };
        learnt.check(&state.settings, state.model.positions())?; // of a file
        let settings = self.of_begun(state, learnt, observer)?;
        if self.unknown()?.is_some() {
            let Settings { batch_size, microbatches, .. } = settings;
            observer.note(&format!(
                "note: the resumed run keeps its batch size, {batch_size}, and microbatches, {microbatches}"
            ))?;
        }
        Ok(settings)
    }
    /// Settings of a new run on this data: the usual ones, unless flags change them. A number that is auto
    /// has its smallest value.
    fn of_new(&self, learnt: &TrainData) -> Result<Settings> {
        let usual = learnt.usual_settings(self.optimizer);
        let mut steps = self.steps.unwrap_or(usual.steps);
        let mut batch_size = usual.batch_size;
        let mut warmup = 0;
        match learnt {
            TrainData::Text(_) => (batch_size, warmup) = (self.sequences(batch_size), steps / 10),
            TrainData::Ids(_) => {}
            TrainData::Digits(digits) => {
                let epochs = self.epochs.unwrap_or(3);
                let each = self.sequences(32);
                at_least_1(&[("epochs", epochs), ("batch-size", each)])?;
                batch_size = each.min(digits.train.len());
                steps = epochs.saturating_mul(epochs::steps(digits, batch_size));
            }
        }
        let seq = if let TrainData::Text(_) = learnt { self.seq.unwrap_or(SEQ) } else { usual.seq };
        let lr = self.lr.unwrap_or(usual.lr);
        let lr_schedule = self.lr_schedule.unwrap_or(usual.lr_schedule);
        let number = self.number.unwrap_or_default();
        Ok(Settings {
            steps,
            seq,
            batch_size,
            microbatches: self.parts(),
            table: self.layout.table().map(Table::digest),
            lr,
            warmup: self.warmup.unwrap_or(warmup),
            optimizer: self.constants.of(usual.optimizer, lr)?,
            clip: self.clip,
            loss_scaling: self.loss_scaling(number)?,
            seed: self.seed.unwrap_or(0),
            lr_schedule,
            floor: self.floor(lr_schedule, lr)?.unwrap_or(usual.floor),
            dropout: self.dropout.map_or(usual.dropout, |rate| rate.0),
            label_smoothing: self.label_smoothing.unwrap_or(0.0),
            z_loss: self.z_loss.unwrap_or(0.0),
            number,
            device: self.device,
            ..usual
        })
    }
    /// The last step's learning rate, as a fraction of the largest, if it is given.
    fn floor(&self, schedule: LrSchedule, lr: f64) -> Result<Option<f64>> {
        match self.min_lr {
            Some(min) if schedule == LrSchedule::Constant => {
                bail!("--min-lr is {min}, but --lr-schedule constant has no use for it; leave it out")
            }
            Some(min) if !(0.0..=lr).contains(&min) => {
                bail!("--min-lr is {min}; it must be 0 or more and at most the largest rate, {lr}")
            }
            min => Ok(min.map(|min| min / lr)),
        }
    }
    /// Sequences of a step, if the usual number is this one.
    fn sequences(&self, usual: usize) -> usize {
        match self.batch_size {
            Some(Amount::Auto) => self.parts().max(1).saturating_mul(self.layout.tokens().data_ranks()),
            given => given.and_then(Amount::number).unwrap_or(usual),
        }
    }
    /// Microbatches of a step.
    fn parts(&self) -> usize {
        self.microbatches.and_then(Amount::number).unwrap_or(1)
    }
    /// Settings of a resumed run: those it began with, except its last step, which may change; a note reports
    /// the change. Any other flag that differs is refused.
    fn of_begun(&self, state: &State, learnt: &TrainData, observer: &Observer) -> Result<Settings> {
        let begun = &state.settings;
        let table = self.layout.table().map(Table::digest);
        if table != begun.table {
            let in_words = |table: Option<u64>| {
                table.map_or("no table".into(), |digest| format!("the table {digest:016x}"))
            };
            let [given, begun] = [table, begun.table].map(in_words);
            bail!("--schedule gives {given}, but the run to resume began with {begun}; give the same");
        }
        let number = |amount: Option<Amount>| amount.and_then(Amount::number);
        let same = self.floor(begun.lr_schedule, begun.lr)? == Some(begun.floor);
        self.constants.of(begun.optimizer, begun.lr)?;
        let reported = [
            differs("seq", self.seq, begun.seq),
            differs("batch-size", number(self.batch_size), begun.batch_size),
            differs("microbatches", number(self.microbatches), begun.microbatches),
            differs("lr", self.lr, begun.lr),
            differs("warmup", self.warmup, begun.warmup),
            differs("lr-schedule", self.lr_schedule, begun.lr_schedule),
            differs("min-lr", self.min_lr.filter(|_| !same), begun.lr * begun.floor),
            differs("optimizer", self.optimizer.map(OptimizerKind::name), begun.optimizer.name()),
            self.constants.differ(begun.optimizer, begun.lr),
            differs("clip", self.clip, begun.clip.unwrap_or(f64::INFINITY)),
            self.loss_scaling_differs(begun.loss_scaling),
            differs("seed", self.seed, begun.seed),
            differs("dropout", self.dropout, DropoutRate(begun.dropout)),
            differs("label-smoothing", self.label_smoothing, begun.label_smoothing),
            differs("z-loss", self.z_loss, begun.z_loss),
            differs("dtype", self.number, begun.number),
        ];
        if let Some(why) = reported.into_iter().flatten().next() {
            return Err(Error::new(why));
        }
        if learnt.hash() != begun.text {
            bail!("the training data is not that of the run to resume; give the same --data or --batch",);
        }
        let steps = match learnt {
            TrainData::Digits(digits) => {
                self.epochs.map(|n| n.saturating_mul(epochs::steps(digits, begun.batch_size)))
            }
            _ => self.steps,
        };
        let steps = steps.unwrap_or(begun.steps);
        let done = state.steps();
        let settings = Settings { steps, device: self.device, ..begun.clone() };
        if steps != begun.steps && steps > done {
            observer.note(&format!(
                "note: this run began with {} and now ends at {steps}; its learning rate follows the schedule of \
                 {steps}: {:.3e} in step {}",
                counted(begun.steps, "step"),
                settings.learning_rate().at(done),
                done + 1
            ))?;
        }
        Ok(settings)
    }
    /// Returns the loss scaling of a run in this dtype.
    fn loss_scaling(&self, dtype: DtypeName) -> Result<Option<LossScaling>> {
        let Some(usual) = dtype.loss_scaling() else {
            let given = [("scale", self.loss_scale), ("scale-window", self.loss_scale_window)];
            return match given.into_iter().find_map(|(flag, value)| Some((flag, value?))) {
                Some((flag, n)) => {
                    bail!("--loss-{flag} is {n}, but {dtype} needs no loss scaling; leave it out")
                }
                None => Ok(None),
            };
        };
        let scale = self.loss_scale.unwrap_or(1 << usual.log2);
        let most = 1 << LossScaling::MOST;
        if !(scale.is_power_of_two() && scale <= most) {
            bail!("--loss-scale is {scale}; it must be a power of two, at most {most}");
        }
        let window = self.loss_scale_window.unwrap_or(usual.window);
        if window == 0 {
            bail!("--loss-scale-window is 0; it must be at least 1");
        }
        Ok(Some(LossScaling { log2: scale.ilog2(), window, ..usual }))
    }
    /// Says that a flag differs from what a run to resume began with, if one does.
    fn loss_scaling_differs(&self, begun: Option<LossScaling>) -> Option<String> {
        let window =
            differs("loss-scale-window", self.loss_scale_window, begun.map_or(0, |begun| begun.window));
        window.or_else(|| differs("loss-scale", self.loss_scale, begun.map_or(1, |begun| 1 << begun.log2)))
    }
}

/// Says that a flag differs from the setting of a run that has begun, if it is given and does.
fn differs<T: PartialEq + Display>(flag: &str, given: Option<T>, begun: T) -> Option<String> {
    given.filter(|given| *given != begun).map(|given| differs_from(flag, &given, &begun))
}
