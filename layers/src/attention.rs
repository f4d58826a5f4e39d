//! Causal grouped-query attention; each rank owns whole groups of heads.
//!
//! Letters: `H` query heads, `K` key heads, `d` features of a head.
//!
//! ```text
//! forward   [Q|K|V][B,(H_t+2K_t)d] = X · W_qkv,   O[B,H_t·d] = attention,   Y = Σ_t O · W_o   all-reduce, B·D
//! backward  the mirror image                                                                   all-reduce, B·D
//! ```
//!
//! Heads do not look at each other, so between the two products nothing is exchanged. Scores are computed block
//! by block and again in backward: no T×T matrix is ever in memory.
//!
//! Source: Shoeybi et al., Megatron-LM, §3, arXiv:1909.08053; Ainslie et al., "GQA", arXiv:2305.13245. Chapter: 3.
use crate::ops::{Split, attention, attention_backward, rotate};
use crate::{Builder, ColumnLinear, Cx, Error, Kept, Layer, Param, Result, Rotary, RowLinear};
use comm::Axis;
use kernels::{Heads, Kernels};
use tensor::Tensor;

/// Causal grouped-query attention with rotary embedding, its heads split over the ranks of an axis.
pub struct Attention<D: Kernels> {
    name: String,
    qkv: ColumnLinear<D>, // W[D,(H_t+2K_t)·d]
    out: RowLinear<D>,    // W[H_t·d,D]
    heads: Heads,         // this rank's
    rotary: Rotary<D>,
}

/// What backward needs.
pub struct Saved<D: Kernels> {
    x: Kept<Tensor<D>>,
    qkv: Kept<Split<D>>,
    lse: Kept<Split<D>>,
    o: Kept<Split<D>>,
}

impl<D: Kernels> Attention<D> {
    /// Parameters `name.qkv` and `name.out`; `heads` are those of the whole model.
    ///
    /// # Errors
    /// If the ranks do not divide the key heads, or these do not divide the query heads.
    pub fn shard(
        at: &Builder<D>,
        axis: Axis,
        name: &str,
        width: usize,
        heads: Heads,
        rotary: Rotary<D>,
    ) -> Result<Self> {
        let (q, kv) = (heads.queries * heads.dim, heads.keys * heads.dim);
        let ranks = at.mesh.group(axis).size();
        if heads.keys == 0 || !heads.queries.is_multiple_of(heads.keys) {
            return Err(Error::Size {
                what: format!("the number of query heads of {name}"),
                seen: heads.queries.to_string(),
                wanted: format!("a multiple of the {} key heads", heads.keys),
            });
        }
        if !heads.keys.is_multiple_of(ranks) {
            return Err(Error::Fit { what: format!("key heads of {name}"), size: heads.keys, axis, ranks });
        }
        Ok(Self {
            name: name.into(),
            qkv: ColumnLinear::shard(at, axis, &format!("{name}.qkv"), width, &[q, kv, kv])?,
            out: RowLinear::shard(at, axis, &format!("{name}.out"), q, width)?,
            heads: Heads { queries: heads.queries / ranks, keys: heads.keys / ranks, ..heads },
            rotary,
        })
    }
}

impl<D: Kernels> Layer<D> for Attention<D> {
    type In = Tensor<D>;
    type Out = Tensor<D>;
    type Saved = Saved<D>;
    type Pending = (<ColumnLinear<D> as Layer<D>>::Pending, <RowLinear<D> as Layer<D>>::Pending);

