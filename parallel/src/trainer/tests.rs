use super::*;
use crate::Sequence;
use crate::pipeline::Pipeline;
use crate::pipeline::gpipe::GPipe;
use crate::step::Schedule;
use comm::{Axis, World};
use kernels::Heads;
use layers::{Builder, NumberArgument, Shape};
use ops::{ADAMW, AtRest, GradientScaling, LossScaling, RandomValues, SGD, ShardingStrategy};
use tensor::{Cpu, F61, IGNORED, Key, Scalar};

const SHAPE: Shape =
    Shape { width: 4, blocks: 1, heads: Heads::new(2, 2, 2), hidden: 4, vocabulary: 8, ..Shape::LLAMA };

mod stale;

const RATES: layers::Rates = layers::Rates { embedding: 0.25, attention: 0.25, residual: 0.25 };

/// The oracle's model of `SHAPE` with so many blocks, and dropout.
fn oracle(tied: bool, blocks: usize) -> reference::Model {
    Shape { dropout: RATES, tied, blocks, ..SHAPE }.into()
}

/// So many features of small numbers, other ones for other salts.
fn features(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + salt * 5) % 13) as f32 * 0.25 - 1.0).collect()
}

/// So many examples of so many features and classes.
fn examples(n: usize, [width, classes]: [usize; 2]) -> Vec<Sequence> {
    (0..n).map(|i| Sequence::example(features(width, i), (i * i + 1) as u32 % classes as u32)).collect()
}

/// Sequences of tokens that are rows of features.
fn rows(lengths: &[usize], width: usize) -> Vec<Sequence> {
    let rows = |&n: &usize| Sequence::rows(n, features(n * width, n), features(n * width, n + 5));
    lengths.iter().map(rows).collect()
}

/// Two steps with clipping and decay equal the oracle's, under layouts `[pp, dp, tp, sp]`, wherever
/// parameters rest. The loss is scaled where there are data ranks.
fn equal_the_oracle(ours: &Design, theirs: &reference::Design, batch: &Batch, layouts: &[[usize; 4]]) {
    scheduled((&GPipe as &dyn Schedule).into(), ours, theirs, batch, layouts);
}

