//! Row-parallel linear: each rank owns consecutive *input* features.
//! Letters: `B` tokens, `I` inputs, `O` outputs; `I_t` is `I` split over axis `t`.
//!
//! ```text
//! forward    Y[B,O]   = Σ_t X[B,I_t] · W[I_t,O] + b[O]   all-reduce, B·O elements
//! backward  dX[B,I_t] = dY[B,O] · W[I_t,O]ᵀ              no traffic
//!           dW[I_t,O] = X[B,I_t]ᵀ · dY[B,O]              no traffic
//!           db[O]     = Σ_B dY[B,O]                      no traffic
//! ```
//!
//! After a column layer it takes that layer's split output as it is, so the pair costs one all-reduce each
//! way. Mirror image: `column.rs`.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (operator *g*), arXiv:1909.08053; Korthikanti et al., §4.2.2
//! (*ḡ*), arXiv:2205.05198. Chapter: columns and rows, sequence parallelism.
use crate::build::strategy::Row;
use crate::{Builder, InputHalf, Layer, Params};
use comm::Group;
use kernels::Kernels;
use ops::handles::weight::BIAS;
use ops::{
    Draw, KeptValue, PassContext, Pieces, Region, Result, RowWeight, Split, Stream, WholeWeight, add_bias,
    bias_gradient, matmul, rows_gradient,
};
use std::sync::Arc;
use tensor::Tensor;

/// A linear layer whose weight is split by rows over the ranks of an axis.
///
/// The bias is added to the finished sum: added by every rank to its partial sum, it would count once per
/// rank. Under sequence parallelism the sum is scattered, so each rank keeps its own tokens, and `dY` is
/// gathered. The bias is then added to this rank's tokens only, so its gradient is a partial sum.
pub struct RowLinear<D: Kernels> {
    name: Arc<str>,
    weight: RowWeight<D>,         // W[I_t,O]
    bias: Option<WholeWeight<D>>, // b[O]
    group: Group<D::Place>,       // the ranks of axis t
    region: Region,               // the rows of Y that a rank has
}

impl<D: Kernels> RowLinear<D> {
    /// Builds this rank's rows of `W[inputs, outputs]`, and `name.bias` if there is one. Initial values are
    /// normal with standard deviation 1/√inputs.
    ///
    /// # Errors
    /// If the ranks do not divide the inputs.
    pub fn shard(at: &Builder<D>, row: &Row) -> Result<Self> {
        let Row { axis, name, sizes: [inputs, outputs], bias } = *row;
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let weight = RowWeight::new(at, axis, name, [inputs, outputs], Pieces::Even, draw)?.tiled();
        let placement = at.placement();
        let row = || WholeWeight::new(at, format!("{name}.bias"), [1, outputs], placement, BIAS);
        let group = at.mesh.group(axis).named(name);
        Ok(Self { name: name.into(), weight, bias: bias.then(row).transpose()?, group, region: at.region })
    }
}

impl<D: Kernels> Layer<D> for RowLinear<D> {
    type In = Split<D>; // X[B,I_t]
    type Out = Stream<D>; // Y[B,O], the same on every rank, or this rank's tokens
    type Saved = KeptValue<Split<D>>;
    type Pending = (Split<D>, Tensor<D>, Stream<D>);

    fn forward(&self, cx: &PassContext<D>, x: Split<D>) -> Result<(Stream<D>, Self::Saved)> {
        cx.record(&self.name, "in", &(&x, &self.group, x.shape()[1] * self.group.size()))?;
        let mut y = x.matmul(&self.weight.rows()?)?.reduce(&self.group, self.region)?;
        if let Some(bias) = &self.bias {
            y = add_bias(y, &bias.whole()?);
        }
        cx.record(&self.name, "out", &y)?;
        Ok((y, cx.keep(x)))
    }

    fn backward_input(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> InputHalf<D, Self> {
        cx.record_gradient(&self.name, "out", &dy)?;
        let whole = dy.gather(&self.group)?;
        let dx = matmul(&whole, &self.weight.rows()?.t())?;
        cx.record_gradient(&self.name, "in", &(&dx, &self.group, dx.shape()[1] * self.group.size()))?;
        Ok((dx, (x.open(), whole, dy)))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (x, whole, dy): Self::Pending) -> Result<()> {
        rows_gradient(&mut self.weight, &x, &whole)?;
        if let Some(bias) = &mut self.bias {
            bias_gradient(bias, &dy);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.weight.param());
        into.extend(self.bias.as_mut().map(WholeWeight::param));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use comm::{Axis, Op};
    use tensor::Scalar;

    struct RowCase {
        bias: bool,
    }
    impl Case for RowCase {
        type Layer<D: Kernels> = RowLinear<D>;
        fn features(&self) -> [usize; 2] {
            [24, 5]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<RowLinear<D>> {
            RowLinear::shard(at, &Row { axis: Axis::Tp, name: "w", sizes: [24, 5], bias: self.bias })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [24, 5]);
            let mut y = reference::linear(&g.x, &g.weights["w"], [24, 5]);
            let mut answer = Answer { y: vec![], dx, gradients: [("w".into(), dw)].into() };
            if self.bias {
                reference::add_bias(&mut y, &g.weights["w.bias"]);
                answer.gradients.insert("w.bias".into(), reference::bias_gradient(&g.dy, 5));
            }
            Answer { y, ..answer }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * 5)] // Y
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::ReduceScatter, ranks * share * 5), (Op::AllGather, share * 5)] // Y; dY
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            if regions && self.bias { 5 } else { 0 }
        }
    }

    /// Kills: a forgotten, doubled or needless all-reduce, a wrong block, `=` for `+=` on dW or db, a bias
    /// that counts once per rank.
    #[test]
    fn row_equals_linear_bit_for_bit() {
        for bias in [false, true] {
            proves(&RowCase { bias });
        }
    }

    /// Kills: dY of this rank's tokens where all are wanted, a bias' gradient that is not summed.
    #[test]
    fn row_equals_linear_under_sequence_parallelism() {
        proves_in_regions(&RowCase { bias: true });
    }

    struct OfOtherTokens;
    impl Case for OfOtherTokens {
        type Layer<D: Kernels> = RowLinear<D>;
        const RANKS: &'static [usize] = &[2];
        fn features(&self) -> [usize; 2] {
            [4, 3]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<RowLinear<D>> {
            let regions = Builder::new(at.device, at.mesh, at.values).in_regions();
            RowLinear::shard(&regions, &Row { axis: Axis::Tp, name: "w", sizes: [4, 3], bias: false })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [4, 3]);
            let y = reference::linear(&g.x, &g.weights["w"], [4, 3]);
            Answer { y, dx, gradients: [("w".into(), dw)].into() }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::ReduceScatter, tokens * 3)]
        }
    }

    /// All numbers are right, and no model could go on with them. Kills: a proof that does not ask whose
    /// tokens they are.
    #[test]
    #[should_panic(expected = "the region of the layer's stream")]
    fn a_stream_of_another_region_is_refused() {
        proves(&OfOtherTokens);
    }
}
