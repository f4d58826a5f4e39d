//! Column-parallel linear whose output is gathered: every rank ends with all features.
//!
//! ```text
//! forward    Y[B,O_t] = X[B,I] · W[I,O_t] + b[O_t],  Y[B,O] = all ranks' columns    all-gather, B·O/ranks elements
//! backward  dY[B,O_t] = this rank's columns of dY                                   no traffic
//!           dX, dW, db as in `column.rs`                                            all-reduce, B·I elements
//! ```
//!
//! For a layer whose successor wants whole rows. Where a row layer can follow, it takes the split output as it lies,
//! and the gathering is saved.
//!
//! Source: Shoeybi et al., Megatron-LM (`ColumnParallelLinear`, `gather_output`), arXiv:1909.08053. Chapter: 3.
use crate::model::build::whole_rows;
use crate::model::part::{Of, Part, Pending};
use crate::model::strategy::Column;
use crate::ops::{Split, Stream};
use crate::{Back, Builder, ColumnLinear, Cx, Layer, Param, Result};
use comm::{Axis, Group};
use kernels::Kernels;

/// A linear layer, split by columns, with its output whole on every rank.
pub struct GatheredColumn<D: Kernels> {
    inner: Part<D, ColumnLinear<D>>,
    group: Group<D::Place>,
}

impl<D: Kernels> GatheredColumn<D> {
    /// As [`ColumnLinear::shard`], with one section. Not under sequence parallelism: its output is whole rows.
    ///
    /// # Errors
    /// If the ranks do not divide the outputs, or each has its own tokens.
    pub fn shard(
        at: &Builder<D>,
        axis: Axis,
        name: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
    ) -> Result<Self> {
        whole_rows(at, name)?;
        let inner = at.column(&Column { axis, name, inputs, sections: &[outputs.into()], bias })?;
        Ok(Self { inner, group: at.mesh.group(axis).named(name) })
    }
}

impl<D: Kernels> GatheredColumn<D> {
    /// As [`Part::backward_weight_alone`].
    ///
    /// # Errors
    /// As there.
    pub fn backward_weight_alone(
        &mut self,
        cx: &Cx<D>,
        saved: Of<D, ColumnLinear<D>>,
        dy: Split<D>,
    ) -> Result<()> {
        self.inner.backward_weight_alone(cx, saved, dy)
    }
}

impl<D: Kernels> Layer<D> for GatheredColumn<D> {
    type In = Stream<D>; // X[B,I]
    type Out = Stream<D>; // Y[B,O], whole on every rank
    type Saved = Of<D, ColumnLinear<D>>;
    type Pending = Pending<D, ColumnLinear<D>>;

    fn forward(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        let (y, saved) = self.inner.forward(cx, x)?;
        Ok((y.all_gather(&self.group)?.into(), saved))
    }

    fn backward_input(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: Stream<D>) -> Back<D, Self> {
        let dy = Split::cut(&dy.gather(&self.group)?, &self.group)?;
        self.inner.backward_input(cx, saved, dy)
    }

    fn backward_weight(&mut self, cx: &Cx<D>, pending: Self::Pending) -> Result<()> {
        self.inner.backward_weight(cx, pending)
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.inner.params(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use comm::Op;
    use tensor::Scalar;

    struct Gathered;
    impl Case for Gathered {
        type Layer<D: Kernels> = GatheredColumn<D>;
        fn features(&self) -> [usize; 2] {
            [5, 24]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<GatheredColumn<D>> {
            GatheredColumn::shard(at, Axis::Tp, "w", [5, 24], true)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [5, 24]);
            let mut y = reference::linear(&g.x, &g.weights["w"], [5, 24]);
            reference::add_bias(&mut y, &g.weights["w.bias"]);
            let db = reference::bias_gradient(&g.dy, 24);
            Answer { y, dx, gradients: [("w".into(), dw), ("w.bias".into(), db)].into() }
        }
        fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * 5), (Op::AllGather, tokens * 24 / ranks)] // dX; Y
        }
    }

    /// Kills: columns in another order, another rank's columns of dY, a gradient summed where it is the same.
    #[test]
    fn gathered_column_equals_linear_bit_for_bit() {
        proves(&Gathered);
    }

    #[test]
    fn sequence_parallelism_is_refused() {
        let (device, mesh) = (tensor::Cpu::<f32>::default(), comm::Mesh::alone());
        let at = Builder::new(&device, &mesh, &crate::Random { seed: 0 }).in_regions();
        let why = GatheredColumn::shard(&at, Axis::Tp, "w", [4, 4], false).err().unwrap().to_string();
        assert_eq!(why, "the tokens that w works on are this rank's; it must be all of them");
    }
}
