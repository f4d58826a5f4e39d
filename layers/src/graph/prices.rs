//! Prices of a graph's operators and steps: each is run on a device without values, as one rank of the mesh.
use crate::graph::operate::{loss, loss_back, operate, operate_back};
use crate::graph::sharded::{MeshPlace, Sharded};
use crate::graph::sharding::{MeshSizes, Sharding, ShardingStep, part};
use crate::graph::{Graph, OperatorKind, OperatorSplit};
use comm::Mesh;
use kernels::{LossTerms, MeanOver, Meta, meta_of};
use ops::{Error, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use tensor::{Category, Cpu, Device, Tensor, TokenIds};

/// The device of prices.
pub type Priced = Meta<f32>;
/// The place of its matrices.
pub type PricedPlace = <Priced as Device>::Place;

/// Prices of what a rank runs.
pub trait Prices {
    /// Returns this rank's device and mesh, on which all that is priced runs.
    fn rank(&self) -> (&Priced, &Mesh<PricedPlace>);
    /// Returns the price of all that ran since the last call.
    fn take(&self) -> f64;
}

/// Price by work and traffic alone, the same on every machine, in operations of a rank: an element that it
/// sends counts as 50, a call as 250 000. Sums are exact, so plans of one price are equal.
pub struct Nominal {
    device: Priced,
    mesh: Mesh<PricedPlace>,
    before: RefCell<f64>,
}

impl Nominal {
    /// Creates the prices of the first rank of a mesh.
    ///
    /// # Errors
    /// If there is no such mesh.
    pub fn new(sizes: &MeshSizes) -> Result<Self> {
        let mesh = Mesh::ghost(sizes, 0)?;
        Ok(Self { device: meta_of::<Cpu<f32>>(), mesh, before: RefCell::new(0.0) })
    }
}

impl Prices for Nominal {
    fn rank(&self) -> (&Priced, &Mesh<PricedPlace>) {
        (&self.device, &self.mesh)
    }
    fn take(&self) -> f64 {
        let cost = |t: comm::Traffic| 250_000.0 * t.calls as f64 + 50.0 / 4.0 * t.bytes as f64;
        let sent: f64 = self.mesh.ledger().iter().map(|(_, _, t)| cost(t)).sum();
        let now = sent + self.device.meter().flops() as f64;
        now - self.before.replace(now)
    }
}

/// Prices that are asked for once.
pub(crate) struct GraphPrices<'a> {
    prices: &'a dyn Prices,
    graph: &'a Graph,
    mesh: &'a MeshSizes,
    steps: RefCell<HashMap<(ShardingStep, Sharding, [usize; 2]), f64>>,
    ways: RefCell<HashMap<(Sharding, Sharding, [usize; 2]), f64>>,
}

impl<'a> GraphPrices<'a> {
    pub(crate) fn new(graph: &'a Graph, mesh: &'a MeshSizes, prices: &'a dyn Prices) -> Self {
        prices.take();
        Self { prices, graph, mesh, steps: RefCell::default(), ways: RefCell::default() }
    }
    /// Returns the first rank's part of a matrix.
    fn share(&self, shape: [usize; 2], at: &Sharding) -> Sharded<Priced> {
        let blocks = at.blocks(self.mesh);
        let [rows, columns] = [0, 1].map(|dim| part(shape[dim], 0, blocks[dim]).len());
        let share = Tensor::empty(self.prices.rank().0, Category::Activations, rows, columns);
        Sharded::new(share, shape, at.clone())
    }
    fn place(&self) -> MeshPlace<PricedPlace> {
        MeshPlace::new(self.prices.rank().1, self.mesh)
    }
    /// Price of a step of a matrix of this shape.
    pub(crate) fn step(&self, shape: [usize; 2], from: &Sharding, step: &ShardingStep) -> f64 {
        let key = (step.clone(), from.clone(), shape);
        if let Some(price) = self.steps.borrow().get(&key) {
            return *price;
        }
        let x = self.share(shape, from);
        self.prices.take();
        let ran = x.step(&self.place(), step).map(drop);
        let price = if ran.is_ok() { self.prices.take() } else { f64::INFINITY };
        self.steps.borrow_mut().insert(key, price);
        price
    }
    /// Elements that this rank gives to a step's collective, and bytes that it sends.
    pub(crate) fn traffic(&self, shape: [usize; 2], from: &Sharding, step: &ShardingStep) -> [usize; 2] {
        let mesh = self.prices.rank().1;
        let before = mesh.ledger();
        let ran = self.share(shape, from).step(&self.place(), step).is_ok();
        let sum = |[elements, bytes]: [usize; 2], t: comm::Traffic| [elements + t.elements, bytes + t.bytes];
        let sent = (mesh.ledger() - &before).iter().fold([0, 0], |all, (_, _, t)| sum(all, t));
        if ran { sent } else { [0, 0] }
    }
    /// Price of the cheapest way between two shardings.
    pub(crate) fn way(&self, shape: [usize; 2], from: &Sharding, to: &Sharding) -> f64 {
        if from == to {
            return 0.0;
        }
        let key = (from.clone(), to.clone(), shape);
        if let Some(price) = self.ways.borrow().get(&key) {
            return *price;
        }
        let price = from.way(to, &mut |at, step| self.step(shape, at, step)).0;
        self.ways.borrow_mut().insert(key, price);
        price
    }
    /// Price of an operator's forward and backward, and of the sums of its parameters' gradients.
    pub(crate) fn operator(&self, number: usize, split: &OperatorSplit) -> f64 {
        let operator = &self.graph.operators[number];
        let shape = |i: usize| self.graph.tensors[operator.inputs[i]].shape;
        let inputs: Vec<_> =
            split.inputs.iter().enumerate().map(|(i, at)| self.share(shape(i), at)).collect();
        self.prices.take();
        let ran = self.run(number, split, inputs);
        let mut price = if ran.is_ok() { self.prices.take() } else { f64::INFINITY };
        for i in (0..operator.inputs.len()).filter(|i| self.graph.is_summed((number, *i))) {
            price += self.way(shape(i), &split.gradient(i), &split.inputs[i]);
        }
        price
    }
    fn run(&self, number: usize, split: &OperatorSplit, mut inputs: Vec<Sharded<Priced>>) -> Result<()> {
        let (operator, place, device) = (&self.graph.operators[number], self.place(), self.prices.rank().0);
        if operator.kind == OperatorKind::Loss {
            let [rows, vocabulary] = self.graph.tensors[operator.inputs[0]].shape;
            let terms =
                LossTerms { mean_over: MeanOver::of(rows), smoothing: 0.0, z: 0.0, vocabulary, cap: None };
            let targets = TokenIds::new(device.place(), &vec![0; rows], vocabulary)
                .map_err(|why| Error::Cannot(why.to_string()))?;
            let (_, saved) = loss(inputs.remove(0), &place, (&targets, &terms))?;
            return loss_back(saved, &place, &terms).map(drop);
        }
        let (y, saved) = operate(operator.kind, inputs)?;
        let dy = Sharded::new(
            y.share().clone(),
            self.graph.tensors[operator.output].shape,
            split.output.summed(comm::Axes::NONE),
        );
        let wants = self.graph.wants(number);
        operate_back((operator.kind, split), saved, dy, &mut [], &operator.inputs, &wants).map(drop)
    }
}
