//! A graph evaluated on whole matrices by the independent reference.
use layers::graph::{Graph, Operator, OperatorKind};
use reference::{Mask, Tokens};
use shape::Objective;
use std::collections::BTreeMap;
use tensor::Scalar;

/// Values by number of the matrix.
pub(super) type Values<S> = BTreeMap<usize, Vec<S>>;

/// Joins rows of several matrices, of these numbers of columns.
fn joined<S: Scalar>(parts: &[(&[S], usize)]) -> Vec<S> {
    let rows = parts[0].0.len() / parts[0].1;
    (0..rows).flat_map(|r| parts.iter().flat_map(move |(x, n)| x[r * n..][..*n].to_vec())).collect()
}

/// Takes columns of a matrix of `width` columns.
fn columns<S: Scalar>(x: &[S], width: usize, from: usize, n: usize) -> Vec<S> {
    x.chunks(width).flat_map(|row| row[from..from + n].to_vec()).collect()
}

/// Returns the values of all matrices from those of inputs and parameters, and the gradients of all that the
/// result depends on; `dy` is that of the result, unless the graph ends in a loss.
pub(super) fn evaluate<S: Scalar>(
    graph: &Graph,
    mut values: Values<S>,
    targets: &[u32],
    dy: Option<Vec<S>>,
) -> (Values<S>, Values<S>) {
    for operator in &graph.operators {
        let y = forward(graph, operator, &values, targets);
        values.insert(operator.output, y);
    }
    let mut gradients: Values<S> = dy.map(|dy| (graph.result(), dy)).into_iter().collect();
    for operator in graph.operators.iter().rev() {
        let dy = gradients.get(&operator.output).cloned().unwrap_or_default();
        let of_inputs = backward(graph, operator, &values, (targets, dy));
        for (&input, gradient) in operator.inputs.iter().zip(of_inputs) {
            let sum = gradients.entry(input).or_insert_with(|| vec![S::ZERO; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        }
    }
    (values, gradients)
}

/// Sequences of equal length.
fn sequences(rows: usize, seq: usize) -> Tokens {
    Tokens::new(&vec![seq; rows / seq])
}

/// The result of an operator.
fn forward<S: Scalar>(graph: &Graph, of: &Operator, values: &Values<S>, targets: &[u32]) -> Vec<S> {
    let x = |i: usize| &values[&of.inputs[i]][..];
    let n = |i: usize| graph.tensors[of.inputs[i]].shape[1];
    match of.kind {
        OperatorKind::Product => reference::linear(x(0), x(1), [n(0), n(1)]),
        OperatorKind::Bias => {
            let mut y = x(0).to_vec();
            reference::add_bias(&mut y, x(1));
            y
        }
        OperatorKind::Value => x(0).to_vec(),
        OperatorKind::Sum => x(0).iter().zip(x(1)).map(|(&a, &b)| a + b).collect(),
        OperatorKind::Activation(f) => reference::activate(x(0), f),
        OperatorKind::Gated(f) => reference::gated(&joined(&[(x(0), n(0)), (x(1), n(1))]), n(0), f),
        OperatorKind::Norm { eps } => reference::rms_norm(x(0), x(1), eps),
        OperatorKind::Attention { heads, seq } => {
            let qkv = joined(&[(x(0), n(0)), (x(1), n(1)), (x(2), n(2))]);
            reference::attention(&qkv, heads, Mask::Causal, &sequences(x(0).len() / n(0), seq), None)
        }
        OperatorKind::Loss => {
            vec![reference::cross_entropy(x(0), targets, n(0), targets.len(), &Objective::default())]
        }
    }
}

/// The gradients of an operator's inputs.
fn backward<S: Scalar>(
    graph: &Graph,
    of: &Operator,
    values: &Values<S>,
    (targets, dy): (&[u32], Vec<S>),
) -> Vec<Vec<S>> {
    let x = |i: usize| &values[&of.inputs[i]][..];
    let n = |i: usize| graph.tensors[of.inputs[i]].shape[1];
    match of.kind {
        OperatorKind::Product => {
            let (dx, dw) = reference::linear_backward(x(0), x(1), &dy, [n(0), n(1)]);
            vec![dx, dw]
        }
        OperatorKind::Bias => vec![dy.clone(), reference::bias_gradient(&dy, n(0))],
        OperatorKind::Sum => vec![dy.clone(), dy],
        OperatorKind::Value => vec![dy],
        OperatorKind::Activation(f) => vec![reference::activate_backward(x(0), &dy, f)],
        OperatorKind::Gated(f) => {
            let d = reference::gated_backward(&joined(&[(x(0), n(0)), (x(1), n(1))]), &dy, n(0), f);
            [0, n(0)].map(|from| columns(&d, 2 * n(0), from, n(0))).to_vec()
        }
        OperatorKind::Norm { eps } => {
            let (dx, gain) = reference::rms_norm_backward(x(0), x(1), &dy, eps);
            vec![dx, gain]
        }
        OperatorKind::Attention { heads, seq } => {
            let qkv = joined(&[(x(0), n(0)), (x(1), n(1)), (x(2), n(2))]);
            let tokens = sequences(x(0).len() / n(0), seq);
            let d = reference::attention_backward(&qkv, &dy, heads, Mask::Causal, &tokens, None);
            let parts = [heads.q(), heads.k(), heads.v()];
            parts.map(|part| columns(&d, heads.row(), part.start, part.len())).to_vec()
        }
        OperatorKind::Loss => {
            vec![reference::cross_entropy_backward(x(0), targets, n(0), targets.len(), &Objective::default())]
        }
    }
}
