//! Splits of graphs are equal to the unsplit graph, in the field; every step is needed; and a plan costs what
//! it was priced at.
use comm::mutants::{Fate, Mutation, Outcome, Trial, judge};
use comm::{Axis, World};
use kernels::{Activation, Heads};
use layers::graph::planned::PlannedGraph;
use layers::graph::prices::{Nominal, Prices};
use layers::graph::search::{FoundGraph, search};
use layers::graph::sharding::MeshSizes;
use layers::graph::step::GraphStep;
use layers::graph::{Graph, OperatorKind, OperatorSplit, TensorSource};
use layers::{Builder, FeedForward, Shape};
use ops::RandomValues;
use prove::{GraphVerdict, prove_graph};
use std::sync::Arc;
use tensor::{Key, mix};

/// A mesh of 2 to 8 ranks.
fn meshes() -> Vec<MeshSizes> {
    let [dp, cp, tp] = [Axis::Dp, Axis::Cp, Axis::Tp];
    vec![
        vec![(tp, 2)],
        vec![(tp, 4)],
        vec![(dp, 2), (tp, 2)],
        vec![(dp, 4), (tp, 2)],
        vec![(dp, 2), (cp, 2), (tp, 2)],
    ]
}

/// Graphs of every operator.
fn graphs() -> Vec<Graph> {
    let heads = Heads::new(8, 8, 2);
    let shape = Shape { width: 16, hidden: 24, vocabulary: 8, heads, ..Shape::LLAMA };
    let wider = Heads { value: 3, ..heads };
    let plain = Shape { heads: wider, feed_forward: FeedForward::Plain(Activation::Relu), ..shape };
    let mut products = Graph::default();
    let [x, w, v] = ["X", "W", "V"].map(|name| products.add(name, [8, 8], TensorSource::Parameter));
    let y = products.apply(OperatorKind::Product, &[x, w], "Y");
    let z = products.apply(OperatorKind::Product, &[y, v], "Z");
    products.apply(OperatorKind::Value, &[z], "Z");
    let mut square = Graph::default();
    let x = square.add("X", [8, 8], TensorSource::Parameter);
    let y = square.apply(OperatorKind::Product, &[x, x], "Y");
    let z = square.apply(OperatorKind::Product, &[y, y], "Z");
    square.apply(OperatorKind::Value, &[z], "Z");
    vec![
        products,
        square,
        Graph::classifier(8, &[8, 16, 8]),
        Graph::classifier(5, &[8, 16, 24, 8]),
        Graph::block(&shape, [8, 3], true),
        Graph::block(&plain, [4, 2], false),
    ]
}

/// Returns a plan with a random split of every operator.
fn drawn(graph: &Graph, mesh: &MeshSizes, seed: u64) -> PlannedGraph {
    let prices = Nominal::new(mesh).expect("a mesh");
    let draw = |n: u64| {
        let pick = |o: usize| -> OperatorSplit {
            let all = graph.splits(o, mesh);
            all[mix(seed * 1000 + 100 * n + o as u64) as usize % all.len()].clone()
        };
        let splits = (0..graph.operators.len()).map(pick).collect();
        PlannedGraph::new(graph, mesh, splits, &prices)
    };
    // a sum takes partial sums only where they are given
    (0..1000).map(draw).find(|plan| plan.price.is_finite()).expect("one of them is possible")
}

/// Searches among these splits.
fn found_among(
    (graph, mesh): (&Graph, &MeshSizes),
    allowed: &dyn Fn(usize, &OperatorSplit) -> bool,
) -> FoundGraph {
    let prices = Nominal::new(mesh).expect("a mesh");
    search((graph, mesh), allowed, &prices, &|_| false).expect("a plan")
}

/// Proves a plan under a key.
fn proven(plan: &Arc<PlannedGraph>, key: u64) -> Result<(), String> {
    let world = World::threads(&plan.mesh).map_err(|why| why.to_string())?;
    let verdict = prove_graph(plan, &world, Key(key)).map_err(|why| why.to_string())?;
    assert!(verdict.tensors > 2);
    verdict.differs.map_or(Ok(()), |(rank, name)| Err(format!("{name} differs on rank {rank}")))
}

