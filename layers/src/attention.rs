//! Grouped-query attention of a sequence to itself; each rank owns whole heads.
//! Letters: `H` query heads, `K` KV heads, `d` features of a head.
//!
//! ```text
//! forward   [Q|K|V][B,(H_t+2K_t)d] = X · W_qkv,   O[B,H_t·d] = attention,   Y = Σ_t O · W_o  all-reduce, B·D
//! backward  the mirror image                                                                 all-reduce, B·D
//! ```
//!
//! Heads do not interact, so nothing is communicated between the two products. Scores are computed tile by
//! tile and again in backward: no T×T matrix is ever in memory. With more ranks than KV heads, `ranks/K`
//! consecutive ranks hold a replica of the same KV head, each for its own queries. Each has only its queries'
//! part of that head's gradient, so they sum it once a step (`D·2d` elements, and `2d` of a bias).
//!
//! Source: Shoeybi et al., Megatron-LM, §3, arXiv:1909.08053; Ainslie et al., "GQA", arXiv:2305.13245.
//! Chapter: heads.
pub mod core;
pub mod cross_attention;
pub mod head_norm;
pub mod latent;
pub mod self_attention;

use crate::build::part::BoxedLayer;
use crate::build::strategy;
use crate::build::strategy::{Column, Row};
use crate::{Builder, HeadNorm, LatentAttention, SelfAttention};
use comm::Axis;
use kernels::{Heads, Kernels};
use ops::{DivisionRule, Error, Pieces, Result, Section, Split, Stream};

/// Attention, its heads split over the ranks of an axis: X to their outputs O, and the product with
/// `W[H_t·d,D]`.
pub type Attention<D> = (BoxedLayer<D, Stream<D>, Split<D>>, BoxedLayer<D, Split<D>, Stream<D>>);

/// Returns this rank's heads, and the sections into which query and KV heads are cut.
pub(crate) fn share(heads: Heads, ranks: usize, axis: Axis, name: &str) -> Result<(Heads, [Section; 3])> {
    let Heads { queries, keys, dim, value, .. } = heads;
    if keys == 0 || !queries.is_multiple_of(keys) {
        let what = format!("the number of query heads of {name}");
        return Err(Error::size(what, queries, format!("a multiple of the {keys} KV heads")));
    }
    if !DivisionRule::heads(queries, keys, ranks) {
        return Err(Error::heads(name, [queries, keys], (axis, ranks)));
    }
    let of_keys = |size, grain| Section { size, pieces: Pieces::Shared(keys), grain };
    let queries = Section { size: heads.q().len(), pieces: Pieces::Even, grain: dim };
    let [keys, values] = [of_keys(heads.k().len(), dim), of_keys(heads.v().len(), value)];
    Ok((heads.share(ranks), [queries, keys, values]))
}

