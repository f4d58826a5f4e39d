//! Operations of an expert router on this rank's tokens: each row on its own, in the wide dtype.
use crate::tensors::{count_product, product};
use crate::{Partial, Result, WholeWeight, filled, plus, whole_gradient, wide_along};
use comm::{Axes, Group};
use kernels::{Kernels, RouterBalance, RouterNoise, RouterTerms, Write};
use tensor::{Category, Index, Scalar, Tensor};

/// `L[B,E] = X[B,D]·W[D,E] + b[1,E]`; without a bias, only the product.
#[must_use]
pub fn logits<D: Kernels>(x: &Tensor<D>, w: &Tensor<D>, bias: Option<&Tensor<D>>) -> Tensor<D::Wide> {
    let mut logits = wide_along(x, w.cols());
    let mut add = |x: &Tensor<D>, w: &Tensor<D>, write| {
        count_product(x.device(), [x.rows(), w.cols()], &x.view(), &w.view());
        x.device().gemm_wide(logits.view_mut(), x.view(), w.view(), write);
    };
    add(x, w, Write::Set);
    if let Some(bias) = bias {
        add(&ones(x), bias, Write::Add);
    }
    logits
}

/// Returns a column of ones, one for each row.
fn ones<D: Kernels>(x: &Tensor<D>) -> Tensor<D> {
    let mut ones = x.along(1);
    x.device().fill(ones.view_mut(), D::Elem::ONE);
    ones
}

/// `db[1,E] += Σ dL[n]`, for a bias that is not cut.
pub fn logit_bias_gradient<D: Kernels>(bias: &mut WholeWeight<D>, dlogits: &Tensor<D>) {
    whole_gradient(bias, &ones(dlogits), dlogits);
}

/// Returns the `k` experts of each row. A bias and noise are added to the scores for this choice only.
#[must_use]
pub fn choose<D: Kernels>(
    device: &D,
    logits: &Tensor<D::Wide>,
    bias: Option<&Tensor<D>>,
    noise: Option<RouterNoise<D::Place>>,
    terms: &RouterTerms,
) -> Index<D::Place> {
    let mut chosen = Index::empty(device.place(), logits.rows() * terms.chosen);
    device.choose(&mut chosen, logits.view(), bias.map(Tensor::view), noise, terms);
    chosen
}

/// Returns the gates `G[B,k]` of the chosen experts, and each row's log-sum-exp.
#[must_use]
pub fn gates<W: Kernels>(
    logits: &Tensor<W>,
    chosen: &Index<W::Place>,
    terms: &RouterTerms,
) -> (Tensor<W>, Tensor<W>) {
    let [mut gates, mut lse] = [terms.chosen, 1].map(|cols| logits.along(cols));
    logits.device().gates(gates.view_mut(), lse.view_mut(), logits.view(), chosen, terms);
    (gates, lse)
}

/// Weights of a router's loss terms for this rank's rows.
pub struct RouterLoss<W: Kernels> {
    /// `[sequences, E]`: weight of the score of each of a sequence's tokens.
    pub weights: Tensor<W>,
    /// `[1,1]`: weight of the square of each row's log-sum-exp.
    pub z: Tensor<W>,
    /// Number, among the call's tokens, of the first row's token.
    pub first: usize,
}

/// Returns the weights `[1,E]` of scores in the balance of all blocks: `factor` times each expert's count.
/// The counts are summed over the ranks of the group.
///
/// # Errors
/// If a collective fails.
pub fn pooled<W: Kernels>(counts: Tensor<W>, factor: W::Elem, group: &Group<W::Place>) -> Result<Tensor<W>> {
    Ok(repeated(&Partial::sum(counts, group.axis()).all_reduce(group)?, factor, 1))
}

/// Returns `rows` rows, each `factor` times this row `[1,E]`.
fn repeated<W: Kernels>(row: &Tensor<W>, factor: W::Elem, rows: usize) -> Tensor<W> {
    let device = row.device();
    let factors = filled(device, Category::Buffers, [rows, 1], factor);
    let mut out = Tensor::empty(device, Category::Buffers, rows, row.cols());
    product(device, out.view_mut(), factors.view(), row.view(), Write::Set);
    out
}

impl<W: Kernels> RouterLoss<W> {
    /// The same weights `[1,E]` for all tokens of `sequences` sequences.
    #[must_use]
    pub fn alike(weights: &Tensor<W>, sequences: usize, first: usize) -> Self {
        let z = filled(weights.device(), Category::Buffers, [1, 1], W::Elem::ZERO);
        Self { weights: repeated(weights, W::Elem::ONE, sequences), z, first }
    }
    /// The sum of two losses of the same rows.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self { weights: plus(self.weights, &other.weights), z: plus(self.z, &other.z), ..self }
    }
    fn on<'a>(&'a self, tokens: &'a Index<W::Place>) -> RouterBalance<'a, W> {
        RouterBalance { weights: self.weights.view(), tokens, first: self.first, z: self.z.view() }
    }
    /// Returns the loss of these rows, summed over the ranks of the group: a partial sum over the axes
    /// `over`.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn of(
        &self,
        (logits, lse): (&Tensor<W>, &Tensor<W>),
        tokens: &Index<W::Place>,
        sigmoid: bool,
        (group, over): (&Group<W::Place>, Axes),
    ) -> Result<Partial<W>> {
        let mut loss = logits.beside(1, 1);
        let device = logits.device().clone();
        device.router_loss(loss.view_mut(), logits.view(), lse.view(), self.on(tokens), sigmoid);
        Ok(Partial::sum(Partial::sum(loss, group.axis()).all_reduce(group)?, over))
    }
}

/// Returns `dL[B,E]`, from the gates and from the router's loss, if there is one.
#[must_use]
pub fn router_backward<D: Kernels>(
    device: &D,
    (logits, lse): (&Tensor<D::Wide>, &Tensor<D::Wide>),
    (dgates, chosen): (&Tensor<D::Wide>, &Index<D::Place>),
    loss: Option<(&RouterLoss<D::Wide>, &Index<D::Place>)>,
    terms: &RouterTerms,
) -> Tensor<D> {
    let mut dlogits = Tensor::empty(device, Category::Activations, logits.rows(), logits.cols());
    let balance = loss.map(|(loss, tokens)| loss.on(tokens));
    device.router_backward(
        dlogits.view_mut(),
        logits.view(),
        lse.view(),
        dgates.view(),
        chosen,
        balance,
        terms,
    );
    dlogits
}
