//! The plain classifier: `train --model mlp` and `prove --model mlp`.
use super::args::{ProveArgs, TrainArgs};
use super::show;
use super::watch::Watch;
use crate::commands::classify::{self, EpochLine, Run, Settings, folder};
use crate::commands::prove::{fresh_key, tell};
use crate::commands::train::settings::OptimizerName;
use clap::{Args, ValueEnum};
use models::digits::Digits;
use parallel::classify::{fits, sizes};
use parallel::{Error, Result};
use prove::{ClassifierSubject, certify_classifier};
use std::str::FromStr;
use tensor::Key;

/// Features of the layers between, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hidden(Vec<usize>);

impl FromStr for Hidden {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.trim() == "none" {
            return Ok(Self(Vec::new()));
        }
        let size = |part: &str| {
            let size = part.trim().parse().ok().filter(|n| *n > 0);
            size.ok_or_else(|| {
                format!("{part:?} is no hidden size; write numbers of 1 or more, such as 512,512, or none")
            })
        };
        text.split(',').map(size).collect::<std::result::Result<_, _>>().map(Self)
    }
}

/// What only `train --model mlp` takes.
#[derive(Args, Debug)]
pub(crate) struct LearnArgs {
    /// With --model mlp: how often every picture is shown [default: 3]
    #[arg(long)]
    epochs: Option<usize>,
    /// With --model mlp: features of the layers between pixels and classes, or none [default: 512,512]
    #[arg(long, value_name = "SIZES")]
    hidden: Option<Hidden>,
}

impl LearnArgs {
    /// Whether a model of text is given what is not for it.
    pub(crate) fn unused(&self) -> Result<()> {
        let given = [("epochs", self.epochs.is_some()), ("hidden", self.hidden.is_some())];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => {
                Err(Error::new(format!("--{flag} is for --model mlp; a model of text has no use for it")))
            }
            None => Ok(()),
        }
    }
}

/// What only `prove --model mlp` takes.
#[derive(Args, Debug)]
pub(crate) struct JudgeArgs {
    /// mlp: a plain classifier of 784 pixels and 10 classes [default: the model of --config]
    #[arg(long, conflicts_with_all = ["config", "dump"])]
    pub(crate) model: Option<Plain>,
    /// With --model mlp: features of the layers between, or none [default: 512,512]
    #[arg(long, value_name = "SIZES", requires = "model")]
    hidden: Option<Hidden>,
}

/// Models that are named and not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plain {
    /// A multilayer perceptron.
    Mlp,
}

/// Flags of `train` that the classifier has no use for.
fn refuse(a: &TrainArgs) -> Result<()> {
    let given = [
        ("steps", a.steps.is_some()),
        ("seq", a.seq.is_some()),
        ("dropout", a.dropout.is_some()),
        ("label-smoothing", a.label_smoothing.is_some()),
        ("z-loss", a.z_loss.is_some()),
        ("batch", a.batch.is_some()),
        ("number", a.number.is_some()),
        ("config", a.config.is_some()),
        ("resume", a.resume.is_some()),
        ("checkpoint-every", a.checkpoint_every.is_some()),
        ("stop-after", a.stop_after.is_some()),
        ("dump", a.dump.is_some()),
        ("profile", a.profile),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => {
            Err(Error::new(format!("--{flag} is for models of text; --model mlp has no use for it")))
        }
        None => Ok(()),
    }
}

fn settings(a: &TrainArgs) -> Settings {
    let (default, optimizer) = (Settings::default(), a.optimizer.unwrap_or(OptimizerName::Sgd));
    Settings {
        hidden: a.mlp.hidden.as_ref().map_or(default.hidden, |hidden| hidden.0.clone()),
        epochs: a.mlp.epochs.unwrap_or(default.epochs),
        batch_size: a.batch_size.unwrap_or(default.batch_size),
        microbatches: a.microbatches.unwrap_or(default.microbatches),
        lr: a.lr.unwrap_or(if optimizer == OptimizerName::Sgd { default.lr } else { 1e-3 }),
        warmup: a.warmup.unwrap_or(default.warmup),
        optimizer,
        clip: a.clip,
        seed: a.seed.unwrap_or(default.seed),
    }
}

/// Steps on the bar; epochs as JSON, or in plain words.
struct Progress {
    watch: Watch,
    json: bool,
}

impl classify::Watch for Progress {
    fn step(&self) {
        self.watch.tick();
    }
    fn epoch(&self, line: &EpochLine) {
        if self.json {
            return show::json(line);
        }
        let EpochLine { epoch, loss, accuracy, seconds, examples_per_second } = line;
        let right = 100.0 * accuracy;
        self.watch.say(&format!(
            "epoch {epoch}: loss {loss:.4}, {right:.2} % right, {seconds:.1} s, {examples_per_second:.0} pictures/s"
        ));
    }
}

pub(crate) fn run_train(a: &TrainArgs, json: bool) -> Result<bool> {
    refuse(a)?;
    let digits = a.data.as_deref().map_or_else(|| Ok(Digits::generated(0, 10_000, 2_000)), Digits::read)?;
    let (settings, out) = (settings(a), a.out.clone());
    let run = Run {
        digits: &digits,
        settings,
        layout: a.layout.limited(a.memory.limit),
        network: a.network.network(a.out.as_deref())?,
        out,
    };
    run.check()?;
    let _lock = a.out.as_deref().map(|dir| folder::prepare(dir, &run.sizes())).transpose()?;
    let progress = Progress { watch: Watch::bar(run.steps()), json };
    let lines = a.network.keep_trace(&run.network, run.train(&progress))?;
    progress.watch.done();
    if !json {
        show::learnt(&lines, digits.test.len(), a.out.as_deref());
    }
    Ok(true)
}

pub(crate) fn run_prove(a: &ProveArgs, json: bool) -> Result<bool> {
    let hidden = a.mlp.hidden.as_ref().map_or(Settings::default().hidden, |hidden| hidden.0.clone());
    let layout = a.layout.unwrap_or_default().limited(a.memory.limit);
    let subject = ClassifierSubject::small(sizes(784, &hidden, 10), &layout);
    fits(&layout, &subject.sizes)?;
    let key = Key(a.key.map_or_else(fresh_key, |k| k.0));
    let watch = Watch::spinner();
    let verdict = certify_classifier(&subject, &layout, &[key, key.next()], &|what| watch.say(what))?;
    watch.done();
    Ok(tell(&verdict, json))
}
