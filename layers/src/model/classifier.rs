//! A classifier: linear layers with `ReLU` between them, and a loss on sharded logits.
//! Letters: `B` examples, `F` features, `C` classes; `_t` this rank's local part.
//!
//! ```text
//! odd       column row | column row | … | column          a bar: activations that every rank has whole
//! even      gathered column | column row | … | column
//! gathered  Y[B,F] = all ranks' columns of X·W_t + b_t           all-gather, B·F/ranks elements
//! pair      Y[B,F] = Σ_t relu(X·W_t + b_t)·W_t + b               all-reduce, B·F elements
//! last      Z[B,C_t] = X·W_t + b_t; the loss as in `head.rs`     all-reduce, 3·B elements
//! backward  dX of each column layer but the model's first        all-reduce, B·(features of X) elements
//! ```
//!
//! Two layers cost one all-reduce each way. A layout cuts stages at the bars; on one rank, after any layer.
//!
//! Source: Shoeybi et al., Megatron-LM, §3, arXiv:1909.08053. Chapter: columns and rows.
use crate::build::part::{Block, BoxedLayer};
use crate::build::strategy::{Column, Row};
use crate::build::{positive, strategy};
use crate::model::chunk::build::at_ends;
use crate::{Builder, Chunk, FeedForward, InputHalf, Layer, Objective, Params};
use comm::{Axis, Group};
use kernels::{Activation, Activation::Relu, Kernels};
use ops::{KeptValue, PassContext, Region, Result, Split, Stream, activate_stream, activate_stream_backward};
use std::iter::successors;
use std::ops::Range;
use std::sync::Arc;

/// Builds the layers between two bars: layer `first` of these `sizes` with its columns gathered, or `first`
/// and the next one, a pair; a `ReLU` after each layer. Parameters `layers.0[I,O]`, `layers.0.bias[1,O]`, ….
///
/// # Errors
/// If the ranks do not divide a size that they must divide.
pub fn hidden<D: Kernels>(at: &Builder<D>, axis: Axis, first: usize, sizes: &[usize]) -> Result<Block<D>> {
    let [name, next] = [first, first + 1].map(|layer| format!("layers.{layer}"));
    let sections = &[sizes[1].into()];
    let up = at.build(&Column { axis, name: &name, inputs: sizes[0], sections, bias: true })?;
    let Some(&outputs) = sizes.get(2) else {
        return Ok(BoxedLayer::new(((up, GatherColumns::new(at, axis, name)), Relu)));
    };
    let down = at.build(&Row { axis, name: &next, sizes: [sizes[1], outputs], bias: true })?;
    Ok(BoxedLayer::new(((up, (FeedForward::Plain(Relu), down)), Relu)))
}

/// Gathers all ranks' columns into a stream.
pub struct GatherColumns<D: Kernels> {
    group: Group<D::Place>,
    region: Region, // of the result
}

impl<D: Kernels> GatherColumns<D> {
    /// Gathers over the ranks of an axis, into the builder's region; `name` labels the calls.
    pub fn new(at: &Builder<D>, axis: Axis, name: impl Into<Arc<str>>) -> Self {
        Self { group: at.mesh.group(axis).named(name), region: at.region }
    }
}

impl<D: Kernels> Layer<D> for GatherColumns<D> {
    type In = Split<D>;
    type Out = Stream<D>;
    type Saved = ();
    type Pending = ();

    fn forward(&self, _: &PassContext<D>, x: Split<D>) -> Result<(Stream<D>, ())> {
        Ok((Stream::cut(&x.all_gather(&self.group)?, self.region), ()))
    }

    fn backward_input(&mut self, _: &PassContext<D>, (): (), dy: Stream<D>) -> InputHalf<D, Self> {
        Ok((Split::cut(&dy.gather(&self.group)?, &self.group)?, ()))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, _: &mut Params<'a, D>) {}
}

impl<D: Kernels> Layer<D> for Activation {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = KeptValue<Stream<D>>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        Ok((activate_stream(&x, *self), cx.keep(x)))
    }

    fn backward_input(&mut self, _: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> InputHalf<D, Self> {
        Ok((activate_stream_backward(&x.open(), &dy, *self), ()))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, _: &mut Params<'a, D>) {}
}

impl<D: Kernels> Chunk<D> {
    /// Builds these runs of a classifier's layers; `sizes` are the features of the input and of each layer
    /// between, and the number of classes. Examples enter whole on every rank. A strategy may replace all
    /// layers, if one rank has them all.
    ///
    /// The last layer is split by classes, and a run's layers before it form pairs, from the last one back.
    /// If one is left over, its columns are gathered; the model's first layer needs no dX, so it costs only
    /// this all-gather. Only features between the two layers of a pair, or gathered, must be divisible by the
    /// number of ranks.
    ///
    /// # Errors
    /// If there is no layer, a size is 0, or the ranks do not divide a size that they must divide.
    pub fn classifier(at: &Builder<D>, sizes: &[usize], runs: &[Range<usize>]) -> Result<Self> {
        let layers = sizes.len().saturating_sub(1);
        positive("the number of layers", layers)?;
        for (i, &size) in sizes.iter().enumerate() {
            positive(&format!("size {i} of the classifier"), size)?;
        }
        for strategy in &at.strategies {
            if let Some(all) = strategy.classifier(at, sizes)? {
                let end = Some(("layers", all));
                return Ok(Self::new(at, (None, Some(Region::Whole)), vec![Vec::new()], end, false));
            }
        }
        // Examples are whole on every rank, under sequence parallelism too. So is a gathered output, unless
        // it is passed to another stage of a pipeline.
        let everywhere = Builder { region: Region::Whole, ..at.clone() };
        let last = layers - 1;
        let blocks = |run: &Range<usize>| {
            let end = run.end.min(last);
            let next = |from: usize| from + 2 - (end - from) % 2;
            let between = |from: usize| {
                let gathered = next(from) == from + 1 && next(from) < run.end;
                let at = if gathered { &everywhere } else { at };
                hidden(at, Axis::Tp, from, &sizes[from..=next(from)])
            };
            let firsts = successors(Some(run.start), |from| Some(next(*from)));
            firsts.take_while(|from| *from < end).map(between).collect()
        };
        let blocks = runs.iter().map(blocks).collect::<Result<_>>()?;
        let [at_start, at_end] = at_ends(runs, layers);
        let (axis, name, objective) = (Axis::Tp, &*format!("layers.{last}"), Objective::default());
        let sizes = [sizes[last], sizes[layers]];
        let head =
            strategy::Head { axis, name, sizes, norm: None, tied: false, bias: true, objective, cap: None };
        let end = at_end.then(|| at.build(&head)).transpose()?.map(|end| (name, end));
        Ok(Self::new(at, (None, at_start.then_some(Region::Whole)), blocks, end, false))
    }
}

#[cfg(test)]
mod tests;
