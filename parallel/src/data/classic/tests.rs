//! Steps with a root: the numbers of the unsplit model, in the memory and for the traffic that is worked out.
use crate::rests::{files, goes_on};
use crate::{Batch, BuildContext, Layout, Network, Result, Sequence, Stages, Trainer, price, session};
use comm::{Axis, Ledger, Op};
use kernels::{Heads, Kernels, MetaOf};
use layers::{Biases, Design, Experts, Objective, OptimizerKind, Rates, Shape};
use ops::{PassContext, RandomValues, SGD, Wide};
use tensor::{Bf16, Category, Cpu, Device, F61, Host, Key, Peaks, Real, Scalar, TokenIds};

const SHAPE: Shape = Shape {
    width: 6,
    blocks: 2,
    heads: Heads::new(4, 2, 2),
    hidden: 8,
    vocabulary: 13,
    bias: Biases { qkv: true, out: false, mlp: false },
    ..Shape::LLAMA
};
const ADAMW: OptimizerKind = ops::ADAMW.with(&[0.5, 0.75, 0.5, 0.25]);

/// Two microbatches, of four and five sequences, in each of which all ids but the first differ.
fn batch() -> Batch {
    let sequence = |n: u32| Sequence::new((0..n).map(|i| (i * 5 + n) % 13).collect(), (1..=n).collect());
    Batch::new([5, 2, 3, 1, 4, 7, 2, 6, 3].map(sequence).to_vec(), 2).unwrap()
}

/// The same lengths, with the same ids and targets everywhere.
fn blank() -> Batch {
    let of = |s: &Sequence| Sequence::new(vec![0; s.tokens()], vec![0; s.tokens()]);
    Batch::new(batch().microbatches().concat().iter().map(of).collect(), 2).unwrap()
}

/// Runs on every rank of a layout.
fn on<D: Kernels<Place = Host>, T: Send>(
    layout: &str,
    run: impl Fn(&BuildContext<D>) -> Result<T> + Sync,
) -> Vec<T> {
    let layout: Layout = layout.parse().unwrap();
    let world = Network::default().world(&layout, "a test").unwrap();
    let ran = session::run((&layout, &world), &RandomValues { seed: 2 }, |at: BuildContext<D>| run(&at));
    ran.unwrap_or_else(|why| panic!("{layout}: {why}"))
}

/// Bits of all that a rank reports of two steps and an evaluation: losses, norms, gradients and values.
fn trained(
    layout: &str,
    shape: Shape,
    optimizer: (OptimizerKind, Option<f64>),
    whole: bool,
) -> Vec<Vec<F61>> {
    let all = on(layout, |at: &BuildContext<Cpu<F61>>| {
        let batch = if whole || at.mesh.rank() == 0 { batch() } else { blank() };
        let (mut trainer, mut seen) = (Trainer::new(at, shape, optimizer)?.seeded(3), Vec::new());
        for _ in 0..2 {
            let report = trainer.step(&batch, 0.5)?;
            seen.extend([
                report.loss.read().unwrap(),
                report.norm2.as_ref().expect("one update").read().unwrap(),
            ]);
            for param in trainer.model().params() {
                let counted = param.gather_gradient(at.mesh)?;
                seen.extend([param.gather(at.mesh)?.unwrap(), counted.unwrap_or_default()]);
            }
            seen.push(trainer.evaluate(&batch, &|_| ())?.read().unwrap());
        }
        Ok(seen)
    });
    assert!(all.iter().all(|seen| *seen == all[0]), "{layout}: all ranks are told the same");
    all.into_iter().next().unwrap()
}

/// Two steps of two microbatches of unequal sequences, of dropout, clipping and decay, in which the ranks but
/// the root are given a batch of zeros. Kills: inputs or targets of another rank than the root; a rank's
/// inputs, outputs or gradient left out, or taken twice or out of order; a mean of means; a model that is not
/// sent again after an update; a part of the loss that is told twice.
#[test]
fn steps_equal_those_of_the_unsplit_model() {
    let _key = Key(6).enter();
    let dropout = Rates { embedding: 0.25, attention: 0.25, residual: 0.25 };
    let loss = Objective { smoothing: 0.25, z: 0.5 };
    for (tied, optimizer) in [(false, (ADAMW, Some(0.5))), (true, (ADAMW, None)), (true, (SGD, Some(0.5)))] {
        let shape = Shape { dropout, tied, loss, ..SHAPE };
        let alone = trained("none", shape, optimizer, true);
        for layout in ["dp=2:classic", "dp=3:classic", "dp=4:classic", "dp=2:classic,recompute"] {
            assert!(trained(layout, shape, optimizer, false) == alone, "{layout}, tied {tied}");
        }
    }
}

