//! Partitionings to compare: ways of splitting a model and its work, and those of an experiment in inference
//! with experts.
//!
//! | name | weights | each rank computes |
//! |---|---|---|
//! | `deepspeed` | shards, gathered a bucket ahead and dropped (`ZeRO`, stage 3) | its own requests |
//! | `standard` | heads; shards of experts, gathered at first use and kept | its heads, its tokens |
//! | `new` | heads; shards of experts, gathered for each use and dropped | its heads, its tokens |
//! | `expert-parallel` | whole experts, others on each rank | its own requests, and tokens for its experts |
//! | `tensor-sliced` | attention by heads, every expert by hidden features | its heads, its features |
//! | `pipeline-sync`, `-async`, `-batch` | its blocks | one request; requests in turns; all at once |
//!
//! An unpublished measurement of distributed inference of models with experts compares the first three.
use super::CompareArgs;
use super::{LayoutRow, Workload};
use crate::cli::args::note;
use crate::cli::processes;
use crate::draw::front::{self, Point};
use comm::{Axis, Link};
use kernels::Kernels;
use layers::{AtRest, Design, ShardingStrategy};
use models::Model;
use models::generate::{Generated, Prompts, RequestMode, repeated};
use parallel::data::zero3::ZERO3;
use parallel::dtype::RunDevice;
use parallel::{Layout, Network, Result, Scheme, bail};
use plan::found::FoundSplit;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One way of splitting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partitioning {
    /// Name of the row; `None`: the layout is the name.
    pub name: Option<&'static str>,
    /// Its layout.
    pub layout: Layout,
    /// Order in which requests are answered.
    pub requests: RequestMode,
    /// Link along an axis, in place of the network's, if this row has one of its own.
    pub slow: Option<(Axis, Link)>,
    /// True if a search splits the model over the layout's ranks.
    pub is_found: bool,
}

/// The split that a search finds, for the examples of a step.
const FOUND: FoundSplit = FoundSplit { rows: 64 };

impl From<Layout> for Partitioning {
    fn from(layout: Layout) -> Self {
        Self { name: None, layout, requests: RequestMode::Batch, slow: None, is_found: false }
    }
}

impl Partitioning {
    /// Label of the row.
    #[must_use]
    pub fn label(&self) -> String {
        let label = match (self.name, self.layout.ranks()) {
            (Some(name), _) => name.into(),
            (None, 1) => "unsplit, 1 rank".into(),
            (None, n) => format!("{}, {n} ranks", self.layout),
        };
        let label = match (self.name, self.requests) {
            (Some(_), _) | (None, RequestMode::Batch) => label,
            (None, mode) => format!("{label}, {mode}"),
        };
        label + &self.slow.map_or(String::new(), |(axis, link)| format!(" over {axis}={link}"))
    }
    /// How it splits the model.
    pub(super) fn scheme<D: Kernels>(&self) -> Scheme<'_, D> {
        Scheme { others: if self.is_found { &[&FOUND] } else { &[] }, ..Scheme::from(&self.layout) }
    }
    /// Returns the network of this row's checks, as fast as the machine. The checks of an unsplit row run in
    /// every process.
    pub(super) fn checks(&self, network: &Network) -> Network {
        let processes = network.processes.clone().filter(|_| self.layout.ranks() > 1);
        Network { processes, ..Network::default() }
    }
    /// Returns the network of this row.
    pub(super) fn over(&self, network: &Network) -> Network {
        let mut network = Network { processes: self.checks(network).processes, ..network.clone() };
        if let Some(slow) = self.slow {
            network.links.retain(|(axis, _)| *axis != slow.0);
            network.links.push(slow);
        }
        network
    }
    /// Runs timed work over the network of this row; of an unsplit row, in rank 0's process alone.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) fn timed<T: Serialize + DeserializeOwned + Clone + Send + Sync>(
        &self,
        network: &Network,
        work: impl FnOnce(&Network) -> Result<T>,
    ) -> Result<T> {
        let over = self.over(network);
        if over.processes.is_some() { work(&over) } else { network.on_rank_0(|| work(&over)) }
    }
    /// Continues the prompts this way `times` times.
    ///
    /// # Errors
    /// Those of [`repeated`].
    pub(super) fn generate<D: RunDevice>(
        &self,
        (model, network): (&Model, &Network),
        (request, times): (&Prompts, usize),
    ) -> Result<Vec<Generated<D::Elem>>> {
        let request = (&self.request(request), times);
        self.timed(network, |over| repeated::<D>(model, (&self.layout, over), request, &|_| ()))
    }
    /// True if a training row belongs to it: the order of requests is none of training's.
    pub(super) fn trains(&self) -> bool {
        self.requests == RequestMode::Batch
    }
    /// The request, answered in this order.
    pub(super) fn request(&self, request: &Prompts) -> Prompts {
        Prompts { requests: self.requests, ..request.clone() }
    }
    /// Partitionings of the experiment, on two ranks; the unsplit model comes first.
    #[must_use]
    pub fn of_experiment() -> Vec<Self> {
        let shards = (ZERO3.change)(ShardingStrategy::WHOLE, None);
        let kept = ShardingStrategy { value: AtRest::Gathered, ..shards };
        let way = |name, layout: &str| {
            let layout: Layout = layout.parse().expect("a layout");
            Self { name: Some(name), ..Self::from(layout) }
        };
        let resting = |way: Self, rests| Self { layout: way.layout.resting(rests), ..way };
        vec![
            way("unsplit", "none"),
            way("deepspeed", "dp=2:zero3"),
            resting(way("standard", "tp=2"), kept),
            resting(way("new", "tp=2"), shards),
            way("expert-parallel", "ep=2"),
            way("expert-parallel by all-gather", "ep=2:all-gather"),
            way("tensor-sliced", "tp=2,etp=2"),
            Self { requests: RequestMode::Sync, ..way("pipeline-sync", "pp=2") },
            Self { requests: RequestMode::Async { slots: None }, ..way("pipeline-async", "pp=2") },
            way("pipeline-batch", "pp=2"),
            way("tensor- and expert-parallel", "tp=2,ep=2"),
            way("tensor-, sequence- and expert-parallel", "tp=2,sp,ep=2"),
        ]
    }
}

