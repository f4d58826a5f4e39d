//! Final norm, logits over a split vocabulary, and cross-entropy without gathering them.
//!
//! ```text
//! forward   Z[B,V_t] = norm(X) · W_t                                                no traffic
//!           m[B] = stab_t stab(Z_t)                                                 all-reduce, B elements
//!           l[B], z[B] = Σ_t (Σ exp(Z_t − m), the target's logit or 0)              all-reduce, 2·B elements
//!           loss = Σ_B (m + ln l − z) / tokens                                      no traffic
//! backward  dZ[B,V_t] = (softmax(Z)_t − one-hot_t) / tokens                         no traffic
//!           dX = norm backward of Σ_t dZ · W_tᵀ                                     all-reduce, B·D elements
//! ```
//!
//! No rank ever holds a row of all logits in training: 3·B elements replace B·V. A tied head uses the embedding's
//! table, whose rows are this layer's columns, and adds to its gradient.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (parallel cross-entropy), arXiv:1909.08053. Chapter: 3.
use crate::ops::{self, Partial, Split, cross_entropy, cross_entropy_backward, matmul, row_stab, row_sums};
use crate::weight::{ColumnWeight, RowWeight};
use crate::{Builder, Cx, Draw, Kept, Layer, Param, Result, RmsNorm, norm};
use comm::{Axis, Group};
use kernels::Kernels;
use tensor::{Ids, Tensor};

/// Final norm, output projection and loss, the vocabulary split over the ranks of an axis.
pub struct Head<D: Kernels> {
    norm: RmsNorm<D>,
    weight: Option<ColumnWeight<D>>, // W[D,V_t]; none where it is the embedding's table
    group: Group<D>,
}

/// What backward needs.
pub struct Saved<D: Kernels> {
    norm: norm::Saved<D>,
    x: Kept<Tensor<D>>,
    logits: Kept<Split<D>>,
    lse: Kept<Tensor<D>>,
    targets: Ids<D>,
}

/// What the weight half needs.
pub type Pending<D> = (Tensor<D>, Split<D>);

impl<D: Kernels> Head<D> {
    /// Parameters `norm` and, unless tied, `head[width, vocabulary]`.
    ///
    /// # Errors
    /// If the ranks do not divide the vocabulary.
    pub fn shard(
        at: &Builder<D>,
        axis: Axis,
        [width, vocabulary]: [usize; 2],
        eps: f64,
        tied: bool,
    ) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        let weight = || ColumnWeight::new(at, axis, "head", width, &[vocabulary], draw);
        Ok(Self {
            norm: RmsNorm::new(at, "norm", width, eps)?,
            weight: if tied { None } else { Some(weight()?) },
            group: at.mesh.group(axis).named("head"),
        })
    }
    fn columns(&self, table: Option<&RowWeight<D>>) -> Result<ops::Columns<D>> {
        match (&self.weight, table) {
            (Some(weight), _) => weight.columns(),
            (None, table) => Ok(table.expect("a tied head is given the embedding's table").rows()?.t()),
        }
    }
    /// `X[B,D]` to logits `[B,V]`, all of them on every rank: for choosing the next token.
    ///
    /// # Errors
    /// If ranks do not meet; so it is below.
    pub fn logits(&self, cx: &Cx<D>, table: Option<&RowWeight<D>>, x: Tensor<D>) -> Result<Tensor<D>> {
        let (n, _) = self.norm.forward(cx, x)?;
        matmul(&n, &self.columns(table)?).all_gather(&self.group)
    }
    /// `X[B,D]` to this microbatch's share of the mean loss: data ranks each have an addend.
    ///
    /// # Errors
    /// As above.
    pub fn forward(
        &self,
        cx: &Cx<D>,
        table: Option<&RowWeight<D>>,
        x: Tensor<D>,
        targets: Ids<D>,
    ) -> Result<(Partial<D>, Saved<D>)> {
        let (n, norm) = self.norm.forward(cx, x)?;
        let logits = matmul(&n, &self.columns(table)?);
        let m = row_stab(&logits).all_reduce(&self.group)?;
        let sums = row_sums(&logits, &m, self.group.rank(), &targets).all_reduce(&self.group)?;
        let (loss, lse) = cross_entropy(m, &sums, cx.mean_over());
        Ok((loss, Saved { norm, x: cx.keep(n), logits: cx.keep(logits), lse: cx.keep(lse), targets }))
    }
    /// The input half: `dX[B,D]`.
    ///
    /// # Errors
    /// As above.
    pub fn backward_input(
        &mut self,
        cx: &Cx<D>,
        table: Option<&RowWeight<D>>,
        s: Saved<D>,
    ) -> Result<(Tensor<D>, Pending<D>)> {
        let lse = s.lse.open();
        let rank = self.group.rank();
        let dlogits = cross_entropy_backward(s.logits.open(), &lse, rank, &s.targets, cx.mean_over());
        let dn = dlogits.matmul(&self.columns(table)?.t())?.all_reduce(&self.group)?;
        Ok((self.norm.backward_onto(s.norm, &dn, None)?, (s.x.open(), dlogits)))
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
