//! A graph with a split of every operator, and the steps between them.
use crate::graph::prices::{GraphPrices, Prices};
use crate::graph::sharding::{MeshSizes, Sharding, ShardingStep};
use crate::graph::{GradientOf, Graph, OperatorSplit, TensorSource};
use comm::Axes;

/// A graph with a split of every operator, and the steps between them.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedGraph {
    /// The graph.
    pub graph: Graph,
    /// Numbers of ranks along the axes.
    pub mesh: MeshSizes,
    /// Split of each operator.
    pub splits: Vec<OperatorSplit>,
    /// Steps of each operator's inputs before its forward.
    pub forward: Vec<Vec<Vec<ShardingStep>>>,
    /// Steps of each input's gradient after its backward: to the operator that gave the input.
    pub backward: Vec<Vec<Vec<ShardingStep>>>,
    /// Price of it all.
    pub price: f64,
}

impl PlannedGraph {
    /// Returns the graph with these splits, and the cheapest steps between them.
    pub fn new(graph: &Graph, mesh: &MeshSizes, splits: Vec<OperatorSplit>, prices: &dyn Prices) -> Self {
        let kept = GraphPrices::new(graph, mesh, prices);
        let way = |tensor: usize, from: &Sharding, to: &Sharding| {
            from.way(to, &mut |at, step| kept.step(graph.tensors[tensor].shape, at, step)).1
        };
        let each = |of: &dyn Fn(usize, usize, usize) -> Vec<ShardingStep>| -> Vec<Vec<Vec<ShardingStep>>> {
            let inputs = |o: usize| graph.operators[o].inputs.iter().enumerate();
            let operators = 0..splits.len();
            operators.map(|o| inputs(o).map(|(i, &input)| of(o, i, input)).collect()).collect()
        };
        let forward =
            each(&|o, i, input| way(input, &given(graph, &splits, input, (o, i)), &splits[o].inputs[i]));
        let backward = each(&|o, i, input| match graph.wants(o)[i] {
            GradientOf::Matrix => {
                way(input, &splits[o].gradient(i), &given(graph, &splits, input, (o, i)).summed(Axes::NONE))
            }
            _ => Vec::new(),
        });
        let price = total(&kept, graph, &splits);
        Self { graph: graph.clone(), mesh: mesh.clone(), splits, forward, backward, price }
    }
}

/// Returns the sharding in which a matrix is given to one of its takers: that of the operator which gave it;
/// whole, if it enters the graph. A parameter has the sharding that this taker needs.
pub(crate) fn given(
    graph: &Graph,
    splits: &[OperatorSplit],
    tensor: usize,
    (o, i): (usize, usize),
) -> Sharding {
    match graph.tensors[tensor].source {
        TensorSource::Parameter => splits[o].inputs[i].clone(),
        TensorSource::Input { .. } => Sharding::WHOLE,
        TensorSource::Result => splits[graph.giver(tensor).expect("a result has a giver")].output.clone(),
    }
}

/// Returns whether the gradient of an operator's input has a way back of its own: it is wanted, and no
/// earlier taker of the matrix has one of the same sharding, with which it is summed.
pub(crate) fn returns(graph: &Graph, splits: &[OperatorSplit], (o, i): (usize, usize)) -> bool {
    let gradient = splits[o].gradient(i);
    let mut before = graph.takers(graph.operators[o].inputs[i]).take_while(|taker| *taker != (o, i));
    graph.wants(o)[i] == GradientOf::Matrix && before.all(|(o, i)| splits[o].gradient(i) != gradient)
}

/// Price of a graph with these splits; infinite if the takers of a parameter need it otherwise.
pub(crate) fn total(kept: &GraphPrices, graph: &Graph, splits: &[OperatorSplit]) -> f64 {
    let mut price = 0.0;
    for (o, split) in splits.iter().enumerate() {
        price += kept.operator(o, split);
        for (i, &input) in graph.operators[o].inputs.iter().enumerate() {
            let from = given(graph, splits, input, (o, i));
            let shape = graph.tensors[input].shape;
            price += kept.way(shape, &from, &split.inputs[i]);
            if returns(graph, splits, (o, i)) {
                price += kept.way(shape, &split.gradient(i), &from.summed(Axes::NONE));
            }
        }
    }
    if agree(graph, splits) { price } else { f64::INFINITY }
}

/// Returns whether all takers of each parameter need it, and its gradient, alike.
fn agree(graph: &Graph, splits: &[OperatorSplit]) -> bool {
    (0..graph.tensors.len()).filter(|&t| graph.tensors[t].source == TensorSource::Parameter).all(|t| {
        let mut needs = graph.takers(t).map(|(o, i)| (&splits[o].inputs[i], splits[o].gradient(i)));
        needs.next().is_none_or(|first| needs.all(|next| next == first))
    })
}