/// The same for stages that are gone through like this.
fn scheduled(
    pipeline: Pipeline,
    ours: &Design,
    theirs: &reference::Design,
    batch: &Batch,
    layouts: &[[usize; 4]],
) {
    let _key = Key(6).enter();
    let reported = |s: &Sequence| {
        let Sequence { ids, targets, x, y, .. } = s.clone();
        reference::Sequence { ids: ids.to_vec(), targets: targets.to_vec(), x, y }
    };
    let reported: Vec<Vec<_>> =
        batch.microbatches().iter().map(|m| m.iter().map(reported).collect()).collect();
    let (beta1, beta2, eps, decay) = (0.5, 0.75, 0.5, 0.25);
    let kind = ADAMW.with(&[beta1, beta2, eps, decay]);
    let adamw = ADAMW.with(&[beta1, beta2, eps, decay]);
    let zero = [0, 1, 2, 3].map(|stage: usize| {
        let rest = |from: usize| if stage >= from { AtRest::Shard } else { AtRest::Whole };
        ShardingStrategy { value: rest(3), gradient: rest(2), state: rest(1), ..ShardingStrategy::WHOLE }
    });
    let all = layouts.iter().flat_map(|layout| zero.map(|rests| (*layout, rests)));
    for ([pp, dp, tp, sp], rests) in
        all.filter(|([_, dp, ..], rests)| *dp > 1 || *rests == ShardingStrategy::WHOLE)
    {
        let run = |device: Cpu<F61>, mesh: Mesh<_>| {
            let builder = Builder { rests, ..Builder::new(&device, &mesh, &RandomValues { seed: 2 }) };
            let builder = if sp > 0 { builder.in_regions() } else { builder };
            let pipeline = if pp > 1 { pipeline } else { Pipeline::ALONE };
            let loss = (dp > 1).then_some(LossScaling::USUAL);
            let scaling = GradientScaling { clip: Some(0.5), loss };
            let mut trainer =
                Trainer::new(&BuildContext { builder, pipeline }, ours, (kind, scaling))?.seeded(3);
            let weights = |trainer: &mut Trainer<_>| {
                let (mut all, design) = (std::collections::BTreeMap::new(), trainer.model().design().clone());
                let params = trainer.model().params();
                for of in crate::named(&design, &params, &mesh)? {
                    let whole = crate::whole(&device, &of, &mesh, |i| params[i].gather(&mesh))?;
                    all.insert(of.name, whole.expect("the host has values"));
                }
                Ok::<_, crate::Error>(all)
            };
            let start = weights(&mut trainer)?;
            let mut truth = reference::Trainer::new(theirs.clone(), adamw, Some(0.5), start).seeded(3);
            for step in 0..2 {
                let (report, wanted) = (trainer.step(batch, 0.5)?, truth.step(&reported, 0.5));
                let word = pipeline.schedule.about().word;
                let at = format!("{ours}, step {step}, pp={pp}:{word}, dp={dp}, tp={tp}, sp={sp}, {rests:?}");
                let loss = wanted.losses.into_iter().fold(F61::ZERO, |sum, loss| sum + loss);
                assert_eq!(report.loss.read().unwrap(), [loss], "{at}");
                assert_eq!(
                    report.norm2.as_ref().expect("one update").read().unwrap(),
                    [wanted.norm2],
                    "{at}"
                );
                assert!(weights(&mut trainer)? == *truth.weights(), "weights, {at}");
            }
            Ok::<_, crate::Error>(())
        };
        World::threads(&[(Axis::Pp, pp), (Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap();
    }
}

/// With dropout, on microbatches of 2 and 3 sequences. Kills: a microbatch left out or overwritten, sequences
/// numbered by their data rank or microbatch, a mean of means, gradients that stay on their data rank,
/// dropout of another step.
#[test]
fn steps_equal_the_oracle_bit_for_bit() {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    let batch = Batch::new([5, 2, 3, 1, 4].map(sequence).to_vec(), 2).unwrap();
    let layouts =
        [[1, 1, 1, 0], [1, 2, 1, 0], [1, 1, 2, 0], [1, 2, 2, 0], [2, 1, 1, 0], [2, 2, 2, 0], [3, 1, 1, 0]];
    for tied in [false, true] {
        let shape = Shape { dropout: RATES, blocks: 3, tied, ..SHAPE };
        equal_the_oracle(&shape.into(), &oracle(tied, 3).into(), &batch, &layouts);
    }
}

/// Every schedule of the list, on two stages and three, for one microbatch, two and five; the head is tied to
/// the embedding on another rank, on the same one, or not at all. Kills: a message that is taken for another,
/// a deadlock, a run of blocks or a slice that another's saved tensors go to, a weight half that is not run
/// or twice, keys of a slice before that are not seen, gradients that are summed before the last is there, a
/// table that is summed twice or not over both of its holders.
#[test]
fn steps_equal_the_oracle_under_every_schedule() {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    let batch = |m| Batch::new([5, 2, 3, 1, 4, 6].map(sequence).to_vec(), m).unwrap();
    for schedule in crate::pipeline::ALL.iter().filter(|schedule| !schedule.updates_each()) {
        let numbers = if schedule.about().takes == NumberArgument::Nothing {
            vec![None]
        } else {
            vec![Some(1), None, Some(3)]
        };
        for (i, number) in numbers.into_iter().enumerate() {
            let pipeline = Pipeline { schedule: *schedule, number, split: None };
            for (m, layout) in [(1, [2, 1, 1, 0]), (2, [2, 1, 2, 1]), (5, [3, 1, 1, 0])] {
                let (tied, blocks) = ((m + i) % 2 == 1, 6);
                let shape = Shape { dropout: RATES, blocks, tied, ..SHAPE };
                if pipeline.plan(layout[0], m).all_chunks() <= blocks {
                    scheduled(pipeline, &shape.into(), &oracle(tied, blocks).into(), &batch(m), &[layout]);
                }
            }
        }
    }
}

/// Uneven stages, of a classifier by layers. Kills: blocks that are lost or in two chunks, a width of another
/// part, of a pair where layers are counted.
#[test]
fn steps_equal_the_oracle_however_blocks_are_split() {
    let batch = Batch::new(rows(&[5, 2, 3, 1, 4], 4), 2).unwrap();
    let (shape, theirs) =
        (Shape { dropout: RATES, blocks: 5, ..SHAPE }, reference::Model { bare: true, ..oracle(false, 5) });
    for split in [&[1, 4], &[4, 1], &[2, 3]] {
        let pipeline = Pipeline { split: Some(split), ..(&GPipe as &dyn Schedule).into() };
        scheduled(pipeline, &Design::Blocks(shape), &theirs.into(), &batch, &[[2, 1, 2, 0]]);
    }
    let (sizes, batch) = (vec![3, 6, 4, 5], Batch::new(examples(5, [3, 5]), 2).unwrap());
    let theirs = reference::Design::Classifier(reference::Classifier { sizes: sizes.clone() });
    for split in [&[1, 2], &[2, 1]] {
        let pipeline = Pipeline { split: Some(split), ..(&GPipe as &dyn Schedule).into() };
        let ours = Design::Classifier { sizes: sizes.clone() };
        scheduled(pipeline, &ours, &theirs, &batch, &[[2, 1, 1, 0], [2, 2, 1, 0]]);
    }
}

/// Three layers and four, in two and in three stages, also one layer each; of the first microbatch two of
/// four data ranks have no example, and a stage sends no row. Kills: data ranks not summed or averaged, an
/// example dealt twice or to nobody, a width of another part, a stage of tensor ranks that is cut within a
/// pair, moments of another parameter.
#[test]
fn steps_of_a_classifier_equal_the_oracle_bit_for_bit() {
    let layouts = [
        [1, 1, 1, 0],
        [1, 2, 1, 0],
        [1, 1, 2, 0],
        [1, 4, 1, 0],
        [1, 2, 2, 1],
        [2, 1, 1, 0],
        [2, 4, 1, 0],
        [2, 2, 2, 0],
        [2, 1, 2, 1],
    ];
    for (sizes, more) in [(vec![3, 6, 4, 5], [3, 2, 1, 0]), (vec![3, 6, 4, 7, 5], [4, 1, 1, 0])] {
        let batch = Batch::new(examples(5, [3, 5]), 2).unwrap();
        let theirs = reference::Design::Classifier(reference::Classifier { sizes: sizes.clone() });
        let layouts: Vec<_> = layouts.into_iter().chain([more]).collect();
        equal_the_oracle(&Design::Classifier { sizes }, &theirs, &batch, &layouts);
    }
}

/// With dropout. Kills: a mean square over one rank's tokens or counted once per tensor rank, over rows and
/// not numbers, a gradient without its 2; targets of another microbatch or rank.
#[test]
fn steps_of_bare_blocks_equal_the_oracle_bit_for_bit() {
    let batch = Batch::new(rows(&[5, 2, 3, 1, 4], 4), 2).unwrap();
    let layouts = [
        [1, 1, 1, 0],
        [1, 2, 1, 0],
        [1, 1, 2, 0],
        [1, 1, 2, 1],
        [1, 2, 2, 1],
        [1, 4, 1, 0],
        [2, 1, 1, 0],
        [2, 2, 2, 0],
        [2, 2, 2, 1],
        [3, 1, 1, 0],
    ];
    let shape = Shape { dropout: RATES, blocks: 3, ..SHAPE };
    equal_the_oracle(
        &Design::Blocks(shape),
        &reference::Model { bare: true, ..oracle(false, 3) }.into(),
        &batch,
        &layouts,
    );
}

/// Kills: a count of one data rank or of all tensor ranks or stages, the largest logit of a share, another
/// rank's or microbatch's targets, the last of equal logits.
#[test]
fn correct_counts_every_token_once() {
    const SIZES: [usize; 4] = [3, 6, 4, 5];
    let logits_and_correct = |all: &[Sequence], [pp, dp, tp]: [usize; 3]| {
        let batch = Batch::new(all.to_vec(), 3).unwrap();
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let builder = Builder::new(&device, &mesh, &RandomValues { seed: 4 });
            let pipeline = if pp > 1 { (&GPipe as &dyn Schedule).into() } else { Pipeline::ALONE };
            let design = Design::Classifier { sizes: SIZES.to_vec() };
            let mut trainer = Trainer::evaluator(&BuildContext { builder, pipeline }, design)?;
            let (x, reported) = (all.iter().flat_map(|s| &s.x), std::cell::RefCell::new(Vec::new()));
            let x: Vec<f32> = x.copied().collect();
            let x = Tensor::from_fn(&device, Category::Activations, all.len(), 3, |i| x[i]);
            let cx = ops::PassContext::infer(vec![1; all.len()]);
            let logits = trainer.model().logits(&cx, layers::Input::Rows(x), true)?.read().unwrap();
            let right = trainer.correct(&batch, &|n| reported.borrow_mut().push(n))?;
            assert_eq!(reported.take(), [1, 2, 3]);
            Ok::<_, crate::Error>((logits, right))
        };
        World::threads(&[(Axis::Pp, pp), (Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap()
    };
    let mut all = examples(100, [3, 5]);
    let logits = logits_and_correct(&all, [1, 1, 1]).remove(0).0;
    for (i, row) in logits.chunks(5).enumerate() {
        let best = (0..5).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        all[i].targets = [if i % 3 == 0 { best } else { (best + 1) % 5 }].into();
    }
    for layout in [[1, 1, 1], [1, 2, 1], [1, 1, 2], [2, 1, 1], [2, 3, 2]] {
        let counts = logits_and_correct(&all, layout);
        assert!(counts.iter().all(|(_, right)| *right == 34), "{layout:?}");
    }
}

/// Kills: ids that a model of features is given, or features of another width; targets of another kind.
#[test]
fn batches_that_a_model_does_not_take_are_refused() {
    let why = |design: Design, sequence: Sequence| {
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let at = BuildContext::from(Builder::new(&device, &mesh, &RandomValues { seed: 4 }));
            let mut trainer = Trainer::new(&at, &design, (SGD, None))?;
            trainer.step(&Batch::new(vec![sequence.clone()], 1)?, 1.0).map(drop)
        };
        World::threads(&[]).unwrap().run(run).unwrap_err().reason
    };
    let classifier = || Design::Classifier { sizes: vec![3, 5] };
    let example = |n, class| Sequence::example(features(n, 0), class);
    let class = "token id 5 at position 0 is not in the vocabulary of 5 (ids go from 0 to 4)";
    assert_eq!(why(classifier(), example(3, 5)), class);
    let width = "a token has 4 input features; the model needs 3";
    assert_eq!(why(classifier(), example(4, 1)), width);
    let text = Sequence::new(vec![1], vec![2]);
    assert_eq!(why(classifier(), text.clone()), "a token has 0 input features; the model needs 3");
    let ids = "a token has 3 input features; the model needs 0";
    assert_eq!(why(SHAPE.into(), example(3, 1)), ids);
    let targets = "a token has 0 target features; the model needs 4";
    assert_eq!(why(Design::Blocks(SHAPE), example(4, 1)), targets);
}

/// As they are told when they have ended. Kills: a sum for each parameter or one for all, sums in another
/// order than that in which backward completes them, a loss that is waited for while gradients could be added
/// up.
#[test]
fn a_step_sums_the_gradients_of_each_unit_in_one_call() {
    let batch = Batch::new(vec![Sequence::new(vec![1, 2], vec![2, 3]); 4], 2).unwrap();
    let trace = comm::Trace::new();
    let world = World::threads(&[(Axis::Dp, 2)]).unwrap().traced(&trace, "a step");
    let calls = world.run(|device: Cpu<f32>, mesh| {
        let at = BuildContext::from(Builder::new(&device, &mesh, &RandomValues { seed: 2 }));
        let mut trainer = Trainer::new(&at, Shape { blocks: 2, ..SHAPE }, (SGD, None))?;
        trainer.step(&batch, 1.0)?;
        Ok::<_, crate::Error>(mesh.calls())
    });
    for calls in calls.unwrap() {
        let labels: Vec<_> = calls.iter().filter_map(|call| Some(call.label.as_ref()?.to_string())).collect();
        let gradients =
            ["norm, head", "blocks.1", "blocks.0", "embedding"].map(|of| format!("gradients of {of}"));
        assert_eq!((&labels[..4], &labels[4..]), (&gradients[..], &["loss".to_string()][..]));
    }
}

/// Kills: a mean of means, or over targets that do not count, data ranks not summed, an evaluation that
/// learns.
#[test]
fn evaluating_gives_the_loss_that_the_step_begins_with() {
    let _key = Key(6).enter();
    let target = |i: u32| if i == 2 { IGNORED } else { i };
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).map(target).collect());
    let batch = Batch::new([5, 2, 3, 1, 4].map(sequence).to_vec(), 2).unwrap();
    for ranks in [1, 2] {
        let losses = World::threads(&[(Axis::Dp, ranks)]).unwrap().run(|device: Cpu<F61>, mesh| {
            let kind = (SGD, None);
            let at = BuildContext::from(Builder::new(&device, &mesh, &RandomValues { seed: 2 }));
            let mut trainer = Trainer::new(&at, SHAPE, kind)?;
            let parts = std::cell::RefCell::new(Vec::new());
            let mut evaluate = || trainer.evaluate(&batch, &|n| parts.borrow_mut().push(n));
            let [first, again] = [evaluate()?.read(), evaluate()?.read()];
            assert_eq!(parts.take(), [1, 2, 1, 2]);
            let step = trainer.step(&batch, 1.0)?.loss.read();
            assert!(first == again && first == step, "{first:?} {again:?} {step:?}");
            assert_ne!(trainer.evaluate(&batch, &|_| ())?.read(), step, "it learnt");
            Ok::<_, crate::Error>(step.unwrap())
        });
        losses.unwrap();
    }
}

/// Kills: a text that is judged by what training adds to the loss, or with dropout.
#[test]
fn evaluating_is_cross_entropy_alone() {
    let _key = Key(6).enter();
    let batch = Batch::new(vec![Sequence::new(vec![1, 2, 3], vec![2, 3, 4])], 1).unwrap();
    let (device, mesh) = (Cpu::<F61>::default(), Mesh::alone());
    let loss = |shape: &Shape| {
        let at = BuildContext::from(Builder::new(&device, &mesh, &RandomValues { seed: 2 }));
        let mut trainer = Trainer::new(&at, shape, (SGD, None)).unwrap();
        let reported = trainer.evaluate(&batch, &|_| ()).unwrap().read();
        (reported, trainer.step(&batch, 1.0).unwrap().loss.read())
    };
    let added = layers::Objective { smoothing: 0.25, z: 0.5 };
    let dropout = layers::Rates { embedding: 0.5, attention: 0.5, residual: 0.5 };
    let (plain, other) = (loss(&SHAPE), loss(&Shape { loss: added, dropout, ..SHAPE }));
    assert_eq!((plain.0, other.0 == other.1), (other.0.clone(), false));
}

/// Kills: tokens that tensor ranks count twice, a rank or a microbatch whose choices are lost, choices that
/// are counted again in the next step, a model without experts that has any.
#[test]
fn loads_are_those_of_every_token_once() {
    let _key = Key(6).enter();
    let sequence =
        |n: u32| Sequence::new((0..n).map(|i| i * i % 8).collect(), (0..n).map(|i| i % 8).collect());
    let batch = Batch::new([4, 8, 5, 7].map(sequence).to_vec(), 2).unwrap();
    let loads = |experts: Option<layers::Experts>, layout: &str, learns: bool| {
        let layout: crate::Layout = layout.parse().unwrap();
        let shape = Shape { blocks: 2, experts, ..SHAPE };
        let ranks =
            crate::session::run((&layout, &layout.world().unwrap()), &RandomValues { seed: 2 }, |at| {
                let at: BuildContext<Cpu<F61>> = at;
                let mut trainer = Trainer::new(&at, shape, (SGD, None))?;
                trainer.evaluate(&batch, &|_| ())?;
                if learns {
                    drop(trainer.take_counts());
                    trainer.step(&batch, 0.0)?;
                }
                Ok(trainer.take_counts())
            });
        let sum: LayerCounts = ranks.unwrap().into_iter().collect();
        sum.iter().map(|(layer, counts)| (layer.to_owned(), counts.to_vec())).collect::<Vec<_>>()
    };
    let experts = layers::Experts { count: 6, chosen: 3, hidden: 4, ..layers::Experts::MIXTRAL };
    let forced = layers::Experts { forced: true, ..experts };
    let layers = ["blocks.0.mlp", "blocks.1.mlp"].map(str::to_owned);
    let chosen = loads(Some(experts), "none", false);
    assert!(chosen.iter().all(|(_, counts)| counts.iter().sum::<usize>() == 3 * 24), "{chosen:?}");
    assert!(chosen.iter().any(|(_, counts)| *counts != [12; 6]), "{chosen:?}");
    for layout in
        ["none", "dp=2", "tp=2", "pp=2", "ep=2", "tp=2,ep=2", "tp=2,sp,dp=2,ep=2,etp=2", "ep=2,recompute"]
    {
        for learns in [false, true] {
            let even = loads(Some(forced), layout, learns);
            assert_eq!(even, layers.clone().map(|layer| (layer, vec![12; 6])), "{layout}");
            assert_eq!(loads(Some(experts), layout, learns), chosen, "{layout}");
        }
        assert_eq!(loads(None, layout, true), []);
    }
}
