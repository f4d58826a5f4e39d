//! Chunks: a model in parts equals the model whole, later weight halves equal immediate ones, decoding with a
//! cache equals the whole forward; all bit for bit.
mod bare;
mod decay;

use crate::{Builder, Chunk, Half, Input, Output, Positions, Rates, Shape, StageRequest, Targets};
use comm::{Axis, Mesh, Op, World};
use kernels::{Heads, Kernels};
use ops::{AtRest, Error, Keeper, PassContext, RandomValues, ShardingStrategy};
use std::collections::BTreeSet;
use tensor::{Category, Cpu, Device, F61, Host, Key, Phase, Rope, Scaling, Tensor, TokenIds};

const SHAPE: Shape = Shape {
    width: 12,
    blocks: 3,
    heads: Heads::new(8, 4, 3),
    hidden: 8,
    vocabulary: 16,
    positions: Positions::Rotary(Rope { base: 100.0, scaling: Scaling::None }),
    ..Shape::LLAMA
};
const LENGTHS: [&[usize]; 3] = [&[4, 1], &[3], &[2, 2]];
type D = Cpu<F61>;

/// One run of parts between two cuts.
pub(crate) fn one_run(cuts: &[usize]) -> [std::ops::Range<usize>; 1] {
    let run = cuts[0]..cuts[1];
    [run]
}

fn ids(device: &D, n: usize, salt: usize) -> TokenIds<Host> {
    let ids: Vec<_> = (0..n).map(|i| ((i * 37 + salt * 11) % SHAPE.vocabulary) as u32).collect();
    TokenIds::new(device.place(), &ids, SHAPE.vocabulary).unwrap()
}

/// Logits of a model in one piece.
fn logits<D: Kernels>(
    model: &mut Chunk<D>,
    cx: &PassContext<D>,
    ids: TokenIds<D::Place>,
    all: bool,
) -> Result<Tensor<D>, Error> {
    match model.forward(
        0,
        cx,
        &mut Keeper::default(),
        Input::Tokens(ids),
        Some(StageRequest::Logits { all }),
    )? {
        Output::Logits(logits) => Ok(logits),
        _ => unreachable!("a whole model has a head"),
    }
}

/// Losses, and gradients by name, of three microbatches in flight at once through these parts.
fn gradients(
    device: &D,
    mesh: &Mesh<Host>,
    shape: &Shape,
    cuts: &[usize],
    later: bool,
) -> Result<Vec<Vec<F61>>, Error> {
    let at = Builder::new(device, mesh, &RandomValues { seed: 1 });
    let mut parts =
        cuts.windows(2).map(|c| Chunk::part(&at, shape, &one_run(c), None)).collect::<Result<Vec<_>, _>>()?;
    let mut trace = Vec::new();
    let tokens = LENGTHS.concat().iter().sum();
    let all: Vec<_> =
        LENGTHS.iter().enumerate().map(|(m, lengths)| PassContext::train(m, *lengths, tokens)).collect();
    for cx in &all {
        let mut x = Some(Input::Tokens(ids(device, cx.rows(), cx.pass().microbatch)));
        for part in &mut parts {
            let targets = ids(device, cx.rows(), cx.pass().microbatch + 7);
            match part.forward(
                0,
                cx,
                &mut Keeper::default(),
                x.take().expect("one output an input"),
                Some(StageRequest::Loss(Targets::Ids(targets))),
            )? {
                Output::Activation(y) => x = Some(Input::Activation(y)),
                Output::Logits(_) => unreachable!("a loss is wanted"),
                Output::Loss(loss) => {
                    trace.push(loss.all_reduce(&mesh.over(comm::Axes::LOSS)?)?.read().unwrap());
                }
            }
        }
    }
    for cx in all.iter().rev() {
        let mut dy = None;
        for part in parts.iter_mut().rev() {
            dy = part.backward(
                0,
                cx,
                &mut Keeper::default(),
                dy,
                if later { Half::Input } else { Half::Both },
                false,
            )?;
        }
        assert!(dy.is_none(), "ids have no gradient");
    }
    if later {
        for cx in &all {
            parts
                .iter_mut()
                .try_for_each(|part| part.backward_weight(0, cx, &mut Keeper::default(), false))?;
        }
    }
    for param in parts.iter_mut().flat_map(Chunk::params) {
        trace.push(param.gather_gradient(mesh)?.unwrap());
    }
    Ok(trace)
}

