//! Pairs of equal models: heads permuted together with their weights, grouped heads replicated to full ones,
//! an untied copy of a tied head. Their logits are bit-equal in the field and close in f32, under every
//! layout.
use comm::World;
use kernels::{Heads, Kernels};
use layers::Shape;
use models::Model;
use ops::{Draw, ParamValues, PassContext, ValueSource};
use parallel::{Layout, Stages};
use std::path::Path;
use tensor::{Cpu, Device, F61, Key, Scalar, TokenIds};

const LAYOUTS: [&str; 5] = ["none", "tp=2", "tp=2,sp", "tp=4", "tp=4,sp"];

/// Source of an element of a rewritten parameter: the name and shape of a parameter, and a function to its
/// index.
type Source = (&'static str, [usize; 2], Box<dyn Fn([usize; 2]) -> [usize; 2] + Sync>);
/// Source of a rewritten parameter, by the last part of its name and its new shape.
type Rewrite = dyn Fn(&str, [usize; 2]) -> Option<Source> + Sync;

/// Weights of a model, some of them rewritten.
struct Rewritten<'a> {
    model: &'a Model,
    rewrite: &'a Rewrite,
}

impl<E: Scalar> ValueSource<E> for Rewritten<'_> {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> ops::Result<ParamValues<'_, E>> {
        let (block, part) = name.split_at(name.find(".attention.").map_or(0, |at| at + ".attention.".len()));
        match (self.rewrite)(part, shape) {
            None => self.model.values().of(name, shape, draw),
            Some((source, shape, index)) => {
                let numbers = self.model.values::<E>().of(&format!("{block}{source}"), shape, draw)?;
                Ok(ParamValues::each(move |at| numbers.at(index(at))))
            }
        }
    }
}

/// Logits of every token of two sequences.
fn logits<S: Scalar>(values: &Rewritten, shape: &Shape, layout: &str) -> Vec<S>
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host>,
{
    let layout: Layout = layout.parse().unwrap();
    let ids: Vec<u32> = (0..14).map(|i| (i * i + 3) % shape.vocabulary as u32).collect();
    let world = World::threads(&layout.axes()).unwrap();
    let mut ranks = world
        .run(|device: Cpu<S>, mesh| {
            let mut chunk = Stages::new(&layout.place(&device, &mesh, values), shape)?;
            let ids = TokenIds::new(device.place(), &ids, shape.vocabulary)?;
            Ok::<_, parallel::Error>(chunk.logits(&PassContext::infer([9, 5]), ids, true)?.read().unwrap())
        })
        .unwrap();
    ranks.swap_remove(0)
}

/// Asserts that the model rewritten by `rewrite` computes the same logits.
fn same(name: &str, shape: &Shape, rewrite: &Rewrite) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name);
    let model = Model::read(&dir).unwrap();
    let (as_it_is, rewritten) =
        (Rewritten { model: &model, rewrite: &|_, _| None }, Rewritten { model: &model, rewrite });
    let _key = Key(7).enter();
    let truth: Vec<F61> = logits(&as_it_is, &model.config.shape, "none");
    let floats: Vec<f32> = logits(&as_it_is, &model.config.shape, "none");
    let largest = floats.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for layout in LAYOUTS {
        assert!(logits::<F61>(&rewritten, shape, layout) == truth, "{name} under {layout}");
        let close = logits::<f32>(&rewritten, shape, layout);
        let off = close.iter().zip(&floats).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(off <= 1e-5 * largest, "{name} under {layout}: {off:e} of {largest}");
    }
}

fn shape(name: &str) -> Shape {
    Model::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name))
        .unwrap()
        .config
        .shape
}

/// Permutes the KV heads, and the query heads of each group. Kills: a head whose result depends on its index.
#[test]
fn permuted_heads_give_the_same_logits() {
    for name in ["llama", "qwen3", "mistral"] {
        let shape = shape(name);
        let Heads { queries, keys, dim, .. } = shape.heads;
        let fan = queries / keys;
        let key = move |head: usize| keys - 1 - head;
        let query = move |head: usize| key(head / fan) * fan + (head % fan + 1) % fan;
        let feature = move |at: usize| query(at / dim) * dim + at % dim;
        let column = move |at: usize| match at.checked_sub(queries * dim) {
            None => feature(at),
            Some(kv) => {
                let (part, at) = (kv / (keys * dim), kv % (keys * dim));
                (queries + part * keys) * dim + key(at / dim) * dim + at % dim
            }
        };
        same(name, &shape, &move |part, shape| match part {
            "qkv" => Some(("qkv", shape, Box::new(move |[r, c]| [r, column(c)]))),
            "qkv.bias" => Some(("qkv.bias", shape, Box::new(move |[r, c]| [r, column(c)]))),
            "out" => Some(("out", shape, Box::new(move |[r, c]| [feature(r), c]))),
            _ => None,
        });
    }
}

/// Gives every query head a copy of its KV head. Kills: a group that reads another group's keys.
#[test]
fn grouped_heads_written_out_give_the_same_logits() {
    for name in ["llama", "qwen3", "mistral", "qwen2"] {
        let grouped = shape(name);
        let Heads { queries, keys, dim, .. } = grouped.heads;
        let full = Shape { heads: Heads::new(queries, queries, dim), ..grouped };
        let column = move |at: usize| match at.checked_sub(queries * dim) {
            None => at,
            Some(kv) => {
                let (part, at) = (kv / (queries * dim), kv % (queries * dim));
                (queries + part * keys) * dim + at / dim / (queries / keys) * dim + at % dim
            }
        };
        let row = (queries + 2 * keys) * dim;
        same(name, &full, &move |part, [rows, _]| match part {
            "qkv" => Some(("qkv", [rows, row], Box::new(move |[r, c]| [r, column(c)]))),
            "qkv.bias" => Some(("qkv.bias", [rows, row], Box::new(move |[r, c]| [r, column(c)]))),
            _ => None,
        });
    }
}

/// Kills: a tied table transposed or sharded otherwise than an untied head.
#[test]
fn an_untied_copy_of_a_tied_head_gives_the_same_logits() {
    for name in ["linear", "qwen2", "qwen3", "gpt2"] {
        let tied = shape(name);
        assert!(tied.tied);
        same(name, &Shape { tied: false, ..tied }, &|part, [rows, cols]| {
            (part == "head")
                .then(|| ("embedding", [cols, rows], Box::new(|[r, c]: [usize; 2]| [c, r]) as Box<_>))
        });
    }
}
