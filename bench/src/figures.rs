//! The figures, in the order they are shown.
use super::machine::{Bound, Hardware, Probe, ProbeTimes};
use super::pipeline::BestTimes;
use super::scale::Scale;
use super::{all_reduce, experts, machine, model, pipeline, products, proof};
use crate::pass::BenchPass;
use crate::pass::BenchPass::{AdamStep, Attention, Block, Step};
use layers::Design;
use parallel::dtype::DtypeName::{self, Bf16, F32};
use parallel::{Layout, Network, Result, bail};

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureUnit {
    /// 10^9 floating point operations a second.
    Gflops,
    /// 10^9 bytes a second.
    Gbps,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Tokens a second.
    Tokens,
}

impl FigureUnit {
    /// Name of the unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gflops => "GFLOP/s",
            Self::Gbps => "GB/s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "us",
            Self::Tokens => "token/s",
        }
    }
    /// Returns true if less is better.
    pub fn is_time(self) -> bool {
        matches!(self, Self::Milliseconds | Self::Microseconds)
    }
    /// Ratio of `ours` to another figure: above 1 ours is better.
    pub(super) fn of(self, other: f64, ours: f64) -> f64 {
        if self.is_time() { other / ours } else { ours / other }
    }
    /// Converts seconds for an amount of work (FLOPs, bytes, tokens) to this unit.
    pub(super) fn reported(self, seconds: f64, amount: f64) -> f64 {
        match self {
            Self::Gflops | Self::Gbps => amount / seconds / 1e9,
            Self::Milliseconds => seconds * 1e3,
            Self::Microseconds => seconds * 1e6,
            Self::Tokens => amount / seconds,
        }
    }
}

/// A figure that can be measured.
#[derive(Debug)]
pub struct FigureEntry {
    /// Its name.
    pub name: &'static str,
    /// Unit of the figure.
    pub unit: FigureUnit,
    pub(super) work: MeasuredWork,
}