/// Kills: microbatches mixed up, blocks' pending halves taken in the wrong order, names that depend on the
/// part, dropout that one way back knows and the other does not.
#[test]
fn parts_and_later_halves_equal_the_whole_bit_for_bit() {
    let _key = Key(11).enter();
    let run = |ranks, tied, cuts: &'static [usize], later| {
        let dropout = Rates { embedding: 0.25, attention: 0.5, residual: 0.25 };
        let shape = Shape { tied, dropout, ..SHAPE };
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        world.run(|device, mesh| gradients(&device, &mesh, &shape, cuts, later)).unwrap()
    };
    for tied in [false, true] {
        let whole = run(1, tied, &[0, 3], false).remove(0);
        let cuts: &[&'static [usize]] = if tied { &[&[0, 3]] } else { &[&[0, 3], &[0, 1, 3], &[0, 1, 2, 3]] };
        for (ranks, cuts) in [1, 2, 4].into_iter().flat_map(|n| cuts.iter().map(move |c| (n, *c))) {
            for later in [false, true] {
                for (rank, trace) in run(ranks, tied, cuts, later).into_iter().enumerate() {
                    assert!(trace == whole, "tied {tied}, {cuts:?}, later {later}, rank {rank} of {ranks}");
                }
            }
        }
    }
}

/// The first and the last block on one rank, as on a V, and the table of both ends; each of three data ranks
/// has one of the microbatches. Kills: a table that is summed with the head's gradients, before the embedding
/// has added its own; a table for each end.
#[test]
fn a_tied_table_of_both_ends_is_summed_when_both_have_added() {
    let _key = Key(13).enter();
    let shape = Shape { tied: true, ..SHAPE };
    let alone = World::threads(&[]).unwrap();
    let whole = alone.run(|device, mesh| gradients(&device, &mesh, &shape, &[0, 3], false));
    let whole = whole.unwrap().remove(0).split_off(LENGTHS.len());
    let [all, shard] = [AtRest::Whole, AtRest::Shard];
    let rests = [[all, all, all], [all, all, shard], [all, shard, shard], [shard, shard, shard]];
    for ([value, gradient, state], later) in
        rests.into_iter().flat_map(|rests| [(rests, false), (rests, true)])
    {
        let run = |device: D, mesh: Mesh<Host>| {
            let rests = ShardingStrategy { value, gradient, state, ..ShardingStrategy::WHOLE };
            let at = Builder { rests, ..Builder::new(&device, &mesh, &RandomValues { seed: 1 }) };
            let (mut v, mut keeper) = (Chunk::part(&at, &shape, &[0..1, 1..3], None)?, Keeper::new(rests));
            let cx = PassContext::train(mesh.rank(), LENGTHS[mesh.rank()], LENGTHS.concat().iter().sum());
            let [given, targets] = [0, 7].map(|salt| ids(&device, cx.rows(), cx.pass().microbatch + salt));
            let x = match v.forward(0, &cx, &mut keeper, Input::Tokens(given), None)? {
                Output::Activation(x) => Input::Activation(x),
                _ => unreachable!("the end is another run's"),
            };
            v.forward(1, &cx, &mut keeper, x, Some(StageRequest::Loss(Targets::Ids(targets))))?;
            let half = if later { Half::Input } else { Half::Both };
            let dy = v.backward(1, &cx, &mut keeper, None, half, true)?;
            v.backward(0, &cx, &mut keeper, dy, half, true)?;
            if later {
                [1, 0].into_iter().try_for_each(|run| v.backward_weight(run, &cx, &mut keeper, true))?;
            }
            keeper.finish(&mut v.params())?;
            let names: BTreeSet<_> = v.params().iter().map(|param| param.name().clone()).collect();
            assert_eq!(names.len(), v.params().len(), "one table: {names:?}");
            let gradients = v.params().into_iter().map(|param| Ok(param.gather_gradient(&mesh)?.unwrap()));
            gradients.collect::<Result<Vec<_>, Error>>()
        };
        let seen = World::threads(&[(Axis::Dp, 3)]).unwrap().run(run).unwrap();
        assert!(seen.iter().all(|seen| *seen == whole), "{value:?} {gradient:?} {state:?} later {later}");
    }
}

#[test]
fn a_microbatch_in_flight_is_not_overwritten() {
    let why = World::threads(&[])
        .unwrap()
        .run(|device: D, mesh| {
            let _key = Key(1).enter();
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            let mut model = Chunk::whole(&at, &SHAPE)?;
            for _ in 0..2 {
                let cx = PassContext::train(4, [2], 2);
                model.forward(
                    0,
                    &cx,
                    &mut Keeper::default(),
                    Input::Tokens(ids(&device, 2, 0)),
                    Some(StageRequest::Loss(Targets::Ids(ids(&device, 2, 1)))),
                )?;
            }
            Ok::<_, Error>(())
        })
        .unwrap_err();
    assert!(why.reason.contains("microbatch 4 is in flight"), "{why}");
}

