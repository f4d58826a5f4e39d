//! A rank's part of a planned graph: its parameters, forward and backward.
use crate::graph::operate::{LossSaved, OperatorSaved, loss, loss_back, operate, operate_back};
use crate::graph::planned::PlannedGraph;
use crate::graph::sharded::{MeshPlace, Sharded};
use crate::graph::sharding::ShardingStep;
use crate::graph::{OperatorKind, TensorSource};
use crate::{Builder, Params};
use comm::Axes;
use kernels::{Kernels, LossTerms};
use ops::handles::weight::BIAS;
use ops::{Draw, Error, Param, Placed, Result};
use std::sync::Arc;
use tensor::{Tensor, TokenIds};

/// A rank's part of a planned graph.
pub struct SplitGraph<D: Kernels> {
    plan: Arc<PlannedGraph>,
    params: Vec<Option<Param<D>>>, // by tensor
    on: MeshPlace<D::Place>,
}

/// Values that the backward of a graph needs.
pub struct GraphSaved<D: Kernels> {
    operators: Vec<Option<OperatorSaved<D>>>,
    loss: Option<(LossSaved<D>, LossTerms)>,
}

/// Gradients of one matrix, of different shardings, each with its steps to that of the matrix.
type Gradients<D> = Vec<(Sharded<D>, Vec<ShardingStep>)>;

/// Result of a graph.
pub enum Given<D: Kernels> {
    /// The loss of all rows, on every rank.
    Loss(Tensor<D::Wide>),
    /// The result, or the logits, which a loss would take.
    Matrix(Sharded<D>),
}

