//! One training step of a planned graph, with all that a proof compares.
use crate::graph::TensorSource;
use crate::graph::planned::PlannedGraph;
use crate::graph::sharded::Sharded;
use crate::graph::split::{Given, GraphSaved, SplitGraph};
use crate::{Builder, Params};
use kernels::{Kernels, LossTerms, MeanOver};
use ops::{Error, Keeper, Optimizer, Param, Result, SGD};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::{Category, Tensor, TokenIds};

/// Whole matrices by name.
pub type NamedValues<E> = BTreeMap<String, Vec<E>>;

/// A planned graph on a rank, with its input, its targets, or the gradient of its result.
pub struct GraphStep<'a, D: Kernels> {
    at: &'a Builder<'a, D>,
    split: SplitGraph<D>,
    input: Option<Tensor<D>>,
    targets: Option<(TokenIds<D::Place>, LossTerms)>,
    dy: Option<Tensor<D>>,
}

impl<'a, D: Kernels> GraphStep<'a, D> {
    /// Builds this rank's part. `number` gives an element of a matrix of this number: of the input, and of
    /// the gradient of a result that is no loss. Targets are drawn.
    ///
    /// # Errors
    /// If the parameters cannot be built.
    pub fn build(
        at: &'a Builder<'a, D>,
        plan: &Arc<PlannedGraph>,
        number: &dyn Fn(usize, usize) -> D::Elem,
    ) -> Result<Self> {
        let graph = &plan.graph;
        let matrix = |t: usize| {
            let [rows, columns] = graph.tensors[t].shape;
            Tensor::from_fn(at.device, Category::Activations, rows, columns, |i| number(t, i))
        };
        let input = graph.tensors.iter().position(|t| matches!(t.source, TensorSource::Input { .. }));
        let result = graph.result();
        let logits = graph.logits().map(|t| graph.tensors[t].shape);
        let targets = |[rows, vocabulary]: [usize; 2]| {
            let ids = target_ids(rows, vocabulary);
            let ids = TokenIds::new(at.device.place(), &ids, vocabulary);
            let terms =
                LossTerms { mean_over: MeanOver::of(rows), smoothing: 0.0, z: 0.0, vocabulary, cap: None };
            ids.map(|ids| (ids, terms)).map_err(|why| Error::Cannot(why.to_string()))
        };
        Ok(Self {
            at,
            split: SplitGraph::build(at, plan)?,
            input: input.map(matrix),
            targets: logits.map(targets).transpose()?,
            dy: logits.is_none().then(|| matrix(result)),
        })
    }
    fn forward(&self) -> Result<(Given<D>, GraphSaved<D>)> {
        self.split.forward(self.input.clone(), self.targets.as_ref().map(|(ids, terms)| (ids, *terms)))
    }
    /// Runs forward, backward, and the sums of gradients.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn run(&mut self) -> Result<()> {
        let (_, saved) = self.forward()?;
        self.split.backward(saved, self.dy.clone())?;
        let mut params = Params::new();
        self.split.params(&mut params);
        params.into_iter().try_for_each(Param::sync)
    }
    /// Runs a step of plain gradient descent at rate 1. Returns the parameters before it; and the result, the
    /// gradients and the new parameters.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn trace(&mut self) -> Result<[NamedValues<D::Elem>; 2]>
    where
        D: Kernels<Wide = D>,
    {
        let mesh = self.at.mesh;
        let [mut start, mut seen] = [NamedValues::new(), NamedValues::new()];
        let mut params = Params::new();
        self.split.params(&mut params);
        for param in &params {
            start.insert(param.name().to_string(), param.gather(mesh)?.unwrap_or_default());
        }
        drop(params);
        let (given, saved) = self.forward()?;
        let y = match given {
            Given::Loss(loss) => loss.read(),
            Given::Matrix(y) => Sharded::gathered(y, self.split.place())?.read(),
        };
        seen.insert("the result".into(), y.unwrap_or_default());
        if let Some(dx) = self.split.backward(saved, self.dy.clone())? {
            seen.insert("the gradient of the input".into(), dx.read().unwrap_or_default());
        }
        let mut params = Params::new();
        self.split.params(&mut params);
        for param in &mut params {
            param.sync()?;
            let gradient = param.gather_gradient(mesh)?.unwrap_or_default();
            seen.insert(format!("the gradient of {}", param.name()), gradient);
        }
        Optimizer::new(SGD, None).step(&mut params, mesh, 1.0, &mut Keeper::default())?;
        for param in &params {
            seen.insert(format!("the new {}", param.name()), param.gather(mesh)?.unwrap_or_default());
        }
        Ok([start, seen])
    }
}

/// Targets of rows of logits.
pub fn target_ids(rows: usize, vocabulary: usize) -> Vec<u32> {
    (0..rows as u64).map(|row| (tensor::mix(row) % vocabulary as u64) as u32).collect()
}
