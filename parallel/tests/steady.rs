//! A training step and a decoded token take nothing from the system once the first ones are over. A test of
//! its own, because it counts through the allocator.
//!
//! Numbers are dual ones, whose products are plain loops: those of floats may be a library's, which takes
//! memory of its own at each call.
#[path = "../../comm/src/tests/counting.rs"]
mod counting;

use comm::{Axis, Mesh, World};
use counting::taken;
use kernels::Heads;
use layers::{Builder, Design, OptimizerKind, Rates, Shape, Strategy};
use ops::{ADAMW, AtRest, PassContext, RandomValues, SGD, ShardingStrategy};
use parallel::pipeline::gpipe::GPipe;
use parallel::tensor::sequence_parallel::SequenceParallel;
use parallel::{Batch, BuildContext, Error, Schedule, Sequence, Stages, Trainer};
use tensor::{Cpu, Dual, F61, Key, TokenIds};

type Device = Cpu<Dual<F61>>;

/// Lengths of a step's sequences: so few that no stage computes for 10 ms, after which a wait is announced.
const LENGTHS: [u32; 6] = [2, 4, 1, 3, 2, 3];

/// Replicated KV heads, norms of heads, rotary positions.
fn llama() -> Shape {
    let heads = Heads::new(4, 1, 4);
    Shape { width: 16, blocks: 2, heads, hidden: 24, vocabulary: 37, head_norm: true, ..Shape::LLAMA }
}
/// Biases, dropout, learned positions, a tied head.
fn gpt2() -> Shape {
    let dropout = Rates { embedding: 0.1, attention: 0.1, residual: 0.1 };
    let heads = Heads::new(4, 4, 4);
    Shape { width: 16, blocks: 2, heads, hidden: 24, vocabulary: 37, dropout, ..Shape::GPT2 }
}

/// Returns the memory that each run of `work` takes, after some runs that may take memory.
fn each(mut work: impl FnMut() -> Result<(), Error>) -> Result<[usize; 6], Error> {
    (0..3).try_for_each(|_| work())?;
    let mut each = [0; 6];
    for taken_by in &mut each {
        let before = taken();
        work()?;
        *taken_by = taken() - before;
    }
    Ok(each)
}

/// Runs `work` under every layout, and sees to it that it takes nothing. Where ranks wait for each other a
/// long wait is announced, which takes some memory: then there are times without.
fn takes_nothing(work: impl Fn(&BuildContext<Device>) -> Result<[usize; 6], Error> + Sync) {
    let (pp, dp, tp) = (|n| (Axis::Pp, n), |n| (Axis::Dp, n), |n| (Axis::Tp, n));
    let _key = Key(1).enter();
    let layouts: [(&[_], bool); 7] = [
        (&[pp(2)], false),
        (&[], false),
        (&[tp(2)], false),
        (&[tp(2)], true),
        (&[dp(2)], false),
        (&[dp(2), tp(2)], true),
        (&[tp(4)], true),
    ];
    for (sizes, regions) in layouts {
        let ran = World::threads(sizes).unwrap().run(|device: Device, mesh: Mesh<tensor::Host>| {
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            let builder = if regions { at.with([&SequenceParallel as &dyn Strategy<_>]) } else { at };
            work(&BuildContext { builder, pipeline: (&GPipe as &dyn Schedule).into() })
        });
        for (rank, each) in ran.unwrap().into_iter().enumerate() {
            let fewest = each.into_iter().min().unwrap();
            assert_eq!(fewest, 0, "{sizes:?}, regions: {regions}, rank {rank}: {each:?}");
            assert!(!sizes.is_empty() || each == [0; 6], "alone nobody waits: {each:?}");
        }
    }
}

const OPTIMIZERS: [(OptimizerKind, Option<f64>); 2] = [(SGD, None), (ADAMW, Some(1.0))];

/// Kills: an owner count, a list, a label or a context made at each step; ids, cuts or groups of replicas
/// made anew; what microbatches in flight keep, put where there is no room from the step before.
#[test]
fn a_training_step_takes_no_memory() {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    for shape in [llama(), gpt2()] {
        for (microbatches, optimizer) in [1, 2].into_iter().zip(OPTIMIZERS) {
            let batch = Batch::new(LENGTHS.map(sequence).to_vec(), microbatches).unwrap();
            takes_nothing(|at| {
                let mut trainer = Trainer::new(at, shape, optimizer)?;
                each(|| trainer.step(&batch, 0.01).map(drop))
            });
        }
    }
}

/// Kills: lists of what is gathered or scattered made at each step; a shard, or all that is made of shards,
/// in fresh memory.
#[test]
fn a_step_of_shards_takes_no_memory() {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    let batch = Batch::new(LENGTHS.map(sequence).to_vec(), 2).unwrap();
    for stage in 1..=3 {
        let rest = |needs| if stage >= needs { AtRest::Shard } else { AtRest::Whole };
        let rests =
            ShardingStrategy { value: rest(3), gradient: rest(2), state: rest(1), ..ShardingStrategy::WHOLE };
        takes_nothing(|at| {
            if at.mesh.group(Axis::Dp).size() == 1 {
                return Ok([0; 6]); // that is the test before
            }
            let builder = Builder { rests, ..at.builder.clone() };
            let at = BuildContext { builder, pipeline: at.pipeline };
            let mut trainer = Trainer::new(&at, llama(), OPTIMIZERS[1])?;
            each(|| trainer.step(&batch, 0.01).map(drop))
        });
    }
}

/// Kills: rows of features put where there is no room from the step before, a copy of what the model is made
/// of; what layers of a classifier keep, put into fresh lists.
#[test]
fn a_step_on_features_takes_no_memory() {
    let features = |n: usize| (0..n).map(|i| (i % 5) as f32).collect::<Vec<_>>();
    let examples = (0..8).map(|i| Sequence::example(features(6), i % 5)).collect();
    let rows =
        LENGTHS.map(|n| n as usize).map(|n| Sequence::rows(n, features(16 * n), features(16 * n))).to_vec();
    let classifier = Design::Classifier { sizes: vec![6, 8, 8, 8, 5] };
    for (design, all) in [(classifier, examples), (Design::Blocks(llama()), rows)] {
        for (microbatches, optimizer) in [1, 2].into_iter().zip(OPTIMIZERS) {
            let batch = Batch::new(Vec::clone(&all), microbatches).unwrap();
            takes_nothing(|at| {
                let mut trainer = Trainer::new(at, &design, optimizer)?;
                each(|| trainer.step(&batch, 0.01).map(drop))
            });
        }
    }
}

/// Kills: a cache, a rotary table or scratch that grows with the tokens; lists of tokens and spans made anew;
/// logits in fresh memory.
#[test]
fn a_decoded_token_takes_no_memory() {
    for shape in [llama(), gpt2()] {
        takes_nothing(|at| {
            let mut model = Stages::new(at, shape)?;
            let mut cx = PassContext::infer([40, 3]).with_cache(90);
            let mut logits = Vec::new();
            let prompt: [u32; 43] = std::array::from_fn(|i| i as u32 % 37);
            drop(model.logits(
                &cx,
                TokenIds::new(tensor::Device::place(at.device), prompt, shape.vocabulary)?,
                false,
            )?);
            each(|| {
                (0..3).try_for_each(|_| {
                    cx.advance(&[1, 1]);
                    let ids = TokenIds::new(tensor::Device::place(at.device), [5, 6], shape.vocabulary)?;
                    assert!(model.logits(&cx, ids, false)?.read_into(&mut logits));
                    Ok(())
                })
            })
        });
    }
}
