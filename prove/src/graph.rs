//! Proof of a graph of operators, each split alone: one training step of all ranks equals the oracle's.
mod oracle;

use comm::World;
use layers::Builder;
use layers::graph::planned::PlannedGraph;
use layers::graph::step::{GraphStep, NamedValues, target_ids};
use layers::graph::{Graph, TensorSource};
use ops::RandomValues;
use parallel::Result;
use std::sync::Arc;
use tensor::{Cpu, F61, Key, mix};

/// Outcome of the proof of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphVerdict {
    /// Number of results, gradients and new parameters.
    pub tensors: usize,
    /// The first rank on which one differs, and its name; `None` if all are equal.
    pub differs: Option<(usize, String)>,
}

/// Value of an element of a matrix that no parameter is.
fn number(tensor: usize, i: usize) -> F61 {
    F61::new(mix((tensor << 32 | i) as u64))
}

/// Runs a step of a plan on every rank of a world, and compares the result, all gradients and all new
/// parameters with those of the unsplit graph, under a key.
///
/// # Errors
/// If a rank fails.
pub fn prove_graph(plan: &Arc<PlannedGraph>, world: &World, key: Key) -> Result<GraphVerdict> {
    let _key = key.enter();
    let ranks = world.run(|device: Cpu<F61>, mesh| {
        GraphStep::build(&Builder::new(&device, &mesh, &RandomValues { seed: 5 }), plan, &number)?.trace()
    })?;
    let wanted = wanted(&plan.graph, &ranks[0][0]);
    let other = |(rank, [_, seen]): (usize, &[NamedValues<F61>; 2])| {
        let missing = wanted.iter().find(|(name, value)| seen.get(*name) != Some(*value));
        missing.map(|(name, _)| (rank, name.clone()))
    };
    Ok(GraphVerdict { tensors: wanted.len(), differs: ranks.iter().enumerate().find_map(other) })
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
    let mut named = NamedValues::from([("the result".to_string(), values[&result].clone())]);
    for (t, tensor) in graph.tensors.iter().enumerate() {
        let gradient = || gradients[&t].clone();
        match tensor.source {
            TensorSource::Parameter => {
                let new = start[&*tensor.name].iter().zip(gradient()).map(|(&w, g)| w - g).collect();
                named.insert(format!("the new {}", tensor.name), new);
                named.insert(format!("the gradient of {}", tensor.name), gradient());
            }
            TensorSource::Input { wanted: true } => {
                named.insert("the gradient of the input".into(), gradient());
            }
            _ => {}
        }
    }
    named
}
