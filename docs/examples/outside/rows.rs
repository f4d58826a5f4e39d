//! Row-parallel linear layer, written outside of equipart.
//!
//! ```text
//! forward    Y[B,O]   = Σ_t X[B,I_t] · W[I_t,O] + b[O]   all-reduce, B·O elements
//! backward  dX[B,I_t] = dY[B,O] · W[I_t,O]ᵀ              no traffic
//!           dW[I_t,O] = X[B,I_t]ᵀ · dY[B,O]              no traffic
//! ```
use comm::{Axis, Group};
use kernels::Kernels;
use layers::build::strategy::Row;
use layers::{BoxedLayer, Builder, Choice, Layer, NumberArgument, Params, Strategy, StrategyInfo};
use ops::{
    Draw, KeptValue, PassContext, Pieces, Region, Result, RowWeight, Split, Stream, WholeWeight, add_bias,
    bias_gradient, matmul, rows_gradient,
};

/// Builds its own row-parallel layers.
///
/// **A layer** implements [`layers::Layer`]: a forward, and a backward in two halves. Types of
/// [`ops`] say which part a rank holds: a product of tensors that are cut along the same axis gives a
/// [`Partial`](ops::Partial), and nothing but a collective opens it. **A strategy**
/// ([`layers::Strategy`]) has a name and builds such layers.
///
/// Code cannot declare that a tensor is a partial sum, for a sum that is declared where there is none, or
/// missing where there is one, is the bug that the types prevent:
///
/// ```compile_fail,E0624
/// use {comm::Axis, kernels::Kernels, ops::Partial, tensor::Tensor};
/// fn addend<D: Kernels>(x: Tensor<D>) -> Partial<D> {
///     Partial::sum(x, Axis::Tp)
/// }
/// ```
///
/// Only a product makes one:
///
/// ```
/// use {comm::Group, kernels::Kernels, ops::{Partial, Result, Rows, Split}, tensor::Tensor};
/// fn addend<D: Kernels>(x: &Tensor<D>, w: &Rows<D>, group: &Group<D::Place>) -> Result<Partial<D>> {
///     Split::cut(x, group)?.matmul(w)
/// }
/// ```
pub struct OwnRows;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "own rows",
    axis: Some(Axis::Tp),
    choice: Choice::Layers,
    word: "own-rows",
    takes: NumberArgument::Nothing,
    tries: layers::Tries::Always(&[]),
    needs: None,
    shares: |_, _| vec![], // no conditions beyond those of tp
    alone: false,
    paper: "Shoeybi et al., arXiv:1909.08053",
    chapter: None,
    hints: &[("", "Y is a sum over ranks; the bias is added once, to the finished sum")],
};

impl<D: Kernels> Strategy<D> for OwnRows {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, at: &Builder<D>, row: &Row) -> Result<Option<BoxedLayer<D, Split<D>, Stream<D>>>> {
        Ok(Some(BoxedLayer::new(Rows::shard(at, row)?)))
    }
}

struct Rows<D: Kernels> {
    name: String,
    weight: RowWeight<D>,         // W[I_t,O]
    bias: Option<WholeWeight<D>>, // b[O]
    group: Group<D::Place>,
    region: Region, // the tokens of Y on this rank
}

impl<D: Kernels> Rows<D> {
    fn shard(at: &Builder<D>, &Row { axis, name, sizes, bias }: &Row) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (sizes[0] as f64).sqrt() };
        let weight = RowWeight::new(at, axis, name, sizes, Pieces::Even, draw)?;
        let draw = Draw { mean: 0.0, std: 0.02 };
        let row = || WholeWeight::new(at, format!("{name}.bias"), [1, sizes[1]], at.placement(), draw);
        let (bias, group) = (bias.then(row).transpose()?, at.mesh.group(axis).named(name));
        Ok(Self { name: name.into(), weight, bias, group, region: at.region })
    }
}

impl<D: Kernels> Layer<D> for Rows<D> {
    type In = Split<D>; // X[B,I_t]
    type Out = Stream<D>; // Y[B,O]
    type Saved = KeptValue<Split<D>>;
    type Pending = (Split<D>, Stream<D>);

    fn forward(&self, cx: &PassContext<D>, x: Split<D>) -> Result<(Stream<D>, Self::Saved)> {
        let inputs = x.shape()[1] * self.group.size();
        cx.record(&self.name, "in", &(&x, &self.group, inputs))?;
        let mut y = x.matmul(&self.weight.rows()?)?.reduce(&self.group, self.region)?;
        if let Some(bias) = &self.bias {
            y = add_bias(y, &bias.whole()?);
        }
        cx.record(&self.name, "out", &y)?;
        Ok((y, cx.keep(x)))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        x: Self::Saved,
        dy: Stream<D>,
    ) -> Result<(Split<D>, Self::Pending)> {
        cx.record_gradient(&self.name, "out", &dy)?;
        let dx = matmul(&dy.gather(&self.group)?, &self.weight.rows()?.t())?;
        Ok((dx, (x.open(), dy)))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (x, dy): Self::Pending) -> Result<()> {
        rows_gradient(&mut self.weight, &x, &dy.gather(&self.group)?)?;
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
    use comm::Op;
    use layers::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use tensor::Scalar;

    const SIZES: [usize; 2] = [24, 5];

    struct Proof;
    impl Case for Proof {
        type Layer<D: Kernels> = Rows<D>;
        fn features(&self) -> [usize; 2] {
            SIZES
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Rows<D>> {
            Rows::shard(at, &Row { axis: Axis::Tp, name: "w", sizes: SIZES, bias: true })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, SIZES);
            let mut y = reference::linear(&g.x, &g.weights["w"], SIZES);
            reference::add_bias(&mut y, &g.weights["w.bias"]);
            let db = reference::bias_gradient(&g.dy, SIZES[1]);
            Answer { y, dx, gradients: [("w".into(), dw), ("w.bias".into(), db)].into() }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * SIZES[1])] // Y
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            let y = share * SIZES[1];
            vec![(Op::ReduceScatter, ranks * y), (Op::AllGather, 2 * y)] // Y; dY twice: the whole is not kept
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            if regions { SIZES[1] } else { 0 } // the bias
        }
    }

    /// Kills: a missing sum, a sum taken twice, a bias counted once per rank, another rank's rows, and all
    /// mutants of its calls.
    #[test]
    fn own_rows_equal_linear_bit_for_bit() {
        proves(&Proof);
        proves_in_regions(&Proof);
    }
}