/// Work of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) enum MeasuredWork {
    /// The machine itself, one processor.
    Machine(Probe),
    /// M, N and K of a product in this dtype.
    Product(DtypeName, [usize; 3]),
    /// M, N and K of a product by a weight stored as `[N, K]`.
    Linear([usize; 3]),
    /// A pass over the batch, under a layout.
    Pass(BenchPass, &'static str),
    /// A training step under a layout, beside some passes under others, each with the part of its time that
    /// is a lower bound.
    Beside(BenchPass, &'static str, &'static [(BenchPass, &'static str, f64)]),
    /// A step of a pipeline, under a layout, and the part of the model that is split.
    Pipeline(&'static str, pipeline::Of),
    /// A decoded token, in this dtype.
    Decode(DtypeName),
    /// The products of experts.
    Experts,
    /// A pass over the batch of a model with experts, under a layout.
    ExpertsPass(&'static str),
    /// A decoded token of a model with experts.
    ExpertsDecode,
    /// All-to-all: bytes that each of two ranks receives.
    AllToAll(usize),
    /// All-reduce: ranks, and bytes of each.
    AllReduce(usize, usize),
    /// A certificate, per key and step.
    Proof,
}

const fn figure(name: &'static str, unit: FigureUnit, work: MeasuredWork) -> FigureEntry {
    FigureEntry { name, unit, work }
}

const fn all_reduce(name: &'static str, ranks: usize, bytes: usize) -> FigureEntry {
    figure(name, FigureUnit::Microseconds, MeasuredWork::AllReduce(ranks, bytes))
}

const fn pipeline(name: &'static str, layout: &'static str) -> FigureEntry {
    figure(name, FigureUnit::Milliseconds, MeasuredWork::Pipeline(layout, Design::Blocks))
}

/// A training step whose limit follows from other passes.
const fn beside(
    name: &'static str,
    (step, layout): (BenchPass, &'static str),
    others: &'static [(BenchPass, &'static str, f64)],
) -> FigureEntry {
    figure(name, FigureUnit::Milliseconds, MeasuredWork::Beside(step, layout, others))
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All figures.
pub const FIGURES: [FigureEntry; 43] = [
    figure("machine_peak_gflops", FigureUnit::Gflops, MeasuredWork::Machine(Probe::Peak { cores: 1 })),
    figure("machine_read_gbps", FigureUnit::Gbps, MeasuredWork::Machine(Probe::Read { cores: 1 })),
    figure("gemm_gflops_1024", FigureUnit::Gflops, MeasuredWork::Product(F32, [1024, 1024, 1024])),
    figure("gemm_gflops_1024_bf16", FigureUnit::Gflops, MeasuredWork::Product(Bf16, [1024, 1024, 1024])),
    figure("gemm_gflops_256x4096x4096", FigureUnit::Gflops, MeasuredWork::Product(F32, [256, 4096, 4096])),
    figure("linear_gflops_m32", FigureUnit::Gflops, MeasuredWork::Linear([32, 512, 512])),
    figure("forward_ms_tp1", FigureUnit::Milliseconds, MeasuredWork::Pass(BenchPass::Forward, "none")),
    figure("train_step_ms_tp1", FigureUnit::Milliseconds, MeasuredWork::Pass(Step, "none")),
    figure("forward_ms_tp2", FigureUnit::Milliseconds, MeasuredWork::Pass(BenchPass::Forward, "tp=2")),
    figure("train_step_ms_tp2", FigureUnit::Milliseconds, MeasuredWork::Pass(Step, "tp=2")),
    figure("train_step_ms_dp2", FigureUnit::Milliseconds, MeasuredWork::Pass(Step, "dp=2")),
    beside("step_ms_two_ranks", (Step, "dp=2"), &[(Step, "none", 0.5)]),
    beside("step_ms_zero3", (Step, "dp=2:zero3"), &[(Step, "dp=2", 1.0)]),
    beside("step_ms_recompute", (Step, "dp=2,recompute"), &[(Step, "dp=2", 4.0 / 3.0)]),
    beside(
        "step_ms_offload",
        (AdamStep, "dp=2:zero1:offload-file"),
        &[(AdamStep, "dp=2:zero1", 1.0), (BenchPass::Moves, "dp=2:zero1:offload-file", 1.0)],
    ),
    figure("ring_attention_ms_one_rank", FigureUnit::Milliseconds, MeasuredWork::Pass(Attention, "none")),
    beside("ring_attention_ms", (Attention, "cp=2"), &[(Attention, "none", 0.5)]),
    beside("ring_attention_ms_contiguous", (Attention, "cp=2:contiguous"), &[(Attention, "none", 0.5)]),
    beside("ulysses_attention_ms", (Attention, "cp=2:ulysses"), &[(Attention, "none", 0.5)]),
    beside("ring_block_ms", (Block, "cp=2"), &[(Block, "none", 0.5)]),
    pipeline("pipeline_gpipe_ms", "pp=2:gpipe"),
    pipeline("pipeline_1f1b_ms", "pp=2:1f1b"),
    pipeline("pipeline_zb_h1_ms", "pp=2:zb-h1"),
    pipeline("pipeline_zb_h2_ms", "pp=2:zb-h2"),
    figure(
        "pipeline_whole_1f1b_ms",
        FigureUnit::Milliseconds,
        MeasuredWork::Pipeline("pp=2:1f1b", Design::Transformer),
    ),
    figure("decode_tokens_per_s_tp1", FigureUnit::Tokens, MeasuredWork::Decode(F32)),
    figure("decode_tokens_per_s_tp1_bf16", FigureUnit::Tokens, MeasuredWork::Decode(Bf16)),
    figure("experts_gflops_8x64", FigureUnit::Gflops, MeasuredWork::Experts),
    figure("experts_gflops_as_one", FigureUnit::Gflops, MeasuredWork::Product(F32, [512, 512, 512])),
    figure("experts_forward_ms_ep1", FigureUnit::Milliseconds, MeasuredWork::ExpertsPass("none")),
    figure("experts_forward_ms_ep2", FigureUnit::Milliseconds, MeasuredWork::ExpertsPass("tp=2,ep=2")),
    figure("experts_decode_tokens_per_s", FigureUnit::Tokens, MeasuredWork::ExpertsDecode),
    figure("all_to_all_us_256KiB", FigureUnit::Microseconds, MeasuredWork::AllToAll(256 * KIB)),
    figure("all_to_all_us_4MiB", FigureUnit::Microseconds, MeasuredWork::AllToAll(4 * MIB)),
    all_reduce("all_reduce_us_4KiB", 2, 4 * KIB),
    all_reduce("all_reduce_us_256KiB", 2, 256 * KIB),
    all_reduce("all_reduce_us_4MiB", 2, 4 * MIB),
    all_reduce("all_reduce_us_64MiB", 2, 64 * MIB),
    all_reduce("all_reduce_us_4KiB_4ranks", 4, 4 * KIB),
    all_reduce("all_reduce_us_256KiB_4ranks", 4, 256 * KIB),
    all_reduce("all_reduce_us_4MiB_4ranks", 4, 4 * MIB),
    all_reduce("all_reduce_us_64MiB_4ranks", 4, 64 * MIB),
    figure("proof_ms_100k", FigureUnit::Milliseconds, MeasuredWork::Proof),
];

/// Returns the figures of this hardware that have one of these names, or begin with one; all figures if
/// `only` is empty. If ranks are processes, those with as many ranks as there are `processes`.
///
/// # Errors
/// If no figure matches a name, or a requested figure is of the host alone, or of other ranks.
pub fn chosen<H: Hardware>(only: &[String], processes: Option<usize>) -> Result<Vec<&'static FigureEntry>> {
    let asks = |asked: &str, entry: &FigureEntry| {
        let exact = FIGURES.iter().any(|other| other.name == asked);
        if exact { entry.name == asked } else { !asked.is_empty() && entry.name.starts_with(asked) }
    };
    if let Some(unknown) = only.iter().find(|asked| !FIGURES.iter().any(|entry| asks(asked, entry))) {
        bail!("--only: no figure is called {unknown:?} or begins with it; the figures are {}", names());
    }
    let asked = |entry: &&FigureEntry| only.iter().any(|asked| asks(asked, entry));
    // Proofs need the field, and the cells of a pipeline are read from a trace, which records the time at
    // which a kernel is launched, not the time at which it runs.
    let here = |entry: &&FigureEntry| {
        H::HOST || !matches!(entry.work, MeasuredWork::Proof | MeasuredWork::Pipeline(..))
    };
    if let Some(FigureEntry { name, .. }) = FIGURES.iter().find(|entry| asked(entry) && !here(entry)) {
        bail!("--only: {name} is measured on the host only; leave out --device or that figure");
    }
    let chosen = FIGURES.iter().filter(here).filter(|entry| only.is_empty() || asked(entry));
    let Some(there) = processes else { return Ok(chosen.collect()) };
    // the cells of a pipeline are read from the trace of all ranks
    let fits = |entry: &&FigureEntry| {
        !matches!(entry.work, MeasuredWork::Pipeline(..)) && entry.layout().ranks() == there
    };
    let chosen: Vec<_> = chosen.filter(fits).collect();
    let none = |asked: &&String| !chosen.iter().any(|entry| asks(asked, entry));
    match only.iter().find(none) {
        Some(none) => bail!(
            "--only {none}: no such figure is measured by {there} ranks that are processes; \
             start as many as the figure has ranks, or leave it out"
        ),
        None if chosen.is_empty() => bail!("no figure is measured by {there} ranks; start 2 or 4"),
        None => Ok(chosen),
    }
}

impl FigureEntry {
    /// Layout of the ranks that do the work together.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let all_reduce;
        let layout = match self.work {
            MeasuredWork::Pass(_, layout)
            | MeasuredWork::Beside(_, layout, _)
            | MeasuredWork::Pipeline(layout, _)
            | MeasuredWork::ExpertsPass(layout) => layout,
            MeasuredWork::AllToAll(_) => "dp=2,ep=2",
            MeasuredWork::AllReduce(ranks, _) => {
                all_reduce = format!("tp={ranks}");
                &all_reduce
            }
            _ => "none",
        };
        layout.parse().expect("a layout")
    }
}

/// All names, for messages.
pub(super) fn names() -> String {
    FIGURES.map(|entry| entry.name).join(", ")
}

impl MeasuredWork {
    /// Best seconds of one turn: of the whole work; for the machine and decoding, of each operation, byte or
    /// token; for a pipeline, of all turns, with its references in `best`.
    pub(super) fn seconds<H: Hardware>(
        self,
        on: &H,
        machine: &ProbeTimes,
        best: &mut Option<BestTimes>,
        (network, scale): (&Network, &Scale),
    ) -> Result<f64> {
        let pass = |pass, layout: &str, scale: &Scale| {
            model::seconds::<H::F32>(network, pass, &layout.parse()?, scale)
        };
        match self {
            Self::Machine(_) => Ok(machine.least(&self.bound(on, scale)?)),
            Self::Product(Bf16, size) => Ok(products::product::<H, H::Bf16>(size, scale)),
            Self::Product(_, size) => Ok(products::product::<H, H::F32>(size, scale)),
            Self::Linear(size) => Ok(products::linear::<H>(size, scale)),
            Self::Pipeline(layout, of) => pipeline::seconds(&layout.parse()?, of, best, scale),
            Self::Pass(which, layout) | Self::Beside(which, layout, _) => pass(which, layout, scale),
            Self::Decode(Bf16) => model::decode::<H::Bf16>(scale),
            Self::Decode(_) => model::decode::<H::F32>(scale),
            Self::Experts => experts::grouped::<H>(scale),
            Self::ExpertsPass(layout) => pass(BenchPass::Forward, layout, &experts::scale(scale)),
            Self::ExpertsDecode => model::decode::<H::F32>(&experts::scale(scale)),
            Self::AllToAll(bytes) => experts::all_to_all::<H::F32>(network, bytes, scale),
            Self::AllReduce(ranks, bytes) => all_reduce::seconds::<H::F32>((network, ranks), bytes, scale),
            Self::Proof => proof::seconds(scale),
        }
    }
    /// Amount of work in that time, for figures that are rates: FLOPs, bytes, tokens.
    pub(super) fn amount(self, scale: &Scale) -> f64 {
        match self {
            Self::Product(_, size) | Self::Linear(size) => products::flops(size, scale),
            Self::Experts => products::flops(experts::as_one(), scale),
            _ => 1.0,
        }
    }
    /// Lower bound of that time.
    pub(super) fn bound<H: Hardware>(self, on: &H, scale: &Scale) -> Result<Bound> {
        let pass = |pass, layout: &str, scale: &Scale| {
            let layout: Layout = layout.parse()?;
            machine::bound(pass, &layout, on.cores(layout.ranks()), scale)
        };
        match self {
            Self::Machine(probe) => Ok(vec![(probe, 1.0)]),
            Self::Product(Bf16, _) => Ok(vec![(Probe::PeakBf16 { cores: 1 }, self.amount(scale))]),
            Self::Product(..) | Self::Linear(_) | Self::Experts => {
                Ok(vec![(Probe::Peak { cores: 1 }, self.amount(scale))])
            }
            Self::Pipeline(layout, of) => pipeline::bound(&layout.parse()?, of, scale),
            Self::Pass(which, layout) => pass(which, layout, scale),
            Self::Beside(_, _, others) => {
                Ok(others.iter().map(|&(pass, layout, part)| (Probe::Pass { pass, layout }, part)).collect())
            }
            Self::Decode(Bf16) => machine::decode_bound::<H::Bf16>(scale),
            Self::Decode(_) => machine::decode_bound::<H::F32>(scale),
            Self::ExpertsPass(layout) => pass(BenchPass::Forward, layout, &experts::scale(scale)),
            Self::ExpertsDecode => machine::decode_bound::<H::F32>(&experts::scale(scale)),
            Self::AllToAll(bytes) => Ok(experts::bound(on.cores(2), bytes, scale)),
            Self::AllReduce(ranks, bytes) => Ok(all_reduce::bound((ranks, on.cores(ranks)), bytes, scale)),
            Self::Proof => proof::bound(scale),
        }
    }
}
