//! Gathered keys and values, `cp=N:gathered`: before each attention core every context rank gathers the keys
//! and values of all tokens, and its own queries attend to them as on one rank. With few KV heads these are
//! small beside the activations, which stay sharded.
//!
//! ```text
//! forward   [K|V][B,2K_t·d] = all-gather of [K|V][B_r,2K_t·d],   O[B_r,H_t·d] = attention(Q[B_r], K, V)
//! backward  d[K|V][B_r] = reduce-scatter of d[K|V][B], which each rank has of its own queries
//! ```
//! A KV cache holds the keys and values of all ranks on every rank.
//!
//! Source: Llama Team, "The Llama 3 herd of models", §3.3.2, arXiv:2407.21783.
use comm::Axis;
use kernels::Kernels;
use layers::attention::core::AttentionCore;
use layers::model::strategy::{Core, Strategy};
use layers::ops::Split;
use layers::{BoxedLayer, Builder, Choice, Result, StrategyInfo, TokenShards};

/// Gathered keys and values.
pub struct Gathered;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "context parallelism with gathered keys and values",
    word: "gathered",
    paper: "Llama Team, arXiv:2407.21783",
    hints: &[
        ("gradient of", "a key's gradient is a sum over the queries of all ranks: reduce-scattered"),
        ("", "keys and values are put in the order of their positions before queries attend to them"),
    ],
    ..StrategyInfo::of(Some(Axis::Cp), Choice::Core)
};

impl<D: Kernels> Strategy<D> for Gathered {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn core(&self, at: &Builder<D>, core: &Core) -> Result<Option<BoxedLayer<D, Split<D>, Split<D>>>> {
        let group = TokenShards::sharers(at.mesh).named(core.name);
        Ok(Some(BoxedLayer::new(AttentionCore::new(core, Some(group)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Op;
    use kernels::{Heads, Mask, Segment};
    use layers::model::strategy::Attention;
    use layers::proof::{Answer, Case, LayerInput, SEED, proves};
    use layers::{Biases, Positions, Rates, Shape, Stretches};
    use reference::{Tokens, linear, linear_backward};
    use std::ops::Range;
    use tensor::Scalar;

    const WIDTH: usize = 6;

    /// An attention with dropout whose tokens are dealt over so many context ranks.
    struct Dealt<const RANKS: usize, const STRIPED: bool>(Mask);

    /// Rank `r` has the tokens `r`, `r + N`, …: more stretches than one, which ranks do not have in the
    /// sequences' order.
    fn striped(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
        (rank..tokens).step_by(ranks).map(|token| token..token + 1).collect()
    }

    fn shape() -> Shape {
        let heads = Heads { queries: 4, keys: 2, dim: 3 };
        let dropout = Rates { attention: 0.25, ..Rates::default() };
        let bias = Biases { qkv: true, ..Biases::default() };
        Shape { width: WIDTH, heads, dropout, bias, positions: Positions::Learned(9), ..Shape::LLAMA }
    }

    impl<const RANKS: usize, const STRIPED: bool> Case for Dealt<RANKS, STRIPED> {
        type Layer<T: Kernels> = layers::Attention<T>;
        const RANKS: &'static [usize] = &[1];
        const DEALERS: &'static [(Axis, usize)] = &[(Axis::Cp, RANKS)];
        const DEALING: Option<Stretches> = Some(if STRIPED { striped } else { layers::contiguous });
        fn features(&self) -> [usize; 2] {
            [WIDTH; 2]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<layers::Attention<T>> {
            let strategies: Vec<&dyn Strategy<T>> = vec![&Gathered];
            let at = Builder { strategies, ..at.clone() };
            let of = Attention::of(Axis::Tp, "attention", &shape(), 0, None);
            layers::attention::shard(&at, &Attention { mask: self.0, ..of })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let heads = shape().heads;
            let mask = match self.0 {
                Mask::All => reference::Mask::All,
                Mask::Causal => reference::Mask::Causal,
                Mask::Window { size, sinks } => reference::Mask::Window { size, sinks },
            };
            let numbers = (g.first..g.first + g.lengths.len()).collect();
            let (tokens, [row, q]) = (Tokens { lengths: g.lengths.clone(), numbers }, [24, 12]);
            let dropout = tensor::Dropout::new(0.25, SEED, g.step, "attention.scores");
            let w = |part: &str| g.weights[&format!("attention.{part}")].as_slice();
            let mut qkv = linear(&g.x, w("qkv"), [WIDTH, row]);
            reference::add_bias(&mut qkv, w("qkv.bias"));
            let o = reference::attention(&qkv, heads, mask, &tokens, Some(&dropout));
            let (d_o, dout) = linear_backward(&o, w("out"), &g.dy, [q, WIDTH]);
            let d = reference::attention_backward(&qkv, &d_o, heads, mask, &tokens, Some(&dropout));
            let (dx, dw) = linear_backward(&g.x, w("qkv"), &d, [WIDTH, row]);
            let bias = reference::bias_gradient(&d, row);
            let names = ["out", "qkv", "qkv.bias"].map(|part| format!("attention.{part}"));
            let gradients = names.into_iter().zip([dout, dw, bias]).collect();
            Answer { y: linear(&o, w("out"), [q, WIDTH]), dx, gradients }
        }
        fn traffic_of_dealt(&self, microbatches: &[Vec<Segment>], place: (usize, usize)) -> Vec<(Op, usize)> {
            let count = |tokens: &[Segment]| tokens.iter().map(|t| t.len).sum::<usize>();
            let own = microbatches.iter().map(|all| count(&self.deal(all, place))).sum::<usize>();
            let all = microbatches.iter().map(|all| count(all)).sum::<usize>();
            vec![(Op::AllGather, own * 12), (Op::ReduceScatter, all * 12)] // two KV heads of 3 features
        }
        fn traffic(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
            vec![]
        }
    }

    /// Kills: keys in the order of ranks and not of positions, of another sequence, or left out; gradients of
    /// keys that are not summed, or go to another token; positions and dropout of another rank's tokens.
    #[test]
    fn attention_to_gathered_keys_equals_attention_bit_for_bit() {
        proves(&Dealt::<2, false>(Mask::Causal));
        proves(&Dealt::<3, true>(Mask::Window { size: 3, sinks: 1 }));
        proves(&Dealt::<2, true>(Mask::All));
    }
}
