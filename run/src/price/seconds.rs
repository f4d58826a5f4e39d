//! Time of a step on a machine.
use crate::words::amount;
use kernels::Kernels;
use parallel::{Layout, Result};
use plan::clock::time;
use plan::step::{KnownPrices, StepTime, TrainingJob, model_flops};
use plan::{Machine, Part};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Time of a step, for reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineTime {
    /// The machine.
    pub machine: String,
    /// Seconds of a step.
    pub seconds: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// The model's operations, without recomputation, as a share of the peak of all ranks.
    pub share_of_peak: f64,
    /// Seconds by use, of the rank that ends last.
    pub parts: BTreeMap<&'static str, f64>,
}

impl MachineTime {
    /// Returns the time of a step.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn of<D: Kernels>(
        layout: &Layout,
        job: &TrainingJob,
        microbatches: usize,
        machine: Machine,
    ) -> Result<Self> {
        let machine = Arc::new(machine);
        let step = KnownPrices::default().step::<D>(layout, job, (microbatches, usize::MAX), &machine)?;
        Ok(Self::new(&step, (job, model_flops::<D>(job)?), (&machine, layout.ranks())))
    }
    /// Describes a step of a model that has these operations, on a number of ranks.
    pub fn new(
        step: &StepTime,
        (job, flops): (&TrainingJob, f64),
        (machine, ranks): (&Machine, usize),
    ) -> Self {
        let StepTime { seconds, parts, bubble, .. } = *step;
        Self {
            machine: machine.about.clone(),
            seconds,
            tokens_per_second: (job.seq * job.batch_size) as f64 / seconds,
            share_of_peak: flops / seconds / (machine.peak(job.dtype) * ranks as f64),
            parts: used(&parts, bubble),
        }
    }
    /// Seconds by use in words, the longest first.
    pub fn spent(&self) -> String {
        spent(&self.parts, self.seconds)
    }
}

/// Seconds by use and of the bubble, of those that take time.
pub fn used(parts: &[f64], bubble: f64) -> BTreeMap<&'static str, f64> {
    let named = Part::ALL.iter().map(|part| (part.name(), parts[*part as usize]));
    named.chain([("bubble", bubble)]).filter(|(_, seconds)| *seconds > 0.0).collect()
}

/// Seconds by use in words, the longest first, with their shares of `all` seconds.
pub fn spent(parts: &BTreeMap<&'static str, f64>, all: f64) -> String {
    let mut parts: Vec<_> = parts.iter().collect();
    parts.sort_by(|a, b| b.1.total_cmp(a.1));
    let words = parts
        .into_iter()
        .map(|(part, seconds)| format!("{} ({:.1} %) in {part}", time(*seconds), 100.0 * seconds / all));
    words.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for MachineTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\nA step takes {} on {}: {} tokens a second, {:.1} % of the peak.\nThe rank that ends last spends {}.",
            time(self.seconds),
            self.machine,
            amount(self.tokens_per_second),
            100.0 * self.share_of_peak,
            self.spent()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::settings::Settings;
    use kernels::Heads;
    use layers::{Design, Shape};
    use parallel::dtype::DtypeName;
    use tensor::{Bf16, Cpu};

    /// Large products come near the peak of their dtype. Kills: the peak of another dtype or of one rank,
    /// parts that do not add up to the step.
    #[test]
    fn the_share_of_peak_is_that_of_the_dtype_and_of_all_ranks() {
        let heads = Heads::new(32, 8, 128);
        let shape = Shape { width: 4096, heads, hidden: 16384, vocabulary: 32000, ..Shape::LLAMA };
        let settings = Settings { number: DtypeName::Bf16, seq: 1024, ..Settings::default() };
        let (job, machine) = (settings.job(&Design::from(shape)), Machine::named("h100").unwrap());
        let flops = model_flops::<Cpu<Bf16>>(&job).unwrap();
        for (layout, ranks) in [("none", 1.0), ("tp=2,dp=2", 4.0)] {
            let time = MachineTime::of::<Cpu<Bf16>>(&layout.parse().unwrap(), &job, 1, machine.clone());
            let MachineTime { seconds, share_of_peak, parts, .. } = time.unwrap();
            let wanted = flops / seconds / ranks / machine.peak["bf16"].value;
            assert!((share_of_peak / wanted - 1.0).abs() < 1e-12, "{layout}: {share_of_peak} {wanted}");
            assert!((0.2..1.0).contains(&share_of_peak), "{layout}: {share_of_peak}");
            let sum: f64 = parts.values().sum();
            assert!((sum / seconds - 1.0).abs() < 1e-12, "{layout}: {sum} of {seconds}");
        }
    }
}
