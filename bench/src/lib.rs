//! `bench`: how fast the spine is on this machine, how fast the machine would let it be, and how fast others are.
//!
//! All figures take turns, so that a slow minute of the machine falls on all of them alike; of each the best turn
//! counts. So it does of the machine's own limits: what bounds a figure is measured right before it, every time. Every turn starts its ranks
//! and builds its model anew, outside of the time; the first go of each, which also takes the memory, is not counted.
//!
//! | file | holds |
//! |---|---|
//! | `figures.rs` | the figures: names, units, what each is of; which of them are asked for |
//! | `scale.rs` | the sizes that are measured, shape L among them |
//! | `products.rs`, `model.rs`, `all_reduce.rs`, `proof.rs` | how each kind is measured, and what bounds it |
//! | `experts.rs` | products of experts, the way to them, and a model with experts |
//! | `pipeline.rs` | a pipeline's step beside its table, and beside the same work on one rank |
//! | `exposed.rs` | how much of its links' time a training step shows |
//! | `machine.rs` | what figures are measured on, the host's cores or cards, and what it does at most |
//! | `peers.rs` | other programs' figures, from a file |
//! | `profile.rs` | where the time of training steps goes, read from a trace |
mod all_reduce;
mod experts;
mod exposed;
mod figures;
mod machine;
mod model;
mod peers;
mod pipeline;
mod products;
pub mod profile;
mod proof;
mod scale;
#[cfg(test)]
mod tests;

pub use exposed::Exposed;
pub use figures::{FIGURES, FigureEntry, FigureUnit, chosen};
pub use machine::{Cores, Hardware, Probe};
pub use model::AtWork;
pub use peers::{Peer, Peers};
pub use pipeline::Pipelined;
pub use scale::{L, SMALL};

use self::figures::Work;
use self::machine::Machine;
use self::pipeline::Turn;
use self::scale::Scale;
use parallel::number::Runs;
use parallel::{Error, Layout, Network, Result};
use serde::Serialize;

/// What is to be measured, and how often.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Names of figures, or how they begin; all if there are none.
    pub only: Vec<String>,
    /// How often the figures take turns.
    pub turns: usize,
    /// Whether sizes are small: only to see that all of it runs.
    pub small: bool,
    /// Other programs' figures.
    pub peers: Option<Peers>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What.
    pub name: &'static str,
    /// How much: the best of all turns.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
    /// What it could be at best on this machine; none of what the machine itself does.
    pub limit: Option<f64>,
    /// How much of the limit is reached: 1 is all of it, for rates and times alike.
    pub ratio: Option<f64>,
    /// The processor that it is of.
    pub processor: String,
    /// Of a pipeline: what it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Pipelined>,
    /// The best of other programs, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Beside>,
}

/// A figure beside another program's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Whose.
    pub name: String,
    /// How much, in the figure's unit.
    pub value: f64,
    /// How many times better ours is: above 1 it is better, for rates and times alike.
    pub ratio: f64,
}

/// Measures; `watch` is told what is being done.
///
/// # Errors
/// If there is no such figure here or no turn, or a rank fails.
pub fn bench<H: Hardware>(on: &H, plan: &BenchPlan, watch: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let chosen = chosen::<H>(&plan.only)?;
    check_turns(plan.turns)?;
    let mut figures = measure(on, &chosen, plan.turns, Scale::new(plan.small), watch)?;
    for (figure, entry) in figures.iter_mut().zip(&chosen) {
        let best = plan.peers.as_ref().and_then(|peers| peers.best(entry));
        figure.peer = best.map(|Peer { peer, value, .. }| Beside {
            ratio: entry.unit.of(*value, figure.value),
            name: peer.clone(),
            value: *value,
        });
    }
    Ok(figures)
}

/// Training steps of shape L, or of a small one, under a layout: those of which profiles are taken are in the network's trace.
///
/// # Errors
/// If the ranks do not fit the shape, or one fails.
pub fn profiled<D: Runs>(layout: &Layout, network: &Network, small: bool) -> Result<()> {
    let scale = Scale::new(small);
    layout.fits(scale.shape)?;
    model::profiled::<D>(layout, network, scale)
}

/// How much of its links' time a training step of shape L, or of a small one, shows, the best of so many turns; none over a network
/// without links. `watch` is told what is being done.
///
/// # Errors
/// If the ranks do not fit the shape, there is no turn, or a rank fails.
pub fn exposed<D: Runs>(
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

/// The most turns: days of all figures.
const MOST_TURNS: usize = 10_000;

/// Validates the number of turns: at least one, and bounded.
///
/// # Errors
/// One sentence with both ends.
pub fn check_turns(turns: usize) -> Result<()> {
    if (1..=MOST_TURNS).contains(&turns) {
        return Ok(());
    }
    Err(Error::new(format!("--turns is {turns}; it must be 1 to {MOST_TURNS}")))
}

/// GFLOP/s in f32 that a core can do while as many as there are ranks are at it.
#[must_use]
pub fn peak_gflops(ranks: usize) -> f64 {
    1e-9 / Probe::Peak { cores: machine::cores(ranks) }.seconds(&Scale::FULL)
}

/// The figures in turns, and what bounds each.
fn measure<H: Hardware>(
    on: &H,
    entries: &[&FigureEntry],
    turns: usize,
    scale: &Scale,
    watch: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let mut machine = Machine::default();
    let bounds: Vec<_> = entries.iter().map(|entry| entry.work.bound(on, scale)).collect::<Result<_>>()?;
    let mut best = vec![(f64::INFINITY, None); entries.len()];
    for turn in 1..=turns {
        for ((best, entry), bound) in best.iter_mut().zip(entries).zip(&bounds) {
            watch(&format!("{}, turn {turn} of {turns}", entry.name));
            machine.probe(on, bound, scale)?;
            best.0 = entry.work.seconds(on, &machine, &mut best.1, scale)?.min(best.0);
        }
    }
    let figure = |((entry, (seconds, turn)), bound): ((&&FigureEntry, (f64, Option<Turn>)), Vec<_>)| {
        let amount = entry.work.amount(scale);
        let (least, of_machine) = (machine.least(&bound), matches!(entry.work, Work::Machine(_)));
        let (seconds, limit) = if of_machine { (least, None) } else { (seconds, Some(least)) };
        Figure {
            name: entry.name,
            value: entry.unit.told(seconds, amount),
            unit: entry.unit.name(),
            limit: limit.map(|least| entry.unit.told(least, amount)),
            ratio: limit.map(|least| least / seconds),
            processor: on.name(),
            pipeline: turn.map(|turn| turn.told()),
            peer: None,
        }
    };
    Ok(entries.iter().zip(best).zip(bounds).map(figure).collect())
}
