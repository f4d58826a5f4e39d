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
//! between the two layers of a pair, or gathered, must be divided by the ranks.
//!
//! Source: Shoeybi et al., Megatron-LM, §3, arXiv:1909.08053. Chapter: 3. Compare: `mlp.rs`, one pair.
use crate::model::build::positive;
use crate::model::part::{Of, Part};
use crate::model::strategy::{Column, Row};
use crate::ops::{
    Partial, Region, Split, Stream, activate, activate_backward, activate_stream, activate_stream_backward,
    cross_entropy_backward, split_cross_entropy,
};
use crate::{
    Builder, ColumnLinear, Cx, GatheredColumn, Kept, Layer, Param, Pieces, Result, RowLinear, Section,
};
use comm::{Axis, Group};
use kernels::{Activation::Relu, Kernels, LossTerms};
use tensor::{Ids, Tensor};

/// A multilayer perceptron that tells classes apart, its features split over the ranks of an axis. Any number of
/// microbatches may be in flight, told apart by their `Cx`, where each example is a sequence of one token.
pub struct Classifier<D: Kernels> {
    gathered: Option<GatheredColumn<D>>, // the first layer, where the number of layers is even
    pairs: Vec<Layers<D>>,
    last: Part<D, ColumnLinear<D>>, // W[F,C_t]
    classes: usize,
    group: Group<D::Place>,
    over: comm::Axes,
    saved: Vec<Saved<D>>,    // of the microbatches in flight
    room: Vec<Vec<Pair<D>>>, // for what pairs will keep: the lists of microbatches that are back
}

/// The two layers of a pair.
type Layers<D> = (Part<D, ColumnLinear<D>>, Part<D, RowLinear<D>>);

/// What backward needs of one microbatch.
struct Saved<D: Kernels> {
    microbatch: usize,
    inner: Inner<D>,
    logits: Split<D>,
    lse: Tensor<D::Wide>,
    labels: Ids<D::Place>,
}

/// What the layers keep.
struct Inner<D: Kernels> {
    gathered: Option<Gathered<D>>,
    pairs: Vec<Pair<D>>,
    last: Of<D, ColumnLinear<D>>,
}

/// What the first layer keeps: X; Y before its ReLU.
type Gathered<D> = (Of<D, ColumnLinear<D>>, Kept<Stream<D>>);

/// What a pair keeps.
struct Pair<D: Kernels> {
    x: Of<D, ColumnLinear<D>>,
    up: Kept<Split<D>>,          // before its ReLU
    hidden: Of<D, RowLinear<D>>, // behind it
    y: Kept<Stream<D>>,          // before its ReLU
}

