//! A column layer whose weight rests cut by rows, written with what a strategy of another crate may use.
use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
use crate::{Builder, Layer, Params};
use comm::{Axis, Group, Op};
use kernels::Kernels;
use ops::{
    Draw, KeptValue, PassContext, Pieces, Result, RowWeight, Section, Split, Stream, gathered_gradient,
    matmul,
};
use tensor::Scalar;

const SIZES: [usize; 2] = [5, 24];

fn sections() -> [Section; 1] {
    [24.into()]
}

/// `Y[B,O_t] = X[B,I] · W[I,O_t]`, the weight gathered just in time; only rows rest.
struct JustInTime<D: Kernels> {
    weight: RowWeight<D>, // W[I_t,O]
    group: Group<D::Place>,
}

impl<D: Kernels> Layer<D> for JustInTime<D> {
    type In = Stream<D>;
    type Out = Split<D>;
    type Saved = KeptValue<Stream<D>>;
    type Pending = (Stream<D>, Split<D>);

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Split<D>, Self::Saved)> {
        let y = matmul(&x.gather(&self.group)?, &self.weight.gathered(&self.group, &sections())?)?;
        Ok((y, cx.keep(x)))
    }
    fn backward_input(
        &mut self,
        _: &PassContext<D>,
        x: Self::Saved,
        dy: Split<D>,
    ) -> Result<(Stream<D>, Self::Pending)> {
        let (x, columns) = (x.open(), self.weight.gathered(&self.group, &sections())?);
        let dx = dy.matmul(&columns.t())?.reduce(&self.group, x.region())?;
        Ok((dx, (x, dy)))
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (x, dy): Self::Pending) -> Result<()> {
        let x = x.gather(&self.group)?;
        gathered_gradient(&mut self.weight, &self.group, &sections(), (&x, &dy))
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.weight.param());
    }
}

struct Gathered;
impl Case for Gathered {
    type Layer<D: Kernels> = JustInTime<D>;
    fn features(&self) -> [usize; 2] {
        SIZES
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<JustInTime<D>> {
        let draw = Draw { mean: 0.0, std: 1.0 };
        let weight = RowWeight::new(at, Axis::Tp, "w", SIZES, Pieces::Padded, draw)?;
        Ok(JustInTime { weight, group: at.mesh.group(Axis::Tp).named("w") })
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, SIZES);
        let y = reference::linear(&g.x, &g.weights["w"], SIZES);
        Answer { y, dx, gradients: [("w".into(), dw)].into() }
    }
    fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)> {
        let weight = 2 * SIZES[0].div_ceil(ranks) * SIZES[1]; // of two microbatches
        let dx = tokens * SIZES[0];
        vec![(Op::AllGather, 2 * weight), (Op::AllReduce, dx), (Op::ReduceScatter, ranks * weight)]
    }
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        let (weight, x) = (2 * SIZES[0].div_ceil(ranks) * SIZES[1], share * SIZES[0]);
        vec![(Op::AllGather, 2 * (weight + x)), (Op::ReduceScatter, ranks * (weight + x))]
    }
}

/// Kills: columns of another rank or section, rows of another rank, padding that is read; a gradient at other
/// columns, of this rank's columns alone, or that overwrites the last microbatch's.
#[test]
fn weights_gathered_just_in_time_equal_linear_bit_for_bit() {
    proves(&Gathered);
    proves_in_regions(&Gathered);
}
