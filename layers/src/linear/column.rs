//! Column-parallel linear: each rank owns consecutive *output* features.
//! Letters: `B` tokens, `I` inputs, `O` outputs; `O_t` is `O` split over axis `t`.
//!
//! ```text
//! forward    Y[B,O_t] = X[B,I] · W[I,O_t] + b[O_t]   no traffic
//! backward  dX[B,I]   = Σ_t dY[B,O_t] · W[I,O_t]ᵀ    all-reduce, B·I elements
//!           dW[I,O_t] = X[B,I]ᵀ · dY[B,O_t]          no traffic
//!           db[O_t]   = Σ_B dY[B,O_t]                no traffic
//! ```
//!
//! The forward needs no traffic, as no output column needs another rank's weights. In backward every rank has
//! a partial sum of `dX`, summed beside the product for `dW`. Mirror image: `row.rs`; predict its traffic.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (operator *f*), arXiv:1909.08053; Korthikanti et al., §4.2.2
//! (*g*), arXiv:2205.05198; Megatron-LM, `ColumnParallelLinear`. Chapter: columns and rows.
use crate::build::strategy::Column;
use crate::{Builder, Layer, Params};
use comm::Group;
use kernels::Kernels;
use ops::{
    ColumnWeight, KeptValue, PassContext, Result, Split, Stream, add_columns, columns_bias_gradient,
    columns_gradient, matmul,
};
use std::sync::Arc;

/// A linear layer whose weight is split by columns over the ranks of an axis.
///
/// Under sequence parallelism a rank has its own tokens of X: they are gathered, and `dX` is reduced and
/// scattered. Only this rank's tokens are kept for backward, and gathered again for `dW`: one all-gather
/// more, but all ranks together keep only B·I elements.
pub struct ColumnLinear<D: Kernels> {
    name: Arc<str>,
    weight: ColumnWeight<D>,       // W[I,O_t]
    bias: Option<ColumnWeight<D>>, // b[O_t]
    group: Group<D::Place>,        // the ranks of axis t
}

impl<D: Kernels> ColumnLinear<D> {
    /// Builds this rank's columns of `W[inputs, Σ sections]`, and of `name.bias` if there is one. A fused
    /// weight (`[Q|K|V]`, `[gate|up]`) has several sections, each cut on its own. Initial values are normal
    /// with standard deviation 1/√inputs.
    ///
    /// # Errors
    /// If the ranks do not divide a section.
    pub fn shard(at: &Builder<D>, column: &Column) -> Result<Self> {
        let Column { axis, name, inputs, sections, bias } = *column;
        let weight = ColumnWeight::new(at, axis, name, inputs, sections)?.tiled();
        let bias = bias.then(|| ColumnWeight::bias(at, axis, name, sections)).transpose()?;
        Ok(Self { name: name.into(), weight, bias, group: at.mesh.group(axis).named(name) })
    }
}