/// Ragged prompts, then one or two tokens at a time, one sequence resting. Kills: positions or masks from
/// zero, sequences that share a cache's rows, logits gathered in the wrong order, the wrong last row.
#[test]
fn decoding_equals_the_whole_forward_bit_for_bit() {
    let _key = Key(12).enter();
    let v = SHAPE.vocabulary;
    let text =
        |b: usize, n: usize| -> Vec<u32> { (0..n).map(|t| ((b * 5 + t * 11 + 3) % v) as u32).collect() };
    let steps: [[usize; 2]; 4] = [[3, 1], [1, 2], [0, 1], [2, 1]];
    let lengths = [6, 5];
    let mut truth: Option<Vec<F61>> = None;
    for ranks in [1, 2, 4] {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let all = world.run(|device: D, mesh| {
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            let mut model = Chunk::whole(&at, &SHAPE)?;
            let feed = |ids: Vec<u32>| TokenIds::new(device.place(), &ids, v).unwrap();
            let whole = feed([text(0, lengths[0]), text(1, lengths[1])].concat());
            let whole = logits(&mut model, &PassContext::infer(lengths), whole, true)?.read().unwrap();
            let (mut cx, mut done) = (PassContext::infer(steps[0]).with_cache(7), [0, 0]);
            for (i, step) in steps.iter().enumerate() {
                if i > 0 {
                    cx.advance(step);
                }
                let new = |b: usize| text(b, done[b] + step[b])[done[b]..].to_vec();
                let fed = [new(0), new(1)].concat();
                done = [done[0] + step[0], done[1] + step[1]];
                let rows = logits(&mut model, &cx, feed(fed), false)?.read().unwrap();
                let open: Vec<_> = (0..2).filter(|&b| step[b] > 0).collect();
                assert_eq!(rows.len(), open.len() * v);
                for (row, b) in rows.chunks(v).zip(open) {
                    let at = (b * lengths[0] + done[b] - 1) * v;
                    assert!(row == &whole[at..at + v], "sequence {b}, token {}, {ranks} ranks", done[b] - 1);
                }
            }
            Ok::<_, Error>(whole)
        });
        for whole in all.unwrap() {
            assert!(*truth.get_or_insert_with(|| whole.clone()) == whole, "{ranks} ranks");
        }
    }
}

/// Two all-reduces a block forward, two backward; one for the embedding, two for the loss. The head's
/// gradient is reduced in forward, which runs the head's backward at once.
#[test]
fn the_ledger_shows_two_all_reduces_a_block_each_way() {
    let calls = |shape: &Shape| {
        let world = World::threads(&[(Axis::Tp, 2)]).unwrap();
        let all = world.run(|device: Cpu<f32>, mesh| {
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            let mut model = Chunk::whole(&at, shape)?;
            let (cx, ids) =
                (PassContext::train(0, [3], 3), TokenIds::new(device.place(), &[1, 2, 3], shape.vocabulary)?);
            let forward = mesh.ledger();
            model.forward(
                0,
                &cx,
                &mut Keeper::default(),
                Input::Tokens(ids.clone()),
                Some(StageRequest::Loss(Targets::Ids(ids))),
            )?;
            let backward = mesh.ledger();
            model.backward(0, &cx, &mut Keeper::default(), None, Half::Both, false)?;
            let calls =
                |from, to| -> usize { (mesh.ledger() - from).get(Axis::Tp, Op::AllReduce).calls - to };
            let after = calls(&backward, 0);
            Ok::<_, Error>((calls(&forward, after), after))
        });
        all.unwrap()[0]
    };
    for blocks in [1, 3] {
        assert_eq!(calls(&Shape { blocks, ..SHAPE }), (1 + 2 * blocks + 2 + 1, 2 * blocks));
    }
}

/// Inference holds no gradients, and activations that do not grow with depth; a cache holds what it says.
#[test]
fn inference_keeps_nothing() {
    let peaks = |blocks, cached: bool| {
        let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::ghost(&[(Axis::Tp, 2)], 1).unwrap());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let mut model = Chunk::whole(&at, &Shape { blocks, ..SHAPE }).unwrap();
        device.meter().begin(Phase::Inference);
        let cx = PassContext::infer([3, 4]);
        let cx = if cached { cx.with_cache(16) } else { cx };
        let ids = TokenIds::new(device.place(), &[0; 7], SHAPE.vocabulary).unwrap();
        logits(&mut model, &cx, ids, true).unwrap();
        let peaks = device.meter().peaks(Phase::Inference);
        move |c: Category| peaks.category[c as usize]
    };
    let (two, eight) = (peaks(2, false), peaks(8, true));
    assert_eq!(two(Category::Activations), eight(Category::Activations));
    assert_eq!((eight(Category::Gradients), two(Category::KvCache)), (0, 0));
    let (sequences, capacity, columns) = (2, 16, 4 * 3 / 2);
    assert_eq!(eight(Category::KvCache), 8 * 2 * sequences * capacity * columns * 4);
}