/// Result of another program's `new`, from an unpublished measurement, as ratios to its `standard`: 3.333 of
/// 4.331 GB a device, and 0.38 of the tokens a second.
pub(super) const ELSEWHERE: Point<'static> =
    Point { name: "another program's (new)", memory: 3.333 / 4.331, speed: 0.38, ours: false };

/// Returns the partitionings of the flags, and whether they are the experiment: it runs for a model with
/// experts if no layout is given.
///
/// # Errors
/// If a layout does not fit.
pub(super) fn asked(a: &CompareArgs, design: &Design) -> Result<(Vec<Partitioning>, bool)> {
    let usual: &[&str] = match a.epochs {
        None => &["tp=2", "tp=2,sp", "dp=2", "dp=2:zero1", "pp=2", "tp=2,sp,dp=2:zero1,pp=2"],
        Some(_) => &["dp=2", "tp=2", "pp=2:zb-h1"],
    };
    let usual = || usual.iter().map(|l| l.parse::<Layout>().expect("a layout").into()).collect();
    let experiment = a.layout.is_empty() && design.shape().is_some_and(|shape| shape.experts.is_some());
    let mut ways: Vec<Partitioning> = match (a.layout.is_empty(), experiment) {
        (_, true) => Partitioning::of_experiment(),
        (true, _) => usual(),
        _ => a.layout.iter().map(|layout| (*layout).into()).collect(),
    };
    if a.layout.is_empty() {
        if let (Design::Classifier { .. }, None) = (design, a.epochs) {
            let name = Some("found split, 2 ranks");
            let tensor = ways.first().filter(|way| way.layout.ranks() == 2).copied();
            ways.extend(tensor.map(|way| Partitioning { name, is_found: true, ..way }));
        }
        ways.retain(|way| way.layout.fits(design).is_ok());
        if let Some(launch) = processes::launch()? {
            ways.retain(|way| [1, launch.ranks].contains(&way.layout.ranks()));
            if ways.iter().all(|way| way.layout.ranks() < launch.ranks) {
                let ranks = launch.ranks;
                bail!("no layout that is compared by default has {ranks} ranks; give one with --layout");
            }
        }
    }
    let layouts = a.on_ranks.all(ways.iter().map(|way| way.layout).collect(), design)?;
    let layouts = a.offload.all(layouts, a.number.device)?;
    if !a.layout.is_empty() {
        note(&layouts, Some(design).filter(|_| a.on_ranks.split.is_none()));
    }
    ways.iter_mut().zip(layouts).for_each(|(way, layout)| way.layout = layout);
    if a.requests && !experiment {
        ways = in_every_order(&ways)?;
    }
    if let Some((axis, link)) = a.slow_link {
        let split: Vec<_> = ways.iter().filter(|way| way.layout.size(axis) > 1).copied().collect();
        if split.is_empty() {
            bail!(
                "--slow-link {axis}={link}: none of the compared layouts has {axis} ranks; split that axis, \
                 or leave the link out"
            );
        }
        ways.extend(split.into_iter().map(|way| Partitioning { slow: a.slow_link, ..way }));
    }
    Ok((ways, experiment))
}

/// Ways with stages in every order of requests, the others as they are.
///
/// # Errors
/// If no way has stages.
fn in_every_order(ways: &[Partitioning]) -> Result<Vec<Partitioning>> {
    if ways.iter().all(|way| way.layout.size(Axis::Pp) == 1) {
        bail!(
            "--requests: none of the compared layouts has pp ranks; give one that has, such as --layout pp=2"
        );
    }
    let orders = |way: &Partitioning| {
        let way = *way;
        let split = way.layout.size(Axis::Pp) > 1;
        let orders = RequestMode::ALL.into_iter().filter(move |order| split || *order == way.requests);
        orders.map(move |requests| Partitioning { requests, ..way })
    };
    Ok(ways.iter().flat_map(orders).collect())
}

/// Draws the rows of generation as ratios to `standard`, or to the unsplit model if there is no such row.
///
/// # Errors
/// If nothing was generated.
pub(super) fn picture(rows: &[LayoutRow]) -> Result<String> {
    let rows: Vec<_> = rows.iter().filter(|row| row.workload == Workload::Inference).collect();
    let standard = rows.iter().find(|row| row.name == "standard");
    let Some(by) = standard.or(rows.first()) else {
        bail!("--svg draws generation, but this model generates no text; leave --svg out");
    };
    let point = |row: &&LayoutRow| {
        (row.name.clone(), row.most_bytes() / by.most_bytes(), row.rate.number() / by.rate.number())
    };
    let points: Vec<_> = rows.iter().map(point).collect();
    let ours =
        points.iter().map(|(name, memory, speed)| Point { name, memory: *memory, speed: *speed, ours: true });
    let all: Vec<_> = ours.chain(standard.map(|_| ELSEWHERE)).collect();
    let held = comm::readable(by.most_bytes() as u128);
    let lines = [
        format!("measured by {}: {:.0} token/s in {held}", by.name, by.rate.number()),
        "blue: no other is as fast in as little memory; hollow: a figure from elsewhere".into(),
    ];
    Ok(front::draw(&all, &by.name, "Tokens a second against memory", &lines))
}
