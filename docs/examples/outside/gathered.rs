//! Column-parallel linear layer whose weight is kept cut by *rows* and gathered just in time: a rank keeps
//! `⌈I/ranks⌉` rows, even where the columns cannot be cut, such as those of KV heads that are replicated on
//! several ranks.
//!
//! ```text
//! W[I,O_t] = this rank's columns of all rows             all-gather, I_t·O elements; forward and backward
//! forward    Y[B,O_t] = X[B,I] · W[I,O_t] + b[O_t]       no traffic
//! backward  dX[B,I]   = Σ_t dY[B,O_t] · W[I,O_t]ᵀ        all-reduce, B·I elements
//!           dW[I_t,O] = Σ_t X[B,I]ᵀ · dY[B,O_t]          reduce-scatter, I·O elements
//! ```
//!
//! Source: Rajbhandari et al., "`ZeRO`", §5.3 (parameters gathered when they are used), arXiv:1910.02054.
use comm::{Axis, Group};
use kernels::Kernels;
use layers::build::strategy::Column;
use layers::{BoxedLayer, Builder, Choice, Layer, NumberArgument, Params, Strategy, StrategyInfo};
use ops::{
    ColumnWeight, Draw, KeptValue, PassContext, Pieces, Result, RowWeight, Section, Split, Stream,
    add_columns, columns_bias_gradient, gathered_gradient, matmul,
};

/// Builds column layers whose weights are gathered just in time.
pub struct JustInTime;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "weights just in time",
    axis: Some(Axis::Tp),
    choice: Choice::Layers,
    word: "just-in-time",
    takes: NumberArgument::Nothing,
    tries: layers::Tries::Always(&[]),
    needs: None,
    shares: |_, _| vec![],
    alone: false,
    paper: "Rajbhandari et al., arXiv:1910.02054",
    chapter: None,
    hints: &[(
        "",
        "a weight is gathered before each use; its gradient is a sum over ranks, scattered by rows",
    )],
};

impl<D: Kernels> Strategy<D> for JustInTime {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn column(&self, at: &Builder<D>, column: &Column) -> Result<Option<BoxedLayer<D, Stream<D>, Split<D>>>> {
        Ok(Some(BoxedLayer::new(Gathered::shard(at, column)?)))
    }
}

struct Gathered<D: Kernels> {
    weight: RowWeight<D>,          // W[I_t,O]
    bias: Option<ColumnWeight<D>>, // b[O_t]
    sections: Vec<Section>,
    group: Group<D::Place>,
}

impl<D: Kernels> Gathered<D> {
    fn shard(at: &Builder<D>, &Column { axis, name, inputs, sections, bias }: &Column) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let shape = [inputs, sections.iter().map(|s| s.size).sum()];
        let weight = RowWeight::new(at, axis, name, shape, Pieces::Padded, draw)?.fused(sections);
        let bias = bias.then(|| ColumnWeight::bias(at, axis, name, sections));
        let (bias, group) = (bias.transpose()?, at.mesh.group(axis).named(name));
        Ok(Self { weight, bias, sections: sections.to_vec(), group })
    }
}

impl<D: Kernels> Layer<D> for Gathered<D> {
    type In = Stream<D>; // X[B,I]
    type Out = Split<D>; // Y[B,O_t]
    type Saved = KeptValue<Stream<D>>;
    type Pending = (Stream<D>, Split<D>);

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Split<D>, Self::Saved)> {
        let columns = self.weight.gathered(&self.group, &self.sections)?;
        let y = matmul(&x.gather(&self.group)?, &columns)?;
        let y = match &self.bias {
            Some(bias) => add_columns(y, &bias.columns()?)?,
            None => y,
        };
        Ok((y, cx.keep(x)))
    }

    fn backward_input(
        &mut self,
        _: &PassContext<D>,
        x: Self::Saved,
        dy: Split<D>,
    ) -> Result<(Stream<D>, Self::Pending)> {
        let (x, columns) = (x.open(), self.weight.gathered(&self.group, &self.sections)?);
        let dx = dy.matmul(&columns.t())?.reduce(&self.group, x.region())?;
        Ok((dx, (x, dy)))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (x, dy): Self::Pending) -> Result<()> {
        let x = x.gather(&self.group)?;
        gathered_gradient(&mut self.weight, &self.group, &self.sections, (&x, &dy))?;
        if let Some(bias) = &mut self.bias {
            columns_bias_gradient(bias, &dy);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.weight.param());
        into.extend(self.bias.as_mut().map(ColumnWeight::param));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Op;
    use layers::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use tensor::Scalar;

    const SIZES: [usize; 2] = [5, 24];

    struct Proof;
    impl Case for Proof {
        type Layer<D: Kernels> = Gathered<D>;
        fn features(&self) -> [usize; 2] {
            SIZES
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Gathered<D>> {
            let sections = &[SIZES[1].into()];
            Gathered::shard(at, &Column { axis: Axis::Tp, name: "w", inputs: SIZES[0], sections, bias: true })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, SIZES);
            let mut y = reference::linear(&g.x, &g.weights["w"], SIZES);
            reference::add_bias(&mut y, &g.weights["w.bias"]);
            let db = reference::bias_gradient(&g.dy, SIZES[1]);
            Answer { y, dx, gradients: [("w".into(), dw), ("w.bias".into(), db)].into() }
        }
        fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)> {
            let weight = 2 * SIZES[0].div_ceil(ranks) * SIZES[1]; // for two microbatches
            vec![
                (Op::AllGather, 2 * weight),
                (Op::AllReduce, tokens * SIZES[0]),
                (Op::ReduceScatter, ranks * weight),
            ]
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            let (weight, x) = (2 * SIZES[0].div_ceil(ranks) * SIZES[1], share * SIZES[0]);
            vec![(Op::AllGather, 2 * (weight + x)), (Op::ReduceScatter, ranks * (weight + x))]
        }
    }

    /// Kills: a weight used without a gather, a gradient of this rank's columns only, and all mutants of its
    /// calls.
    #[test]
    fn gathered_weights_equal_linear_bit_for_bit() {
        proves(&Proof);
        proves_in_regions(&Proof);
    }
}
