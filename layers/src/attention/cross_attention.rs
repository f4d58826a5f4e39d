//! Attention of a sequence to another one, its memory: a decoder's attention to an encoder's output.
//!
//! Letters: `B` tokens, `M` tokens of the memory; `H` query heads, `K` KV heads of `d` features.
//!
//! ```text
//! forward   Q[B,H_t·d] = X · W_q,  [K|V][M,2K_t·d] = Z · W_kv,  O = attention   no traffic
//!           Y[B,D] = Σ_t O · W_o                                                all-reduce, B·D
//! backward  the mirror image, with two inputs                                   all-reduce, B·D and M·D
//! ```
//!
//! Every query sees its own sequence's whole memory; positions are not used. Heads are split as in
//! `attention.rs`.
//!
//! Source: Vaswani et al., §3.2.3, arXiv:1706.03762; split as Megatron-LM, §3. Chapter: heads.
use crate::attention::share;
use crate::build::part::{BoxedLayer, Ticket};
use crate::build::strategy::{Column, Row};
use crate::{Biases, Builder, InputHalf, Layer, Params};
use comm::Axis;
use kernels::{Attend, Heads, Kernels, Mask};
use ops::{
    AttentionCall, Error, KeptValue, PassContext, Result, Split, Stream, cross_attention,
    cross_attention_backward,
};

/// Attention to a memory, its heads split over the ranks of an axis.
pub struct CrossAttention<D: Kernels> {
    q: BoxedLayer<D, Stream<D>, Split<D>>,   // W[D,H_t·d]
    kv: BoxedLayer<D, Stream<D>, Split<D>>,  // W[D,2K_t·d]
    out: BoxedLayer<D, Split<D>, Stream<D>>, // W[H_t·d,D]
    attend: AttentionCall<D>,
}

/// Values that backward needs.
pub struct Saved<D: Kernels> {
    inputs: [Ticket; 2],
    q: KeptValue<Split<D>>,
    kv: KeptValue<Split<D>>,
    lse: KeptValue<Split<D::Wide>>,
    o: KeptValue<Split<D>>,
    out: Ticket,
}

impl<D: Kernels> CrossAttention<D> {
    /// Builds parameters `name.q`, `name.kv` and `name.out`, each with a `.bias` if `bias` has it; `heads`
    /// are those of the whole model.
    ///
    /// # Errors
    /// If the ranks do not divide the query heads, or neither divide the KV heads nor are a multiple of them;
    /// if context ranks share the tokens.
    pub fn shard(
        at: &Builder<D>,
        axis: Axis,
        name: &str,
        width: usize,
        heads: Heads,
        bias: Biases,
    ) -> Result<Self> {
        let ranks = at.tokens.context_ranks();
        if ranks > 1 {
            return Err(Error::size(
                format!("the number of context ranks of {name}"),
                ranks,
                "1, because cross-attention reads a memory that ranks do not share",
            ));
        }
        let group = at.mesh.group(axis);
        let outputs = heads.gathered();
        let (heads, [q, k, v]) = share(heads, group.size(), axis, name)?;
        let column = |part: &str, sections: &[_]| {
            let name = &format!("{name}.{part}");
            at.build(&Column { axis, name, inputs: width, sections, bias: bias.qkv })
        };
        let name = &format!("{name}.out");
        Ok(Self {
            q: column("q", &[q])?,
            kv: column("kv", &[k, v])?,
            out: at.build(&Row { axis, name, sizes: [outputs, width], bias: bias.out })?,
            attend: Attend { first: group.rank() * heads.queries, ..Attend::of(heads, Mask::All) }.into(),
        })
    }
}

impl<D: Kernels> Layer<D> for CrossAttention<D> {
    type In = [Stream<D>; 2]; // X[B,D] and the memory Z[M,D]
    type Out = Stream<D>;
    type Saved = Saved<D>;
    type Pending = ([Ticket; 2], Ticket);

    fn forward(&self, cx: &PassContext<D>, [x, z]: [Stream<D>; 2]) -> Result<(Stream<D>, Saved<D>)> {
        let (q, x) = self.q.forward(cx, x)?;
        let (kv, z) = self.kv.forward(cx, z)?;
        let (o, lse) = cross_attention(cx, &q, &kv, &self.attend)?;
        let (q, kv, lse) = (cx.keep(q), cx.keep(kv), cx.keep(lse));
        let kept = cx.keep(o.clone());
        let (y, out) = self.out.forward(cx, o)?;
        Ok((y, Saved { inputs: [x, z], q, kv, lse, o: kept, out }))
    }

