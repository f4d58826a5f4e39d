//! SwiGLU feed-forward: columns, then rows; the hidden features never leave their rank.
//!
//! ```text
//! forward   [G|U][B,2F_t] = X · W_gu,   H[B,F_t] = G·sigmoid(G)·U,   Y = Σ_t H · W_d     all-reduce, B·D elements
//! backward  the mirror image                                                             all-reduce, B·D elements
//! ```
//!
//! `[gate | up]` is one fused weight whose two sections are cut each on its own: cut as one, a rank would hold
//! gates of one feature and ups of another.
//!
//! Source: Shazeer, "GLU variants improve transformer", arXiv:2002.05202; split as Megatron-LM §3. Chapter: 3.
use crate::ops::{Split, swiglu, swiglu_backward};
use crate::{Builder, ColumnLinear, Cx, Kept, Layer, Param, Result, RowLinear};
use comm::Axis;
use kernels::Kernels;
use tensor::Tensor;

/// SwiGLU feed-forward of `F` hidden features, split over the ranks of an axis.
pub struct Mlp<D: Kernels> {
    gate_up: ColumnLinear<D>, // W[D,2F_t]
    down: RowLinear<D>,       // W[F_t,D]
}

/// What backward needs.
pub struct Saved<D: Kernels> {
    x: Kept<Tensor<D>>,
    gate_up: Kept<Split<D>>,
    hidden: Kept<Split<D>>,
}

impl<D: Kernels> Mlp<D> {
    /// Parameters `name.gate_up` and `name.down`.
    ///
    /// # Errors
    /// If the ranks do not divide the hidden features.
    pub fn shard(at: &Builder<D>, axis: Axis, name: &str, width: usize, hidden: usize) -> Result<Self> {
        Ok(Self {
            gate_up: ColumnLinear::shard(at, axis, &format!("{name}.gate_up"), width, &[hidden, hidden])?,
            down: RowLinear::shard(at, axis, &format!("{name}.down"), hidden, width)?,
        })
    }
}

impl<D: Kernels> Layer<D> for Mlp<D> {
    type In = Tensor<D>;
    type Out = Tensor<D>;
    type Saved = Saved<D>;
    type Pending = (<ColumnLinear<D> as Layer<D>>::Pending, <RowLinear<D> as Layer<D>>::Pending);

    fn forward(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<(Tensor<D>, Saved<D>)> {
        let (gate_up, x) = self.gate_up.forward(cx, x)?;
        let h = swiglu(&gate_up);
        let gate_up = cx.keep(gate_up);
        let (y, hidden) = self.down.forward(cx, h)?;
        Ok((y, Saved { x, gate_up, hidden }))
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        s: Saved<D>,
        dy: Tensor<D>,
    ) -> Result<(Tensor<D>, Self::Pending)> {
        let (dh, down) = self.down.backward_input(cx, s.hidden, dy)?;
        let d = swiglu_backward(&s.gate_up.open(), &dh);
        drop(dh);
        let (dx, gate_up) = self.gate_up.backward_input(cx, s.x, d)?;
        Ok((dx, (gate_up, down)))
    }

    fn backward_weight(&mut self, cx: &Cx<D>, (gate_up, down): Self::Pending) -> Result<()> {
        self.gate_up.backward_weight(cx, gate_up)?;
        self.down.backward_weight(cx, down)
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.gate_up.params(into);
        self.down.params(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use comm::Op;
    use reference::{linear, linear_backward};
    use tensor::Scalar;

    const D: usize = 5;
    const F: usize = 24;
    struct SwiGlu;
    impl Case for SwiGlu {
        type Layer<T: Kernels> = Mlp<T>;
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Mlp<T>> {
            Mlp::shard(at, Axis::Tp, "mlp", D, F)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let (wgu, wd) = (&g.weights["mlp.gate_up"], &g.weights["mlp.down"]);
            let gate_up = linear(&g.x, wgu, [D, 2 * F]);
            let h = reference::swiglu(&gate_up, F);
            let (dh, ddown) = linear_backward(&h, wd, &g.dy, [F, D]);
            let d = reference::swiglu_backward(&gate_up, &dh, F);
            let (dx, dgate_up) = linear_backward(&g.x, wgu, &d, [D, 2 * F]);
            let gradients = [("mlp.gate_up".into(), dgate_up), ("mlp.down".into(), ddown)].into();
            Answer { y: linear(&h, wd, [F, D]), dx, gradients }
        }
        fn traffic(&self, tokens: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, 2 * tokens * D)] // Y and dX
        }
    }

    /// Kills: `[gate | up]` cut as one section, gate and up exchanged, a wrong derivative of the gate.
    #[test]
    fn mlp_equals_swiglu_bit_for_bit() {
        proves(&SwiGlu);
    }
}
