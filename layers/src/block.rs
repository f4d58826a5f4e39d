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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use crate::{Builder, Rotary};
    use comm::{Axis, Op};
    use kernels::Heads;
    use reference::Model;
    use tensor::Scalar;

    const D: usize = 6;
    const F: usize = 8;
    const ROPE: f64 = 100.0;
    struct OneBlock;

    fn oracle() -> Model {
        let heads = reference::Heads { queries: 8, keys: 4, dim: 2 };
        Model { width: D, blocks: 1, heads, hidden: F, vocabulary: 1, rope: ROPE, eps: 1e-5, tied: true }
    }

    impl Case for OneBlock {
        type Layer<T: Kernels> = Block<T>;
        const RANKS: &'static [usize] = &[1, 2, 4];
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Block<T>> {
            let heads = Heads { queries: 8, keys: 4, dim: 2 };
            let norm = |n| RmsNorm::new(at, &format!("blocks.0.norm{n}"), D, 1e-5);
            let rotary = Rotary::new(2, ROPE);
            let attention = Attention::shard(at, Axis::Tp, "blocks.0.attention", D, heads, rotary)?;
            let mlp = Mlp::shard(at, Axis::Tp, "blocks.0.mlp", D, F)?;
            Ok(Block {
                attention: Residual { norm: norm(1)?, inner: attention },
                mlp: Residual { norm: norm(2)?, inner: mlp },
            })
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let (y, saved) = oracle().block(&g.weights, 0, g.x.clone(), &g.lengths);
            let mut gradients = reference::Weights::new();
            let dx = oracle().block_backward(&g.weights, 0, &saved, g.dy.clone(), &g.lengths, &mut gradients);
            Answer { y, dx, gradients }
        }
        fn traffic(&self, tokens: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, 4 * tokens * D)] // two forward, two backward
        }
    }

    /// Kills: a residual or its gradient dropped, a norm of the wrong input, a third all-reduce.
    #[test]
    fn block_equals_block_bit_for_bit() {
        proves(&OneBlock);
    }
}
