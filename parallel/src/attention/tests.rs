//! Proofs of every core of attention over tokens that context ranks share: values, gradients, new weights and
//! traffic, under every dealing, mask and number of ranks.
use super::{gathered, ring, ulysses};
use crate::dealing;
use comm::{Axis, Op};
use kernels::{Heads, Kernels, Mask, Segment};
use layers::model::strategy::{Attention, Strategy};
use layers::proof::{Answer, Case, LayerInput, SEED, proves};
use layers::{Biases, Builder, Choice, Positions, Rates, Result, Shape, Stretches};
use reference::{Tokens, linear, linear_backward};
use std::ops::Range;
use tensor::Scalar;

const WIDTH: usize = 6;
const DIM: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Core {
    Ring,
    /// Blocks of this number of ranks exchange heads.
    Ulysses(usize),
    Gathered,
}

/// An attention with dropout whose tokens are dealt over context ranks.
#[derive(Clone, Copy, Debug)]
struct Dealt {
    core: Core,
    dealing: &'static str,
    ranks: usize,
    mask: Mask,
    heads: [usize; 2], // query and KV heads
}

impl Dealt {
    fn shape(&self) -> Shape {
        let [queries, keys] = self.heads;
        let dropout = Rates { attention: 0.25, ..Rates::default() };
        let bias = Biases { qkv: true, ..Biases::default() };
        let (heads, positions) = (Heads { queries, keys, dim: DIM }, Positions::Learned(9));
        Shape { width: WIDTH, heads, dropout, bias, positions, ..Shape::LLAMA }
    }
    /// Number of keys of the ranks `from` that a query of the ranks `to` sees, by definition.
    fn seen(&self, all: &[Segment], [to, from]: [Range<usize>; 2]) -> usize {
        let of = |ranks: Range<usize>| {
            let tokens = ranks.flat_map(|rank| self.deal(all, (rank, self.ranks)));
            tokens.flat_map(|t| (t.position..t.position + t.len).map(move |i| (t.sequence, i))).collect()
        };
        let [queries, keys]: [Vec<(usize, usize)>; 2] = [of(to), of(from)];
        let sees = |(one, query): (usize, usize), (other, key)| one == other && self.mask.sees(query, key);
        keys.iter().filter(|key| queries.iter().any(|query| sees(*query, **key))).count()
    }
}

