//! Proofs of every core of attention over tokens that context ranks share: values, gradients, new weights and
//! traffic, under every dealing, mask and number of ranks.
use super::{gathered, ring, ulysses};
use crate::{BuildContext, Layout, dealing, session};
use comm::{Axis, Op};
use kernels::{Heads, Kernels, Mask, Segment};
use layers::build::strategy;
use layers::build::strategy::Attention;
use layers::proof::{Answer, Case, LayerInput, SEED, proves};
use layers::{Biases, Builder, Choice, Layer, Positions, Rates, Shape, Strategy};
use ops::{PassContext, RandomValues, Result, Split, Stretches};
use reference::{Tokens, linear, linear_backward};
use std::ops::Range;
use tensor::{Bf16, Category, Cpu, Real, Scalar, Tensor, mix};

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
        let (heads, positions) = (Heads::new(queries, keys, DIM), Positions::Learned(9));
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
            Core::Ring => &ring::RingAttention,
            Core::Ulysses(_) => &ulysses::Ulysses,
            Core::Gathered => &gathered::Gathered,
        });
        if let Core::Ulysses(block) = self.core {
            numbers[Choice::Core as usize] = block as u32;
        }
        let at = Builder { strategies, numbers, ..at.clone() };
        let of = Attention::of(Axis::Tp, "attention", &self.shape().block(0), 0, None);
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

/// Outputs and gradients of one attention in floats, token by token over all ranks: `O` and `dQKV` of two
/// documents whose scores reach ±200, in the numbers of bf16.
fn in_floats<D: Kernels<Elem: Real, Place = tensor::Host>>(layout: &str) -> [Vec<f64>; 2] {
    let heads = Heads::new(4, 2, 16);
    let core = strategy::Core::of("scores", heads, Mask::Causal);
    let number = |salt: u64, most: f64, sequence: usize, position: usize, col: usize| {
        let bits = mix(mix(salt) ^ (sequence << 40 | position << 20 | col) as u64);
        Bf16::from_f64(most * (bits as f64 / u64::MAX as f64 * 2.0 - 1.0)).to_f64()
    };
    let layout: Layout = layout.parse().unwrap();
    let ranks = session::run(
        (&layout, &layout.world().unwrap()),
        &RandomValues { seed: 1 },
        |at: BuildContext<D>| {
            let cx = PassContext::train(0, [61, 30], 1).sharded(at.tokens);
            let tokens: Vec<_> = cx
                .tokens()
                .iter()
                .flat_map(|t| (t.position..t.position + t.len).map(|i| (t.sequence, i)))
                .collect();
            let given = |salt, cols: usize, most: fn(usize) -> f64| {
                let of = |i: usize| {
                    let ((sequence, position), col) = (tokens[i / cols], i % cols);
                    D::Elem::from_f64(number(salt, most(col), sequence, position, col))
                };
                Split::cut(
                    &Tensor::from_fn(at.device, Category::Activations, tokens.len(), cols, of),
                    at.mesh.group(Axis::Tp),
                )
            };
            // queries and keys are large, values are not
            let qkv = given(1, heads.row(), |col| if col < 96 { 12.0 } else { 1.0 })?;
            let d_o = given(2, heads.queries * heads.dim, |_| 1.0)?;
            let mut layer = at.build(&core)?;
            let (o, saved) = layer.forward(&cx, qkv)?;
            let d = layer.backward(&cx, saved, d_o)?;
            let read = |x: Split<D>| -> Result<Vec<f64>> {
                let x = x.all_gather(at.mesh.group(Axis::Tp))?;
                Ok(x.read().expect("the host has values").into_iter().map(Real::to_f64).collect())
            };
            Ok((tokens, [read(o)?, read(d)?]))
        },
    );
    let mut rows: [Vec<((usize, usize), Vec<f64>)>; 2] = Default::default();
    for (tokens, both) in ranks.unwrap() {
        for (rows, all) in rows.iter_mut().zip(both) {
            let cols = all.len() / tokens.len();
            rows.extend(tokens.iter().copied().zip(all.chunks(cols).map(<[f64]>::to_vec)));
        }
    }
    rows.map(|mut rows| {
        rows.sort_by_key(|(token, _)| *token);
        rows.into_iter().flat_map(|(_, row)| row).collect()
    })
}

/// Root of the mean squared difference.
fn off(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
}

/// The field cannot see a maximum that is only one hop's, or gradients that are summed in narrow numbers.
/// Kills: parts merged without the larger maximum (e^200 overflows f32), gradients of keys that are rounded
/// at every hop.
#[test]
fn attention_in_floats_is_as_exact_as_that_of_one_rank() {
    let truth = in_floats::<Cpu<f64>>("none");
    let (single, narrow) = (in_floats::<Cpu<f32>>("none"), in_floats::<Cpu<Bf16>>("none"));
    for layout in
        ["cp=2", "cp=4", "cp=8:striped", "cp=4:ulysses", "cp=4:ulysses/2", "cp=4:gathered", "cp=3:contiguous"]
    {
        let (of_f32, of_bf16) = (in_floats::<Cpu<f32>>(layout), in_floats::<Cpu<Bf16>>(layout));
        for (i, truth) in truth.iter().enumerate() {
            let [seen, one] = [&of_f32[i], &single[i]].map(|x| off(x, truth));
            assert!(seen <= 4.0 * one && one > 0.0, "{layout}: {seen} in f32, {one} on one rank");
            let [seen, one] = [&of_bf16[i], &narrow[i]].map(|x| off(x, truth));
            assert!(seen <= 1.1 * one && one > 0.0, "{layout}: {seen} in bf16, {one} on one rank");
        }
    }
}
