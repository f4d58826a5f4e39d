//! `plan`: the best layout of a model on a machine.
use super::Run;
use super::price::report::amount;
use super::price::seconds::time;
use crate::cli::args::{dtype, size};
use crate::cli::{config, out, show};
use crate::commands::train::settings::at_least_1;
use clap::Args;
use comm::{Axis, readable};
use layers::{Design, OptimizerKind, counted};
use parallel::dtype::DtypeName;
use parallel::{Result, bail, with_dtype};
use plan::search::{Found, Goal, Search, Weighed};
use plan::step::{Job, model_flops};
use plan::{Machine, Part};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Find the best layout of a model on a machine, and the reasons
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// A config.json [default: the embedded model's]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of devices, one a rank
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// The machine: a100, a100-2022, h100, h200, or a file as `equipart machine` prints them
    #[arg(long, value_name = "NAME|FILE", default_value = "h100")]
    machine: String,
    /// Memory of a device, such as 80GB [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<usize>,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 4096)]
    seq: usize,
    /// Sequences of a step, the same for all layouts
    #[arg(long, default_value_t = 512)]
    batch_size: usize,
    /// Dtype of the run: f32, bf16 with sums in f32, or f64
    #[arg(long, default_value = "bf16", value_name = "DTYPE", value_parser = dtype())]
    dtype: DtypeName,
    /// The best layout has the shortest step, or the least memory on its fullest rank
    #[arg(long, default_value = "throughput", value_enum)]
    goal: GoalName,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum GoalName {
    /// The most tokens per second.
    Throughput,
    /// The least memory of the fullest rank.
    Memory,
}

impl Run for PlanArgs {
    fn run(self, json: bool) -> Result<bool> {
        at_least_1(&[("devices", self.devices), ("seq", self.seq), ("batch-size", self.batch_size)])?;
        let config = config(self.config.as_deref())?;
        if self.seq > config.positions {
            bail!("--seq is {}; the model has {} positions", self.seq, config.positions);
        }
        let machine = Arc::new(Machine::named(&self.machine)?);
        let job = Job {
            design: Design::from(config.shape),
            optimizer: (OptimizerKind::ADAMW, Some(1.0)),
            seq: self.seq,
            batch_size: self.batch_size,
            dtype: self.dtype.name(),
        };
        let search = Search {
            job: &job,
            machine: &machine,
            memory: self.memory.unwrap_or(machine.memory.value as usize),
            ranks: self.devices,
            goal: match self.goal { GoalName::Throughput => Goal::Time, GoalName::Memory => Goal::Memory },
            all: false,
        };
        let (found, flops) = with_dtype!(self.dtype, D => {
            (search.find::<D>()?, model_flops::<D>(&job)?)
        });
        out::line(&format!("{} weighed, {} bounded, {} refused", found.weighed, found.bounded, found.refused));
        for w in &found.best {
            let bubble = w.step.bubble / w.step.seconds;
            let peak = flops / w.step.seconds / (machine.peak(job.dtype) * self.devices as f64);
            out::line(&format!("{} M={} {} {:.1}% {} bubble {:.1}%", w.layout, w.microbatches, time(w.step.seconds), 100.0*peak, readable(w.step.peak as u128), 100.0 * bubble));
        }
        if let Some(w) = &found.smallest { out::line(&format!("smallest {} {}", w.layout, readable(w.step.peak as u128))); }
        Ok(true)
    }
}
