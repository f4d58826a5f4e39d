//! `bench`: measures figures of this machine, beside the machine's limits and other programs' figures.
//!
//! Figures take turns, so that a slow minute of the machine affects all of them alike. The best turn of each
//! figure counts.
//!
//! | file | holds |
//! |---|---|
//! | `figures.rs`, `scale.rs` | the figures: names, units, work; their sizes, shape L among them |
//! | `products.rs`, `model.rs`, `all_reduce.rs`, `proof.rs` | measurement of each kind, and its bound |
//! | `experts.rs` | products of experts, their all-to-all, and a model with experts |
//! | `pipeline.rs` | a pipeline's step beside its table, and beside the same work on one rank |
//! | `context.rs`, `exposed.rs` | attention and a block on a long sequence; exposed communication time |
//! | `machine.rs`, `measure.rs` | the hardware and its limits; the host as data, for prices |
//! | `peers.rs` | other programs' figures, from a file |
//! | `profile.rs`, `parts.rs` | times of training steps, read from a trace: by kind and layer; by part |

// Sizes of the work, and the passes that are measured.
mod pass;
mod scale;
mod taken;

// Shape L at work, on hardware whose limits are measured, too.
mod context;
mod machine;
mod model;

// Works besides its passes.
mod all_reduce;
mod experts;
mod exposed;
mod pipeline;
mod products;
mod proof;

// Figures, and what is made of measurements.
mod figures;
pub mod measure;
pub mod parts;
mod peers;
pub mod profile;

#[cfg(test)]
mod tests;

pub use exposed::Exposed;
pub use figures::{FIGURES, FigureEntry, FigureUnit, chosen};
pub use machine::{Cores, Hardware, Probe};
pub use model::AtWork;
pub use peers::{Peer, Peers};
pub use pipeline::Pipelined;
pub use scale::{L, SMALL};

use self::figures::MeasuredWork;
use self::machine::ProbeTimes;
use self::pipeline::BestTimes;
use self::scale::Scale;
use parallel::dtype::RunDevice;
use parallel::{Error, Layout, Network, Result};
use serde::Serialize;

/// Figures to measure, and number of turns.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Names of figures, or their beginnings; all figures if empty.
    pub only: Vec<String>,
    /// Number of turns.
    pub turns: usize,
    /// True if sizes are small: for a test that all code runs.
    pub small: bool,
    /// Other programs' figures.
    pub peers: Option<Peers>,
    /// Connections between ranks: threads, or processes.
    pub network: Network,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the figure.
    pub name: &'static str,
    /// The best value of all turns.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// The best possible value on this machine; `None` for figures of the machine itself, and of processes,
    /// which may be on several.
    pub limit: Option<f64>,
    /// Fraction of the limit that is reached: 1 is all of it, for rates and times alike.
    pub ratio: Option<f64>,
    /// Name of the processor.
    pub processor: String,
    /// Number of processes, if each rank is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    /// References of a pipeline's figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Pipelined>,
    /// The best figure of other programs, if one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerFigure>,
}

/// Figure of another program for comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerFigure {
    /// Name of the program.
    pub name: String,
    /// Value, in the figure's unit.
    pub value: f64,
    /// Ratio of ours to the other: above 1 ours is better, for rates and times alike.
    pub ratio: f64,
}

/// Measures the figures; `watch` receives the current activity.
///
/// # Errors
/// If a figure does not exist on this hardware, the number of turns is 0, or a rank fails.
pub fn bench<H: Hardware>(on: &H, plan: &BenchPlan, watch: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let chosen = chosen::<H>(&plan.only, plan.network.processes.as_ref().map(|processes| processes.ranks()))?;
    check_turns(plan.turns)?;
    let mut figures = measure(on, &chosen, plan.turns, (&plan.network, Scale::new(plan.small)), watch)?;
    for (figure, entry) in figures.iter_mut().zip(&chosen) {
        let best = plan.peers.as_ref().and_then(|peers| peers.best(entry));
        figure.peer = best.map(|Peer { peer, value, .. }| PeerFigure {
            ratio: entry.unit.of(*value, figure.value),
            name: peer.clone(),
            value: *value,
        });
    }
    Ok(figures)
}

