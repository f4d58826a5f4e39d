//! Found splits: the prices of a machine for graphs of operators, and a strategy that splits a classifier as
//! a search says.
//!
//! Source: Jia et al., "Beyond data and model parallelism for deep neural networks", arXiv:1807.05358.
//! Chapter: found shardings.
use crate::clock::StepClock;
use crate::machine::{Level, Machine, Sourced};
use algorithms::Link;
use comm::{Axis, Mesh};
use kernels::{Kernels, timed_meta_of};
use layers::graph::Graph;
use layers::graph::end::GraphEnd;
use layers::graph::prices::{Nominal, Priced, PricedPlace, Prices};
use layers::graph::search::search;
use layers::graph::sharding::MeshSizes;
use layers::{BoxedLayer, Builder, Choice, Ending, Output, Strategy, StrategyInfo};
use ops::Result;
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::Cpu;

/// Prices of a machine, in seconds.
pub struct MachinePrices {
    device: Priced,
    mesh: Mesh<PricedPlace>,
    clock: Arc<StepClock>,
}

impl MachinePrices {
    /// Creates the prices of the first rank of a mesh.
    ///
    /// # Errors
    /// If there is no such mesh.
    pub fn new(sizes: &MeshSizes, machine: &Arc<Machine>) -> Result<Self> {
        let ghost = Mesh::ghost(sizes, 0)?;
        let clock = StepClock::new(machine, ghost.size());
        let mesh = ghost.timed(clock.clone());
        Ok(Self { device: timed_meta_of::<Cpu<f32>>(Some(clock.clone())), mesh, clock })
    }
}

impl Prices for MachinePrices {
    fn rank(&self) -> (&Priced, &Mesh<PricedPlace>) {
        (&self.device, &self.mesh)
    }
    fn take(&self) -> f64 {
        (self.clock.lap().seconds * 1e12).round() / 1e12 // so that plans of one price are equal
    }
}

impl Machine {
    /// Returns this machine with a link between the halves of these ranks, and its innermost links within
    /// each.
    #[must_use]
    pub fn halved(&self, ranks: usize, link: Link) -> Self {
        let within = Level { ranks: Some((ranks / 2).max(1)), ..self.levels[0].clone() };
        let known = |value| Sourced { value, source: "given".into() };
        let between = Level {
            name: "halves".into(),
            ranks: None,
            latency: known(link.latency().as_secs_f64()),
            bandwidth: known(link.bandwidth()),
            operations: BTreeMap::new(),
        };
        Self { levels: vec![within, between], ..self.clone() }
    }
}

/// The cheapest split of a classifier over the tensor ranks, by [nominal prices](Nominal).
pub struct FoundSplit {
    /// Rows of a step that the search assumes.
    pub rows: usize,
}

static ABOUT: StrategyInfo = StrategyInfo {
    name: "found split",
    word: "found",
    paper: "Jia et al., arXiv:1807.05358",
    chapter: Some("found-shardings.md"),
    hints: &[("", "each operator is split alone: see the steps between two of them")],
    ..StrategyInfo::of(Some(Axis::Tp), Choice::Layers)
};

impl<D: Kernels> Strategy<D> for FoundSplit {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn classifier(
        &self,
        at: &Builder<D>,
        sizes: &[usize],
    ) -> Result<Option<BoxedLayer<D, Ending<D>, Option<Output<D>>>>> {
        let graph = Graph::classifier(self.rows, sizes);
        let mesh = vec![(Axis::Tp, at.mesh.group(Axis::Tp).size())];
        let found = search((&graph, &mesh), &|_, _| true, &Nominal::new(&mesh)?, &|_| false)?;
        Ok(Some(BoxedLayer::new(GraphEnd::build(at, &Arc::new(found.plan))?)))
    }
}