impl Case for Dealt {
    type Layer<T: Kernels> = layers::Attention<T>;
    const RANKS: &'static [usize] = &[1];
    fn dealers(&self) -> Vec<(Axis, usize)> {
        vec![(Axis::Cp, self.ranks)]
    }
    fn dealing(&self) -> Option<Stretches> {
        dealing::ALL.iter().find(|of| of.about.word == self.dealing).map(|of| of.stretches)
    }
    fn features(&self) -> [usize; 2] {
        [WIDTH; 2]
    }
    fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<layers::Attention<T>> {
        let (mut strategies, mut numbers) = (Vec::<&dyn Strategy<T>>::new(), at.numbers);
        strategies.push(match self.core {
            Core::Ring => &ring::Ring,
            Core::Ulysses(_) => &ulysses::Ulysses,
            Core::Gathered => &gathered::Gathered,
        });
        if let Core::Ulysses(block) = self.core {
            numbers[Choice::Core as usize] = block as u32;
        }
        let at = Builder { strategies, numbers, ..at.clone() };
        let of = Attention::of(Axis::Tp, "attention", &self.shape(), 0, None);
        layers::attention::shard(&at, &Attention { mask: self.mask, ..of })
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let heads = self.shape().heads;
        let mask = match self.mask {
            Mask::All => reference::Mask::All,
            Mask::Causal => reference::Mask::Causal,
            Mask::Window { size, sinks } => reference::Mask::Window { size, sinks },
        };
        let numbers = (g.first..g.first + g.lengths.len()).collect();
        let (tokens, row, q) =
            (Tokens { lengths: g.lengths.clone(), numbers }, heads.row(), heads.queries * DIM);
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
    fn traffic_of_dealt(
        &self,
        microbatches: &[Vec<Segment>],
        (rank, ranks): (usize, usize),
    ) -> Vec<(Op, usize)> {
        let count = |tokens: Vec<Segment>| tokens.iter().map(|t| t.len).sum::<usize>();
        let of_ranks = |some: Range<usize>| -> usize {
            let of = |all: &Vec<Segment>| {
                some.clone().map(|rank| count(self.deal(all, (rank, ranks)))).sum::<usize>()
            };
            microbatches.iter().map(of).sum()
        };
        let ([queries, keys], own) = (self.heads, of_ranks(rank..rank + 1));
        let sum = |f: &dyn Fn(&[Segment]) -> usize| microbatches.iter().map(|all| f(all)).sum::<usize>();
        let block = match self.core {
            _ if ranks == 1 => return vec![],
            Core::Gathered => {
                let row = 2 * keys * DIM;
                return vec![(Op::AllGather, own * row), (Op::ReduceScatter, of_ranks(0..ranks) * row)];
            }
            Core::Ring => 1,
            Core::Ulysses(block) => block,
        };
        let (first, copies) = (rank / block * block, keys.div_ceil(block));
        let others = || (0..ranks).step_by(block).filter(|other| *other != first);
        let member = |first| first..first + block;
        let seen = |of: &dyn Fn(usize) -> [Range<usize>; 2]| {
            sum(&|all| others().map(|other| self.seen(all, of(other))).sum())
        };
        let gives = seen(&|other| [member(other), member(first)]);
        let takes = seen(&|other| [member(first), member(other)]);
        // keys go there in both passes, and gradients come back
        let travelled = [(Op::Send, 2 * gives + takes), (Op::Receive, 2 * takes + gives)];
        let travelled =
            travelled.into_iter().filter(|(_, n)| *n > 0).map(|(op, n)| (op, n * 2 * copies * DIM));
        // each row goes to the ranks of the block, and all tokens of the block come back
        let columns = (queries / block + queries / block + 2 * copies) * DIM;
        let exchanged = (own * block + of_ranks(member(first))) * columns;
        let exchanged = (block > 1).then_some((Op::AllToAll, exchanged));
        exchanged.into_iter().chain(travelled).collect()
    }
    fn traffic(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
        vec![]
    }
}

const MASKS: [Mask; 3] = [Mask::Causal, Mask::Window { size: 3, sinks: 1 }, Mask::All];

/// The harness has sequences of 7, 4 and 2 tokens: 8 ranks are without tokens of some, and pieces of
/// documents have different lengths. Kills: keys in the order of ranks and not of positions, of another
/// sequence, or left out; a hop that uses the keys of another, or returns gradients to another rank;
/// gradients of keys that are not summed; parts of a softmax that are merged without their scales; positions
/// and dropout of another rank's tokens or heads; keys that travel though no query sees them.
#[test]
fn attention_over_shared_tokens_equals_attention_bit_for_bit() {
    for (i, (ranks, heads)) in
        [(1, [4, 2]), (2, [4, 2]), (3, [6, 1]), (4, [8, 2]), (8, [8, 2])].into_iter().enumerate()
    {
        for (j, dealing) in ["zigzag", "contiguous", "striped"].into_iter().enumerate() {
            let blocks = Core::Ulysses(if ranks > 2 && ranks % 2 == 0 { 2 } else { 1 });
            let cores = [Core::Ring, Core::Ulysses(ranks), Core::Gathered, blocks];
            for (k, core) in cores.into_iter().enumerate() {
                // every mask with every core, dealing and number of ranks, but not with all three
                let mask = MASKS[(i + j + k) % 3];
                proves(&Dealt { core, dealing, ranks, mask, heads });
            }
        }
    }
}
