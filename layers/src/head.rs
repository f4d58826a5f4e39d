//! Final norm, logits over a split vocabulary, and cross-entropy without gathering them.
//!
//! ```text
//! forward   Z[B,V_t] = norm(X) · W_t, or c·tanh of it/c                      no traffic
//!           m[B] = stab_t stab(Z_t)                                          all-reduce, B elements
//!           l, z, s [B] = Σ_t (Σ exp(Z_t − m), target's logit or 0, Σ Z_t)   all-reduce, 2·B (3·B) elements
//!           lse = m + ln l                                                   no traffic
//!           loss = Σ_B (lse − (1 − ε)·z − ε/V·s + λ·lse²) / counted targets  no traffic
//! backward  dZ[B,V_t] = (softmax(Z)_t·(1 + 2λ·lse) − (1 − ε)·one-hot_t − ε/V) / counted targets
//!           dX = norm backward of Σ_t dZ · W_tᵀ                              all-reduce, B·D elements
//! ```
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (parallel cross-entropy), arXiv:1909.08053; Szegedy et al., §7,
//! arXiv:1512.00567 (label smoothing); Chowdhery et al., §5, arXiv:2204.02311 (z-loss).
//! Chapter: vocabulary and loss, sequence parallelism.
use crate::build::part::{BoxedLayer, Ticket};
use crate::build::stage::{Ending, Output, StageRequest, Targets};
use crate::build::strategy;
use crate::{Builder, InputHalf, Layer, Objective, Params};
use comm::{Axes, Group};
use kernels::{Kernels, LossTerms};
use ops::{
    Branches, ColumnWeight, KeptValue, PassContext, Result, RootExchange, RowWeight, Split, Stream,
    add_columns, cap, columns_bias_gradient, cross_entropy_backward, matmul, split_cross_entropy,
};
use tensor::{Tensor, TokenIds};

/// Output projection and loss, the vocabulary split over the ranks of an axis: after the final norm of a
/// transformer or, with a bias, the last layer of a classifier.
///
/// In training no rank holds a row of all logits: 3·B elements replace B·V (4·B with label smoothing).
/// ε (label smoothing) and λ (z-loss) apply in training only; otherwise the loss is cross-entropy alone.
/// Ignored targets add nothing to the sum, and the divisor does not count them. A tied head uses the
/// embedding's table, whose rows are this layer's columns, and adds to its gradient. If the ranks do not
/// divide the vocabulary, the last ranks have columns beyond it, which no kernel reads.
///
/// Under sequence parallelism norm(X) is gathered for the logits, and again for the weight; dX is reduced and
/// scattered.
pub struct Head<D: Kernels> {
    name: String,
    norm: Option<BoxedLayer<D, Stream<D>, Branches<D>>>,
    weight: Weight<D>,
    bias: Option<ColumnWeight<D>>, // b[V_t]
    vocabulary: usize,
    objective: Objective,
    cap: Option<f64>,
    group: Group<D::Place>,
    over: Axes, // axes over which the loss is a partial sum
    root: RootExchange<D::Place>,
}

/// `W[D,V_t]`.
enum Weight<D: Kernels> {
    Own(ColumnWeight<D>),
    Tied(Option<RowWeight<D>>), // the embedding's table, while the head borrows it
}

/// Invariant: a tied head runs only while it has the table.
const LENT: &str = "the tied head has borrowed the table";

/// Values that backward needs of a loss.
pub struct Saved<D: Kernels> {
    norm: Ticket,
    x: Stream<D>,
    logits: Split<D>,
    lse: Tensor<D::Wide>,
    targets: TokenIds<D::Place>,
}

/// Values that the weight half of backward needs: norm(X) of all tokens, and dZ.
pub type Pending<D> = (Tensor<D>, Split<D>);