/// Splits that are drawn, and splits that are found where others are stated. Kills: a gradient's partial sums
/// forgotten or summed twice, a cut of another dimension, blocks in another
/// order, an axis that cuts and sums; each way between two splits.
#[test]
fn five_hundred_splits_are_equal() -> Result<(), String> {
    for (g, graph) in graphs().iter().enumerate() {
        for mesh in &meshes() {
            let ranks: usize = mesh.iter().map(|(_, ranks)| ranks).product();
            let seeds = match (ranks < 8, g < 4) {
                (true, true) => 35,
                (false, true) => 5,
                (true, false) => 7,
                (false, false) => 2,
            };
            for seed in 0..seeds {
                let number = seed + 31 * g as u64;
                let mut plan = drawn(graph, mesh, number);
                if g < 4 && g != 1 && seed % 2 == 0 {
                    // about every second operator is stated so, and the others are found
                    let is_stated = |o: usize| mix(number ^ (o as u64) << 20).is_multiple_of(2);
                    let stated = |o: usize, split: &_| !is_stated(o) || *split == plan.splits[o];
                    plan = found_among((graph, mesh), &stated).plan;
                }
                let plan = Arc::new(plan);
                proven(&plan, 1)
                    .map_err(|why| format!("{why}, graph {g} on {mesh:?}, {:#?}", plan.splits))?;
            }
        }
    }
    Ok(())
}

/// Kills: a search whose plan is not one.
#[test]
fn found_splits_are_equal() -> Result<(), String> {
    for graph in &graphs() {
        for mesh in &meshes()[..4] {
            proven(&Arc::new(found_among((graph, mesh), &|_, _| true).plan), 2)?;
        }
    }
    Ok(())
}

/// Kills: a price without a step, an operator, or the sum of a gradient; an all-to-all at the price of an
/// all-gather.
#[test]
fn the_price_of_a_plan_is_that_of_its_run() {
    for graph in &graphs() {
        for mesh in &meshes()[..4] {
            for plan in [found_among((graph, mesh), &|_, _| true).plan, drawn(graph, mesh, 9)] {
                let prices = Nominal::new(mesh).unwrap();
                let (device, ghost) = prices.rank();
                let (values, plan) = (RandomValues { seed: 1 }, Arc::new(plan));
                let at = Builder::new(device, ghost, &values);
                let mut step = GraphStep::build(&at, &plan, &|_, _| 0.0).unwrap();
                prices.take();
                step.run().unwrap();
                let seen = prices.take();
                let even = plan.graph.tensors[0].shape[0].is_multiple_of(8);
                assert!(!even || (seen - plan.price).abs() <= 1e-9 * seen, "{seen} is not {}", plan.price);
            }
        }
    }
}

/// Every collective of a plan goes wrong in every way, and the result is no longer equal. Kills: a needless
/// step, one whose result is not used.
#[test]
fn every_step_is_needed() {
    let mut tried = 0;
    for (graph, seed) in graphs().iter().zip([4, 1, 3, 5, 8, 2]) {
        for mesh in meshes().into_iter().take(3).skip(seed as usize % 2 * 2).take(1) {
            let plan = Arc::new(drawn(graph, &mesh, seed));
            let run = |trial: &Trial| {
                let world = World::threads(&plan.mesh).unwrap().on_trial(trial);
                match prove_graph(&plan, &world, Key(3)) {
                    Err(_) => Outcome::Fails,
                    Ok(GraphVerdict { differs: None, .. }) => Outcome::Equal,
                    Ok(_) => Outcome::Differs,
                }
            };
            let honest = Trial::honest();
            assert!(matches!(run(&honest), Outcome::Equal));
            let sites = honest.sites(0);
            for site in sites.iter().filter(|site| site.at.file().ends_with("sharded.rs")) {
                for &mutation in Mutation::ALL.iter().filter(|of| **of != Mutation::Stale) {
                    let fate = judge(mutation, site, &sites, |_, trial| run(trial)).unwrap();
                    tried += usize::from(fate.is_some());
                    assert!(fate != Some(Fate::Survived), "{mutation:?} of {}", site.words);
                }
            }
        }
    }
    assert!(tried > 100, "{tried} mutants");
}