/// Experts whose losses of balance are each rank's own. Kills: such a loss left out, or told once for each
/// rank.
#[test]
fn losses_of_experts_are_added_by_the_ranks_that_have_the_tokens() {
    let _key = Key(7).enter();
    let balance = layers::Balance { microbatch: 0.5, z: 0.25, ..layers::Balance::default() };
    let experts = Experts { count: 4, chosen: 2, hidden: 4, balance, ..Experts::MIXTRAL };
    let shape = Shape { experts: Some(experts), ..SHAPE };
    let of = |layout: &str| trained(layout, shape, (ADAMW, Some(0.5)), true);
    let alone = of("none");
    assert!(of("dp=2") == alone, "as data ranks do");
    assert!(of("dp=2:classic") == alone && of("dp=3:classic") == alone);
}

/// Features in, and rows or classes out. Kills: features or rows that are the rank's own, a rank without an
/// example that waits.
#[test]
fn features_and_rows_are_exchanged_too() {
    let _key = Key(8).enter();
    let run = |layout: &str, design: &Design, batch: &Batch| {
        let all = on(layout, |at: &BuildContext<Cpu<F61>>| {
            let mut trainer = Trainer::new(at, design.clone(), (ADAMW, Some(0.5)))?;
            let mut seen = Vec::new();
            for _ in 0..2 {
                seen.push(trainer.step(batch, 0.5)?.loss.read().unwrap());
                seen.push(trainer.evaluate(batch, &|_| ())?.read().unwrap());
            }
            Ok(seen)
        });
        assert!(all.iter().all(|seen| *seen == all[0]), "{layout}");
        all.into_iter().next().unwrap()
    };
    let classes = Design::Classifier { sizes: vec![3, 4, 5] };
    let example = |i: u32| Sequence::example((0..3).map(|x| (x + i) as f32 / 4.0).collect(), i % 5);
    let pictures = Batch::new((0..5).map(example).collect(), 2).unwrap();
    let blocks = Design::Blocks(SHAPE);
    let rows = |n: usize| {
        let number = |i: usize| (i % 7) as f32 / 8.0;
        let x = (0..n * SHAPE.width).map(number).collect::<Vec<_>>();
        Sequence::rows(n, x.clone(), x.iter().map(|x| 0.5 - x).collect())
    };
    let rows = Batch::new([3, 1, 2, 4, 2, 5, 1, 1].map(rows).to_vec(), 2).unwrap();
    for (design, batch) in [(&classes, &pictures), (&blocks, &rows)] {
        let alone = run("none", design, batch);
        for layout in ["dp=2:classic", "dp=3:classic", "dp=4:classic"] {
            assert!(run(layout, design, batch) == alone, "{layout}");
        }
    }
}

/// Traffic and peaks of two steps and an evaluation on one rank.
fn cost<D: Kernels>(at: &BuildContext<D>, batch: &Batch) -> Result<(Ledger, Peaks)> {
    let mut trainer = Trainer::new(at, SHAPE, (ADAMW, Some(0.5)))?;
    for _ in 0..2 {
        trainer.step(batch, 0.5)?;
    }
    trainer.evaluate(batch, &|_| ())?;
    Ok((at.mesh.ledger(), at.device.meter().peaks_of_all()))
}

/// Kills: a price that differs from a run, of one rank or of all, also where ranks have equal sequences;
/// optimizer state on another rank than the root; logits that all ranks hold; traffic that is not that of the
/// five exchanges.
#[test]
fn the_root_holds_and_receives_what_is_worked_out() {
    fn of<D: Kernels<Place = Host>>() {
        let even = Batch::new(vec![Sequence::new(vec![1; 3], vec![2; 3]); 6], 1).unwrap();
        for (ranks, batch) in [(2, batch()), (3, batch()), (2, even.clone()), (3, even)] {
            let layout: Layout = format!("dp={ranks}:classic").parse().unwrap();
            let ran = on(&layout.to_string(), |at: &BuildContext<D>| cost(at, &batch));
            for (rank, ran) in ran.iter().enumerate() {
                let priced = session::ghost::<D, _>(&layout, (rank, None), |at: BuildContext<MetaOf<D>>| {
                    cost(&at, &batch)
                });
                assert!(priced.unwrap() == *ran, "rank {rank}");
            }
            let held = |rank: usize, of: Category| ran[rank].1.category[of as usize];
            assert!(held(0, Category::Optimizer) > 0);
            assert!((1..ranks).all(|rank| held(rank, Category::Optimizer) == 0), "only the root updates");
            assert!((1..ranks).all(|rank| held(rank, Category::Weights) == held(0, Category::Weights)));
            let dealt = |tokens| batch.dealt(&tokens);
            let all = price::peak_of_all::<D, _>(&layout, dealt, |at| cost(&at, &batch).map(drop)).unwrap();
            assert_eq!(all.all, ran.iter().map(|(_, peaks)| peaks.total as u128).sum::<u128>());
        }
    }
    of::<Cpu<f32>>();
    of::<Cpu<Bf16>>();
    let ran = on("dp=2:classic", |at: &BuildContext<Cpu<f32>>| cost(at, &batch()));
    let parameters = price::parameters(SHAPE).unwrap();
    let traffic = |rank: usize, op| ran[rank].0.get(Axis::Dp, op).elements;
    // Two steps of two microbatches, and an evaluation of two.
    assert_eq!([0, 1].map(|rank| traffic(rank, Op::Broadcast)), [6 * parameters; 2]);
    assert_eq!([0, 1].map(|rank| traffic(rank, Op::ReduceScatter)), [4 * parameters; 2]);
    let others: usize = [3, 1, 2, 6, 3].iter().sum(); // tokens of the second rank
    let v = SHAPE.vocabulary;
    let bytes = |op| [0, 1].map(|rank| ran[rank].0.get(Axis::Dp, op).bytes);
    assert_eq!(
        bytes(Op::AllToAll),
        [(3 + 2 * v) * others * 4, 3 * v * others * 4],
        "inputs, losses; outputs"
    );
    assert_eq!(bytes(Op::Broadcast), [6 * parameters * 4, 0], "from the root");
    assert_eq!(bytes(Op::ReduceScatter), [0, 4 * parameters * 4], "to the root");
}

