//! A classifier: linear layers with `ReLU` between them, and a loss that never sees all logits in one place.
//!
//! Letters: `B` examples, `F` features, `C` classes; `_t` this rank's share.
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
//! Two layers cost one all-reduce each way. From the last layer back, its classes split, pairs leave over one layer
//! where their number is even: the first, whose dX nobody wants, so that it costs its gathering alone. Only features
//! between the two layers of a pair, or gathered, must be divided by the ranks. A pipeline is cut at the bars.
//!
//! Source: Shoeybi et al., Megatron-LM, §3, arXiv:1909.08053. Chapter: 3. Compare: `mlp.rs`, one pair.
use crate::model::build::positive;
use crate::model::chunk::build::at_ends;
use crate::model::design::{parts, start};
use crate::model::part::{Part, Ticket};
use crate::model::strategy::{self, Column, Row};
use crate::ops::{
    Region, Split, Stream, activate, activate_backward, activate_stream, activate_stream_backward,
};
use crate::{Builder, Chunk, Cx, Kept, Layer, Objective, Params, Result};
use comm::{Axis, Group};
use kernels::{Activation::Relu, Kernels};
use std::ops::Range;

/// What stands between two bars: a pair of layers, or one whose columns are gathered; a `ReLU` behind each.
pub struct Hidden<D: Kernels> {
    up: Part<D, Stream<D>, Split<D>>,
    down: Option<Part<D, Split<D>, Stream<D>>>,
    group: Group<D::Place>,
    region: Region, // of what is gathered
}

/// What a pair keeps: before the `ReLU` between the two, and behind it.
type Pair<D> = (Kept<Split<D>>, Ticket);
/// What the row layer's weight half needs, if there is one.
type Rows = Option<Ticket>;

/// What backward needs.
pub struct Saved<D: Kernels> {
    x: Ticket,
    pair: Option<Pair<D>>,
    y: Kept<Stream<D>>, // before the last ReLU
}

impl<D: Kernels> Hidden<D> {
    /// Layer `first`, or `first` and the next one, of these `sizes`: parameters `layers.0[I,O]`, `layers.0.bias[1,O]`, ….
    ///
    /// # Errors
    /// If the ranks do not divide what they should share.
    pub fn shard(at: &Builder<D>, axis: Axis, first: usize, sizes: &[usize]) -> Result<Self> {
        let (name, next) = (format!("layers.{first}"), format!("layers.{}", first + 1));
        let sections = &[sizes[1].into()];
        let up = at.build(&Column { axis, name: &name, inputs: sizes[0], sections, bias: true })?;
        let row =
            |&outputs: &usize| at.build(&Row { axis, name: &next, sizes: [sizes[1], outputs], bias: true });
        let (down, group) = (sizes.get(2).map(row).transpose()?, at.mesh.group(axis).named(name));
        Ok(Self { up, down, group, region: at.region })
    }
    /// The gradient in front of the first `ReLU`, and what the row layer's weight half needs.
    fn back_to_columns(
        &mut self,
        cx: &Cx<D>,
        (pair, y): (Option<Pair<D>>, Kept<Stream<D>>),
        dy: &Stream<D>,
    ) -> Result<(Split<D>, Rows)> {
        let dy = activate_stream_backward(&y.open(), dy, Relu);
        let (Some(down), Some((u, h))) = (&mut self.down, pair) else {
            return Ok((Split::cut(&dy.gather(&self.group)?, &self.group)?, None));
        };
        let (dh, pending) = down.backward_input(cx, h, dy)?;
        Ok((activate_backward(&u.open(), &dh, Relu), Some(pending)))
    }
}

impl<D: Kernels> Layer<D> for Hidden<D> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = Saved<D>;
    type Pending = (Ticket, Rows);

    fn forward(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Saved<D>)> {
        let (u, x) = self.up.forward(cx, x)?;
        let (y, pair) = match &self.down {
            Some(down) => {
                let (y, h) = down.forward(cx, activate(&u, Relu))?;
                (y, Some((cx.keep(u), h)))
            }
            None => (Stream::cut(&u.all_gather(&self.group)?, self.region), None),
        };
        Ok((activate_stream(&y, Relu), Saved { x, pair, y: cx.keep(y) }))
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        s: Saved<D>,
        dy: Stream<D>,
    ) -> Result<(Stream<D>, Self::Pending)> {
        let (du, down) = self.back_to_columns(cx, (s.pair, s.y), &dy)?;
        let (dx, up) = self.up.backward_input(cx, s.x, du)?;
        Ok((dx, (up, down)))
    }

    fn backward_first(&mut self, cx: &Cx<D>, s: Saved<D>, dy: Stream<D>) -> Result<Self::Pending> {
        let (du, down) = self.back_to_columns(cx, (s.pair, s.y), &dy)?;
        Ok((self.up.backward_first(cx, s.x, du)?, down))
    }

    fn backward_weight(&mut self, cx: &Cx<D>, (up, pending): Self::Pending) -> Result<()> {
        self.up.backward_weight(cx, up)?;
        let both = self.down.as_mut().zip(pending);
        both.map_or(Ok(()), |(down, pending)| down.backward_weight(cx, pending))
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.up.params(into);
        self.down.iter_mut().for_each(|down| down.params(into));
    }
}

impl<D: Kernels> Chunk<D> {
    /// These runs of parts, between bars, of a classifier; `sizes` are the features of the input, of each layer between, and the
    /// classes. Examples enter whole on every rank.
    ///
    /// # Errors
    /// If there is no layer, a size is 0, or the ranks do not divide what they should share.
    pub fn classifier(at: &Builder<D>, sizes: &[usize], runs: &[Range<usize>]) -> Result<Self> {
        let layers = sizes.len().saturating_sub(1);
        positive("the number of layers", layers)?;
        for (i, &size) in sizes.iter().enumerate() {
            positive(&format!("size {i} of the classifier"), size)?;
        }
        // Examples are whole on every rank, under sequence parallelism too, and so is what comes of them by gathering, unless another
        // stage of a pipeline goes on with it.
        let (strategies, built) = (at.strategies.clone(), at.built.clone());
        let everywhere = Builder { region: Region::Whole, strategies, built, ..*at };
        let (all, last) = (self::parts(sizes), layers - 1);
        let hidden = |run: &Range<usize>, part| {
            let (first, next) = (start(sizes, part), start(sizes, part + 1));
            let gathered = next == first + 1 && run.end > 1;
            Hidden::shard(if gathered { &everywhere } else { at }, Axis::Tp, first, &sizes[first..=next])
                .map(Part::new)
        };
        let blocks =
            |run: &Range<usize>| (run.start..run.end.min(all - 1)).map(|part| hidden(run, part)).collect();
        let blocks = runs.iter().map(blocks).collect::<Result<_>>()?;
        let [at_start, at_end] = at_ends(runs, all);
        let (axis, name, objective) = (Axis::Tp, &*format!("layers.{last}"), Objective::default());
        let sizes = [sizes[last], sizes[layers]];
        let head = strategy::Head { axis, name, sizes, norm: None, tied: false, bias: true, objective };
        let end = at_end.then(|| at.build(&head)).transpose()?.map(|end| (name, end));
        let rows = at_start.then_some(Region::Whole);
        Ok(Self::new(at, (None, rows), blocks, end, false))
    }
}

#[cfg(test)]
mod tests;
