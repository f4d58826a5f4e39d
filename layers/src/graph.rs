//! Graphs of operators on named matrices, and their splits over the axes of a mesh.
//!
//! ```text
//! product     Y[R,C] = X[R,K] · W[K,C]       axes may cut R, K and C; those of K have partial sums of Y
//! bias, sum, activation   axes may cut rows and columns; only a sum takes partial sums
//! norm                                       axes may cut rows
//! attention   causal softmax of Q, K and V   axes may cut sequences and heads
//! loss        softmax and cross-entropy      axes may cut rows and columns
//! ```
//! An axis that cuts neither dimension of an input, but another dimension of the operator, has partial sums
//! of this input's gradient. This one rule gives all backward splits.
//!
//! Source: Jia et al., "Beyond data and model parallelism for deep neural networks", §4, arXiv:1807.05358;
//! Lepikhin et al., "`GShard`", §3.3, arXiv:2006.16668. Chapter: found shardings.
pub mod end;
pub mod lines;
pub mod operate;
pub mod planned;
pub mod prices;
pub mod search;
pub mod sharded;
pub mod sharding;
pub mod split;
pub mod step;

use crate::graph::sharding::{MeshSizes, Sharding, dealt};
use crate::{BlockShape, FeedForward, Shape};
use comm::{Axes, Axis};
use kernels::{Activation, Gate, Heads};
use ops::{Error, Result};
use sharding::size;
use std::sync::Arc;

/// A graph of operators, in an order in which each comes after those whose results it takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// All matrices.
    pub tensors: Vec<GraphTensor>,
    /// All operators.
    pub operators: Vec<Operator>,
}

/// A matrix of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphTensor {
    /// Its name.
    pub name: Arc<str>,
    /// `[rows, columns]`.
    pub shape: [usize; 2],
    /// Its source.
    pub source: TensorSource,
}

/// Source of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorSource {
    /// A parameter: each rank has what the operators that take it need.
    Parameter,
    /// An input, whole on every rank; so is its gradient, if it is wanted.
    Input {
        /// True if its gradient is wanted.
        wanted: bool,
    },
    /// The result of an operator.
    Result,
}

/// An operator on matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// Its kind.
    pub kind: OperatorKind,
    /// The matrices that it takes, by number.
    pub inputs: Vec<usize>,
    /// The matrix that it gives.
    pub output: usize,
}

/// Kind of an operator: its function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OperatorKind {
    /// X·W.
    Product,
    /// X, and a row that is added to each of its rows.
    Bias,
    /// A + B.
    Sum,
    /// f(X), element by element.
    Activation(Activation),
    /// f(gate, up), element by element.
    Gated(Gate),
    /// `RMSNorm` of each row of X, times a row of gains.
    Norm {
        /// ε.
        eps: f64,
    },
    /// Causal attention of Q, K and V, by heads.
    Attention {
        /// All heads.
        heads: Heads,
        /// Tokens of a sequence.
        seq: usize,
    },
    /// Mean cross-entropy of the rows' softmax.
    Loss,
    /// X, of which no rank has a partial sum.
    Value,
}

/// Split of an operator: the shardings of what it takes and gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OperatorSplit {
    /// Shardings of its inputs.
    pub inputs: Vec<Sharding>,
    /// Sharding of its output.
    pub output: Sharding,
}

/// Use of the gradient of an operator's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientOf {
    /// None: nothing needs it.
    Nothing,
    /// The operator that gave the input, or the layer before the graph, needs it.
    Matrix,
    /// The input is a parameter.
    Param,
}

