//! Searches: as cheap as the cheapest of all plans, and what they find; steps, and what operators refuse.
mod layer;

use super::planned::{PlannedGraph, total};
use super::prices::{GraphPrices, Nominal, Prices};
use super::search::{FoundGraph, SearchEnd, search};
use super::sharding::{Change, MeshSizes, Sharding, ShardingStep};
use super::{Graph, OperatorKind, OperatorSplit, TensorSource};
use crate::Shape;
use comm::Axis;
use kernels::{Activation, Gate, Heads};

const DP: Axis = Axis::Dp;
const CP: Axis = Axis::Cp;
const TP: Axis = Axis::Tp;

/// Searches among all splits until so many plans are found, if the search is not exact.
fn found_within(graph: &Graph, mesh: &MeshSizes, plans: usize) -> FoundGraph {
    let prices = Nominal::new(mesh).expect("a mesh");
    search((graph, mesh), &|_, _| true, &prices, &|found| found < plans).expect("a plan")
}

/// Returns the price of the cheapest plan, of all that there are.
fn cheapest(graph: &Graph, mesh: &MeshSizes, prices: &dyn Prices) -> f64 {
    let all: Vec<Vec<OperatorSplit>> = (0..graph.operators.len()).map(|o| graph.splits(o, mesh)).collect();
    let plans: usize = all.iter().map(Vec::len).product();
    assert!((2..50_000).contains(&plans), "{plans} plans");
    let kept = GraphPrices::new(graph, mesh, prices);
    let of = |mut plan: usize| -> f64 {
        let pick = |of: &Vec<OperatorSplit>| {
            let split = of[plan % of.len()].clone();
            plan /= of.len();
            split
        };
        total(&kept, graph, &all.iter().map(pick).collect::<Vec<_>>())
    };
    (0..plans).map(of).fold(f64::INFINITY, f64::min)
}

/// Chains of up to six operators, of these features of each row.
fn chain(rows: usize, sizes: &[usize], ends: bool) -> Graph {
    let mut graph = Graph::default();
    let mut x = graph.add("x", [rows, sizes[0]], TensorSource::Input { wanted: true });
    for (i, &outputs) in sizes[1..].iter().enumerate() {
        x = graph.linear(x, &format!("w{i}"), outputs, false);
        if i % 2 == 0 {
            x = graph.apply(OperatorKind::Activation(Activation::Relu), &[x], &format!("h{i}"));
        }
    }
    if ends {
        graph.apply(OperatorKind::Value, &[x], "y");
    }
    graph
}

/// Kills: a search that forgets a price, or keeps the first plan; a step that costs nothing.
#[test]
fn a_search_along_a_chain_is_as_cheap_as_the_cheapest_of_all_plans() {
    let of_ranks = |ranks: usize| vec![(TP, ranks)];
    let two = vec![(DP, 2), (TP, 4)];
    let cases = [
        (chain(64, &[64, 512, 64, 16], true), of_ranks(8)),
        (chain(1024, &[16, 16, 128, 512], true), of_ranks(8)),
        (chain(8, &[256, 256, 256, 256], true), of_ranks(4)),
        (chain(64, &[64, 512, 64], false), two.clone()),
        (chain(4096, &[32, 32, 64], false), two),
    ];
    for (graph, mesh) in cases {
        let prices = Nominal::new(&mesh).unwrap();
        let found = found_within(&graph, &mesh, 0);
        assert_eq!(found.end, SearchEnd::Exact);
        let least = cheapest(&graph, &mesh, &prices);
        assert!((found.plan.price - least).abs() <= 1e-9 * least, "{} is not {least}", found.plan.price);
    }
}

/// A residual, whose two ends depend on each other. Kills: a search that stops at the first plan that no
/// single change makes cheaper, or says that it is exact.
#[test]
fn a_search_of_a_residual_finds_the_cheapest_of_all_plans() {
    for (rows, [width, hidden], ranks) in [(64, [64, 512], 8), (8, [256, 16], 8), (64, [64, 16], 2)] {
        let mut graph = chain(rows, &[width, width, hidden, width], false);
        let first = graph.tensors.iter().position(|t| &*t.name == "h0").unwrap();
        graph.apply(OperatorKind::Sum, &[graph.result(), first], "y");
        let mesh = vec![(TP, ranks)];
        let found = found_within(&graph, &mesh, 5000);
        assert!(matches!(found.end, SearchEnd::Stopped { found: 5000, .. }), "{:?}", found.end);
        let least = cheapest(&graph, &mesh, &Nominal::new(&mesh).unwrap());
        assert!((found.plan.price - least).abs() <= 1e-9 * least, "{} is not {least}", found.plan.price);
    }
}