impl<D: Kernels> Classifier<D> {
    /// Parameters `layers.0[I,O]`, `layers.0.bias[1,O]`, …; `sizes` are the features of the input, of each layer
    /// between, and the classes.
    ///
    /// # Errors
    /// If there is no layer, a size is 0, or the ranks do not divide what they should share.
    pub fn shard(at: &Builder<D>, axis: Axis, sizes: &[usize]) -> Result<Self> {
        let layers = sizes.len().saturating_sub(1);
        positive("the number of layers", layers)?;
        for (i, &size) in sizes.iter().enumerate() {
            positive(&format!("size {i} of the classifier"), size)?;
        }
        let name = |i: usize| format!("layers.{i}");
        let whole = layers.is_multiple_of(2);
        // Examples are whole on every rank, under sequence parallelism too, and so is what comes of them by gathering.
        let everywhere = Builder {
            region: Region::Whole,
            strategies: at.strategies.clone(),
            built: at.built.clone(),
            ..*at
        };
        let first = || GatheredColumn::shard(&everywhere, axis, &name(0), [sizes[0], sizes[1]], true);
        let column = |i: usize, sections: &[Section]| {
            at.column(&Column { axis, name: &name(i), inputs: sizes[i], sections, bias: true })
        };
        let pair = |i: usize| {
            let up = column(i, &[sizes[i + 1].into()])?;
            let sizes = [sizes[i + 1], sizes[i + 2]];
            Ok((up, at.row(&Row { axis, name: &name(i + 1), sizes, bias: true })?))
        };
        let (last, classes) = (layers - 1, sizes[layers]);
        let columns = [Section::new(classes, Pieces::Padded)];
        Ok(Self {
            gathered: whole.then(first).transpose()?,
            pairs: (usize::from(whole)..last).step_by(2).map(pair).collect::<Result<_>>()?,
            last: column(last, &columns)?,
            classes,
            group: at.mesh.group(axis).named("classes"),
            over: at.mesh.over(comm::Axes::LOSS)?.axis(),
            saved: Vec::new(),
            room: Vec::new(),
        })
    }
    /// Parameters, in program order.
    pub fn params(&mut self) -> Vec<&mut Param<D>> {
        let mut all = Vec::new();
        self.list(&mut all);
        all
    }
    /// Appends them to a list.
    pub fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        if let Some(first) = &mut self.gathered {
            first.params(all);
        }
        for (up, down) in &mut self.pairs {
            up.params(all);
            down.params(all);
        }
        self.last.params(all);
    }
    /// `X[B,F]`, whole on every rank, to this rank's logits, and what the layers keep: the pairs in the list given.
    fn through(&self, cx: &Cx<D>, x: Tensor<D>, mut pairs: Vec<Pair<D>>) -> Result<(Split<D>, Inner<D>)> {
        assert_eq!(cx.rows(), x.rows(), "a row for every example");
        let (mut x, mut gathered) = (Stream::from(x), None);
        if let Some(first) = &self.gathered {
            let (y, kept) = first.forward(cx, x)?;
            x = activate_stream(&y, Relu);
            gathered = Some((kept, cx.keep(y)));
        }
        for (up, down) in &self.pairs {
            let (u, kept) = up.forward(cx, x)?;
            let (y, hidden) = down.forward(cx, activate(&u, Relu))?;
            x = activate_stream(&y, Relu);
            if cx.keeps() {
                pairs.push(Pair { x: kept, up: cx.keep(u), hidden, y: cx.keep(y) });
            }
        }
        let (logits, last) = self.last.forward(cx, x)?;
        Ok((logits, Inner { gathered, pairs, last }))
    }
    fn terms(&self, cx: &Cx<D>) -> LossTerms {
        LossTerms { mean_over: cx.mean_over(), smoothing: 0.0, z: 0.0, vocabulary: self.classes }
    }
    /// `X[B,F]`, whole on every rank, to logits `[B,C]`, all of them on every rank: for choosing a class.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn logits(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<Tensor<D>> {
        self.through(cx, x, Vec::new())?.0.all_gather_first(&self.group, self.classes)
    }
    /// One microbatch: `X[B,F]`, whole on every rank, to its part of the mean loss, a partial sum on each data rank.
    ///
    /// # Errors
    /// If ranks do not meet.
    ///
    /// # Panics
    /// If the microbatch is in flight already.
    pub fn forward(&mut self, cx: &Cx<D>, x: Tensor<D>, labels: Ids<D::Place>) -> Result<Partial<D::Wide>> {
        let microbatch = cx.microbatch();
        assert!(
            self.saved.iter().all(|s| s.microbatch != microbatch),
            "microbatch {microbatch} is in flight"
        );
        let room = self.room.pop().unwrap_or_default();
        let (logits, inner) = self.through(cx, x, room)?;
        let (loss, lse) = split_cross_entropy(&logits, &self.group, &labels, &self.terms(cx), self.over)?;
        if cx.keeps() {
            self.saved.push(Saved { microbatch, inner, logits, lse, labels });
        } else {
            self.room.push(inner.pairs);
        }
        Ok(loss)
    }
    /// The gradients of all parameters, from what the microbatch's forward kept.
    ///
    /// # Errors
    /// If ranks do not meet.
    ///
    /// # Panics
    /// If there was no forward of this microbatch.
    pub fn backward(&mut self, cx: &Cx<D>) -> Result<()> {
        let at = self.saved.iter().position(|s| s.microbatch == cx.microbatch());
        let Saved { mut inner, logits, lse, labels, .. } =
            self.saved.swap_remove(at.expect("a forward of this microbatch"));
        let dlogits = cross_entropy_backward(logits, &lse, self.group.rank(), &labels, &self.terms(cx));
        let whole = self.gathered.is_some();
        let first = self.pairs.is_empty() && !whole;
        let mut dx = column_backward(&mut self.last, cx, inner.last, dlogits, first)?;
        for (i, (up, down)) in self.pairs.iter_mut().enumerate().rev() {
            let kept = inner.pairs.pop().expect("what each pair kept");
            let dy = activate_stream_backward(&kept.y.open(), &dx.expect(WANTED), Relu);
            let dh = down.backward(cx, kept.hidden, dy)?;
            let du = activate_backward(&kept.up.open(), &dh, Relu);
            dx = column_backward(up, cx, kept.x, du, i == 0 && !whole)?;
        }
        self.room.push(inner.pairs);
        if let (Some(first), Some((x, y))) = (&mut self.gathered, inner.gathered) {
            let dy = activate_stream_backward(&y.open(), &dx.expect(WANTED), Relu);
            first.backward_weight_alone(cx, x, Split::cut(&dy.gather(&self.group)?, &self.group)?)?;
        }
        Ok(())
    }
}

/// Of these sizes, those that the ranks must divide: between the two layers of a pair, and gathered.
pub fn shared(sizes: &[usize]) -> Vec<usize> {
    let (layers, whole) = (sizes.len().saturating_sub(1), sizes.len() % 2);
    let inside = (whole..layers.saturating_sub(1)).step_by(2).map(|i| sizes[i + 1]);
    sizes.get(1).filter(|_| layers > 0 && whole == 1).copied().into_iter().chain(inside).collect()
}

/// Of every layer but the first.
const WANTED: &str = "the gradient of what a later layer was given";

/// dW, and dX unless this is the model's first layer: the gradient of an example is nobody's.
fn column_backward<D: Kernels>(
    layer: &mut Part<D, ColumnLinear<D>>,
    cx: &Cx<D>,
    x: Of<D, ColumnLinear<D>>,
    dy: Split<D>,
    first: bool,
) -> Result<Option<Stream<D>>> {
    if first {
        layer.backward_weight_alone(cx, x, dy)?;
        return Ok(None);
    }
    layer.backward(cx, x, dy).map(Some)
}

#[cfg(test)]
mod tests;