impl OperatorKind {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OperatorKind::Product => "product",
            OperatorKind::Bias => "bias",
            OperatorKind::Sum => "sum",
            OperatorKind::Activation(_) => "activation",
            OperatorKind::Gated(_) => "gated",
            OperatorKind::Norm { .. } => "norm",
            OperatorKind::Attention { .. } => "attention",
            OperatorKind::Loss => "loss",
            OperatorKind::Value => "value",
        }
    }
    /// Returns the sharding of the result of inputs with these shardings.
    ///
    /// # Errors
    /// If the function cannot take them: a partial sum is no value, a contracted dimension is cut alike in
    /// both factors, a norm needs whole rows.
    pub fn result(self, inputs: &[&Sharding]) -> Result<Sharding> {
        let x = inputs[0];
        let is_whole = inputs.iter().all(|input| input.partial.is_empty());
        let alike = |other: &Sharding| other.cuts == x.cuts && other.partial == x.partial;
        let fits = match self {
            OperatorKind::Product => {
                let [rows, columns] = [&x.cuts[0], &inputs[1].cuts[1]];
                let once = rows.iter().chain(&x.cuts[1]).chain(columns);
                is_whole
                    && x.cuts[1] == inputs[1].cuts[0]
                    && once.clone().copied().collect::<Axes>().iter().count() == once.count()
            }
            OperatorKind::Bias => is_whole && inputs[1].cuts == [vec![], x.cuts[1].clone()],
            OperatorKind::Sum => alike(inputs[1]),
            OperatorKind::Activation(_) | OperatorKind::Loss | OperatorKind::Value => is_whole,
            OperatorKind::Norm { .. } => {
                is_whole && x.cuts[1].is_empty() && inputs[1].cuts == Sharding::WHOLE.cuts
            }
            OperatorKind::Gated(_) | OperatorKind::Attention { .. } => {
                is_whole && inputs.iter().all(|input| alike(input))
            }
        };
        if !fits {
            let names: Vec<_> = inputs.iter().map(ToString::to_string).collect();
            return Err(Error::Cannot(format!("no {} takes shardings {}", self.name(), names.join(" and "))));
        }
        Ok(match self {
            OperatorKind::Product => Sharding {
                cuts: [x.cuts[0].clone(), inputs[1].cuts[1].clone()],
                partial: x.cuts[1].iter().copied().collect(),
            },
            OperatorKind::Loss => Sharding::WHOLE.summed(x.cuts[0].iter().copied().collect()),
            _ => x.clone(),
        })
    }
}

impl OperatorSplit {
    /// Returns the sharding of an input's gradient: axes that cut the operator and not this input have
    /// partial sums. A sum passes its gradient on.
    pub fn gradient(&self, input: usize) -> Sharding {
        let sharding = &self.inputs[input];
        let used = self.inputs.iter().flat_map(|input| input.cutting().iter().collect::<Vec<_>>());
        sharding.summed(used.filter(|&axis| !sharding.cutting().contains(axis)).collect())
    }
}