/// Products by the shapes (a multiply-add is two), attention by the pairs that see each other; backward is
/// twice that, and five products of attention instead of two. The head's backward is done in forward.
#[test]
fn operations_are_those_of_the_equations() {
    let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
    let mut model = Chunk::whole(&at, &SHAPE).unwrap();
    let (cx, ids) =
        (PassContext::train(0, [3, 2], 5), TokenIds::new(device.place(), &[0; 5], SHAPE.vocabulary).unwrap());
    model
        .forward(
            0,
            &cx,
            &mut Keeper::default(),
            Input::Tokens(ids.clone()),
            Some(StageRequest::Loss(Targets::Ids(ids))),
        )
        .unwrap();
    let forward = device.meter().flops();
    model.backward(0, &cx, &mut Keeper::default(), None, Half::Both, false).unwrap();
    let Shape { width, blocks, heads, hidden, vocabulary, .. } = SHAPE;
    let (q, kv) = (heads.queries * heads.dim, heads.keys * heads.dim);
    let weights = blocks * (width * (q + 2 * kv) + q * width + 3 * width * hidden) + width * vocabulary;
    let pairs = (1 + 2 + 3) + (1 + 2);
    let (products, attention) = (2 * 5 * weights, blocks * 2 * pairs * q);
    let head = 2 * (2 * 5 * width * vocabulary); // backward
    assert_eq!(forward, (products + 2 * attention + head) as u64);
    assert_eq!(device.meter().flops() - forward, (2 * products + 5 * attention - head) as u64);
}

/// Fresh weights keep the size of what passes through: deviation one over the root of the inputs; gains are
/// near 1.
#[test]
fn fresh_weights_have_the_deviation_of_their_inputs() {
    let shape = Shape { width: 64, hidden: 96, vocabulary: 128, ..SHAPE };
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
    let mut model = Chunk::whole(&at, &shape).unwrap();
    for param in model.params() {
        let values = param.gather(&mesh).unwrap().unwrap();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let deviation = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
        let [rows, cols] = param.shape();
        let inputs = if &**param.name() == "embedding" { cols } else { rows };
        let (center, wanted) = if rows == 1 { (1.0, 0.02) } else { (0.0, 1.0 / (inputs as f64).sqrt()) };
        assert!(
            (mean - center).abs() < 0.02 && (deviation / wanted - 1.0).abs() < 0.3,
            "{}: {mean} {deviation}",
            param.name()
        );
    }
}

/// Sequence parallelism: what is kept between the products is cut by the ranks, and what is sent forward
/// stays the same but for its kind, the head's backward among it: it scatters its dX, and gathers its input
/// once more. So does every column layer in backward, where the embedding gathers what the head scattered.
/// Kills: an input kept whole, what the head's backward needs kept when it is done.
#[test]
fn sequence_parallelism_keeps_less_and_sends_the_same_forward() {
    const RANKS: usize = 4;
    let tokens = 64;
    let run = |regions: bool| {
        let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::ghost(&[(Axis::Tp, RANKS)], 1).unwrap());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let at = if regions { at.in_regions() } else { at };
        let mut model = Chunk::whole(&at, &SHAPE).unwrap();
        device.meter().begin(Phase::Step);
        let cx = PassContext::train(0, [tokens], tokens);
        let ids = TokenIds::new(device.place(), &vec![0; tokens], SHAPE.vocabulary).unwrap();
        let before = device.meter().now(Category::Activations);
        model
            .forward(
                0,
                &cx,
                &mut Keeper::default(),
                Input::Tokens(ids.clone()),
                Some(StageRequest::Loss(Targets::Ids(ids))),
            )
            .unwrap();
        let (kept, forward) = (device.meter().now(Category::Activations) - before, mesh.ledger());
        model.backward(0, &cx, &mut Keeper::default(), None, Half::Both, false).unwrap();
        (kept, forward.wire_bytes(), (mesh.ledger() - &forward).wire_bytes())
    };
    let ([whole, forward, backward], [cut, forward_cut, backward_cut]) =
        (<[usize; 3]>::from(run(false)), run(true).into());
    // Per block two norms' inputs and outputs, and their statistics, one value a token; for the head its dX.
    let streams = (4 * SHAPE.blocks + 1) * SHAPE.width + 2 * SHAPE.blocks;
    assert_eq!(whole - cut, 4 * tokens * streams * (RANKS - 1) / RANKS);
    assert_eq!(forward_cut, forward);
    let again = (2 * SHAPE.blocks + 1) * SHAPE.width * tokens * 4 * (RANKS - 1) / RANKS;
    assert_eq!(backward_cut, backward + again);
}
