//! `plan`: the best layout of a model on a machine.
mod proof;
mod texts;

use super::Run;
use run::price::seconds::MachineTime;
use crate::cli::args::{dtype, optimizer, size};
use crate::cli::constants::ConstantArgs;
use crate::cli::out::line;
use crate::cli::searching::SearchNotes;
use crate::cli::{config, show};
use clap::Args;
use comm::readable;
use kernels::Kernels;
use layers::{Design, GradientScaling, OptimizerKind, counted};
use models::Config;
use parallel::dtype::DtypeName;
use parallel::{Error, Layout, Result, bail, with_dtype};
use plan::advice::{self, DecisionStep};
use plan::clock::time;
use plan::search::{Goal, LayoutSearch, SearchResult, Weighed};
use plan::step::{TrainingJob, model_flops};
use plan::watch::SearchEvent;
use plan::{Machine, Part, morphing};
use prove::Verdict;
use run::train::settings::at_least_1;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

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
    #[arg(long, requires = "generate")]
    prompt: Option<usize>,
    /// Tokens that are added to a prompt [default: 256, or half of the model's positions if fewer]
    #[arg(long, requires = "generate")]
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

/// The most devices, and the most tokens of a step.
const MOST: [usize; 2] = [1 << 17, 1 << 26];

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
        let tokens = seq as u128 * self.batch_size as u128;
        if tokens > MOST[1] as u128 {
            bail!("the step has {tokens} tokens; it may have at most {}", MOST[1]);
        }
        let scaling = GradientScaling { clip: Some(1.0), loss: self.dtype.loss_scaling() };
        let optimizer = (self.constants.of(self.optimizer, 1.0)?, scaling);
        let design = Design::from(config.shape);
        Ok(TrainingJob { design, optimizer, seq, batch_size: self.batch_size, dtype: self.dtype.name() })
    }
    /// Returns the machine, and the memory of a device.
    fn machine(&self) -> Result<(Arc<Machine>, usize)> {
        let machine = Machine::named(&self.machine)?;
        let memory = self.memory.unwrap_or(machine.memory.value as usize);
        Ok((Arc::new(machine), memory))
    }
}

impl Run for PlanArgs {
    fn run(self, json: bool) -> Result<bool> {
        if self.devices > MOST[0] {
            bail!("--devices is {}; it must be at most {}", self.devices, MOST[0]);
        }
        let config = config(self.config.as_deref())?;
        if self.generate {
            self.constants.refused_by("--generate")?;
            return texts::run(&self, &config, json);
        }
        let job = self.job(&config)?;
        let (machine, memory) = self.machine()?;
        let goal = if self.goal == GoalName::Memory { Goal::Memory } else { Goal::Time };
        let notes = SearchNotes::until_interrupted()?;
        let watch = &|event: &SearchEvent| notes.watch(event);
        let search = LayoutSearch {
            job: &job,
            machine: &machine,
            memory,
            ranks: self.devices,
            microbatches: None,
            goal,
            all: false,
            watch,
        };
        if self.all_devices {
            indivisible(self.devices, &job.design, [job.batch_size, job.seq])?;
        }
        let all = self.all_devices;
        let find = |of: &LayoutSearch| with_dtype!(self.dtype, D => if all { of.find::<D>() } else { morphing::find::<D>(of) });
        let found = find(&search);
        let is_empty = found.best.is_empty() && !found.cut;
        let why = is_empty.then(|| with_dtype!(self.dtype, D => nothing_fits::<D>(&search)));
        let why = why.filter(|_| !notes.is_cut());
        notes.done();
        let Some(best) = found.best.first() else {
            let cut = || Error::new("the search was cut before it weighed a layout that fits");
            return Err(why.unwrap_or_else(cut));
        };
        let proof = self.prove.then(|| proof::of(job.design.shape(), &best.layout)).transpose()?;
        let (flops, steps) = with_dtype!(self.dtype, D =>
            Ok::<_, Error>((model_flops::<D>(&job)?, advice::steps::<D>(&search, best)?)))?;
        let time = |of: &Weighed| MachineTime::new(&of.step, (&job, flops), (&machine, of.layout.ranks()));
        let plans: Vec<_> = found.best.iter().map(|of| (of, time(of))).collect();
        if json {
            plans.iter().map(object).for_each(|plan| show::json(&plan));
            show::json(&json!({ "steps": steps, "proof": proof, "cut": found.cut }));
        } else {
            report(&search, &plans, &found);
            decided(&steps, proof.as_ref());
        }
        Ok(proof.is_none_or(|proof| proof.equal))
    }
}

/// Refuses devices that no layout uses fully, and says which number some layout does.
fn indivisible(devices: usize, design: &Design, sizes: [usize; 2]) -> Result<()> {
    let would = match morphing::divisible(devices, design, sizes) {
        Some(all) if all == devices => return Ok(()),
        Some(fewer) => format!("{} could be used fully", counted(fewer, "device")),
        None => "no number of devices could".into(),
    };
    bail!(
        "no layout of the model uses all {} for {}; {would}, or leave --all-devices out",
        counted(devices, "device"),
        counted(sizes[0], "sequence")
    );
}