    fn backward_input(&mut self, cx: &PassContext<D>, s: Saved<D>, dy: Stream<D>) -> InputHalf<D, Self> {
        let (d_o, out) = self.out.backward_input(cx, s.out, dy)?;
        let (q, kv, o, lse) = (s.q.open(), s.kv.open(), s.o.open(), s.lse.open());
        let [dq, dkv] = cross_attention_backward(cx, (&q, &kv), &self.attend, (&o, &lse), &d_o)?;
        drop((q, kv, o, lse, d_o));
        let [x, z] = s.inputs;
        let (dx, q) = self.q.backward_input(cx, x, dq)?;
        let (dz, kv) = self.kv.backward_input(cx, z, dkv)?;
        Ok(([dx, dz], ([q, kv], out)))
    }

    fn backward_weight(&mut self, cx: &PassContext<D>, ([q, kv], out): Self::Pending) -> Result<()> {
        self.q.backward_weight(cx, q)?;
        self.kv.backward_weight(cx, kv)?;
        self.out.backward_weight(cx, out)
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.q.params(into);
        self.kv.params(into);
        self.out.params(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use comm::{Mesh, Op};
    use ops::{RandomValues, TokenShards, contiguous};
    use reference::{add_bias, bias_gradient, linear, linear_backward};
    use std::collections::BTreeMap;
    use tensor::{Cpu, Scalar};

    const D: usize = 6;
    const HEADS: Heads = Heads::new(4, 2, 3);
    const MEMORIES: [usize; 2] = [11 + 2, 3]; // of the two microbatches: a token more than each sequence
    struct Cross;

    impl Case for Cross {
        type Layer<T: Kernels> = CrossAttention<T>;
        const RANKS: &'static [usize] = &[1, 2, 4];
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<CrossAttention<T>> {
            let bias = Biases { qkv: true, out: true, mlp: false };
            CrossAttention::shard(at, Axis::Tp, "cross", D, HEADS, bias)
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let Heads { queries, keys, dim, .. } = HEADS;
            let n = [queries * dim, 2 * keys * dim];
            let w = |part: &str| g.weights[&format!("cross.{part}")].as_slice();
            let lengths = [g.lengths.as_slice(), g.memory_lengths.as_slice()];
            let (mut q, mut kv) = (linear(&g.x, w("q"), [D, n[0]]), linear(&g.memory, w("kv"), [D, n[1]]));
            add_bias(&mut q, w("q.bias"));
            add_bias(&mut kv, w("kv.bias"));
            let o = reference::cross_attention(&q, &kv, HEADS, lengths);
            let mut y = linear(&o, w("out"), [n[0], D]);
            add_bias(&mut y, w("out.bias"));
            let (d_o, dout) = linear_backward(&o, w("out"), &g.dy, [n[0], D]);
            let (dq, dkv) = reference::cross_attention_backward(&q, &kv, &d_o, HEADS, lengths);
            let (dx, dwq) = linear_backward(&g.x, w("q"), &dq, [D, n[0]]);
            let (dz, dwkv) = linear_backward(&g.memory, w("kv"), &dkv, [D, n[1]]);
            let gradients: BTreeMap<&str, Vec<S>> = [
                ("q", dwq),
                ("q.bias", bias_gradient(&dq, n[0])),
                ("kv", dwkv),
                ("kv.bias", bias_gradient(&dkv, n[1])),
                ("out", dout),
                ("out.bias", bias_gradient(&g.dy, D)),
            ]
            .into();
            let gradients = gradients.into_iter().map(|(name, g)| (format!("cross.{name}"), g)).collect();
            Answer { y, dx: [dx, dz].concat(), gradients }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, (2 * tokens + MEMORIES.iter().sum::<usize>()) * D)] // Y, dX, dZ
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            let memory: usize = MEMORIES.iter().map(|n| n.div_ceil(ranks)).sum();
            let gathered = (2 + 1) * share + 2 * memory; // X twice, dY; Z twice
            vec![(Op::AllGather, gathered * D), (Op::ReduceScatter, (2 * share + memory) * ranks * D)]
        }
        fn synced(&self, ranks: usize, regions: bool) -> usize {
            let replicas = if ranks > HEADS.keys { (D + 1) * 2 * HEADS.dim } else { 0 };
            replicas + if regions { D } else { 0 }
        }
    }

    /// Kills: a memory that is masked, or another sequence's; keys and values exchanged; dZ not summed over
    /// ranks.
    #[test]
    fn cross_attention_equals_its_formula_bit_for_bit() {
        proves(&Cross);
    }

    #[test]
    fn context_ranks_are_refused() {
        let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let at = Builder { tokens: TokenShards::new([1, 2], contiguous), ..at };
        let why = CrossAttention::shard(&at, Axis::Tp, "cross", D, HEADS, Biases::default()).err().unwrap();
        let says = "the number of context ranks of cross is 2; it must be 1, because cross-attention reads a \
                    memory that ranks do not share";
        assert_eq!(why.to_string(), says);
    }

    #[test]
    fn cross_attention_equals_its_formula_under_sequence_parallelism() {
        proves_in_regions(&Cross);
    }
}
