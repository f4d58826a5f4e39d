//! Row-parallel linear whose input is whole on every rank: each takes its own features of it.
//!
//! ```text
//! forward    X[B,I_t] = this rank's columns of X                                     no traffic
//!            Y[B,O]   = Σ_t X[B,I_t] · W[I_t,O] + b[O]                               all-reduce, B·O elements
//! backward  dX[B,I_t] as in `row.rs`,  dX[B,I] = all ranks' columns                  all-gather, B·I/ranks elements
//! ```
//!
//! For a layer whose predecessor gives whole rows. After a column layer the split output is taken as it lies, and the
//! gathering is saved.
//!
//! Source: Shoeybi et al., Megatron-LM (`RowParallelLinear`, without `input_is_parallel`), arXiv:1909.08053.
//! Chapter: 3.
use crate::model::build::whole_rows;
use crate::model::part::{Of, Part, Pending};
use crate::model::strategy::Row;
use crate::ops::{Split, Stream};
use crate::{Back, Builder, Cx, Layer, Param, Result, RowLinear};
use comm::Group;
use kernels::Kernels;

/// A linear layer, split by rows, that scatters a whole input.
pub struct ScatteredRow<D: Kernels> {
    inner: Part<D, RowLinear<D>>,
    group: Group<D::Place>,
}

impl<D: Kernels> ScatteredRow<D> {
    /// As [`RowLinear::shard`]. Not under sequence parallelism: its input is whole rows.
    ///
    /// # Errors
    /// If the ranks do not divide the inputs, or each has its own tokens.
    pub fn shard(at: &Builder<D>, row: &Row) -> Result<Self> {
        whole_rows(at, row.name)?;
        Ok(Self { inner: at.row(row)?, group: at.mesh.group(row.axis).named(row.name) })
    }
}

impl<D: Kernels> Layer<D> for ScatteredRow<D> {
    type In = Stream<D>; // X[B,I], whole on every rank
    type Out = Stream<D>; // Y[B,O]
    type Saved = Of<D, RowLinear<D>>;
    type Pending = Pending<D, RowLinear<D>>;

    fn forward(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        self.inner.forward(cx, Split::cut(&x.gather(&self.group)?, &self.group)?)
    }

    fn backward_input(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: Stream<D>) -> Back<D, Self> {
        let (dx, pending) = self.inner.backward_input(cx, saved, dy)?;
        Ok((dx.all_gather(&self.group)?.into(), pending))
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
    use comm::{Axis, Op};
    use tensor::Scalar;

    struct Scattered;
    impl Case for Scattered {
        type Layer<D: Kernels> = ScatteredRow<D>;
        fn features(&self) -> [usize; 2] {
            [24, 5]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<ScatteredRow<D>> {
            ScatteredRow::shard(at, &Row { axis: Axis::Tp, name: "w", sizes: [24, 5], bias: true })
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [24, 5]);
            let mut y = reference::linear(&g.x, &g.weights["w"], [24, 5]);
            reference::add_bias(&mut y, &g.weights["w.bias"]);
            let db = reference::bias_gradient(&g.dy, 5);
            Answer { y, dx, gradients: [("w".into(), dw), ("w.bias".into(), db)].into() }
        }
        fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * 5), (Op::AllGather, tokens * 24 / ranks)] // Y; dX
        }
    }

    /// Kills: another rank's columns of X, columns of dX in another order or not gathered.
    #[test]
    fn scattered_row_equals_linear_bit_for_bit() {
        proves(&Scattered);
    }

    #[test]
    fn sequence_parallelism_is_refused() {
        let (device, mesh) = (tensor::Cpu::<f32>::default(), comm::Mesh::alone());
        let at = Builder::new(&device, &mesh, &crate::Random { seed: 0 }).in_regions();
        let row = Row { axis: Axis::Tp, name: "w", sizes: [4, 4], bias: false };
        let why = ScatteredRow::shard(&at, &row).err().unwrap().to_string();
        assert_eq!(why, "the tokens that w works on are this rank's; it must be all of them");
    }
}
