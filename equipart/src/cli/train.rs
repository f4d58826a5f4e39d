//! Flags of train: the initial model and data, the settings of a new run, and the checks of a resumed run.
pub(crate) mod auto;
pub(crate) mod dropout;
mod evaluations;
pub(crate) mod largest;
mod loss_scale;
mod planned;
mod saving;

use crate::cli::args::{self, ModelName, NetworkArgs, OffloadArgs, RankedArgs, TableArgs};
use crate::cli::constants::ConstantArgs;
use crate::cli::pictures::{PicturesArgs, only_text, refuse};
use crate::cli::{config, corpus, model, noted, pictures, processes};
use crate::terminal::out;
use auto::{Amount, LayoutFlag};
use clap::{Args, Command, FromArgMatches};
use dropout::DropoutRate;
use evaluations::EvaluationArgs;
use layers::{OptimizerKind, counted};
use loss_scale::LossScaleArgs;
use models::text::{Corpus, documents};
use models::tokenizer::TokenizerSource;
use models::{Config, Model, TrainableModel, ids};
use parallel::dtype::DtypeName;
use parallel::pipeline::table::Table;
use parallel::{Error, Result, bail, layout};
use run::device::DeviceName;
use run::train::data::{DataFiles, TrainData};
use run::train::epochs;
use run::train::schedule::LrSchedule;
use run::train::settings::{SEQ, Settings, at_least_1};
use run::train::state::State;
use saving::SaveArgs;
use std::path::PathBuf;

/// Train on text, or on given ids, with checkpoints
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_long_help = processes::HELP)]
pub(crate) struct TrainArgs {
    /// Total number of training steps [default: 200; with --batch, 1; with --resume, as before]
    #[arg(long)]
    pub(crate) steps: Option<usize>,
    /// Tokens of a sequence [default: 256]
    #[arg(long, conflicts_with = "batch")]
    pub(crate) seq: Option<usize>,
    /// Sequences of a step, over all data ranks and microbatches; auto: as many as fit in --memory-limit and
    /// in the free memory, or the number of the run to resume [default: 8; pictures with --model mlp: 32]
    #[arg(long, value_name = "N|auto", conflicts_with = "batch")]
    pub(crate) batch_size: Option<Amount>,
    /// Microbatches of a step; auto: as few as fit in --memory-limit and in the free memory, or the number of
    /// the run to resume [default: 1; with --schedule, those of its table]
    #[arg(long, value_name = "N|auto")]
    pub(crate) microbatches: Option<Amount>,
    /// Largest learning rate [default: 0.001; with --batch, a constant 1; with --model mlp and sgd, 0.025]
    #[arg(long)]
    pub(crate) lr: Option<f64>,
    /// Warm-up steps of the learning rate [default: a tenth of the steps; with --batch or --model mlp, 0]
    #[arg(long)]
    pub(crate) warmup: Option<usize>,
    /// Course of the learning rate after the warm-up [default: cosine; with --batch, constant]
    #[arg(long, value_name = "SCHEDULE", value_parser = args::named(LrSchedule::ALL))]
    pub(crate) lr_schedule: Option<LrSchedule>,
    /// Learning rate of the last step [default: a tenth of --lr; with --model mlp, 0.3 of it]
    #[arg(long, value_name = "RATE")]
    pub(crate) min_lr: Option<f64>,
    /// The optimizer [default: adamw; with --batch or --model mlp, sgd]
    #[arg(long, value_name = "NAME", value_parser = args::optimizer())]
    pub(crate) optimizer: Option<OptimizerKind>,
    #[command(flatten)]
    pub(crate) constants: ConstantArgs,
    /// Largest norm of the gradient; a larger one is scaled down to it [default: no limit]
    #[arg(long)]
    pub(crate) clip: Option<f64>,
    #[command(flatten)]
    pub(crate) loss_scale: LossScaleArgs,
    /// Dropout rate everywhere, or config for the rates of config.json [default: config; with --batch, 0]
    #[arg(long)]
    pub(crate) dropout: Option<DropoutRate>,
    /// Fraction of a target that is spread evenly over all ids [default: 0]
    #[arg(long)]
    pub(crate) label_smoothing: Option<f64>,
    /// Weight of each token's squared log-sum-exp in the loss [default: 0]
    #[arg(long)]
    pub(crate) z_loss: Option<f64>,
    /// Seed of fresh weights, of the batches and of dropout [default: 0]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Dtype of the run: f32; bf16 or f16 with gradients, masters and sums in f32; or f64, the truth for
    /// `diff`, which keeps no checkpoints [default: f32]
    #[arg(long = "dtype", alias = "number", value_name = "DTYPE", value_parser = args::dtype())]
    pub(crate) number: Option<DtypeName>,
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = args::device(), help = args::DEVICE)]
    pub(crate) device: DeviceName,
    #[arg(long, default_value_t, help = grammar())]
    pub(crate) layout: LayoutFlag,
    /// Machine that --layout auto and launch --min-ranks plan for: a100, h100, h200, or a file of `machine
    /// --measure` [default: h100]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<String>,
    #[command(flatten)]
    pub(crate) ranks: RankedArgs,
    #[command(flatten)]
    pub(crate) offload: OffloadArgs,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Text to learn, or documents: a file of JSON (.jsonl, .ndjson, .json) with one object a line; repeat it
    /// for several files.
    /// The last tenth of each is held out [default: the embedded text]. With --model mlp, a folder with the
    /// four files of MNIST [default: generated digits]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
    /// Field that holds the document of a line of JSON [default: text]
    #[arg(long, value_name = "NAME", requires = "data")]
    pub(crate) data_field: Option<String>,
    /// Sequences of token ids to learn in every step: a JSON list of lists; a list of lists among them packs
    /// documents
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) batch: Option<PathBuf>,
    /// Initial model: a folder, embedded or moe [default: fresh weights]; or mlp: a plain classifier of
    /// pictures
    #[arg(long, value_name = "DIR|NAME", conflicts_with = "config", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// A config.json for fresh weights; a tokenizer.json beside it reads the text [default: the embedded
    /// model's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Folder for checkpoints, in the Hugging Face layout [default: none, or the folder of --resume]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Folder with a checkpoint to resume from; --steps or --epochs change the end of the run
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) saving: SaveArgs,
    #[command(flatten)]
    pub(crate) evaluations: EvaluationArgs,
    /// With --model mlp: number of epochs [default: 3; with --resume, as before]
    #[arg(long)]
    pub(crate) epochs: Option<usize>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    /// Steps between checks that ranks which hold the same elements of a parameter hold the same values; also
    /// checks before each checkpoint, and at the end [default: no checks]
    #[arg(long, value_name = "N")]
    pub(crate) check_every: Option<usize>,
    /// Stop after this number of steps of this run; the learning rate follows the schedule of all steps. With
    /// --resume, 0 only evaluates
    #[arg(long)]
    pub(crate) stop_after: Option<usize>,
    /// Folder for activations, gradients and weights of the last step, as safetensors
    #[arg(long, value_name = "DIR")]
    pub(crate) dump: Option<PathBuf>,
    /// At the end, break down the time of the steps after the first two, of a hundred at most
    #[arg(long)]
    pub(crate) profile: bool,
    /// At the end, show how often and how long other ranks waited for each rank, the slowest rank first
    #[arg(long)]
    pub(crate) stragglers: bool,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