impl<D: Kernels> SplitGraph<D> {
    /// Builds this rank's parameters, where the plan puts them.
    ///
    /// # Errors
    /// If the ranks do not divide a parameter, or its values are missing.
    pub fn build(at: &Builder<D>, plan: &Arc<PlannedGraph>) -> Result<Self> {
        let mut params = Vec::new();
        for (t, tensor) in plan.graph.tensors.iter().enumerate() {
            let taker = plan.graph.takers(t).next().filter(|_| tensor.source == TensorSource::Parameter);
            let Some((o, i)) = taker else {
                params.push(None);
                continue;
            };
            let gradient = plan.splits[o].gradient(i);
            let mut placement = at.placement();
            for (axis, _) in &plan.mesh {
                let placed =
                    if gradient.partial.contains(*axis) { Placed::Partial } else { Placed::Replicate };
                placement = placement.on(*axis, placed);
            }
            for (dim, axes) in plan.splits[o].inputs[i].cuts.iter().enumerate() {
                for axis in axes {
                    let sections = vec![tensor.shape[dim].into()];
                    placement = placement.on(*axis, Placed::Shard { dim, sections });
                }
            }
            let draw = match plan.graph.operators[o].kind {
                OperatorKind::Bias => BIAS,
                OperatorKind::Norm { .. } => Draw { mean: 1.0, std: 0.02 },
                _ => Draw { mean: 0.0, std: 1.0 / (tensor.shape[0] as f64).sqrt() },
            };
            params.push(Some(Param::new(at, tensor.name.clone(), tensor.shape, placement, draw)?));
        }
        Ok(Self { plan: plan.clone(), params, on: MeshPlace::new(at.mesh, &plan.mesh) })
    }
    /// This rank's place in the mesh.
    pub fn place(&self) -> &MeshPlace<D::Place> {
        &self.on
    }
    /// Runs the graph on an input that every rank has whole. A loss needs targets of all rows; without them
    /// the logits are the result.
    ///
    /// # Errors
    /// If an operator cannot take its inputs, or a collective fails.
    pub fn forward(
        &self,
        input: Option<Tensor<D>>,
        targets: Option<(&TokenIds<D::Place>, LossTerms)>,
    ) -> Result<(Given<D>, GraphSaved<D>)> {
        let plan = &*self.plan;
        let mut values: Vec<Option<Sharded<D>>> = plan.graph.tensors.iter().map(|_| None).collect();
        for (value, tensor) in values.iter_mut().zip(&plan.graph.tensors) {
            if let TensorSource::Input { .. } = tensor.source {
                *value = input.clone().map(Sharded::whole);
            }
        }
        let mut saved = GraphSaved { operators: Vec::new(), loss: None };
        let mut last = 0;
        for (o, operator) in plan.graph.operators.iter().enumerate() {
            let mut take = |(i, &input): (usize, &usize)| {
                if let Some(param) = &self.params[input] {
                    return Ok(Sharded::new(param.value(), param.shape(), plan.splits[o].inputs[i].clone()));
                }
                let is_last = plan.graph.takers(input).last() == Some((o, i));
                let value = if is_last { values[input].take() } else { values[input].clone() };
                let value = value.ok_or_else(|| Error::Cannot("the graph has no input".into()))?;
                value.steps(&self.on, &plan.forward[o][i])
            };
            if operator.kind == OperatorKind::Loss {
                let Some((targets, terms)) = targets else { break };
                let (sum, of_loss) = loss(take((0, &operator.inputs[0]))?, &self.on, (targets, &terms))?;
                saved.loss = Some((of_loss, terms));
                return Ok((Given::Loss(sum), saved));
            }
            let inputs = operator.inputs.iter().enumerate().map(take).collect::<Result<_>>()?;
            let (y, kept) = operate(operator.kind, inputs)?;
            values[operator.output] = Some(y);
            saved.operators.push(Some(kept));
            last = operator.output;
        }
        let y = values[last].take().ok_or_else(|| Error::Cannot("the graph has no operator".into()))?;
        Ok((Given::Matrix(y), saved))
    }
    /// Runs the backward: adds the gradients of parameters, and returns that of the input, whole on every
    /// rank, if it is wanted. `dy` is the gradient of the result, whole on every rank; a loss needs none.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn backward(&mut self, mut saved: GraphSaved<D>, dy: Option<Tensor<D>>) -> Result<Option<Tensor<D>>> {
        let plan = self.plan.clone();
        let mut gradients: Vec<Gradients<D>> = plan.graph.tensors.iter().map(|_| Vec::new()).collect();
        if let Some(dy) = dy {
            let result = plan.graph.result();
            let split = plan.graph.giver(result).map(|giver| &plan.splits[giver]);
            let target = split.expect("the result has a giver").output.summed(Axes::NONE);
            let dy = Sharded::whole(dy);
            let (_, steps) = dy.sharding().way(&target, &mut |_, _| 1.0);
            gradients[result].push((dy, steps));
        }
        for (o, operator) in plan.graph.operators.iter().enumerate().rev() {
            let of_inputs = if operator.kind == OperatorKind::Loss {
                let (kept, terms) = saved.loss.take().ok_or_else(|| Error::Cannot("no loss ran".into()))?;
                vec![Some(loss_back(kept, &self.on, &terms)?)]
            } else {
                let dy = self.summed(std::mem::take(&mut gradients[operator.output]))?;
                let kept = saved.operators[o].take();
                let (Some(dy), Some(kept)) = (dy, kept) else { continue };
                let split = (operator.kind, &plan.splits[o]);
                operate_back(split, kept, dy, &mut self.params, &operator.inputs, &plan.graph.wants(o))?
            };
            for (i, gradient) in of_inputs.into_iter().enumerate() {
                let Some(gradient) = gradient else { continue };
                let known = &mut gradients[operator.inputs[i]];
                match known.iter().position(|(other, _)| other.sharding() == gradient.sharding()) {
                    None => known.push((gradient, plan.backward[o][i].clone())),
                    Some(at) => {
                        let (sum, steps) = known.swap_remove(at);
                        known.push((sum.plus(&gradient)?, steps));
                    }
                }
            }
        }
        let input = plan.graph.tensors.iter().position(|t| matches!(t.source, TensorSource::Input { .. }));
        let dx = input.map(|input| self.summed(std::mem::take(&mut gradients[input]))).transpose()?;
        Ok(dx.flatten().map(Sharded::into_share))
    }
    /// Takes each gradient of a matrix to the sharding in which the matrix was given, and sums them.
    fn summed(&self, all: Gradients<D>) -> Result<Option<Sharded<D>>> {
        let add = |sum: Option<Sharded<D>>, (gradient, steps): (Sharded<D>, Vec<ShardingStep>)| {
            let gradient = gradient.steps(&self.on, &steps)?;
            sum.map_or(Ok(Some(gradient.clone())), |sum| sum.plus(&gradient).map(Some))
        };
        all.into_iter().try_fold(None, add)
    }
    /// Appends its parameters to `into`, in the order of the graph.
    pub fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.extend(self.params.iter_mut().flatten());
    }
}