impl<D: Kernels> Layer<D> for ColumnLinear<D> {
    type In = Stream<D>; // X[B,I], the same on every rank, or this rank's tokens
    type Out = Split<D>; // Y[B,O_t]
    type Saved = KeptValue<Stream<D>>;
    type Pending = (Stream<D>, Split<D>);

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Split<D>, Self::Saved)> {
        cx.record(&self.name, "in", &x)?;
        let mut y = matmul(&x.gather(&self.group)?, &self.weight.columns()?)?;
        if let Some(bias) = &self.bias {
            y = add_columns(y, &bias.columns()?)?;
        }
        cx.record(&self.name, "out", &(&y, &self.weight))?;
        Ok((y, cx.keep(x)))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        x: Self::Saved,
        dy: Split<D>,
    ) -> Result<(Stream<D>, Self::Pending)> {
        let x = x.open();
        cx.record_gradient(&self.name, "out", &(&dy, &self.weight))?;
        let dx = dy.matmul(&self.weight.columns()?.t())?.reduce_as(&self.group, &x)?;
        cx.record_gradient(&self.name, "in", &dx)?;
        Ok((dx, (x, dy)))
    }

    fn backward_without_dx(
        &mut self,
        cx: &PassContext<D>,
        x: Self::Saved,
        dy: Split<D>,
    ) -> Result<Self::Pending> {
        cx.record_gradient(&self.name, "out", &(&dy, &self.weight))?;
        Ok((x.open(), dy))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (x, dy): Self::Pending) -> Result<()> {
        columns_gradient(&mut self.weight, &x.gather(&self.group)?, &dy)?;
        if let Some(bias) = &mut self.bias {
            columns_bias_gradient(bias, &dy);
        }
        Ok(())
    }

    /// Gathers X beside the product for `dX`, and sums `dX` beside those for `dW` and `db`.
    fn backward(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Split<D>) -> Result<Stream<D>> {
        cx.record_gradient(&self.name, "out", &(&dy, &self.weight))?;
        let x = x.open();
        let all = x.start_gather(&self.group)?;
        let dx = dy.matmul(&self.weight.columns()?.t())?;
        let all = all()?;
        let dx = dx.start_reduce_as(&self.group, &x)?;
        drop(x); // all are here
        self.backward_weight(cx, (all, dy))?;
        let dx = dx()?;
        cx.record_gradient(&self.name, "in", &dx)?;
        Ok(dx)
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.weight.param());
        into.extend(self.bias.as_mut().map(ColumnWeight::param));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use comm::Op;
    use tensor::Scalar;

    struct ColumnCase {
        bias: bool,
    }
    impl Case for ColumnCase {
        type Layer<D: Kernels> = ColumnLinear<D>;
        fn features(&self) -> [usize; 2] {
            [5, 24]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<ColumnLinear<D>> {
            let (axis, sections) = (Self::AXIS, &[24.into()]);
            ColumnLinear::shard(at, &Column { axis, name: "w", inputs: 5, sections, bias: self.bias })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [5, 24]);
            let mut y = reference::linear(&g.x, &g.weights["w"], [5, 24]);
            let mut answer = Answer { y: vec![], dx, gradients: [("w".into(), dw)].into() };
            if self.bias {
                reference::add_bias(&mut y, &g.weights["w.bias"]);
                answer.gradients.insert("w.bias".into(), reference::bias_gradient(&g.dy, 24));
            }
            Answer { y, ..answer }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * 5)] // dX
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllGather, 2 * share * 5), (Op::ReduceScatter, ranks * share * 5)] // X twice; dX
        }
    }

    /// Kills: a forgotten, doubled or needless all-reduce, a wrong block, `=` for `+=` on dW or db, a bias of
    /// another rank's columns.
    #[test]
    fn column_equals_linear_bit_for_bit() {
        for bias in [false, true] {
            proves(&ColumnCase { bias });
        }
    }

    /// Kills: tokens not gathered, or not again for dW; dX of all tokens where this rank has its own.
    #[test]
    fn column_equals_linear_under_sequence_parallelism() {
        proves_in_regions(&ColumnCase { bias: true });
    }

    /// A proof that did not compare dX would let its all-reduce go wrong in every way. Kills: mutants that
    /// are not told, or excused; a survivor that is not named.
    #[test]
    fn what_is_not_compared_goes_wrong_unseen() {
        let tally = |compared| crate::proof::blind(&ColumnCase { bias: false }, compared);
        let (all, blind) = (tally(|_| true), tally(|name| !name.ends_with("dX")));
        assert_eq!((all.survivors().len(), blind.killed()), (0, 0));
        assert_eq!(blind.survivors().len(), all.killed());
        let names = |s: &String| s.contains("ranks: all_reduce(sum) over tp of ") && s.contains("for w at ");
        assert!(blind.survivors().iter().all(names), "{:?}", blind.survivors());
    }
}