impl Graph {
    /// Adds a matrix. Returns its number.
    pub fn add(&mut self, name: &str, shape: [usize; 2], source: TensorSource) -> usize {
        self.tensors.push(GraphTensor { name: name.into(), shape, source });
        self.tensors.len() - 1
    }
    /// Adds an operator. Returns the number of its result, a matrix of this name.
    pub fn apply(&mut self, kind: OperatorKind, inputs: &[usize], name: &str) -> usize {
        let [rows, columns] = self.tensors[inputs[0]].shape;
        let shape = match kind {
            OperatorKind::Product => [rows, self.tensors[inputs[1]].shape[1]],
            OperatorKind::Attention { heads, .. } => [rows, heads.gathered()],
            OperatorKind::Loss => [1, 1],
            _ => [rows, columns],
        };
        let output = self.add(name, shape, TensorSource::Result);
        self.operators.push(Operator { kind, inputs: inputs.to_vec(), output });
        output
    }
    /// Adds a linear layer: parameters `name`, and `name.bias` if it has one. Returns the number of its
    /// result.
    pub fn linear(&mut self, x: usize, name: &str, outputs: usize, bias: bool) -> usize {
        let weight = self.add(name, [self.tensors[x].shape[1], outputs], TensorSource::Parameter);
        let y = self.apply(OperatorKind::Product, &[x, weight], &format!("{name}.out"));
        if !bias {
            return y;
        }
        let row = self.add(&format!("{name}.bias"), [1, outputs], TensorSource::Parameter);
        self.apply(OperatorKind::Bias, &[y, row], &format!("{name}.sum"))
    }
    /// The graph of a classifier, from its examples to its loss: layers `layers.0`, …, with `ReLU` between.
    pub fn classifier(rows: usize, sizes: &[usize]) -> Self {
        let mut graph = Self::default();
        let mut x = graph.add("x", [rows, sizes[0]], TensorSource::Input { wanted: false });
        for (i, &outputs) in sizes[1..].iter().enumerate() {
            x = graph.linear(x, &format!("layers.{i}"), outputs, true);
            if i + 2 < sizes.len() {
                let relu = OperatorKind::Activation(Activation::Relu);
                x = graph.apply(relu, &[x], &format!("layers.{i}.relu"));
            }
        }
        graph.apply(OperatorKind::Loss, &[x], "loss");
        graph
    }
    /// The graph of one block of a transformer, for sequences of `seq` tokens, from the stream to the stream;
    /// with the head and the loss after it, if they are wanted.
    pub fn block(shape: &Shape, [sequences, seq]: [usize; 2], head: bool) -> Self {
        let mut graph = Self::default();
        let BlockShape { width, hidden, heads, eps, feed_forward, .. } = shape.block(0);
        let stream = graph.add("x", [sequences * seq, width], TensorSource::Input { wanted: true });
        let norm = |graph: &mut Self, x: usize, name: &str| {
            let gain = graph.add(name, [1, width], TensorSource::Parameter);
            graph.apply(OperatorKind::Norm { eps }, &[x, gain], &format!("{name}.out"))
        };
        let n = norm(&mut graph, stream, "norm1");
        let columns = [heads.q(), heads.k(), heads.v()].map(|part| part.len());
        let names = ["attention.q", "attention.k", "attention.v"];
        let qkv: Vec<_> =
            names.iter().zip(columns).map(|(name, columns)| graph.linear(n, name, columns, false)).collect();
        let attended = graph.apply(OperatorKind::Attention { heads, seq }, &qkv, "attention");
        let y = graph.linear(attended, "attention.o", width, false);
        let stream = graph.apply(OperatorKind::Sum, &[y, stream], "stream");
        let n = norm(&mut graph, stream, "norm2");
        let up = graph.linear(n, "mlp.up", hidden, false);
        let h = match feed_forward {
            FeedForward::Plain(f) => graph.apply(OperatorKind::Activation(f), &[up], "mlp.hidden"),
            FeedForward::Gated(f) => {
                let gate = graph.linear(n, "mlp.gate", hidden, false);
                graph.apply(OperatorKind::Gated(f), &[gate, up], "mlp.hidden")
            }
        };
        let down = graph.linear(h, "mlp.down", width, false);
        let stream = graph.apply(OperatorKind::Sum, &[down, stream], "y");
        if head {
            let n = norm(&mut graph, stream, "norm");
            let logits = graph.linear(n, "head", shape.vocabulary, false);
            graph.apply(OperatorKind::Loss, &[logits], "loss");
        }
        graph
    }
    /// Returns every split of an operator over a mesh: each axis cuts one dimension, or none. Dimensions are
    /// cut into equal parts; rows, which may be examples of any number, into nearly equal ones.
    pub fn splits(&self, operator: usize, mesh: &MeshSizes) -> Vec<OperatorSplit> {
        let Operator { kind, inputs: taken, .. } = &self.operators[operator];
        let shapes: Vec<_> = taken.iter().map(|&input| self.tensors[input].shape).collect();
        let [rows, columns] = shapes[0];
        let units = match *kind {
            OperatorKind::Product => vec![rows, columns, shapes[1][1]],
            OperatorKind::Norm { .. } => vec![rows],
            OperatorKind::Attention { heads, seq } => vec![rows / seq, heads.keys],
            _ => vec![rows, columns],
        };
        let axes: Vec<_> = mesh.iter().map(|(axis, _)| *axis).collect();
        let blocks = |axes: &Vec<Axis>| axes.iter().map(|&axis| size(mesh, axis)).product::<usize>();
        let split = |bins: Vec<Vec<Axis>>| {
            let divides = bins.iter().zip(&units).all(|(axes, units)| units.is_multiple_of(blocks(axes)));
            let cut = |bin: usize| bins.get(bin).map_or(&[][..], |axes| &axes[..]);
            let x = Sharding::new(cut(0), cut(1));
            let inputs = match kind {
                OperatorKind::Product => vec![x, Sharding::new(cut(1), cut(2))],
                OperatorKind::Bias => vec![x, Sharding::new(&[], cut(1))],
                OperatorKind::Norm { .. } => vec![x, Sharding::WHOLE],
                _ => vec![x; taken.len()],
            };
            let output = kind.result(&inputs.iter().collect::<Vec<_>>()).ok()?;
            let alike = |i: usize, j: usize| taken[i] != taken[j] || inputs[i] == inputs[j];
            let divides = divides && (0..taken.len()).all(|i| (0..i).all(|j| alike(i, j)));
            divides.then_some(OperatorSplit { inputs, output })
        };
        let mut splits: Vec<_> = dealt(&axes, units.len()).into_iter().filter_map(split).collect();
        if *kind == OperatorKind::Sum {
            splits.extend(Self::partial_sums(&axes, &splits));
        }
        splits
    }
    /// Returns splits of a sum of partial sums, which is a partial sum itself.
    fn partial_sums(axes: &[Axis], whole: &[OperatorSplit]) -> Vec<OperatorSplit> {
        let sums = |split: &OperatorSplit| {
            let free: Vec<_> = axes.iter().filter(|&&axis| !split.output.cutting().contains(axis)).collect();
            let summed = |set: usize| {
                let partial = (0..free.len()).filter(|i| set >> i & 1 == 1).map(|i| *free[i]).collect();
                let inputs = split.inputs.iter().map(|input| input.summed(partial)).collect();
                OperatorSplit { inputs, output: split.output.summed(partial) }
            };
            (1..1usize << free.len()).map(summed).collect::<Vec<_>>()
        };
        whole.iter().flat_map(sums).collect()
    }
    /// Returns the uses of the gradients of an operator's inputs.
    pub(crate) fn wants(&self, operator: usize) -> Vec<GradientOf> {
        let want = |&input: &usize| match self.tensors[input].source {
            TensorSource::Parameter => GradientOf::Param,
            _ if self.is_wanted(input) => GradientOf::Matrix,
            _ => GradientOf::Nothing,
        };
        self.operators[operator].inputs.iter().map(want).collect()
    }
    /// Returns the operator that gives a matrix.
    pub fn giver(&self, tensor: usize) -> Option<usize> {
        self.operators.iter().position(|operator| operator.output == tensor)
    }
    /// Returns the operators that take a matrix, each with the input's place.
    pub fn takers(&self, tensor: usize) -> impl Iterator<Item = (usize, usize)> {
        let takers = move |(i, operator): (usize, &Operator)| {
            let places = operator.inputs.iter().enumerate();
            places.filter(|(_, input)| **input == tensor).map(|(place, _)| (i, place)).collect::<Vec<_>>()
        };
        self.operators.iter().enumerate().flat_map(takers)
    }
    /// Returns whether the gradient of an operator's input is summed after its backward: the input is a
    /// parameter, and no earlier operator takes it. The gradients of all takers are added up before that.
    pub(crate) fn is_summed(&self, (o, i): (usize, usize)) -> bool {
        let tensor = self.operators[o].inputs[i];
        let is_parameter = self.tensors[tensor].source == TensorSource::Parameter;
        is_parameter && self.takers(tensor).next() == Some((o, i))
    }
    /// Returns the matrix that no operator takes: the result of all.
    pub fn result(&self) -> usize {
        (0..self.tensors.len()).rfind(|&t| self.takers(t).next().is_none()).expect("a graph has a result")
    }
    /// Returns the matrix that the loss takes, if the graph ends in a loss.
    pub fn logits(&self) -> Option<usize> {
        self.operators.last().filter(|last| last.kind == OperatorKind::Loss).map(|loss| loss.inputs[0])
    }
    /// Returns whether the gradient of a matrix is wanted: of a parameter, or of what depends on one.
    pub fn is_wanted(&self, tensor: usize) -> bool {
        match self.tensors[tensor].source {
            TensorSource::Parameter => true,
            TensorSource::Input { wanted } => wanted,
            TensorSource::Result => {
                let giver = self.giver(tensor).expect("a result has an operator");
                self.operators[giver].inputs.iter().any(|&input| self.is_wanted(input))
            }
        }
    }
}

#[cfg(test)]
mod tests;
