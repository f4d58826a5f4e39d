//! `plan`: the best layout of a model on a machine.
use crate::cli::args::{dtype, optimizer, size};
use crate::cli::config;
use crate::cli::constants::ConstantArgs;
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::Args;
use draw::details;
use layers::{Design, OptimizerKind};
use models::Config;
use ops::GradientScaling;
use parallel::dtype::DtypeName;
use parallel::{Error, Result, bail};
use plan::Machine;
use plan::generation::{GenerationJob, TextsGoal};
use plan::step::TrainingJob;
use plan::weighed::Goal;
use run::event::Observer;
use run::plan::notes::SearchNotes;
use run::plan::texts::TextsPlanRun;
use run::plan::{Devices, MOST_DEVICES, PlanRun};
use run::train::settings::at_least_1;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Exit code after a second Ctrl-C, as of shells: 128 and the number of the signal.
const INTERRUPTED: i32 = 128 + SIGINT;

/// Help on JSON.
const JSON: &str = "With --json: one object a layout, the best first. devices that it uses; seconds, tokens_per_second and\nshare_of_peak of a step; peak_bytes of the fullest rank, and sent_bytes of the one that sends most; parts: seconds\nby use, of the rank that ends last. The last object has steps: questions of the decision trees and their answers;\nwith --prove the proof, and cut: true if Ctrl-C ended the search. With --generate: texts at once;\nfirst_token_seconds, seconds of a whole text, tokens_per_second of all texts, peak_bytes and parts.";

/// Find the best layout of a model on a machine: which ranks along which axis, with which strategies
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = JSON)]
pub(crate) struct PlanArgs {
    /// A config.json [default: the embedded model's]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of devices, one a rank; where fewer are faster, such as 60 of 61, some stay idle
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// Only layouts that use all devices
    #[arg(long)]
    all_devices: bool,
    /// The machine: a100, h100, h200, or a file of JSON
    #[arg(long, value_name = "NAME|FILE", default_value = "h100")]
    machine: String,
    /// Memory of a device, such as 80GB [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<usize>,
    /// Tokens of a sequence [default: 4096, or the model's positions if fewer]
    #[arg(long)]
    seq: Option<usize>,
    /// Sequences of a step, the same for all layouts; with --generate, the most texts at once
    #[arg(long, default_value_t = 512)]
    batch_size: usize,
    /// Plan for generating texts, not for training: prompts are read, then tokens are added one by one
    #[arg(long, conflicts_with = "seq")]
    generate: bool,
    /// Tokens of a prompt [default: 2048, or as many as the model has positions for]
    #[arg(long, requires = "generate", conflicts_with_all = ["seq", "optimizer"])]
    prompt: Option<usize>,
    /// Tokens that are added to a prompt [default: 256, or half of the model's positions if fewer]
    #[arg(long, requires = "generate", conflicts_with_all = ["seq", "optimizer"])]
    new: Option<usize>,
    /// Dtype of the run: f32, bf16 or f16 with sums in f32, or f64
    #[arg(long, default_value = "bf16", value_name = "DTYPE", value_parser = dtype())]
    dtype: DtypeName,
    /// The optimizer
    #[arg(long, value_name = "NAME", default_value = "adamw", value_parser = optimizer(), conflicts_with = "generate")]
    optimizer: OptimizerKind,
    #[command(flatten)]
    constants: ConstantArgs,
    /// Measure of the best layout
    #[arg(long, default_value = "throughput", value_enum)]
    goal: GoalName,
    /// Prove the best layout, on a small image of the model and at most 16 ranks, before recommending it
    #[arg(long)]
    prove: bool,
}

/// Measure of the best layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GoalName {
    /// The most tokens per second
    Throughput,
    /// The shortest time until a text is whole, with --generate
    Latency,
    /// The least memory of the fullest rank
    Memory,
}

