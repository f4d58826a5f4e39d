//! Row-parallel linear: each rank owns a block of the *input* features.
//!
//! Letters: `B` tokens, `I` inputs, `O` outputs; `I_t` is `I` split over axis `t`.
//!
//! ```text
//! forward    Y[B,O]   = Σ_t X[B,I_t] · W[I_t,O]      all-reduce, B·O elements
//! backward  dX[B,I_t] = dY[B,O] · W[I_t,O]ᵀ          no traffic
//!           dW[I_t,O] = X[B,I_t]ᵀ · dY[B,O]          no traffic
//! ```
//!
//! After a column layer it takes that layer's split output as it lies: the pair costs one all-reduce each way.
//! Mirror image: `column.rs`.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (operator *g*), arXiv:1909.08053. Chapter: 3.
use crate::ops::{Split, matmul, rows_gradient};
use crate::weight::RowWeight;
use crate::{Builder, Cx, Draw, Kept, Layer, Param, Result};
use comm::{Axis, Group};
use kernels::Kernels;
use tensor::Tensor;

/// A linear layer whose weight is split by rows over the ranks of an axis.
pub struct RowLinear<D: Kernels> {
    weight: RowWeight<D>, // W[I_t,O]
    group: Group<D>,      // the ranks of axis t
}

impl<D: Kernels> RowLinear<D> {
    /// This rank's rows of `W[inputs, outputs]`. Initial values are normal with deviation 1/√inputs.
    ///
    /// # Errors
    /// If the ranks do not divide the inputs.
    pub fn shard(at: &Builder<D>, axis: Axis, name: &str, inputs: usize, outputs: usize) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let weight = RowWeight::new(at, axis, name, [inputs, outputs], draw)?;
        Ok(Self { weight, group: at.mesh.group(axis).named(name) })
    }
}

impl<D: Kernels> Layer<D> for RowLinear<D> {
    type In = Split<D>; // X[B,I_t]
    type Out = Tensor<D>; // Y[B,O], the same on every rank
    type Saved = Kept<Split<D>>;
    type Pending = (Split<D>, Tensor<D>);

    fn forward(&self, cx: &Cx<D>, x: Split<D>) -> Result<(Tensor<D>, Self::Saved)> {
        let y = x.matmul(&self.weight.rows()?)?.all_reduce(&self.group)?;
        Ok((y, cx.keep(x)))
    }

    fn backward_input(
        &mut self,
        _: &Cx<D>,
        x: Self::Saved,
        dy: Tensor<D>,
    ) -> Result<(Split<D>, Self::Pending)> {
        let dx = matmul(&dy, &self.weight.rows()?.t());
        Ok((dx, (x.open(), dy)))
    }

    fn backward_weight(&mut self, _: &Cx<D>, (x, dy): Self::Pending) -> Result<()> {
        rows_gradient(&mut self.weight, &x, &dy);
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        into.push(self.weight.param());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use comm::Op;
    use tensor::Scalar;

    struct Row;
    impl Case for Row {
        type Layer<D: Kernels> = RowLinear<D>;
        fn features(&self) -> [usize; 2] {
            [24, 5]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<RowLinear<D>> {
            RowLinear::shard(at, Axis::Tp, "w", 24, 5)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [24, 5]);
            let y = reference::linear(&g.x, &g.weights["w"], [24, 5]);
            Answer { y, dx, gradients: [("w".into(), dw)].into() }
        }
        fn traffic(&self, tokens: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * 5)] // Y
        }
    }

    /// Kills: a forgotten, doubled or needless all-reduce, a wrong block, `=` for `+=` on dW.
    #[test]
    fn row_equals_linear_bit_for_bit() {
        proves(&Row);
    }
}