/// Two products take one matrix, and their gradients are summed before they go back. Kills: a search that
/// prices each way back.
#[test]
fn a_search_of_two_takers_finds_the_cheapest_of_all_plans() {
    for rows in [8, 64, 512] {
        for width in [16, 64, 256] {
            for hidden in [16, 64, 256] {
                let mut graph = chain(rows, &[width, width], false);
                let x = graph.result();
                let [up, gate] = ["up", "gate"].map(|name| graph.linear(x, name, hidden, false));
                graph.apply(OperatorKind::Gated(Gate::Silu), &[gate, up], "y");
                let mesh = vec![(TP, 4)];
                let found = found_within(&graph, &mesh, 200);
                let least = cheapest(&graph, &mesh, &Nominal::new(&mesh).unwrap());
                let price = found.plan.price;
                assert!(
                    (price - least).abs() <= 1e-9 * least,
                    "{rows} {width} {hidden}: {price} is not {least}"
                );
            }
        }
    }
}

/// Blocks of rows and columns of the matrix of this name, as its operator takes it.
fn taken(found: &FoundGraph, name: &str) -> [usize; 2] {
    let graph = &found.plan.graph;
    let tensor = graph.tensors.iter().position(|t| *t.name == *name).expect("a matrix");
    let (o, i) = graph.takers(tensor).next().expect("it is taken");
    found.plan.splits[o].inputs[i].blocks(&found.plan.mesh)
}

/// Megatron-LM's split, which nobody states: heads for attention, columns then rows for the feed-forward,
/// the vocabulary for the head. With many tokens and small weights, the tokens are cut instead. Kills: a
/// search that has no such split.
#[test]
fn a_block_is_split_by_heads_by_columns_then_rows_and_by_vocabulary() {
    let heads = Heads::new(8, 8, 64);
    let shape = Shape { width: 512, hidden: 2048, vocabulary: 4096, heads, ..Shape::LLAMA };
    let found = found_within(&Graph::block(&shape, [1, 64], true), &vec![(TP, 8)], 50);
    for (name, blocks) in [
        ("attention.q", [1, 8]),
        ("attention.v", [1, 8]),
        ("attention.o", [8, 1]),
        ("mlp.up", [1, 8]),
        ("mlp.gate", [1, 8]),
        ("mlp.down", [8, 1]),
        ("head", [1, 8]),
    ] {
        assert_eq!(taken(&found, name), blocks, "{name}");
    }
    let heads = Heads { dim: 8, ..heads };
    let small = Shape { width: 64, hidden: 64, vocabulary: 64, heads, ..shape };
    let found = found_within(&Graph::block(&small, [64, 64], true), &vec![(TP, 8)], 50);
    assert_eq!(["attention.q", "mlp.up", "head"].map(|name| taken(&found, name)), [[1, 1]; 3]);
}

/// Each row: from blocks [2,4] on eight ranks, the first axis cutting rows. Bytes are those that a rank sends
/// of 64 elements of its own. Kills: a step at another's price, an all-gather where an all-to-all is enough.
#[test]
fn steps_between_blocks_send_what_is_worked_out_by_hand() {
    let mesh = vec![(DP, 2), (CP, 2), (TP, 2)];
    let prices = Nominal::new(&mesh).unwrap();
    let graph = Graph::default();
    let kept = GraphPrices::new(&graph, &mesh, &prices);
    let from = Sharding::new(&[DP], &[CP, TP]);
    let step = |change, dim, axes: &[Axis]| ShardingStep { change, dim, axes: axes.to_vec() };
    let rows = [
        (Sharding::new(&[DP, CP, TP], &[]), step(Change::Exchange, 0, &[CP, TP]), [64, 4 * 64 * 3 / 4]),
        (Sharding::new(&[DP, TP], &[CP]), step(Change::Exchange, 0, &[TP]), [64, 4 * 64 / 2]),
        (Sharding::new(&[], &[CP, TP, DP]), step(Change::Exchange, 1, &[DP]), [64, 4 * 64 / 2]),
        (Sharding::new(&[DP], &[]), step(Change::Gather, 1, &[CP, TP]), [64, 4 * 64 * 3]),
    ];
    for (to, wanted, sent) in rows {
        let (_, way) = from.way(&to, &mut |at, step| kept.step([16, 32], at, step));
        assert_eq!(way, std::slice::from_ref(&wanted), "to {to}");
        assert_eq!(kept.traffic([16, 32], &from, &wanted), sent, "to {to}");
    }
    assert_eq!(from.way(&from, &mut |_, _| 1.0), (0.0, vec![]));
}