impl<D: Kernels> Head<D> {
    /// Builds the parameters that `head` describes, and those of the norm in front of it.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn shard(at: &Builder<D>, head: &strategy::Head) -> Result<Self> {
        let strategy::Head { axis, name, sizes: [inputs, vocabulary], norm, tied, bias, objective, cap } =
            *head;
        let norm = norm.map(|norm| at.build(&norm)).transpose()?;
        let columns = [at.vocabulary(vocabulary)];
        let fresh = || ColumnWeight::new(at, axis, name, inputs, &columns).map(ColumnWeight::tiled);
        let weight = if tied { Weight::Tied(None) } else { Weight::Own(fresh()?) };
        let bias = bias.then(|| ColumnWeight::bias(at, axis, name, &columns));
        Ok(Self {
            name: name.into(),
            norm,
            weight,
            bias: bias.transpose()?,
            vocabulary,
            objective,
            cap,
            group: at.mesh.group(axis).named(name),
            over: at.mesh.over(Axes::LOSS)?.axis(),
            root: RootExchange::new(at.rests, at.mesh, "outputs"),
        })
    }
    fn columns(&self) -> Result<ops::Columns<D>> {
        match &self.weight {
            Weight::Own(weight) => weight.columns(),
            Weight::Tied(table) => Ok(table.as_ref().expect(LENT).rows()?.t()),
        }
    }
    /// Returns `norm(X)` and the values that the norm keeps, if there is a norm.
    fn normed(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Ticket)> {
        let Some(norm) = &self.norm else { return Ok((x, None)) };
        let ((n, _), saved) = norm.forward(cx, x)?;
        Ok((n, saved))
    }
    /// Returns this rank's logits of `norm(X)`, capped if they have a cap.
    fn split(&self, n: &Tensor<D>) -> Result<Split<D>> {
        let logits = matmul(n, &self.columns()?)?;
        let logits =
            if let Some(bias) = &self.bias { add_columns(logits, &bias.columns()?)? } else { logits };
        Ok(if let Some(c) = self.cap { cap(logits, c) } else { logits })
    }
    /// Returns all logits `[B,V]` on every rank, for choosing the next token.
    fn logits(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<Tensor<D>> {
        let n = self.normed(cx, x)?.0.gather(&self.group)?;
        cx.record(&self.name, "in", &n)?;
        let logits = self.split(&n)?.all_gather_first(&self.group, self.vocabulary)?;
        cx.record(&self.name, "out", &logits)?;
        Ok(logits)
    }
    /// Returns dZ of this rank's logits, the values that the norm kept, and `norm(X)`.
    fn back_to_logits(&self, cx: &PassContext<D>, saved: Saved<D>) -> Result<(Split<D>, Ticket, Stream<D>)> {
        let Saved { norm, x, logits, lse, targets } = saved;
        let dlogits = cross_entropy_backward(logits, &lse, self.group.rank(), &targets, &self.terms(cx));
        let dlogits = dlogits.exchanged(|dlogits| self.root.scatter(cx, dlogits))?;
        cx.record_gradient(&self.name, "out", &(&dlogits, &self.group, self.vocabulary))?;
        Ok((dlogits, norm, x))
    }
    fn terms(&self, cx: &PassContext<D>) -> LossTerms {
        let plain = Objective { smoothing: 0.0, z: 0.0 }; // outside training, cross-entropy alone
        let Objective { smoothing, z } = if cx.pass().learns { self.objective } else { plain };
        let Self { vocabulary, cap, .. } = *self;
        LossTerms { mean_over: cx.pass().mean_over, smoothing, z, vocabulary, cap }
    }
}

impl<D: Kernels> Layer<D> for Head<D> {
    type In = Ending<D>;
    type Out = Option<Output<D>>;
    type Saved = Option<KeptValue<Saved<D>>>;
    type Pending = Pending<D>;

    fn forward(&self, cx: &PassContext<D>, (x, wanted): Ending<D>) -> Result<(Self::Out, Self::Saved)> {
        let targets = match wanted {
            Some(StageRequest::Loss(Targets::Ids(targets))) => targets,
            Some(StageRequest::Loss(Targets::Rows(_))) => {
                panic!("a head's targets are rows; they must be ids")
            }
            _ => return Ok((Some(Output::Logits(self.logits(cx, x)?)), None)),
        };
        let (n, norm) = self.normed(cx, x)?;
        cx.record(&self.name, "in", &n)?;
        let logits = self.split(&n.gather(&self.group)?)?;
        cx.record(&self.name, "out", &(&logits, &self.group, self.vocabulary))?;
        let logits = logits.exchanged(|logits| self.root.gather(cx, logits))?;
        let (loss, lse) = split_cross_entropy(&logits, &self.group, &targets, &self.terms(cx), self.over)?;
        Ok((Some(Output::Loss(loss)), Some(cx.keep(Saved { norm, x: n, logits, lse, targets }))))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        _: Self::Out,
    ) -> InputHalf<D, Self> {
        let (dlogits, norm, x) = self.back_to_logits(cx, saved.expect("forward gave a loss").open())?;
        let mut dx = dlogits.matmul(&self.columns()?.t())?.reduce_as(&self.group, &x)?;
        cx.record_gradient(&self.name, "in", &dx)?;
        if let Some(layer) = &mut self.norm {
            dx = layer.backward(cx, norm, (dx, None))?;
        }
        Ok(((dx, None), (x.gather(&self.group)?, dlogits)))
    }

    fn backward_without_dx(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        _: Self::Out,
    ) -> Result<Pending<D>> {
        let (dlogits, _, x) = self.back_to_logits(cx, saved.expect("forward gave a loss").open())?;
        Ok((x.gather(&self.group)?, dlogits))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (x, dlogits): Self::Pending) -> Result<()> {
        match &mut self.weight {
            Weight::Own(weight) => ops::columns_gradient(weight, &x, &dlogits)?,
            Weight::Tied(table) => ops::rows_gradient(table.as_mut().expect(LENT), &dlogits, &x)?,
        }
        if let Some(bias) = &mut self.bias {
            columns_bias_gradient(bias, &dlogits);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        if let Some(norm) = &mut self.norm {
            norm.params(into);
        }
        match &mut self.weight {
            Weight::Own(weight) => into.push(weight.param()),
            Weight::Tied(table) => into.extend(table.as_mut().map(RowWeight::param)),
        }
        into.extend(self.bias.as_mut().map(ColumnWeight::param));
    }

    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        if let Weight::Tied(table) = &mut self.weight { Some(table) } else { None }
    }
}

#[cfg(test)]
mod tests;
