//! Column-parallel linear: each rank owns a block of the *output* features.
//!
//! Letters: `B` tokens, `I` inputs, `O` outputs; `O_t` is `O` split over axis `t`.
//!
//! ```text
//! forward    Y[B,O_t] = X[B,I] · W[I,O_t]            no traffic
//! backward  dX[B,I]   = Σ_t dY[B,O_t] · W[I,O_t]ᵀ    all-reduce, B·I elements
//!           dW[I,O_t] = X[B,I]ᵀ · dY[B,O_t]          no traffic
//! ```
//!
//! The forward is free because no output column needs another rank's weights; the price is paid
//! backward, where every rank holds one addend of `dX`. Mirror image: `row.rs`; predict its traffic.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (operator *f*), arXiv:1909.08053. Chapter: 3.
use crate::ops::{Split, columns_gradient, matmul};
use crate::weight::ColumnWeight;
use crate::{Builder, Cx, Draw, Kept, Layer, Param, Result};
use comm::{Axis, Group};
use kernels::Kernels;
use tensor::Tensor;

/// A linear layer whose weight is split by columns over the ranks of an axis.
pub struct ColumnLinear<D: Kernels> {
    weight: ColumnWeight<D>, // W[I,O_t]
    group: Group<D>,         // the ranks of axis t
}

impl<D: Kernels> ColumnLinear<D> {
    /// This rank's columns of `W[inputs, Σ sections]`. A fused weight (`[Q|K|V]`, `[gate|up]`) has several
    /// sections, each cut on its own. Initial values are normal with deviation 1/√inputs.
    ///
    /// # Errors
    /// If the ranks do not divide a section.
    pub fn shard(at: &Builder<D>, axis: Axis, name: &str, inputs: usize, sections: &[usize]) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let weight = ColumnWeight::new(at, axis, name, inputs, sections, draw)?;
        Ok(Self { weight, group: at.mesh.group(axis).named(name) })
    }
}

impl<D: Kernels> Layer<D> for ColumnLinear<D> {
    type In = Tensor<D>; // X[B,I], the same on every rank
    type Out = Split<D>; // Y[B,O_t]
    type Saved = Kept<Tensor<D>>;
    type Pending = (Tensor<D>, Split<D>);

    fn forward(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<(Split<D>, Self::Saved)> {
        let y = matmul(&x, &self.weight.columns()?);
        Ok((y, cx.keep(x)))
    }

    fn backward_input(
        &mut self,
        _: &Cx<D>,
        x: Self::Saved,
        dy: Split<D>,
    ) -> Result<(Tensor<D>, Self::Pending)> {
        let dx = dy.matmul(&self.weight.columns()?.t())?.all_reduce(&self.group)?;
        Ok((dx, (x.open(), dy)))
    }

    fn backward_weight(&mut self, _: &Cx<D>, (x, dy): Self::Pending) -> Result<()> {
        columns_gradient(&mut self.weight, &x, &dy);
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

    struct Column;
    impl Case for Column {
        type Layer<D: Kernels> = ColumnLinear<D>;
        fn features(&self) -> [usize; 2] {
            [5, 24]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<ColumnLinear<D>> {
            ColumnLinear::shard(at, Axis::Tp, "w", 5, &[24])
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [5, 24]);
            let y = reference::linear(&g.x, &g.weights["w"], [5, 24]);
            Answer { y, dx, gradients: [("w".into(), dw)].into() }
        }
        fn traffic(&self, tokens: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * 5)] // dX
        }
    }

    /// Kills: a forgotten, doubled or needless all-reduce, a wrong block, `=` for `+=` on dW.
    #[test]
    fn column_equals_linear_bit_for_bit() {
        proves(&Column);
    }
}