/// Kills: a value that is not sent where a model only generates, or before its first step.
#[test]
fn models_generate_with_the_roots_values() {
    let logits = |layout: &str| {
        on(layout, |at: &BuildContext<Cpu<f32>>| {
            let mut model = Stages::new(at, Shape { tied: true, ..SHAPE })?;
            let mut cx = PassContext::infer([3]).with_cache(5);
            let mut seen = Vec::new();
            for (n, ids) in [&[1, 2, 3][..], &[7], &[12]].into_iter().enumerate() {
                (0..n.min(1)).for_each(|_| cx.advance(&[1]));
                let ids = TokenIds::new(at.device.place(), ids, SHAPE.vocabulary)?;
                seen.push(model.logits(&cx, ids, false)?.read().unwrap());
            }
            Ok(seen)
        })
    };
    let alone = logits("none").remove(0);
    assert!(logits("dp=2:classic").iter().all(|seen| *seen == alone));
}

/// Into the layout with a root and out of it. Kills: a master or moment that the root lacks or another rank
/// is asked for; files that depend on the root; a run that goes on from other values than those of the files.
#[test]
fn runs_resume_into_and_out_of_a_layout_with_a_root() {
    fn of<D>()
    where
        D: Kernels<Place = Host>,
        Wide<D>: Real,
    {
        let of = (SHAPE, ADAMW, &batch());
        let [from, copy] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (first, second) in [
            ("dp=2:classic", "dp=2:classic"),
            ("dp=2:classic", "none"),
            ("dp=2:classic", "dp=2"),
            ("dp=3:classic", "dp=2:zero3"),
            ("none", "dp=2:classic"),
            ("dp=2:zero3", "dp=4:classic"),
        ] {
            let saved = on(first, |at: &BuildContext<D>| files(&mut goes_on(at, of, None, 2)?, from.path()));
            let next = on(second, |at: &BuildContext<D>| {
                let same = files(&mut goes_on(at, of, Some(from.path()), 0)?, copy.path())?;
                at.mesh.barrier()?;
                let next = files(&mut goes_on(at, of, Some(from.path()), 1)?, copy.path())?;
                Ok((same, next))
            });
            assert!(
                next.iter().all(|(same, next)| *same == saved[0] && *next != saved[0]),
                "{first}, {second}"
            );
            if first == second {
                let went_on =
                    on(first, |at: &BuildContext<D>| files(&mut goes_on(at, of, None, 3)?, copy.path()));
                assert!(went_on[0] == next[0].1, "{first}");
            }
        }
    }
    of::<Cpu<f32>>();
    of::<Cpu<Bf16>>();
}

/// Kills: ids of large vocabularies, such as Llama 3's of 128,256, that are others on the ranks than on the
/// root.
#[test]
fn ids_of_any_size_come_from_the_root_as_they_are() {
    let ids = [0, 1, 12, 255, 256, 65_535, 65_536, 65_537, 128_255, (1 << 24) - 1];
    for id in ids {
        assert_eq!(super::id(F61::from_usize(id as usize)), id);
        assert_eq!(super::id(id as f32), id); // exact below 2^24
        assert_eq!(super::id(f64::from(id)), id);
    }
    assert_eq!(super::id(f64::from(u32::MAX)), u32::MAX);
}