/// Runs training steps of shape L, or of a small one, under a layout, and profiles some of them in the
/// network's trace.
///
/// # Errors
/// If the layout does not fit the shape, or a rank fails.
pub fn profiled<D: RunDevice>(layout: &Layout, network: &Network, small: bool) -> Result<()> {
    let scale = Scale::new(small);
    layout.fits(scale.shape)?;
    model::profiled::<D>(layout, network, scale)
}

/// Measures the exposed communication time of a training step of shape L, or of a small one, as the best of
/// `turns` turns; `None` over a network without links. `watch` receives the current activity.
///
/// # Errors
/// If the layout does not fit the shape, the number of turns is 0, or a rank fails.
pub fn exposed<D: RunDevice>(
    layout: &Layout,
    network: &Network,
    (turns, small): (usize, bool),
    watch: &dyn Fn(&str),
) -> Result<Option<Exposed>> {
    let scale = Scale::new(small);
    layout.fits(scale.shape)?;
    check_turns(turns)?;
    exposed::of::<D>(layout, network, (turns, scale), watch)
}

/// The most turns: all figures take days.
const MOST_TURNS: usize = 10_000;

/// Validates the number of turns: at least one, and bounded.
///
/// # Errors
/// One sentence with both bounds.
pub fn check_turns(turns: usize) -> Result<()> {
    if (1..=MOST_TURNS).contains(&turns) {
        return Ok(());
    }
    Err(Error::new(format!("--turns is {turns}; it must be 1 to {MOST_TURNS}")))
}

/// Peak GFLOP/s of a core in f32, while one core a rank is busy, as far as there are cores.
#[must_use]
pub fn peak_gflops(ranks: usize) -> f64 {
    1e-9 / Probe::Peak { cores: machine::cores(ranks) }.seconds(&Scale::FULL)
}

/// Measures the figures in turns. The bound of a figure is measured right before it in every turn, and its
/// best turn counts, too. Every turn starts its ranks and builds its model anew, outside of the timing; the
/// first pass of each, which allocates the memory, is not counted. The number of turns and of passes depends
/// on no clock, so processes agree on it.
fn measure<H: Hardware>(
    on: &H,
    entries: &[&FigureEntry],
    turns: usize,
    (network, scale): (&Network, &Scale),
    watch: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let mut machine = ProbeTimes::default();
    let processes = network.processes.as_ref().map(|processes| processes.ranks());
    let bound = |entry: &&FigureEntry| match processes {
        None => entry.work.bound(on, scale),
        Some(_) => Ok(Vec::new()),
    };
    let bounds: Vec<_> = entries.iter().map(bound).collect::<Result<_>>()?;
    let mut best = vec![(f64::INFINITY, None); entries.len()];
    for turn in 1..=turns {
        for ((best, entry), bound) in best.iter_mut().zip(entries).zip(&bounds) {
            watch(&format!("{}, turn {turn} of {turns}", entry.name));
            machine.probe(on, bound, scale)?;
            best.0 = entry.work.seconds(on, &machine, &mut best.1, (network, scale))?.min(best.0);
        }
    }
    let figure = |((entry, (seconds, turn)), bound): ((&&FigureEntry, (f64, Option<BestTimes>)), Vec<_>)| {
        let amount = entry.work.amount(scale);
        let (least, of_machine) = (machine.least(&bound), matches!(entry.work, MeasuredWork::Machine(_)));
        let limit = Some(least).filter(|_| !of_machine && processes.is_none());
        let seconds = if of_machine { least } else { seconds };
        Figure {
            name: entry.name,
            value: entry.unit.reported(seconds, amount),
            unit: entry.unit.name(),
            limit: limit.map(|least| entry.unit.reported(least, amount)),
            ratio: limit.map(|least| least / seconds),
            processor: on.name(),
            processes,
            pipeline: turn.map(|turn| turn.reported()),
            peer: None,
        }
    };
    Ok(entries.iter().zip(best).zip(bounds).map(figure).collect())
}
