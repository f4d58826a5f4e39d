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
use crate::linear::column::BIAS;
use crate::model::end::{EndBack, EndLoss, TiedTable, TiedTableMut};
use crate::model::part::{Held, Part};
use crate::model::strategy;
use crate::ops::{
    self, Split, Stream, add_columns, columns_bias_gradient, cross_entropy_backward, matmul,
    split_cross_entropy,
};
use crate::param::placement::{Pieces, Section};
use crate::param::weight::{ColumnWeight, RowWeight};
use crate::{Builder, Cx, Draw, End, Kept, Layer, Norm, Objective, Param, Result, Targets, norm};
use comm::{Axes, Group};
use kernels::{Kernels, LossTerms};
use tensor::{Ids, Tensor};

/// Output projection and loss, the vocabulary split over the ranks of an axis: behind the final norm of a transformer, or with
/// a bias, the last layer of a classifier.
pub struct Head<D: Kernels> {
    name: String,
    norm: Option<Part<D, Norm<D>>>,
    weight: Option<ColumnWeight<D>>, // W[D,V_t]; none where it is the embedding's table
    bias: Option<ColumnWeight<D>>,   // b[V_t]
    vocabulary: usize,
    objective: Objective,
    group: Group<D::Place>,
    over: Axes, // of which each rank has a part of the loss
}

/// What the norm keeps, if there is one.
type Normed<D> = Option<Held<norm::Saved<D>>>;

/// What backward needs.
pub struct Saved<D: Kernels> {
    norm: Normed<D>,
    x: Kept<Stream<D>>,
    logits: Kept<Split<D>>,
    lse: Kept<Tensor<D::Wide>>,
    targets: Ids<D::Place>,
}

/// What the weight half needs.
pub type Pending<D> = (Tensor<D>, Split<D>);

impl<D: Kernels> Head<D> {
    /// The parameters that `head` says, and those of the norm in front of it.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn shard(at: &Builder<D>, head: &strategy::Head) -> Result<Self> {
        let strategy::Head { axis, name, sizes: [inputs, vocabulary], norm, tied, bias, objective } = *head;
        let norm = norm.map(|norm| at.norm(&norm)).transpose()?;
        let columns = [Section::new(vocabulary, Pieces::Padded)];
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let weight =
            (!tied).then(|| ColumnWeight::new(at, axis, name, inputs, &columns, draw)).transpose()?;
        let bias = bias.then(|| ColumnWeight::new(at, axis, format!("{name}.bias"), 1, &columns, BIAS));
        Ok(Self {
            name: name.into(),
            norm,
            weight,
            bias: bias.transpose()?,
            vocabulary,
            objective,
            group: at.mesh.group(axis).named(name),
            over: at.mesh.over(Axes::LOSS)?.axis(),
        })
    }
    fn columns(&self, table: Option<&RowWeight<D>>) -> Result<ops::Columns<D>> {
        match (&self.weight, table) {
            (Some(weight), _) => weight.columns(),
            (None, table) => Ok(table.expect("a tied head is given the embedding's table").rows()?.t()),
        }
    }
    /// `norm(X)`, and what the norm keeps, if there is one.
    fn normed(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Normed<D>)> {
        let Some(norm) = &self.norm else { return Ok((x, None)) };
        let (n, saved) = norm.forward(cx, x)?;
        Ok((n, Some(saved)))
    }
    /// This rank's logits of `norm(X)`.
    fn split(&self, table: Option<&RowWeight<D>>, n: &Tensor<D>) -> Result<Split<D>> {
        let logits = matmul(n, &self.columns(table)?);
        if let Some(bias) = &self.bias { add_columns(logits, &bias.columns()?) } else { Ok(logits) }
    }
    fn terms(&self, cx: &Cx<D>) -> LossTerms {
        let plain = Objective { smoothing: 0.0, z: 0.0 }; // a text is judged by its likelihood alone
        let Objective { smoothing, z } = if cx.pass().learns { self.objective } else { plain };
        LossTerms { mean_over: cx.pass().mean_over, smoothing, z, vocabulary: self.vocabulary }
    }
}

impl<D: Kernels> End<D> for Head<D> {
    type Saved = Saved<D>;
    type Pending = Pending<D>;

    fn logits(&self, cx: &Cx<D>, table: TiedTable<D>, x: Stream<D>) -> Result<Tensor<D>> {
        let n = self.normed(cx, x)?.0.gather(&self.group)?;
        cx.saw(&self.name, "in", |_| Ok((&n).into()))?;
        let logits = self.split(table, &n)?.all_gather_first(&self.group, self.vocabulary)?;
        cx.saw(&self.name, "out", |_| Ok((&logits).into()))?;
        Ok(logits)
    }

    fn forward(
        &self,
        cx: &Cx<D>,
        table: TiedTable<D>,
        x: Stream<D>,
        targets: Targets<D>,
    ) -> EndLoss<D, Self> {
        let Targets::Ids(targets) = targets else { panic!("rows as targets of a head; it must be ids") };
        let (n, norm) = self.normed(cx, x)?;
        cx.saw(&self.name, "in", |_| Ok(n.seen()))?;
        let logits = self.split(table, &n.gather(&self.group)?)?;
        cx.saw(&self.name, "out", |_| Ok(logits.seen_first(&self.group, self.vocabulary)))?;
        let (loss, lse) = split_cross_entropy(&logits, &self.group, &targets, &self.terms(cx), self.over)?;
        Ok((loss, Saved { norm, x: cx.keep(n), logits: cx.keep(logits), lse: cx.keep(lse), targets }))
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        table: TiedTable<D>,
        s: Self::Saved,
        wanted: bool,
    ) -> EndBack<D, Self> {
        let (lse, rank, x) = (s.lse.open(), self.group.rank(), s.x.open());
        let dlogits = cross_entropy_backward(s.logits.open(), &lse, rank, &s.targets, &self.terms(cx));
        cx.saw_gradient(&self.name, "out", |_| Ok(dlogits.seen_first(&self.group, self.vocabulary)))?;
        let mut dx = None;
        if wanted {
            let dn = dlogits.matmul(&self.columns(table)?.t())?.reduce(&self.group, x.region())?;
            cx.saw_gradient(&self.name, "in", |_| Ok(dn.seen()))?;
            dx = Some(match (&mut self.norm, s.norm) {
                (Some(norm), Some(saved)) => norm.backward_onto(cx, saved, &dn, None)?,
                _ => dn,
            });
        }
        Ok((dx, (x.gather(&self.group)?, dlogits)))
    }

    fn backward_weight(
        &mut self,
        _: &Cx<D>,
        table: TiedTableMut<D>,
        (x, dlogits): Self::Pending,
    ) -> Result<()> {
        match (&mut self.weight, table) {
            (Some(weight), _) => ops::columns_gradient(weight, &x, &dlogits),
            (None, table) => {
                let table = table.expect("a tied head is given the embedding's table");
                ops::rows_gradient(table, &dlogits, &x);
            }
        }
        if let Some(bias) = &mut self.bias {
            columns_bias_gradient(bias, &dlogits);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        if let Some(norm) = &mut self.norm {
            norm.params(into);
        }
        into.extend(self.weight.as_mut().map(ColumnWeight::param));
        into.extend(self.bias.as_mut().map(ColumnWeight::param));
    }
}

#[cfg(test)]
mod tests;
