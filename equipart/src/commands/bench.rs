//! `bench`: measures.
use crate::cli::processes::ProcessesArgs;
use crate::cli::profile::{self, ProfileArgs};
use crate::cli::run::Run;
use crate::cli::{args, processes};
use crate::terminal::out;
use crate::views::Views;
use crate::views::view::RECORDS;
use bench::{self, BenchPlan, Cores, Figure, Hardware, Peers, Probe};
use clap::Args;
use cuda::measure::{self, MeasureSize};
use cuda::{Card, CardEngine, Cuda, Gpu};
use parallel::{Error, Network, Result};
use run::card::guarded;
use run::device::{DeviceName, first_card};
use run::words::digits;
use std::path::PathBuf;
use std::sync::Arc;
use tensor::Bf16;
use tensor::quoted::escaped;

/// Help on the columns and on JSON.
pub(crate) const HELP: &str = "limit: the best that this machine can do, measured beside the figure. of limit: 1 is all of it, \
for rates and times alike.\nbetter: ratio to the best peer; above 1 it is better.\n\nPipelines have a second \
table: the same work on one rank, half of it with 1F1B's bubble (ideal), the schedule table with the times of its\nown \
cells, and even stages as slow as the slowest; then the times of cells: forward (F), backward (B), its halves (I, W).\n\nWith --json: a line for each figure, with its name, value, \
unit, limit, ratio (of the limit) and processor, with --peers its peer,\nan object with name, value and ratio (above 1: \
better), and of pipelines a pipeline: unsplit_ms, ideal_ms, over_ideal,\nsimulated_ms, over_simulated, slowest_ms, over_slowest, cells_ms.";

/// Turns of the figures.
const TURNS: usize = 5;

/// Measure products, training steps, decoding, all-reduces and proofs, beside the machine's limits
#[derive(Args, Debug)]
#[command(after_help = HELP, after_long_help = format!("{HELP}\n\n{}", processes::HELP))]
pub(crate) struct BenchArgs {
    /// Measure only these figures: names, or their beginnings, such as gemm, separated by commas [default:
    /// all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Number of turns of the figures, or of steps with and without --link; the best turn of each counts
    /// [default: 5]
    #[arg(long)]
    turns: Option<usize>,
    /// Other programs' figures to compare with: lines of {"peer": "...", "name": "...", "value": ...}
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = args::device(), help = args::DEVICE)]
    device: DeviceName,
    /// Measure small sizes instead of those in the names, to test that all figures run
    #[arg(long)]
    small: bool,
    #[command(flatten)]
    processes: ProcessesArgs,
    #[command(flatten)]
    profile: ProfileArgs,
}

impl Run for BenchArgs {
    const BY_PROCESSES: bool = true;
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let a = self;
        let turns = a.turns.unwrap_or(TURNS);
        bench::check_turns(turns)?;
        if a.profile.asked(a.turns)? {
            profile::run((&a.profile, &a.processes), a.device, (turns, a.small), views)?;
            return Ok(true);
        }
        let peers = a.peers.as_deref().map(Peers::read).transpose()?;
        let ranks = processes::launch()?.map(|launch| launch.ranks).filter(|ranks| *ranks > 1);
        let chosen = match a.device {
            DeviceName::Cpu => bench::chosen::<Cores>(&a.only, ranks),
            DeviceName::Cuda => bench::chosen::<BenchCards>(&a.only, ranks),
        }?;
        let layouts: Vec<_> = ranks.iter().flat_map(|_| chosen.iter().map(|of| of.layout())).collect();
        let engine = a.device.open(ranks.unwrap_or(1), &out::note)?;
        let mut network = a.processes.join(Network::default(), (&layouts, engine), None, &[])?;
        network.processes = network.processes.filter(|_| ranks.is_some()); // one process has all the ranks
        let plan = BenchPlan { only: a.only, turns, small: a.small, peers, network };
        let watch = |what: &str| drop(views.doing(what)); // the results tell of an error
        let figures = match a.device {
            DeviceName::Cpu => bench::bench(&Cores, &plan, &watch),
            DeviceName::Cuda => bench::bench(&BenchCards(first_card()?), &plan, &watch),
        }?;
        show(&figures, views).map(|()| true)
    }
}

/// Shows the figures.
fn show(figures: &[Figure], views: &Views) -> Result<()> {
    views.rows(figures)?;
    pipelines(figures, views)?;
    let Some(figure) = figures.first() else { return Ok(()) };
    let how = figure.processes.map_or("", |_| "; each rank is a process");
    views.say(&format!("Measured on {}{how}.", escaped(&figure.processor)))
}

/// Prints the reference times of the pipelines, if there are any.
fn pipelines(figures: &[Figure], views: &Views) -> Result<()> {
    let head = [
        "in ms",
        "on one rank",
        "ideal",
        "by its table",
        "by its slowest stage",
        "F",
        "B",
        "I",
        "W",
        "over ideal",
        "over table",
        "over slowest",
    ];
    let row = |f: &Figure| {
        let p = f.pipeline.as_ref()?;
        let ms = [p.unsplit_ms, p.ideal_ms, p.simulated_ms, p.slowest_ms].into_iter().chain(p.cells_ms);
        let ms = ms.map(|ms| if ms > 0.0 { digits(ms) } else { "-".into() });
        let over = [p.over_ideal, p.over_simulated, p.over_slowest].map(|ratio| format!("{ratio:.3}"));
        Some([f.name.into()].into_iter().chain(ms).chain(over).collect())
    };
    let rows: Vec<_> = figures.iter().filter_map(row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    views.say("")?;
    views.table(&head, rows)?;
    views.say("")
}

/// The first card, shared by all ranks, or one like it for each rank. Its limits are those that `gpu-check`
/// measures.
struct BenchCards(Arc<Card>);

impl Hardware for BenchCards {
    type F32 = Cuda<f32>;
    type Bf16 = Cuda<Bf16>;
    const HOST: bool = false;
    const CALLS: usize = 64;

    fn name(&self) -> String {
        self.0.about.name.clone()
    }
    fn cores(&self, ranks: usize) -> usize {
        if let Ok((CardEngine::Nccl(_), _)) = CardEngine::of(ranks) { ranks } else { 1 }
    }
    /// Threads synchronize on the host, so `Meet` is measured there, as is `Field`.
    fn seconds(&self, probe: Probe, smaller: usize) -> Result<f64> {
        let scale = MeasureSize::new(smaller > 1);
        let gpu = Gpu::of(&self.0);
        let copied = |bytes: usize| measure::copies(&gpu, scale).map(|rate| bytes as f64 / (rate * 1e9));
        let seconds = guarded(|| match probe {
            Probe::Peak { .. } => Ok(1.0 / measure::peak(&gpu, scale, false)?),
            Probe::PeakBf16 { .. } => Ok(1.0 / measure::peak(&gpu, scale, true)?),
            Probe::Read { .. } => copied(1),
            Probe::Rewrite { bytes, .. } | Probe::Copy { bytes, .. } => copied(2 * bytes),
            Probe::Field { .. } | Probe::Meet { .. } | Probe::Pass { .. } => {
                Cores.seconds(probe, smaller).map_err(|error| error.to_string())
            }
        });
        seconds.map_err(Error::new)
    }
}
