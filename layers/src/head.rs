//! Final norm, logits over a split vocabulary, and cross-entropy without gathering them.
//!
//! ```text
//! forward   Z[B,V_t] = norm(X) · W_t                                                no traffic
//!           m[B] = stab_t stab(Z_t)                                                 all-reduce, B elements
//!           l[B], z[B], s[B] = Σ_t (Σ exp(Z_t − m), the target's logit or 0, Σ Z_t) all-reduce, 2·B (3·B) elements
//!           lse = m + ln l                                                          no traffic
//!           loss = Σ_B (lse − (1 − ε)·z − ε/V·s + λ·lse²) / targets that count      no traffic
//! backward  dZ[B,V_t] = (softmax(Z)_t·(1 + 2λ·lse) − (1 − ε)·one-hot_t − ε/V) / targets that count
//!           dX = norm backward of Σ_t dZ · W_tᵀ                                     all-reduce, B·D elements
//! ```
//!
//! No rank ever holds a row of all logits in training: 3·B elements replace B·V (4·B where labels are smoothed, ε > 0).
//! ε and λ are training's: without a backward to follow, the loss is cross-entropy alone.
//! Targets that are ignored add nothing, neither to the sum nor to what it is divided by. A tied head uses the
//! embedding's table, whose rows are this layer's columns, and adds to its gradient. Where the ranks do not divide the
//! vocabulary, the last have columns beyond it: no kernel looks at them.
//!
//! Under sequence parallelism norm(X) is gathered for the logits, and again for the weight; dX is reduced and scattered.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (parallel cross-entropy), arXiv:1909.08053; Szegedy et al., §7,
//! arXiv:1512.00567 (label smoothing); Chowdhery et al., §5, arXiv:2204.02311 (z-loss). Chapters: 6, 7.
use crate::model::part::{Held, Part};
use crate::model::strategy;
use crate::ops::{self, Partial, Split, Stream, cross_entropy_backward, matmul, split_cross_entropy};
use crate::param::placement::{Pieces, Section};
use crate::param::weight::{ColumnWeight, RowWeight};
use crate::{Builder, Cx, Draw, Kept, Layer, Norm, Objective, Param, Result, Shape, norm};
use comm::{Axes, Axis, Group};
use kernels::{Kernels, LossTerms};
use tensor::{Ids, Tensor};

/// Final norm, output projection and loss, the vocabulary split over the ranks of an axis.
pub struct Head<D: Kernels> {
    norm: Part<D, Norm<D>>,
    weight: Option<ColumnWeight<D>>, // W[D,V_t]; none where it is the embedding's table
    vocabulary: usize,
    objective: Objective,
    group: Group<D::Place>,
    over: Axes, // of which each rank has a part of the loss
}

/// What backward needs.
pub struct Saved<D: Kernels> {
    norm: Held<norm::Saved<D>>,
    x: Kept<Stream<D>>,
    logits: Kept<Split<D>>,
    lse: Kept<Tensor<D::Wide>>,
    targets: Ids<D::Place>,
}

/// What the weight half needs.
pub type Pending<D> = (Tensor<D>, Split<D>);