impl PlanArgs {
    /// Returns what is trained.
    fn job(&self, config: &Config) -> Result<TrainingJob> {
        let seq = self.seq.unwrap_or(4096.min(config.positions));
        at_least_1(&[("devices", self.devices), ("seq", seq), ("batch-size", self.batch_size)])?;
        if self.goal == GoalName::Latency {
            bail!("--goal latency is for --generate; of a training step, the shortest is --goal throughput");
        }
        if seq > config.positions {
            bail!("--seq is {seq}; the model has {} positions", config.positions);
        }
        let scaling = GradientScaling { clip: Some(1.0), loss: self.dtype.loss_scaling() };
        let optimizer = (self.constants.of(self.optimizer, 1.0)?, scaling);
        let design = Design::from(config.shape);
        Ok(TrainingJob { design, optimizer, seq, batch_size: self.batch_size, dtype: self.dtype.name() })
    }
    /// Returns what is generated.
    fn texts(&self, config: &Config) -> Result<GenerationJob> {
        let a = self;
        let new = a.new.unwrap_or(256.min(config.positions / 2));
        let prompt = a.prompt.unwrap_or(2048.min(config.positions.saturating_sub(new)));
        at_least_1(&[
            ("devices", a.devices),
            ("prompt", prompt),
            ("new", new),
            ("batch-size", a.batch_size),
        ])?;
        config.generates()?;
        let tokens = prompt.saturating_add(new);
        if tokens > config.positions {
            bail!(
                "--prompt is {prompt} and --new {new}, together {tokens}; the model has {} positions",
                config.positions
            );
        }
        let design = Design::from(config.shape).inferring();
        Ok(GenerationJob { design, prompt, new, texts: a.batch_size, dtype: a.dtype.name() })
    }
    /// Returns the devices.
    fn on(&self) -> Result<Devices> {
        let machine = Machine::named(&self.machine)?;
        Ok(Devices {
            number: self.devices,
            all: self.all_devices,
            memory: self.memory.unwrap_or(machine.memory.value as usize),
            machine: Arc::new(machine),
            proves: self.prove,
        })
    }
    /// Plans training.
    fn training(&self, config: &Config, views: &Views) -> Result<bool> {
        let goal = if self.goal == GoalName::Memory { Goal::Memory } else { Goal::Time };
        let plan = PlanRun { job: self.job(config)?, dtype: self.dtype, on: self.on()?, goal };
        plan.check()?;
        let notes = until_interrupted(views)?;
        let found = plan.find(&|event| notes.watch(event));
        notes.done();
        let found = found?;
        let equal = plan.tell(&found, views)?;
        views.details(|observer| details::tell(&plan.step(&found.best[0]), observer))?;
        Ok(equal)
    }
    /// Plans generation.
    fn generation(&self, config: &Config, views: &Views) -> Result<bool> {
        self.constants.refused_by("--generate")?;
        let goal = match self.goal {
            GoalName::Throughput => TextsGoal::Throughput,
            GoalName::Latency => TextsGoal::Latency,
            GoalName::Memory => TextsGoal::Memory,
        };
        let job = self.texts(config)?;
        let plan = TextsPlanRun { job, dtype: self.dtype, on: self.on()?, goal };
        let notes = until_interrupted(views)?;
        let found = plan.find(&|event| notes.watch(event));
        notes.done();
        plan.tell(&found?, views)
    }
}

/// Returns a watch of a search that Ctrl-C cuts; a second Ctrl-C ends the process.
///
/// # Errors
/// If the system refuses to announce the signal.
fn until_interrupted<'a>(observer: &'a Observer<'a>) -> Result<SearchNotes<'a>> {
    let cut = Arc::new(AtomicBool::new(false));
    let heard = flag::register_conditional_shutdown(SIGINT, INTERRUPTED, cut.clone())
        .and_then(|_| flag::register(SIGINT, cut.clone()));
    heard.map_err(|why| Error::new(format!("Ctrl-C cannot be heard: {why}")))?;
    Ok(SearchNotes::new(observer, cut))
}

impl Run for PlanArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        if self.devices > MOST_DEVICES {
            bail!("--devices is {}; it must be at most {MOST_DEVICES}", self.devices);
        }
        let config = config(self.config.as_deref())?;
        views.open("this run")?;
        if self.generate { self.generation(&config, views) } else { self.training(&config, views) }
    }
}
