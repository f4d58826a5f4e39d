//! Flags of train, and what they ask for: settings, the initial model and data, a layout to plan.
pub(crate) mod auto;
mod saving;

use crate::cli::args::{self, ModelName, NetworkArgs, OffloadArgs, RankedArgs, TableArgs};
use crate::cli::constants::ConstantArgs;
use crate::cli::pictures::{PicturesArgs, only_text, refuse};
use crate::cli::processes;
use crate::cli::start::RunStart;
use auto::LayoutFlag;
use clap::Args;
use layers::OptimizerKind;
use models::TrainableModel;
use parallel::dtype::DtypeName;
use parallel::{Layout, Result, bail, layout};
use plan::Machine;
use run::device::DeviceName;
use run::event::Observer;
use run::plan::planner::LayoutPlanner;
use run::train::amount::{Amount, DropoutRate};
use run::train::asked::AskedSettings;
use run::train::data::{DataFiles, TrainData};
use run::train::evaluations::Evaluations;
use run::train::schedule::LrSchedule;
use run::train::settings::{SEQ, Settings};
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
    /// With --dtype f16: loss scale of the first step, a power of two; a step whose gradients overflow is
    /// skipped, and halves it [default: 65536]
    #[arg(long, value_name = "N")]
    loss_scale: Option<u32>,
    /// With --dtype f16: number of steps in turn without overflow that double the loss scale [default: 2000]
    #[arg(long, value_name = "STEPS")]
    loss_scale_window: Option<u32>,
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
    /// Steps between evaluations on the held-out text [default: only at the end; with --resume, as before]
    #[arg(long, value_name = "N")]
    eval_every: Option<usize>,
    /// End the run after this number of evaluations in a row without a better value; with --model mlp, of
    /// epochs [default: never; with --resume, as before]
    #[arg(long, value_name = "N")]
    patience: Option<usize>,
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
    /// Returns the settings that are given. The layout has the table of `--schedule`, and the step its number
    /// of microbatches.
    ///
    /// # Errors
    /// If the table does not fit, or the layout is still to be planned and a flag is for one layout only.
    pub(crate) fn asked(&self) -> Result<AskedSettings> {
        let layout = match self.layout {
            LayoutFlag::Auto => self.can_be_planned("--layout auto").map(|()| Layout::UNSPLIT),
            LayoutFlag::Layout(layout) => self.table.on(layout),
        }?;
        self.plans_for_machine()?;
        let asked = AskedSettings {
            steps: self.steps,
            epochs: self.epochs,
            seq: self.seq,
            batch_size: self.batch_size,
            microbatches: self.microbatches,
            lr: self.lr,
            warmup: self.warmup,
            lr_schedule: self.lr_schedule,
            min_lr: self.min_lr,
            optimizer: self.optimizer,
            constants: self.constants.0.clone(),
            clip: self.clip,
            loss_scale: self.loss_scale,
            loss_scale_window: self.loss_scale_window,
            dropout: self.dropout,
            label_smoothing: self.label_smoothing,
            z_loss: self.z_loss,
            seed: self.seed,
            number: self.number,
            device: self.device,
            layout,
        };
        asked.unknown()?;
        let of_table = args::microbatches(&layout, self.microbatches.and_then(Amount::number))?;
        Ok(AskedSettings { microbatches: of_table.map(Amount::Number).or(self.microbatches), ..asked })
    }
    /// Evaluations of a run that begins, or of one that is resumed.
    pub(crate) fn evaluations(&self, resume: Option<&State>) -> Evaluations {
        let begun = resume.map(|state| state.evaluations).unwrap_or_default();
        Evaluations {
            every: self.eval_every.or(begun.every),
            patience: self.patience.or(begun.patience),
            ..begun
        }
    }
    /// Returns the files of the training data: those of the flags, or if none is given those of the run to
    /// resume.
    pub(crate) fn files(&self, resume: Option<&State>) -> DataFiles {
        let Self { batch, data, data_field: field, .. } = self;
        let given = DataFiles { batch: batch.clone(), data: data.clone(), field: field.clone() };
        resume.filter(|_| batch.is_none() && data.is_empty()).map_or(given, |state| state.data.clone())
    }
    /// Returns the initial model of the run and its training data.
    ///
    /// # Errors
    /// If a file cannot be read, or a flag is for another kind of model.
    pub(crate) fn begin_with(&self, resume: Option<&State>) -> Result<(TrainableModel, TrainData)> {
        if resume.is_some() && (self.model.is_some() || self.config.is_some()) {
            bail!("--resume continues with its own model; leave out --model and --config");
        }
        let begun = resume.map(|state| state.model.clone());
        let of_pictures =
            self.model == Some(ModelName::Mlp) || begun.as_ref().is_some_and(|begun| begun.text.is_none());
        self.unused(of_pictures)?;
        let files = self.files(resume);
        let remembered = self.batch.is_none() && self.data.is_empty();
        if let Some(file) = files.batch.iter().chain(&files.data).find(|file| remembered && !file.exists()) {
            let (file, flag) = (file.display(), if files.batch.is_some() { "--batch" } else { "--data" });
            bail!(
                "the run to resume began with {flag} {file}, which is gone; give its new place with {flag}"
            );
        }
        let start = RunStart {
            model: self.model.as_ref(),
            config: self.config.as_deref(),
            begun,
            pictures: &self.pictures,
            files: &files,
            seed: self.seed.unwrap_or(0),
            seq: resume.map(|s| s.settings.seq).or(self.seq).unwrap_or(SEQ),
        };
        if of_pictures { start.pictures() } else { start.text() }
    }
    /// Refuses flags that are for the other kind of model.
    fn unused(&self, pictures: bool) -> Result<()> {
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
            ("eval-every", self.eval_every.is_some()),
            ("data-field", self.data_field.is_some()),
        ])
    }
    /// Refuses a machine where nothing is planned for it: in a run that no launcher began.
    ///
    /// # Errors
    /// If one is given for a layout that is written.
    fn plans_for_machine(&self) -> Result<()> {
        let named = self.machine.as_deref().map(Machine::named).transpose()?;
        let is_launched = processes::launch().is_ok_and(|launch| launch.is_some());
        if named.is_some() && self.layout != LayoutFlag::Auto && !is_launched {
            bail!("--machine is for --layout auto and launch --min-ranks, which plan; leave it out");
        }
        Ok(())
    }
    /// Refuses flags that go with one layout only, where `flag` plans another.
    ///
    /// # Errors
    /// If one is given.
    pub(crate) fn can_be_planned(&self, flag: &str) -> Result<()> {
        let auto = Some(Amount::Auto);
        let given = [
            ("schedule", self.table.schedule.is_some()),
            ("split", self.ranks.each.split.is_some()),
            ("link", !self.network.link.is_empty()),
            ("offload-dir", self.offload.folder.is_some()),
            ("batch-size auto", self.batch_size == auto),
            ("microbatches auto", self.microbatches == auto),
        ];
        let resumes = |dir: &PathBuf| State::read(dir).is_ok_and(|state| state.model.text.is_none());
        if self.model == Some(ModelName::Mlp) || self.resume.as_ref().is_some_and(resumes) {
            bail!(
                "{flag} plans a layout, which needs a model of text; a plain classifier has none planned; write one"
            );
        }
        match given.iter().find(|(_, given)| *given) {
            Some((other, _)) => {
                bail!("{flag} plans a layout, but --{other} is for one layout; leave one of them out")
            }
            None => Ok(()),
        }
    }
    /// Returns the search for layouts of the run of these flags.
    ///
    /// # Errors
    /// If the model, the data, the checkpoint or the machine cannot be read, or a size is invalid.
    pub(crate) fn planner(&self, observer: &Observer) -> Result<LayoutPlanner> {
        let resume = self.resume.as_deref().map(State::read).transpose()?;
        let (model, learnt) = self.begin_with(resume.as_ref())?;
        let settings = match resume {
            Some(state) => state.settings,
            None => self.asked()?.settings(None, &learnt, observer)?,
        };
        self.planner_of(&settings, &model, &learnt)
    }
    /// Returns the search for layouts of a run with these settings.
    ///
    /// # Errors
    /// As [`planner`](Self::planner).
    pub(crate) fn planner_of(
        &self,
        settings: &Settings,
        model: &TrainableModel,
        learnt: &TrainData,
    ) -> Result<LayoutPlanner> {
        let machine = self.machine.as_deref().unwrap_or("h100");
        LayoutPlanner::new(settings, model, learnt, machine, self.ranks.each.limit)
    }
}