/// Help of `--layout`.
fn grammar() -> String {
    format!("{}; auto: the planner's, for the number of ranks that a launcher starts", layout::grammar())
}

impl TrainArgs {
    /// The flags of `train` without any.
    pub(crate) fn usual() -> Self {
        let none = Self::augment_args(Command::new("train")).get_matches_from(["train"]);
        Self::from_arg_matches(&none).expect("no flag is required")
    }
    /// Returns the files of the training data: those of the flags, or if none is given those of the run to
    /// resume.
    pub(crate) fn files(&self, resume: Option<&State>) -> DataFiles {
        let Self { batch, data, data_field: field, .. } = self;
        let given = DataFiles { batch: batch.clone(), data: data.clone(), field: field.clone() };
        resume.filter(|_| batch.is_none() && data.is_empty()).map_or(given, |state| state.data.clone())
    }
    /// Returns the initial model of the run and its training data.
    pub(crate) fn begin_with(&self, resume: Option<&State>) -> Result<(TrainableModel, TrainData)> {
        if resume.is_some() && (self.model.is_some() || self.config.is_some()) {
            bail!("--resume continues with its own model; leave out --model and --config");
        }
        let begun = resume.map(|state| state.model.clone());
        let of_pictures =
            self.model == Some(ModelName::Mlp) || begun.as_ref().is_some_and(|begun| begun.text.is_none());
        self.unused(of_pictures)?;
        let DataFiles { batch, data, field } = self.files(resume);
        let remembered = self.batch.is_none() && self.data.is_empty();
        if let Some(file) = batch.iter().chain(&data).find(|file| remembered && !file.exists()) {
            let (file, flag) = (file.display(), if batch.is_some() { "--batch" } else { "--data" });
            bail!(
                "the run to resume began with {flag} {file}, which is gone; give its new place with {flag}"
            );
        }
        if of_pictures {
            if data.len() > 1 {
                bail!("--data is given {} times; --model mlp reads one folder", data.len());
            }
            let digits = pictures::digits(data.first().map(PathBuf::as_path))?;
            let fresh = || self.pictures.fresh(Some(&digits), self.seed.unwrap_or(0));
            return Ok((begun.unwrap_or_else(fresh), TrainData::Digits(digits)));
        }
        let seq = resume.map(|s| s.settings.seq).or(self.seq).unwrap_or(SEQ);
        let model = match (begun, &self.model, &self.config) {
            (Some(TrainableModel { text: Some(begun), .. }), ..) => noted(begun),
            (_, Some(_), _) => model(self.model.as_ref())?,
            (_, None, file) => {
                let mut model = Model::fresh(config(file.as_deref())?, self.seed.unwrap_or(0));
                let beside = file.as_deref().and_then(TokenizerSource::beside);
                // the bytes it is about to learn
                let bytes = self.batch.is_none().then_some(TokenizerSource::Bytes);
                model.tokens = beside.or(bytes).unwrap_or(model.tokens);
                model
            }
        };
        let Config { shape, positions, .. } = &model.config;
        let learnt = match &batch {
            Some(file) => TrainData::Ids(ids::read(file, shape.vocabulary, *positions)?),
            None if data.is_empty() => TrainData::Text(corpus(None, seq, &model.tokenizer()?)?),
            None => {
                let end = model.config.eos.iter().copied().find(|id| (*id as usize) < shape.vocabulary);
                let texts = documents::read(&data, field.as_deref(), end.is_none())?;
                TrainData::Text(Corpus::joined(&texts, (seq, end), &model.tokenizer()?)?)
            }
        };
        Ok((model.into(), learnt))
    }
    /// Settings of a new run on this data: the usual ones, unless flags change them. A number that is auto
    /// has its smallest value.
    pub(crate) fn settings_for(&self, learnt: &TrainData) -> Result<Settings> {
        let usual = learnt.usual_settings(self.optimizer);
        let (mut steps, mut batch_size) = (self.steps.unwrap_or(usual.steps), usual.batch_size);
        let mut warmup = 0;
        match learnt {
            TrainData::Text(_) => (batch_size, warmup) = (self.sequences(batch_size), steps / 10),
            TrainData::Ids(_) => {}
            TrainData::Digits(digits) => {
                let (epochs, each) = (self.epochs.unwrap_or(3), self.sequences(32));
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
            table: self.layout().table().map(Table::digest),
            lr,
            warmup: self.warmup.unwrap_or(warmup),
            optimizer: self.constants.of(usual.optimizer, lr)?,
            clip: self.clip,
            loss_scaling: self.loss_scale.of(number)?,
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
            Some(Amount::Auto) => self.parts().max(1).saturating_mul(self.layout().tokens().data_ranks()),
            given => given.and_then(Amount::number).unwrap_or(usual),
        }
    }
    /// Microbatches of a step.
    fn parts(&self) -> usize {
        self.microbatches.and_then(Amount::number).unwrap_or(1)
    }
    /// Refuses flags that are for the other kind of model.
    pub(crate) fn unused(&self, pictures: bool) -> Result<()> {
        if !pictures {
            self.pictures.unused()?;
            let has_fields = self.data_field.is_some() && self.batch.is_some();
            refuse(&[("data-field", has_fields)], "documents of --data; --batch has ids and")?;
            return refuse(&[("epochs", self.epochs.is_some())], "--model mlp; a model of text");
        }
        only_text(&[
            ("steps", self.steps.is_some()),
            ("seq", self.seq.is_some()),
            ("dropout", self.dropout.is_some()),
            ("label-smoothing", self.label_smoothing.is_some()),
            ("z-loss", self.z_loss.is_some()),
            ("batch", self.batch.is_some()),
            ("eval-every", self.evaluations.eval_every.is_some()),
            ("data-field", self.data_field.is_some()),
        ])
    }
    /// Settings of a resumed run: those it began with, except its last step, which may change; a note reports
    /// the change. Any other flag that differs is refused.
    pub(crate) fn again(&self, state: &State, learnt: &TrainData) -> Result<Settings> {
        let begun = &state.settings;
        let table = self.layout().table().map(Table::digest);
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
            args::differs("seq", self.seq, begun.seq),
            args::differs("batch-size", number(self.batch_size), begun.batch_size),
            args::differs("microbatches", number(self.microbatches), begun.microbatches),
            args::differs("lr", self.lr, begun.lr),
            args::differs("warmup", self.warmup, begun.warmup),
            args::differs("lr-schedule", self.lr_schedule, begun.lr_schedule),
            args::differs("min-lr", self.min_lr.filter(|_| !same), begun.lr * begun.floor),
            args::differs("optimizer", self.optimizer.map(OptimizerKind::name), begun.optimizer.name()),
            self.constants.differ(begun.optimizer, begun.lr),
            args::differs("clip", self.clip, begun.clip.unwrap_or(f64::INFINITY)),
            self.loss_scale.differ(begun.loss_scaling),
            args::differs("seed", self.seed, begun.seed),
            args::differs("dropout", self.dropout, DropoutRate(begun.dropout)),
            args::differs("label-smoothing", self.label_smoothing, begun.label_smoothing),
            args::differs("z-loss", self.z_loss, begun.z_loss),
            args::differs("dtype", self.number, begun.number),
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
            out::note(&format!(
                "note: this run began with {} and now ends at {steps}; its learning rate follows the schedule of \
                 {steps}: {:.3e} in step {}",
                counted(begun.steps, "step"),
                settings.learning_rate().at(done),
                done + 1
            ));
        }
        Ok(settings)
    }
}
