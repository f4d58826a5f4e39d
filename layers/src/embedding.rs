//! Embedding with its vocabulary split over ranks.
//!
//! ```text
//! forward    Y[B,D]      = Σ_t table_t[id], zero where the id lives elsewhere     all-reduce, B·D elements
//! backward   dtable_t[id] += dY[B,D]                                              no traffic
//! ```
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (vocabulary parallel embedding), arXiv:1909.08053. Chapter: 3.
use crate::ops::{embed, embed_backward};
use crate::weight::RowWeight;
use crate::{Builder, Cx, Draw, Kept, Layer, Param, Result};
use comm::{Axis, Group};
use kernels::Kernels;
use tensor::{Ids, Tensor};

/// A table of `V` rows, split by rows over the ranks of an axis.
pub struct Embedding<D: Kernels> {
    table: RowWeight<D>, // [V_t,D]
    group: Group<D>,
}

impl<D: Kernels> Embedding<D> {
    /// The parameter `name[vocabulary, width]`.
    ///
    /// # Errors
    /// If the ranks do not divide the vocabulary.
    pub fn shard(at: &Builder<D>, axis: Axis, name: &str, vocabulary: usize, width: usize) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        let table = RowWeight::new(at, axis, name, [vocabulary, width], draw)?;
        Ok(Self { table, group: at.mesh.group(axis).named(name) })
    }
    /// The table, for a head that is tied to it.
    pub fn table(&mut self) -> &mut RowWeight<D> {
        &mut self.table
    }
    /// The table, to read.
    pub(crate) fn rows(&self) -> &RowWeight<D> {
        &self.table
    }
}

impl<D: Kernels> Layer<D> for Embedding<D> {
    type In = Ids<D>;
    type Out = Tensor<D>; // Y[B,D], the same on every rank
    type Saved = Kept<Ids<D>>;
    type Pending = (Ids<D>, Tensor<D>);

    fn forward(&self, cx: &Cx<D>, ids: Ids<D>) -> Result<(Tensor<D>, Kept<Ids<D>>)> {
        let y = embed(&self.table.rows()?, self.group.rank(), &ids).all_reduce(&self.group)?;
        Ok((y, cx.keep(ids)))
    }

    /// Ids have no gradient; they come back themselves.
    fn backward_input(
        &mut self,
        _: &Cx<D>,
        ids: Kept<Ids<D>>,
        dy: Tensor<D>,
    ) -> Result<(Ids<D>, Self::Pending)> {
        let ids = ids.open();
        Ok((ids.clone(), (ids, dy)))
    }

    fn backward_weight(&mut self, _: &Cx<D>, (ids, dy): Self::Pending) -> Result<()> {
        embed_backward(&mut self.table, self.group.rank(), &ids, &dy);
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        into.push(self.table.param());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use comm::Op;
    use tensor::Scalar;

    const V: usize = 24;
    const WIDTH: usize = 5;
    struct Table;
    impl Case for Table {
        type Layer<D: Kernels> = Embedding<D>;
        fn features(&self) -> [usize; 2] {
            [V, WIDTH]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Embedding<D>> {
            Embedding::shard(at, Axis::Tp, "table", V, WIDTH)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let y = reference::embed(&g.weights["table"], &g.ids, WIDTH);
            let dtable = reference::embed_backward(&g.dy, &g.ids, WIDTH, V);
            Answer { y, dx: vec![], gradients: [("table".into(), dtable)].into() }
        }
        fn traffic(&self, tokens: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * WIDTH)] // Y
        }
    }

    /// Kills: a mask off by one, rows of other ranks not zero, an id that comes twice counted once.
    #[test]
    fn embedding_equals_embedding_bit_for_bit() {
        proves(&Table);
    }
}
