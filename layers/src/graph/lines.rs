//! A planned graph in words: its equations on blocks, and the collectives between them with their traffic.
use crate::graph::planned::{PlannedGraph, given, returns};
use crate::graph::prices::{GraphPrices, Prices};
use crate::graph::sharding::{Sharding, ShardingStep};
use crate::graph::{GradientOf, OperatorKind};
use comm::Axis;
use serde::Serialize;

/// A line: an equation on blocks, or a step of one matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphLine {
    /// `forward`, `backward`, or `gradients` for sums of the gradients of parameters.
    pub phase: &'static str,
    /// The equation, with an index for each dimension that is cut; of a step, the matrix and its blocks
    /// before and after.
    pub equation: String,
    /// The step in words, none for an equation.
    pub step: Option<String>,
    /// Elements that a rank gives to the step's collective.
    pub elements: usize,
    /// Bytes that a rank sends, of 4 bytes an element.
    pub bytes: usize,
}

/// Names of the indices of rows, of a contracted dimension, and of columns, as far as they are cut.
fn indices(cut: [bool; 3]) -> [&'static str; 3] {
    let mut free = ["i", "j", "k"].into_iter();
    cut.map(|cut| if cut { free.next().unwrap_or_default() } else { "" })
}

/// A matrix with indices: `Y[i,j]`.
fn indexed(name: &str, of: [&str; 2]) -> String {
    let indices: Vec<_> = of.into_iter().filter(|index| !index.is_empty()).collect();
    if indices.is_empty() { name.to_string() } else { format!("{name}[{}]", indices.join(",")) }
}

impl PlannedGraph {
    /// Returns the plan in words.
    pub fn lines(&self, prices: &dyn Prices) -> Vec<GraphLine> {
        let kept = GraphPrices::new(&self.graph, &self.mesh, prices);
        let mut all = Vec::new();
        let equation = |phase, equation| GraphLine { phase, equation, step: None, elements: 0, bytes: 0 };
        let steps = |phase, name: String, tensor: usize, from: &Sharding, steps: &[ShardingStep]| {
            let mut current = from.clone();
            let mut lines = Vec::new();
            for step in steps {
                let [elements, bytes] = kept.traffic(self.graph.tensors[tensor].shape, &current, step);
                let next = current.after(step).expect("a step of the plan");
                let [before, after] = [&current, &next].map(|at| self.blocks(at));
                let change = if before == after { String::new() } else { format!(" to {after}") };
                let equation = format!("{name} {before}{change}");
                lines.push(GraphLine { phase, equation, step: Some(step.to_string()), elements, bytes });
                current = next;
            }
            lines
        };
        let name = |tensor: usize| &*self.graph.tensors[tensor].name;
        for (o, operator) in self.graph.operators.iter().enumerate() {
            for (i, &input) in operator.inputs.iter().enumerate() {
                let from = given(&self.graph, &self.splits, input, (o, i));
                all.extend(steps("forward", name(input).into(), input, &from, &self.forward[o][i]));
            }
            if operator.kind != OperatorKind::Value {
                all.push(equation("forward", self.equation(o)));
            }
        }
        let gradient = |tensor: usize| format!("d{}", name(tensor));
        let mut sums = Vec::new();
        for (o, operator) in self.graph.operators.iter().enumerate().rev() {
            for (i, want) in self.graph.wants(o).into_iter().enumerate() {
                let input = operator.inputs[i];
                let from = self.splits[o].gradient(i);
                if want == GradientOf::Nothing {
                    continue;
                }
                if operator.kind == OperatorKind::Product {
                    all.push(equation("backward", self.gradient_equation(o, i)));
                }
                if returns(&self.graph, &self.splits, (o, i)) {
                    all.extend(steps("backward", gradient(input), input, &from, &self.backward[o][i]));
                }
                if self.graph.is_summed((o, i)) {
                    let price = &mut |at: &Sharding, step: &ShardingStep| {
                        kept.step(self.graph.tensors[input].shape, at, step)
                    };
                    let (_, way) = from.way(&self.splits[o].inputs[i], price);
                    sums.extend(steps("gradients", gradient(input), input, &from, &way));
                }
            }
        }
        all.extend(sums);
        all
    }
    /// Numbers of blocks of a sharding: `[2,4]`.
    pub fn blocks(&self, at: &Sharding) -> String {
        let [rows, columns] = at.blocks(&self.mesh);
        if at.partial.is_empty() {
            format!("[{rows},{columns}]")
        } else {
            format!("[{rows},{columns}] of partial sums")
        }
    }
    fn equation(&self, o: usize) -> String {
        let (operator, split) = (&self.graph.operators[o], &self.splits[o]);
        let name = |tensor: usize| &*self.graph.tensors[tensor].name;
        let x = &split.inputs[0];
        let is_cut = |axes: &[Axis]| !axes.is_empty();
        if operator.kind == OperatorKind::Product {
            let w = &split.inputs[1];
            let [i, j, k] = indices([is_cut(&x.cuts[0]), is_cut(&x.cuts[1]), is_cut(&w.cuts[1])]);
            let sum = if j.is_empty() { String::new() } else { format!("Σ{j} ") };
            let [x, w] =
                [indexed(name(operator.inputs[0]), [i, j]), indexed(name(operator.inputs[1]), [j, k])];
            return format!("{} = {sum}{x}·{w}", indexed(name(operator.output), [i, k]));
        }
        let [i, _, k] = indices([is_cut(&x.cuts[0]), false, is_cut(&x.cuts[1])]);
        let input = |(at, &tensor): (&Sharding, &usize)| {
            let mark = |dim: usize, index| if at.cuts[dim].is_empty() { "" } else { index };
            indexed(name(tensor), [mark(0, i), mark(1, k)])
        };
        let inputs: Vec<_> = split.inputs.iter().zip(&operator.inputs).map(input).collect();
        let output = match operator.kind {
            OperatorKind::Loss => name(operator.output).to_string(),
            _ => indexed(name(operator.output), [i, k]),
        };
        format!("{output} = {}({})", operator.kind.name(), inputs.join(", "))
    }
    /// The equation of the gradient of a product's factor.
    fn gradient_equation(&self, o: usize, factor: usize) -> String {
        let (operator, split) = (&self.graph.operators[o], &self.splits[o]);
        let name = |tensor: usize| &*self.graph.tensors[tensor].name;
        let is_cut = |axes: &[Axis]| !axes.is_empty();
        let [x, w] = [&split.inputs[0], &split.inputs[1]];
        let [i, j, k] = indices([is_cut(&x.cuts[0]), is_cut(&x.cuts[1]), is_cut(&w.cuts[1])]);
        let summed = if factor == 0 { k } else { i };
        let sum = if summed.is_empty() { String::new() } else { format!("Σ{summed} ") };
        let dy = indexed(&format!("d{}", name(operator.output)), [i, k]);
        let [x, w] = [(0, [i, j]), (1, [j, k])].map(|(n, of)| (name(operator.inputs[n]), of));
        if factor == 0 {
            format!("{} = {sum}{dy}·{}ᵀ", indexed(&format!("d{}", x.0), x.1), indexed(w.0, w.1))
        } else {
            format!("{} = {sum}{}ᵀ·{dy}", indexed(&format!("d{}", w.0), w.1), indexed(x.0, x.1))
        }
    }
}
