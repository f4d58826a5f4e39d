//! Splits of graphs are equal to the unsplit graph, in the field.
mod found;
mod layer;
mod oracle;

use super::planned::PlannedGraph;
use super::prices::Nominal;
use super::search::{FoundGraph, search};
use super::sharding::MeshSizes;
use super::step::{GraphStep, NamedValues, target_ids};
use super::{Graph, OperatorSplit, TensorSource};
use crate::{Builder, RandomValues, Shape};
use comm::{Axis, World};
use kernels::{Activation, Heads};
use std::sync::Arc;
use std::time::Duration;
use tensor::{Cpu, F61, Key, mix};

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

/// Value of an element of a matrix.
fn number(tensor: usize, i: usize) -> F61 {
    F61::new(mix((tensor * 1000 + i) as u64))
}

/// Runs a step of a plan on its mesh, and compares the result, all gradients and all new weights.
fn proven(plan: &Arc<PlannedGraph>) -> std::result::Result<(), String> {
    let run = |device: Cpu<F61>, mesh: comm::Mesh<_>| {
        let values = RandomValues { seed: 5 };
        GraphStep::build(&Builder::new(&device, &mesh, &values), plan, &number)?.trace()
    };
    let world = World::threads(&plan.mesh).map_err(|why| why.to_string())?;
    let ranks = world.run(run).map_err(|why| why.to_string())?;
    let wanted = wanted(&plan.graph, &ranks[0][0]);
    for (rank, [_, seen]) in ranks.iter().enumerate() {
        if let Some((name, _)) = wanted.iter().find(|(name, value)| seen.get(*name) != Some(*value)) {
            return Err(format!("rank {rank}: {name} differs"));
        }
        assert_eq!(seen.len(), wanted.len());
    }
    Ok(())
}

/// Results of the oracle.
fn wanted(graph: &Graph, start: &NamedValues<F61>) -> NamedValues<F61> {
    let mut values = oracle::Values::new();
    for (t, tensor) in graph.tensors.iter().enumerate() {
        match tensor.source {
            TensorSource::Parameter => _ = values.insert(t, start[&*tensor.name].clone()),
            TensorSource::Input { .. } => {
                let len = tensor.shape[0] * tensor.shape[1];
                values.insert(t, (0..len).map(|i| number(t, i)).collect());
            }
            TensorSource::Result => {}
        }
    }
    let result = graph.result();
    let [r, c] = graph.tensors[result].shape;
    let targets = graph.logits().map(|t| graph.tensors[t].shape).map(|[rows, n]| target_ids(rows, n));
    let dy = targets.is_none().then(|| (0..r * c).map(|i| number(result, i)).collect());
    let (values, gradients) = oracle::evaluate(graph, values, &targets.unwrap_or_default(), dy);
    let mut all = NamedValues::from([("the result".to_string(), values[&result].clone())]);
    for (t, tensor) in graph.tensors.iter().enumerate() {
        let gradient = || gradients[&t].clone();
        match tensor.source {
            TensorSource::Parameter => {
                let new = start[&*tensor.name].iter().zip(gradient()).map(|(&w, g)| w - g).collect();
                all.insert(format!("the new {}", tensor.name), new);
                all.insert(format!("the gradient of {}", tensor.name), gradient());
            }
            TensorSource::Input { wanted: true } => {
                all.insert("the gradient of the input".into(), gradient());
            }
            _ => {}
        }
    }
    all
}

/// Graphs of every operator.
fn graphs() -> Vec<Graph> {
    let heads = Heads { queries: 8, keys: 8, dim: 2 };
    let shape = Shape { width: 16, hidden: 24, vocabulary: 8, heads, ..Shape::LLAMA };
    let plain = Shape { feed_forward: crate::FeedForward::Plain(Activation::Relu), ..shape };
    vec![
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

/// Searches among all splits.
fn found(graph: &Graph, mesh: &MeshSizes) -> FoundGraph {
    found_within(graph, mesh, 0)
}
/// Searches among all splits for so many milliseconds, if the search is not exact.
fn found_within(graph: &Graph, mesh: &MeshSizes, milliseconds: u64) -> FoundGraph {
    let (prices, limit) = (Nominal::new(mesh).expect("a mesh"), Duration::from_millis(milliseconds));
    search((graph, mesh), &|_, _| true, &prices, limit).expect("a plan")
}

/// Kills: a gradient's partial sums forgotten or summed twice, a cut of another dimension, blocks in another
/// order, an axis that cuts and sums; each way between two splits.
#[test]
fn drawn_splits_are_equal() -> std::result::Result<(), String> {
    let _key = Key(1).enter();
    for (g, graph) in graphs().iter().enumerate() {
        for mesh in &meshes() {
            for seed in 0..25 {
                let plan = Arc::new(drawn(graph, mesh, seed + 31 * g as u64));
                proven(&plan).map_err(|why| format!("{why}, graph {g} on {mesh:?}, {:#?}", plan.splits))?;
            }
        }
    }
    Ok(())
}

/// Kills: a search whose plan is not one.
#[test]
fn found_splits_are_equal() -> std::result::Result<(), String> {
    let _key = Key(2).enter();
    for graph in &graphs() {
        for mesh in &meshes()[..4] {
            proven(&Arc::new(found(graph, mesh).plan))?;
        }
    }
    Ok(())
}
