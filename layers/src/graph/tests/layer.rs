//! A split graph is a layer like any other: proven five ways.
use crate::Builder;
use crate::graph::prices::Nominal;
use crate::graph::search::search;
use crate::graph::sharding::part;
use crate::graph::split::SplitGraph;
use crate::graph::{Graph, OperatorKind, OperatorSplit, TensorSource};
use crate::proof::{Answer, Case, LayerInput, proves};
use comm::{Axis, Op};
use kernels::{Activation, Kernels};
use ops::Result;
use std::sync::Arc;
use tensor::Scalar;

/// Features of the stream, and hidden features.
const SIZES: [usize; 2] = [5, 24];
const EPS: f64 = 1e-5;

/// A norm and a feed-forward beside their residual, split by hidden features or by rows.
struct FeedForwardCase {
    by_rows: bool,
}

fn feed_forward() -> Graph {
    let mut graph = Graph::default();
    let x = graph.add("x", [24, SIZES[0]], TensorSource::Input { wanted: true });
    let gain = graph.add("gain", [1, SIZES[0]], TensorSource::Parameter);
    let n = graph.apply(OperatorKind::Norm { eps: EPS }, &[x, gain], "n");
    let up = graph.linear(n, "up", SIZES[1], true);
    let h = graph.apply(OperatorKind::Activation(Activation::Gelu), &[up], "h");
    let down = graph.linear(h, "down", SIZES[0], true);
    graph.apply(OperatorKind::Sum, &[down, x], "y");
    graph
}

impl Case for FeedForwardCase {
    type Layer<D: Kernels> = SplitGraph<D>;
    fn features(&self) -> [usize; 2] {
        [SIZES[0]; 2]
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<SplitGraph<D>> {
        let (graph, mesh) = (feed_forward(), vec![(Axis::Tp, at.mesh.group(Axis::Tp).size())]);
        let allowed = |o: usize, split: &OperatorSplit| {
            let [rows, columns] = split.inputs[0].cuts.each_ref().map(Vec::len);
            match (self.by_rows, graph.operators[o].kind) {
                (true, _) => rows == 1,
                (false, OperatorKind::Product) => rows == 0 && split.inputs[1].cuts != [vec![], vec![]],
                _ => rows == 0 || columns == 1,
            }
        };
        let found = search((&graph, &mesh), &allowed, &Nominal::new(&mesh)?, &|_| false)?;
        SplitGraph::build(at, &Arc::new(found.plan))
    }
    fn oracle<S: Scalar>(&self, given: &LayerInput<S>) -> Answer<S> {
        let w = |name: &str| &given.weights[name][..];
        let [width, hidden] = SIZES;
        let linear = |x: &[S], name: &str, sizes| {
            let mut y = reference::linear(x, w(name), sizes);
            reference::add_bias(&mut y, w(&format!("{name}.bias")));
            y
        };
        let plus = |a: &[S], b: &[S]| a.iter().zip(b).map(|(&a, &b)| a + b).collect::<Vec<_>>();
        let n = reference::rms_norm(&given.x, w("gain"), EPS);
        let up = linear(&n, "up", [width, hidden]);
        let h = reference::activate(&up, Activation::Gelu);
        let y = plus(&linear(&h, "down", [hidden, width]), &given.x);
        let (dh, ddown) = reference::linear_backward(&h, w("down"), &given.dy, [hidden, width]);
        let dup = reference::activate_backward(&up, &dh, Activation::Gelu);
        let (dn, dw) = reference::linear_backward(&n, w("up"), &dup, [width, hidden]);
        let (dx, gain) = reference::rms_norm_backward(&given.x, w("gain"), &dn, EPS);
        let gradients = [
            ("gain", gain),
            ("up", dw),
            ("up.bias", reference::bias_gradient(&dup, hidden)),
            ("down", ddown),
            ("down.bias", reference::bias_gradient(&given.dy, width)),
        ];
        let gradients = gradients.map(|(name, gradient)| (name.to_string(), gradient)).into();
        Answer { y, dx: plus(&dx, &given.dy), gradients }
    }
    fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllReduce, 2 * tokens * SIZES[0])] // Y and dN
    }
    fn traffic_on(&self, (rank, ranks): (usize, usize), microbatches: &[usize], _: bool) -> Vec<(Op, usize)> {
        if !self.by_rows {
            return self.traffic(microbatches.iter().sum(), ranks);
        }
        let own: usize = microbatches.iter().map(|&rows| part(rows, rank, ranks).len()).sum();
        vec![(Op::AllGather, 2 * own * SIZES[0])] // Y; dX, of the norm and of the residual together
    }
    fn synced(&self, _: usize, _: bool) -> usize {
        let [width, hidden] = SIZES;
        if self.by_rows { 2 * width * hidden + hidden + 2 * width } else { 0 }
    }
}

/// Kills: partial sums that are not summed, or summed twice; a wrong block; a gradient that is not the
/// derivative; a price without a step.
#[test]
fn a_graph_split_by_features_is_proven() {
    proves(&FeedForwardCase { by_rows: false });
}

/// Rows that ranks do not divide, and ranks without a row. Kills: rows lost or doubled, a gradient of a
/// rank's own rows that is not summed.
#[test]
fn a_graph_split_by_rows_is_proven() {
    proves(&FeedForwardCase { by_rows: true });
}
