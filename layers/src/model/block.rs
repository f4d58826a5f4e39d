//! Y = X + dropout(F(norm(X))), twice: attention, then feed-forward; or with a norm after F, in place of the
//! one before it or besides. Two all-reduces forward, two backward.
//! Under sequence parallelism: forward two reduce-scatters and two all-gathers; backward their mirror image
//! and two more all-gathers.
//!
//! Source: Xiong et al., "On layer normalization in the transformer architecture" (pre-norm),
//! arXiv:2002.04745. Chapter: columns and rows.
pub mod shard;

use crate::build::part::{BoxedLayer, Ticket};
use crate::{InputHalf, Layer, Params};
use kernels::Kernels;
use ops::{Branches, PassContext, Result, Stream, dropout, join};
use tensor::Direction;

/// A norm, if there is one there.
type MaybeNorm<D> = Option<BoxedLayer<D, Stream<D>, Branches<D>>>;

/// Y = X + dropout(norm(F(norm(X)))).
pub struct Residual<D: Kernels, F> {
    name: String,
    norm: MaybeNorm<D>,
    inner: F,
    after: MaybeNorm<D>,
    rate: f64,
}

impl<D: Kernels, F> Residual<D, F> {
    /// Wraps `inner` in a residual: norms before and after it, dropout of this rate, and the input added.
    pub fn around(name: impl Into<String>, [norm, after]: [MaybeNorm<D>; 2], inner: F, rate: f64) -> Self {
        Self { name: name.into(), norm, inner, after, rate }
    }
}

/// Returns the gradient of what a norm after a part takes: dY itself without one.
fn back_to_part<D: Kernels>(
    after: &mut MaybeNorm<D>,
    cx: &PassContext<D>,
    saved: Ticket,
    dy: Stream<D>,
) -> Result<Stream<D>> {
    let Some(after) = after else { return Ok(dy) };
    after.backward(cx, saved, (dy, None))
}

/// Returns dX from the gradients of a part's input and of Y.
fn back_to_x<D: Kernels>(
    norm: &mut MaybeNorm<D>,
    cx: &PassContext<D>,
    saved: Ticket,
    dn: Stream<D>,
    dy: Stream<D>,
) -> Result<Stream<D>> {
    let Some(norm) = norm else { return Ok(join(dn, &dy)) };
    norm.backward(cx, saved, (dn, Some(dy)))
}