/// Says which memory would do, and how many devices.
fn nothing_fits<D: Kernels>(search: &LayoutSearch) -> Error {
    let least = |ranks, memory| {
        let any = LayoutSearch { memory, goal: Goal::Memory, ranks, ..*search };
        any.find::<D>().best.into_iter().next()
    };
    let all = least(search.ranks, usize::MAX);
    // below that, entries that only save memory are tried
    let all = all.map(|of| least(search.ranks, of.step.peak - 1).unwrap_or(of));
    let least = all.map(|Weighed { layout, step, .. }| {
        let more = [2, 4, 8].map(|times| times * search.ranks).into_iter().filter(|n| *n <= MOST[0]);
        let mut enough = more.filter_map(|ranks| least(ranks, search.memory));
        let or = enough.next().map_or_else(
            || "; 8 times as many devices would not do, either".into(),
            |of| format!("; {} would do, under {}", counted(of.layout.ranks(), "device"), of.layout),
        );
        (step.peak, layout, or)
    });
    too_large(search.memory, search.ranks, least)
}

/// Says that nothing fits, and the least peak of a layout, if one divides the model, with what else would do.
fn too_large(memory: usize, devices: usize, least: Option<(usize, Layout, String)>) -> Error {
    let would = match least {
        Some((peak, layout, or)) => {
            format!("the least is {} each, under {layout}{or}", readable(peak as u128))
        }
        None => "no layout divides the model over them; use another number of devices".into(),
    };
    let (memory, devices) = (readable(memory as u128), counted(devices, "device"));
    Error::new(format!("nothing fits into {memory} on {devices}: {would}"))
}

/// A layout that was found, and its time for reports.
type PlanRow<'a> = (&'a Weighed, MachineTime);

fn object((of, time): &PlanRow) -> Value {
    json!({
        "layout": of.layout.to_string(), "devices": of.layout.ranks(), "microbatches": of.microbatches,
        "seconds": time.seconds, "tokens_per_second": time.tokens_per_second,
        "share_of_peak": time.share_of_peak, "peak_bytes": of.step.peak, "sent_bytes": of.step.sent, "parts": time.parts,
    })
}

/// Prints the layouts for people, and why the best is the best.
fn report(search: &LayoutSearch, plans: &[PlanRow], found: &SearchResult) {
    let LayoutSearch { job, machine, memory, ranks, .. } = search;
    line(&format!(
        "Training in {} on {} of {}, with {} each: {} of {} in a step.\n{} layouts were weighed, {} bounded and {} \
         refused.\n",
        job.dtype,
        counted(*ranks, "device"),
        machine.about,
        readable(*memory as u128),
        counted(job.batch_size, "sequence"),
        counted(job.seq, "token"),
        found.weighed,
        found.bounded,
        found.refused,
    ));
    let row = |(of, all): &PlanRow| {
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / all.seconds);
        let waits = [Part::Tp, Part::Cp, Part::Ep, Part::Dp, Part::Pp];
        vec![
            of.layout.to_string(),
            of.microbatches.to_string(),
            time(all.seconds),
            format!("{:.1} %", 100.0 * all.share_of_peak),
            readable(of.step.peak as u128),
            readable(of.step.sent as u128),
            share(of.step.bubble),
            share(waits.iter().map(|part| of.step.parts[*part as usize]).sum()),
        ]
    };
    let head = ["layout", "microbatches", "step", "of peak", "holds", "sends", "bubble", "other waits"];
    line(&show::fitted(show::table(&head, plans.iter().map(row))).to_string());
    let (_, best) = &plans[0];
    line(&format!(
        "\nThe best makes {} tokens a second. Its rank that ends last spends {}.",
        run::words::amount(best.tokens_per_second),
        best.spent()
    ));
    if found.cut {
        line("The search was cut: layouts that were not weighed may be better.");
    }
    if found.needed {
        line("Nothing fits without strategies that only save memory, so they were tried, too.");
    }
    idle(plans[0].0.layout.ranks(), *ranks);
}

/// Says how many devices stay idle.
fn idle(used: usize, ranks: usize) {
    if used < ranks {
        line(&format!("It uses {used} of {ranks} devices; {} idle.", stay(ranks - used)));
    }
}

fn stay(devices: usize) -> String {
    let stay = if devices == 1 { "stays" } else { "stay" };
    format!("{} {stay}", counted(devices, "device"))
}

/// Prints the steps of the decision, and the proof.
fn decided(steps: &[DecisionStep], proof: Option<&Verdict>) {
    line("\nBy the usual decision trees:");
    for DecisionStep { question, answer } in steps {
        line(&format!("- {question} {answer}"));
    }
    if let Some(proof) = proof {
        line(&format!("\n{}", proof::sentence(proof)));
    }
}