/// A product's partial sums of 16 x 32, whose columns another axis cuts, become rows of whole sums: first a
/// reduce-scatter of 256 elements, of which a rank sends half; then an all-gather of the 128 that it has
/// left.
/// Kills: a second step that is counted on what the first one took.
#[test]
fn a_second_step_sends_what_the_first_one_left() {
    let (mut graph, mesh) = (Graph::default(), vec![(DP, 2), (TP, 2)]);
    let x = graph.add("x", [16, 8], TensorSource::Parameter);
    let y = graph.linear(x, "w", 32, false);
    graph.apply(OperatorKind::Value, &[y], "z");
    let [x, w] = [Sharding::new(&[], &[DP]), Sharding::new(&[DP], &[TP])];
    let output = OperatorKind::Product.result(&[&x, &w]).unwrap();
    let rows = Sharding::new(&[DP], &[]);
    let splits = vec![
        OperatorSplit { inputs: vec![x, w], output },
        OperatorSplit { inputs: vec![rows.clone()], output: rows },
    ];
    let prices = Nominal::new(&mesh).unwrap();
    let lines = PlannedGraph::new(&graph, &mesh, splits, &prices).lines(&prices);
    let steps = lines
        .iter()
        .filter(|line| line.phase == "forward")
        .filter_map(|line| Some((line.step.as_deref()?, line.elements, line.bytes)));
    let wanted = [
        ("reduce-scatter of rows over dp", 256, 4 * 256 / 2),
        ("all-gather of columns over tp", 128, 4 * 128),
    ];
    assert_eq!(steps.collect::<Vec<_>>(), wanted);
}

/// Kills: a partial sum that an element-wise function, a norm or a product takes as whole; a contracted
/// dimension that is cut in one factor alone; an axis that cuts twice.
#[test]
fn operators_refuse_what_they_cannot_take() {
    let whole = Sharding::WHOLE;
    let summed = whole.summed(TP.into());
    let [rows, columns] = [Sharding::new(&[TP], &[]), Sharding::new(&[], &[TP])];
    let refuses = |kind: OperatorKind, inputs: &[&Sharding]| kind.result(inputs).is_err();
    for kind in [OperatorKind::Activation(Activation::Relu), OperatorKind::Value, OperatorKind::Loss] {
        assert!(refuses(kind, &[&summed]) && !refuses(kind, &[&rows]), "{kind:?}");
    }
    assert!(
        refuses(OperatorKind::Bias, &[&summed, &whole]) && refuses(OperatorKind::Bias, &[&columns, &whole])
    );
    assert!(
        refuses(OperatorKind::Gated(Gate::Silu), &[&columns, &rows])
            && refuses(OperatorKind::Sum, &[&summed, &whole])
    );
    assert!(refuses(OperatorKind::Norm { eps: 0.0 }, &[&columns, &whole]));
    assert!(
        refuses(OperatorKind::Product, &[&columns, &whole])
            && refuses(OperatorKind::Product, &[&rows, &columns])
    );
    assert!(refuses(OperatorKind::Product, &[&whole, &summed]));
    assert_eq!(OperatorKind::Product.result(&[&columns, &rows]).unwrap(), summed);
    assert_eq!(OperatorKind::Sum.result(&[&summed, &summed]).unwrap(), summed);
}

/// Kills: a fixed plan.
#[test]
fn classifiers_are_split_as_their_sizes_say() {
    let wide = found_within(&Graph::classifier(64, &[784, 512, 512, 10]), &vec![(TP, 2)], 0);
    let layers = |found: &_| ["layers.0", "layers.1", "layers.2"].map(|name| taken(found, name));
    assert_eq!(layers(&wide), [[1, 2], [2, 1], [2, 1]]);
    let many = found_within(&Graph::classifier(16384, &[784, 32, 32, 10]), &vec![(TP, 2)], 0);
    assert_eq!(layers(&many), [[1, 1]; 3]);
}