impl<D: Kernels, F: Layer<D, In = Stream<D>, Out = Stream<D>>> Layer<D> for Residual<D, F> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = ([Ticket; 2], F::Saved);
    type Pending = F::Pending;

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        let _layer = cx.layer(&self.name, Direction::Forward);
        let ((n, x), norm) = match &self.norm {
            Some(norm) => norm.forward(cx, x)?,
            None => ((x.clone(), Some(x)), None),
        };
        let (mut y, inner) = self.inner.forward(cx, n)?;
        let mut after = None;
        if let Some(norm) = &self.after {
            let ((n, _), saved) = norm.forward(cx, y)?;
            (y, after) = (n, saved);
        }
        let y = dropout(cx, y, cx.dropout(self.rate, &self.name).as_ref());
        cx.record(&self.name, "added", &y)?;
        Ok((join(y, &x.expect("a norm returns its input for the residual")), ([norm, after], inner)))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        ([norm, after], inner): Self::Saved,
        dy: Stream<D>,
    ) -> InputHalf<D, Self> {
        let _layer = cx.layer(&self.name, Direction::Backward);
        let dropped = dropout(cx, dy.clone(), cx.dropout(self.rate, &self.name).as_ref());
        let d_inner = back_to_part(&mut self.after, cx, after, dropped)?;
        let (dn, pending) = self.inner.backward_input(cx, inner, d_inner)?;
        Ok((back_to_x(&mut self.norm, cx, norm, dn, dy)?, pending))
    }

    /// Runs the weight half at once, which frees what `inner` saved before the norm's backward.
    fn backward(
        &mut self,
        cx: &PassContext<D>,
        ([norm, after], inner): Self::Saved,
        dy: Stream<D>,
    ) -> Result<Stream<D>> {
        let _layer = cx.layer(&self.name, Direction::Backward);
        let dropped = dropout(cx, dy.clone(), cx.dropout(self.rate, &self.name).as_ref());
        let d_inner = back_to_part(&mut self.after, cx, after, dropped)?;
        let dn = self.inner.backward(cx, inner, d_inner)?;
        back_to_x(&mut self.norm, cx, norm, dn, dy)
    }

    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Self::Pending) -> Result<()> {
        let _layer = cx.layer(&self.name, Direction::Backward);
        self.inner.backward_weight(cx, pending)
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.norm.iter_mut().for_each(|norm| norm.params(into));
        self.inner.params(into);
        self.after.iter_mut().for_each(|norm| norm.params(into));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::part::Block;
    use crate::proof::{Answer, Case, LayerInput, SEED, proves, proves_in_regions};
    use crate::{Builder, Latent, NormPlaces, Shape};
    use comm::{Axis, Op};
    use kernels::Heads;
    use ops::Rotary;
    use reference::{Model, Pass, Tokens, Walk};
    use tensor::Scalar;

    const D: usize = 6;
    const F: usize = 8;
    struct OneBlock(Model);

    impl OneBlock {
        /// Features that go into the products of heads, and whose gradients are summed.
        fn before_heads(&self) -> usize {
            let Heads { dim, plain, .. } = self.0.heads;
            self.0.latent.map_or(D, |of| of.keys + dim - plain + of.queries.unwrap_or(D))
        }
    }

    fn of(family: Shape) -> OneBlock {
        let heads = Heads::new(8, 4, 2);
        OneBlock(Shape { width: D, heads, hidden: F, ..family }.into())
    }
    fn llama() -> OneBlock {
        of(Shape { positions: crate::Positions::Rotary(100.0.into()), ..Shape::LLAMA })
    }
    fn gpt2() -> OneBlock {
        of(Shape::GPT2)
    }

    impl Case for OneBlock {
        type Layer<T: Kernels> = Block<T>;
        const RANKS: &'static [usize] = &[1, 2, 4];
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Block<T>> {
            let rotary = self.0.context().is_none().then(|| Rotary::new(2, 100.0));
            shard::shard(at, Axis::Tp, &self.0.shape.block(0), 0, rotary.as_ref())
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let numbers = (g.first..).take(g.lengths.len()).collect();
            let tokens = Tokens { lengths: g.lengths.clone(), numbers };
            let pass = Pass { seed: SEED, step: g.step, first_sequence: g.first, ..Pass::default() };
            let mut walk = Walk::unseen(&g.weights, Some(pass));
            let (y, saved) = self.0.block(0, g.x.clone(), &tokens, &mut walk);
            let given = (&saved, g.dy.clone());
            let (dx, gradients) = self.0.block_backward(0, given, &tokens, &mut walk);
            Answer { y, dx, gradients }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * (3 * D + self.before_heads()))] // two forward, two backward
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            let given = self.before_heads();
            let shared = self.0.latent.map_or(0, |_| self.0.heads.dim - self.0.heads.plain);
            vec![
                (Op::AllGather, share * (4 * D + 2 * given - shared)),
                (Op::ReduceScatter, ranks * share * (3 * D + given)),
            ]
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            let of_latents = self.0.latent.map_or(0, |Latent { keys, queries, .. }| {
                let outputs = keys + self.0.heads.dim - self.0.heads.plain + queries.unwrap_or(0);
                D * outputs + keys + queries.unwrap_or(0)
            });
            // gains, biases of norms and rows
            let norms = if self.0.norms == NormPlaces::Both { 4 } else { 2 };
            let rows = if self.0.norm == crate::NormKind::Rms { norms } else { 2 * norms + 2 };
            if regions { rows * D + of_latents } else { 0 }
        }
    }

    fn dropping(mut block: OneBlock) -> OneBlock {
        block.0.shape.dropout = crate::Rates { embedding: 0.0, attention: 0.5, residual: 0.25 };
        block
    }

    /// Kills: a residual or its gradient dropped, a norm of the wrong input, a third all-reduce; a mask of
    /// dropout that is another rank's, another step's or only the forward's.
    #[test]
    fn block_equals_block_bit_for_bit() {
        proves(&llama());
        proves(&dropping(gpt2()));
        for norms in [NormPlaces::After, NormPlaces::Both] {
            let mut block = dropping(llama());
            block.0.shape.norms = norms;
            proves(&block);
            proves_in_regions(&block);
        }
    }

    /// Kills: latents that are split, features of a key that are one head's alone, a norm of all features of
    /// the product, the value of another head, queries of another one's latent.
    #[test]
    fn block_equals_block_with_latents() {
        for queries in [None, Some(3)] {
            let mut block = llama();
            let heads = Heads { plain: 1, rotated: 2, value: 2, neighbours: true, ..Heads::new(8, 8, 4) };
            (block.0.shape.heads, block.0.shape.latent) =
                (heads, Some(Latent { keys: 5, queries, eps: 0.125 }));
            proves(&block);
            proves_in_regions(&block);
        }
    }

    #[test]
    fn block_equals_block_under_sequence_parallelism() {
        proves_in_regions(&dropping(llama()));
        proves_in_regions(&gpt2());
    }
}