/// Builds parameters `name.qkv` and `name.out` and, if `attention` has them, their `.bias`, `name.q_norm` and
/// `name.k_norm`; or in place of `name.qkv` those of [latents](latent::LatentAttention).
///
/// # Errors
/// If the ranks do not divide the query heads, or neither divide the KV heads nor are a multiple of them.
pub fn shard<D: Kernels>(at: &Builder<D>, attention: &strategy::Attention<D>) -> Result<Attention<D>> {
    let strategy::Attention { axis, name, width, heads, bias, rotary, .. } = *attention;
    let group = at.mesh.group(axis);
    let (mine, sections) = share(heads, group.size(), axis, name)?;
    let [qkv, out, scores] = ["qkv", "out", "scores"].map(|part| format!("{name}.{part}"));
    let [queries, keys, _] = sections;
    let each = attention.head_norm.map(|eps| HeadNorm::new(at, axis, name, heads.dim, eps));
    let joint = || Some(HeadNorm::joint(at, axis, name, (heads, [queries, keys]), attention.joint_norm?));
    let core = strategy::Core {
        axis,
        name: &scores,
        block: attention.block,
        heads: mine,
        first: group.rank() * mine.queries,
        scores: attention.scores,
        mask: attention.mask,
        rate: attention.rate,
    };
    let heads_out = if let Some(latent) = attention.latent {
        BoxedLayer::new(LatentAttention::new(at, (name, width), latent, (&core, queries), rotary)?)
    } else {
        let norm = each.or_else(joint).transpose()?;
        let inside = SelfAttention::new(at, &core, norm, rotary)?;
        let qkv = Column { axis, name: &qkv, inputs: width, sections: &sections, bias: bias.qkv };
        BoxedLayer::new((at.build(&qkv)?, inside))
    };
    let sizes = [heads.gathered(), width];
    Ok((heads_out, at.build(&Row { axis, name: &out, sizes, bias: bias.out })?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use crate::{Biases, Positions, Shape};
    use comm::Op;
    use kernels::Mask;
    use ops::Rotary;
    use reference::{Tokens, add_bias, bias_gradient, linear, linear_backward};
    use std::collections::BTreeMap;
    use tensor::{Rope, Scalar};

    const D: usize = 6;
    const EPS: f64 = 0.01;
    struct Grouped<const LARGEST: usize> {
        shape: Shape,
        mask: Mask,
    }
    /// Query heads share KV heads; an odd head size leaves a feature that does not turn.
    fn grouped<const LARGEST: usize>(queries: usize, keys: usize, dim: usize) -> Grouped<LARGEST> {
        let shape = Shape { width: D, heads: Heads::new(queries, keys, dim), eps: EPS, ..Shape::LLAMA };
        Grouped { shape, mask: Mask::Causal }
    }
    impl<const LARGEST: usize> Grouped<LARGEST> {
        fn mask(&self) -> reference::Mask {
            match self.mask {
                Mask::All => reference::Mask::All,
                Mask::Causal => reference::Mask::Causal,
                Mask::Window { size, sinks } => reference::Mask::Window { size, sinks },
            }
        }
        /// Sums of squares and of dY·Y, where all heads are normed together.
        fn sums(&self, tokens: usize) -> usize {
            if self.shape.joint_norm { 4 * tokens } else { 0 }
        }
        fn rope(&self) -> Option<Rope> {
            matches!(self.shape.positions, Positions::Rotary(_)).then(|| Rope::from(100.0))
        }
    }
    impl<const LARGEST: usize> Case for Grouped<LARGEST> {
        type Layer<T: Kernels> = Attention<T>;
        const RANKS: &'static [usize] = match LARGEST {
            4 => &[1, 2, 4],
            _ => &[1, 2, 4, 8],
        };
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Attention<T>> {
            let rotary = self.rope().map(|rope| Rotary::new(self.shape.heads.dim, rope));
            let of = strategy::Attention::of(Axis::Tp, "attention", &self.shape.block(0), 0, rotary.as_ref());
            shard(at, &strategy::Attention { mask: self.mask, ..of })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let (heads, tokens) = (self.shape.heads, Tokens::new(&g.lengths));
            let (row, q) = (heads.row(), heads.queries * heads.dim);
            let w = |part: &str| g.weights[&format!("attention.{part}")].as_slice();
            let mut before = linear(&g.x, w("qkv"), [D, row]);
            if self.shape.bias.qkv {
                add_bias(&mut before, w("qkv.bias"));
            }
            let mut qkv = before.clone();
            let has_norm = self.shape.head_norm || self.shape.joint_norm;
            if has_norm {
                reference::head_norm(&mut qkv, heads, w("q_norm"), w("k_norm"), EPS);
            }
            let turn = |x: &mut [S], back| {
                if let Some(rope) = self.rope() {
                    reference::rotary(x, heads, &tokens.positions(), &rope, back);
                }
            };
            turn(&mut qkv, false);
            let o = reference::attention(&qkv, heads, self.mask(), &tokens, None);
            let mut y = linear(&o, w("out"), [q, D]);
            let (d_o, dout) = linear_backward(&o, w("out"), &g.dy, [q, D]);
            let mut d = reference::attention_backward(&qkv, &d_o, heads, self.mask(), &tokens, None);
            turn(&mut d, true);
            let mut gradients: BTreeMap<String, Vec<S>> = [("attention.out".into(), dout)].into();
            if has_norm {
                let (dq, dk) =
                    reference::head_norm_backward(&before, &mut d, heads, w("q_norm"), w("k_norm"), EPS);
                gradients.extend([("attention.q_norm".into(), dq), ("attention.k_norm".into(), dk)]);
            }
            let (dx, dw) = linear_backward(&g.x, w("qkv"), &d, [D, row]);
            gradients.insert("attention.qkv".into(), dw);
            if self.shape.bias.qkv {
                gradients.insert("attention.qkv.bias".into(), bias_gradient(&d, row));
            }
            if self.shape.bias.out {
                add_bias(&mut y, w("out.bias"));
                gradients.insert("attention.out.bias".into(), bias_gradient(&g.dy, D));
            }
            Answer { y, dx, gradients }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, 2 * tokens * D + self.sums(tokens))] // Y and dX
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllGather, 3 * share * D), (Op::ReduceScatter, 2 * ranks * share * D)] // X×2, dY; Y, dX
        }
        fn traffic_on(&self, (_, ranks): (usize, usize), parts: &[usize], regions: bool) -> Vec<(Op, usize)> {
            let tokens = parts.iter().sum();
            if !regions {
                return self.traffic(tokens, ranks);
            }
            let mut traffic = self.traffic_in_regions(parts.iter().map(|n| n.div_ceil(ranks)).sum(), ranks);
            if self.sums(tokens) > 0 {
                traffic.push((Op::AllReduce, self.sums(tokens)));
            }
            traffic
        }
        fn synced(&self, ranks: usize, regions: bool) -> usize {
            let (Heads { keys, dim, .. }, bias) = (self.shape.heads, self.shape.bias);
            let replicas = if ranks > keys { (D + usize::from(bias.qkv)) * 2 * dim } else { 0 };
            let gains = if self.shape.head_norm { 2 * dim } else { 0 };
            let shared = if ranks > keys && self.shape.joint_norm { dim } else { 0 };
            replicas + gains + shared + if regions && bias.out { D } else { 0 }
        }
    }

    /// Kills: a mask or tile off by one, sequences that see each other, heads of the wrong group, a
    /// stabiliser that does not cancel, a gradient turned forward, a scale forgotten or doubled.
    #[test]
    fn attention_equals_attention_bit_for_bit() {
        proves(&grouped::<4>(8, 4, 3));
        proves(&grouped::<4>(4, 4, 2));
    }

    /// Kills: a KV head of the wrong block, replicas' gradients not summed, or summed over all ranks; a norm
    /// of heads after they turned, its gain's gradient not summed.
    #[test]
    fn attention_equals_attention_beyond_the_kv_heads() {
        proves(&grouped::<8>(8, 2, 3));
        let mut case = grouped::<8>(8, 1, 4);
        (case.shape.head_norm, case.shape.bias) = (true, Biases { qkv: true, out: true, mlp: false });
        proves(&case);
    }

    /// Kills: squares of a copied KV head that are counted twice, the second term of dX subtracted by each of
    /// its holders, a sum over this rank's heads alone, n of this rank's columns.
    #[test]
    fn attention_equals_attention_where_heads_are_normed_together() {
        for keys in [1, 2, 8] {
            let mut case = grouped::<8>(8, keys, 3);
            case.shape.joint_norm = true;
            proves(&case);
        }
        let mut case = grouped::<8>(8, 2, 3);
        case.shape.joint_norm = true;
        proves_in_regions(&case);
    }

    /// Kills: a window off by one, sinks that are not seen, positions turned where they are learned.
    #[test]
    fn attention_equals_attention_through_windows() {
        for (size, sinks) in [(1, 0), (2, 0), (2, 1), (3, 2)] {
            let mut case = grouped::<4>(4, 2, 2);
            case.mask = Mask::Window { size, sinks };
            proves(&case);
        }
        let mut case = grouped::<4>(4, 4, 2);
        (case.mask, case.shape.positions) = (Mask::All, Positions::Learned(9));
        proves(&case);
    }

    #[test]
    fn attention_equals_attention_under_sequence_parallelism() {
        let mut case = grouped::<8>(8, 2, 3);
        (case.shape.head_norm, case.shape.bias) = (true, Biases { qkv: true, out: true, mlp: false });
        proves_in_regions(&case);
    }

    #[test]
    fn heads_that_ranks_cannot_share_are_refused() {
        let why = |queries, keys, ranks| {
            let heads = Heads::new(queries, keys, 2);
            share(heads, ranks, Axis::Tp, "attention").unwrap_err().to_string()
        };
        assert_eq!(
            why(8, 2, 3),
            "tp=3 does not fit the 8 query heads and 2 KV heads of attention; tp can be 1, 2, 4, 8"
        );
        assert_eq!(
            why(12, 4, 6),
            "tp=6 does not fit the 12 query heads and 4 KV heads of attention; tp can be 1, 2, 4, 12"
        );
        assert_eq!(
            why(5, 2, 1),
            "the number of query heads of attention is 5; it must be a multiple of the 2 KV heads"
        );
    }
}
