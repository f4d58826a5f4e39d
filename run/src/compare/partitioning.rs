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
use algorithms::Link;
use comm::Axis;
use kernels::Kernels;
use models::Model;
use models::generate::{Generated, Prompts, RequestMode, repeated};
use ops::{AtRest, ShardingStrategy};
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
    pub fn scheme<D: Kernels>(&self) -> Scheme<'_, D> {
        Scheme { others: if self.is_found { &[&FOUND] } else { &[] }, ..Scheme::from(&self.layout) }
    }
    /// Returns the network of this row's checks, as fast as the machine. The checks of an unsplit row run in
    /// every process.
    pub fn checks(&self, network: &Network) -> Network {
        let processes = network.processes.clone().filter(|_| self.layout.ranks() > 1);
        Network { processes, ..Network::default() }
    }
    /// Returns the network of this row.
    pub fn over(&self, network: &Network) -> Network {
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
    pub fn timed<T: Serialize + DeserializeOwned + Clone + Send + Sync>(
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
    pub fn generate<D: RunDevice>(
        &self,
        (model, network): (&Model, &Network),
        (request, times): (&Prompts, usize),
    ) -> Result<Vec<Generated<D::Elem>>> {
        let request = (&self.request(request), times);
        self.timed(network, |over| repeated::<D>(model, (&self.layout, over), request, &|_| ()))
    }
    /// True if a training row belongs to it: the order of requests is none of training's.
    pub fn trains(&self) -> bool {
        self.requests == RequestMode::Batch
    }
    /// The request, answered in this order.
    pub fn request(&self, request: &Prompts) -> Prompts {
        Prompts { requests: self.requests, ..request.clone() }
    }
    /// Partitionings of the experiment, on two ranks; the unsplit model comes first.
    #[must_use]
    pub fn of_experiment() -> Vec<Self> {
        let shards = (ZERO3.change)(ShardingStrategy::WHOLE, None);
        let way = |name, layout: &str| {
            let layout: Layout = layout.parse().expect("a layout");
            Self { name: Some(name), ..Self::from(layout) }
        };
        let resting = |way: Self, rests| Self { layout: way.layout.resting(rests), ..way };
        vec![
            way("unsplit", "none"),
            way("deepspeed", "dp=2:zero3"),
            resting(way("standard", "tp=2"), ShardingStrategy { value: AtRest::Gathered, ..shards }),
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
    /// Ways with stages in every order of requests, the others as they are.
    ///
    /// # Errors
    /// If no way has stages.
    pub fn in_every_order(ways: &[Self]) -> Result<Vec<Self>> {
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
}