impl<D: Kernels> Head<D> {
    /// Parameters `norm` and, unless tied, `head[width, vocabulary]`.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn shard(at: &Builder<D>, axis: Axis, shape: &Shape) -> Result<Self> {
        let Shape { width, vocabulary, .. } = *shape;
        let draw = Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        let columns = [Section::new(vocabulary, Pieces::Padded)];
        let weight = || ColumnWeight::new(at, axis, "head", width, &columns, draw);
        Ok(Self {
            norm: at.norm(&strategy::Norm { kind: shape.norm, name: "norm", width, eps: shape.eps })?,
            weight: if shape.tied { None } else { Some(weight()?) },
            vocabulary,
            objective: shape.loss,
            group: at.mesh.group(axis).named("head"),
            over: at.mesh.over(Axes::LOSS)?.axis(),
        })
    }
    fn columns(&self, table: Option<&RowWeight<D>>) -> Result<ops::Columns<D>> {
        match (&self.weight, table) {
            (Some(weight), _) => weight.columns(),
            (None, table) => Ok(table.expect("a tied head is given the embedding's table").rows()?.t()),
        }
    }
    fn terms(&self, cx: &Cx<D>) -> LossTerms {
        let plain = Objective { smoothing: 0.0, z: 0.0 }; // a text is judged by its likelihood alone
        let Objective { smoothing, z } = if cx.learns() { self.objective } else { plain };
        LossTerms { mean_over: cx.mean_over(), smoothing, z, vocabulary: self.vocabulary }
    }
    /// `X[B,D]` to logits `[B,V]`, all of them on every rank: for choosing the next token.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn logits(&self, cx: &Cx<D>, table: Option<&RowWeight<D>>, x: Stream<D>) -> Result<Tensor<D>> {
        let (n, _) = self.norm.forward(cx, x)?;
        let n = n.gather(&self.group)?;
        cx.saw("head", "in", |_| Ok((&n).into()))?;
        let logits = matmul(&n, &self.columns(table)?).all_gather_first(&self.group, self.vocabulary)?;
        cx.saw("head", "out", |_| Ok((&logits).into()))?;
        Ok(logits)
    }
    /// `X[B,D]` to this microbatch's part of the mean loss: a partial sum on each data rank.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn forward(
        &self,
        cx: &Cx<D>,
        table: Option<&RowWeight<D>>,
        x: Stream<D>,
        targets: Ids<D::Place>,
    ) -> Result<(Partial<D::Wide>, Saved<D>)> {
        let (n, norm) = self.norm.forward(cx, x)?;
        cx.saw("head", "in", |_| Ok(n.seen()))?;
        let logits = matmul(&n.gather(&self.group)?, &self.columns(table)?);
        cx.saw("head", "out", |_| Ok(logits.seen_first(&self.group, self.vocabulary)))?;
        let (loss, lse) = split_cross_entropy(&logits, &self.group, &targets, &self.terms(cx), self.over)?;
        Ok((loss, Saved { norm, x: cx.keep(n), logits: cx.keep(logits), lse: cx.keep(lse), targets }))
    }
    /// The input half: `dX[B,D]`.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn backward_input(
        &mut self,
        cx: &Cx<D>,
        table: Option<&RowWeight<D>>,
        s: Saved<D>,
    ) -> Result<(Stream<D>, Pending<D>)> {
        let (lse, rank, x) = (s.lse.open(), self.group.rank(), s.x.open());
        let dlogits = cross_entropy_backward(s.logits.open(), &lse, rank, &s.targets, &self.terms(cx));
        cx.saw_gradient("head", "out", |_| Ok(dlogits.seen_first(&self.group, self.vocabulary)))?;
        let dn = dlogits.matmul(&self.columns(table)?.t())?.reduce(&self.group, x.region())?;
        cx.saw_gradient("head", "in", |_| Ok(dn.seen()))?;
        let dx = self.norm.backward_onto(cx, s.norm, &dn, None)?;
        Ok((dx, (x.gather(&self.group)?, dlogits)))
    }
    /// The weight half.
    pub fn backward_weight(&mut self, table: Option<&mut RowWeight<D>>, (x, dlogits): Pending<D>) {
        match (&mut self.weight, table) {
            (Some(weight), _) => ops::columns_gradient(weight, &x, &dlogits),
            (None, table) => {
                let table = table.expect("a tied head is given the embedding's table");
                ops::rows_gradient(table, &dlogits, &x);
            }
        }
    }
    /// Its parameters.
    pub fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.norm.params(into);
        into.extend(self.weight.as_mut().map(ColumnWeight::param));
    }
}

#[cfg(test)]
mod tests;
