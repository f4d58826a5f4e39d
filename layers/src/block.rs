//! Y = X + F(norm(X)), twice: attention, then feed-forward. Two all-reduces forward, two backward.
//!
//! Source: Xiong et al., "On layer normalization in the transformer architecture" (pre-norm), arXiv:2002.04745.
//! Chapter: 3.
use crate::ops::plus;
use crate::{Attention, Cx, Layer, Mlp, Param, Result, RmsNorm, norm};
use kernels::Kernels;
use tensor::Tensor;

/// Y = X + F(norm(X)).
pub struct Residual<D: Kernels, F> {
    /// The norm before F.
    pub norm: RmsNorm<D>,
    /// F.
    pub inner: F,
}

impl<D: Kernels, F: Layer<D, In = Tensor<D>, Out = Tensor<D>>> Layer<D> for Residual<D, F> {
    type In = Tensor<D>;
    type Out = Tensor<D>;
    type Saved = (norm::Saved<D>, F::Saved);
    type Pending = F::Pending;

    fn forward(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<(Tensor<D>, Self::Saved)> {
        let (n, norm) = self.norm.forward(cx, x.clone())?;
        let (y, inner) = self.inner.forward(cx, n)?;
        Ok((plus(y, &x), (norm, inner)))
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        (norm, inner): Self::Saved,
        dy: Tensor<D>,
    ) -> Result<(Tensor<D>, Self::Pending)> {
        let (dn, pending) = self.inner.backward_input(cx, inner, dy.clone())?;
        Ok((self.norm.backward_onto(norm, &dn, Some(&dy))?, pending))
    }

    fn backward_weight(&mut self, cx: &Cx<D>, pending: Self::Pending) -> Result<()> {
        self.inner.backward_weight(cx, pending)
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.norm.params(into);
        self.inner.params(into);
    }
}

/// One block of a Llama-like transformer.
pub struct Block<D: Kernels> {
    /// X + attention(norm1(X)).
    pub attention: Residual<D, Attention<D>>,
    /// X + mlp(norm2(X)).
    pub mlp: Residual<D, Mlp<D>>,
}

type Saved<D, F> = <Residual<D, F> as Layer<D>>::Saved;
type Pending<D, F> = <F as Layer<D>>::Pending;

impl<D: Kernels> Layer<D> for Block<D> {
    type In = Tensor<D>;
    type Out = Tensor<D>;
    type Saved = (Saved<D, Attention<D>>, Saved<D, Mlp<D>>);
    type Pending = (Pending<D, Attention<D>>, Pending<D, Mlp<D>>);

    fn forward(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<(Tensor<D>, Self::Saved)> {
        let (x, attention) = self.attention.forward(cx, x)?;
        let (x, mlp) = self.mlp.forward(cx, x)?;
        Ok((x, (attention, mlp)))
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        (attention, mlp): Self::Saved,
        dy: Tensor<D>,
    ) -> Result<(Tensor<D>, Self::Pending)> {
        let (dy, mlp) = self.mlp.backward_input(cx, mlp, dy)?;
        let (dx, attention) = self.attention.backward_input(cx, attention, dy)?;
        Ok((dx, (attention, mlp)))
    }

    fn backward_weight(&mut self, cx: &Cx<D>, (attention, mlp): Self::Pending) -> Result<()> {
        self.mlp.backward_weight(cx, mlp)?;
        self.attention.backward_weight(cx, attention)
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.attention.params(into);
        self.mlp.params(into);
    }
}