    fn forward(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<(Tensor<D>, Saved<D>)> {
        let (mut qkv, x) = self.qkv.forward(cx, x)?;
        rotate(cx, &self.rotary, &mut qkv, self.heads, false);
        let (o, lse) = attention(cx, &self.name, &qkv, self.heads);
        let (qkv, lse) = (cx.keep(qkv), cx.keep(lse));
        let (y, o) = self.out.forward(cx, o)?;
        Ok((y, Saved { x, qkv, lse, o }))
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        s: Saved<D>,
        dy: Tensor<D>,
    ) -> Result<(Tensor<D>, Self::Pending)> {
        let (d_o, out) = self.out.backward_input(cx, s.o.clone(), dy)?;
        let (qkv, o, lse) = (s.qkv.open(), s.o.open(), s.lse.open());
        let mut dqkv = attention_backward(cx, &qkv, self.heads, (&o, &lse), &d_o);
        drop((qkv, o, lse, d_o));
        rotate(cx, &self.rotary, &mut dqkv, self.heads, true);
        let (dx, qkv) = self.qkv.backward_input(cx, s.x, dqkv)?;
        Ok((dx, (qkv, out)))
    }

    fn backward_weight(&mut self, cx: &Cx<D>, (qkv, out): Self::Pending) -> Result<()> {
        self.qkv.backward_weight(cx, qkv)?;
        self.out.backward_weight(cx, out)
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.qkv.params(into);
        self.out.params(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use comm::Op;
    use reference::{linear, linear_backward};
    use tensor::Scalar;

    const D: usize = 6;
    /// Query heads share key heads; an odd head size leaves a feature that does not turn.
    struct Grouped {
        queries: usize,
        keys: usize,
        dim: usize,
    }
    impl Grouped {
        fn sizes(&self) -> [usize; 2] {
            [(self.queries + 2 * self.keys) * self.dim, self.queries * self.dim]
        }
    }
    impl Case for Grouped {
        type Layer<T: Kernels> = Attention<T>;
        const RANKS: &'static [usize] = &[1, 2, 4];
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Attention<T>> {
            let heads = Heads { queries: self.queries, keys: self.keys, dim: self.dim };
            Attention::shard(at, Axis::Tp, "attention", D, heads, Rotary::new(self.dim, 100.0))
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let heads = reference::Heads { queries: self.queries, keys: self.keys, dim: self.dim };
            let [row, q] = self.sizes();
            let (w, wo) = (&g.weights["attention.qkv"], &g.weights["attention.out"]);
            let positions: Vec<usize> = g.lengths.iter().flat_map(|&n| 0..n).collect();
            let mut qkv = linear(&g.x, w, [D, row]);
            reference::rotary(&mut qkv, heads, &positions, 100.0, false);
            let o = reference::attention(&qkv, heads, &g.lengths);
            let (d_o, dout) = linear_backward(&o, wo, &g.dy, [q, D]);
            let mut dqkv = reference::attention_backward(&qkv, &d_o, heads, &g.lengths);
            reference::rotary(&mut dqkv, heads, &positions, 100.0, true);
            let (dx, dw) = linear_backward(&g.x, w, &dqkv, [D, row]);
            let gradients = [("attention.qkv".into(), dw), ("attention.out".into(), dout)].into();
            Answer { y: linear(&o, wo, [q, D]), dx, gradients }
        }
        fn traffic(&self, tokens: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, 2 * tokens * D)] // Y and dX
        }
    }

    /// Kills: a mask or tile off by one, sequences that see each other, heads of the wrong group, a stabiliser that
    /// does not cancel, a gradient turned forward, a scale forgotten or doubled.
    #[test]
    fn attention_equals_attention_bit_for_bit() {
        proves(&Grouped { queries: 8, keys: 4, dim: 3 });
        proves(&Grouped { queries: 4, keys: 4, dim: 2 });
    }

    #[test]
    fn more_ranks_than_key_heads_are_refused() {
        use comm::World;
        use tensor::Cpu;
        let case = Grouped { queries: 8, keys: 2, dim: 2 };
        let why = World::threads(&[(Axis::Tp, 4)])
            .unwrap()
            .run(|device: Cpu<f32>, mesh| {
                let values = &crate::Random { seed: 0 };
                case.build(&Builder { device: &device, mesh: &mesh, values }).map(drop)
            })
            .unwrap_err();
        assert_eq!(why.reason, "tp=4 does not divide the 2 key heads of attention; tp can be 1, 2");
    }
}
