//! Training steps of parameters that rest as shards: the same numbers, in less memory, for the traffic that
//! is worked out.
use crate::checkpoint::tests::kinds;
use crate::tensor::sequence_parallel::SequenceParallel;
use crate::{Batch, BuildContext, Entry, Error, Named, Result, Sequence, Stages, Trainer, checkpoint};
use comm::{Axis, Ledger, Mesh, World};
use kernels::{Heads, Kernels};
use layers::{Biases, Builder, OptimizerKind, Rates, Shape, Strategy};
use ops::{AtRest, Param, PassContext, RandomValues, ShardingStrategy, Wide};
use std::collections::BTreeMap;
use std::path::Path;
use tensor::{Bf16, Category, Cpu, Device, F61, Host, Key, Peaks, Real, Scalar, Store, TokenIds};

/// KV heads that four ranks share, a vocabulary that no ranks divide, gains and biases of few numbers.
pub(crate) const SHAPE: Shape = Shape {
    width: 6,
    blocks: 2,
    heads: Heads::new(4, 2, 2),
    hidden: 8,
    vocabulary: 13,
    head_norm: true,
    bias: Biases { qkv: true, out: true, mlp: true },
    ..Shape::LLAMA
};
const ADAMW: OptimizerKind = ops::ADAMW.with(&[0.5, 0.75, 0.5, 0.25]);

/// Sharding at rest, and whether state is off the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest(ShardingStrategy, bool);

const WHOLE: Rest = Rest(ShardingStrategy::WHOLE, false);

impl Rest {
    pub(crate) fn builder<D: Kernels>(self, at: Builder<'_, D>) -> Builder<'_, D> {
        Builder { rests: self.0, store: self.1.then(|| Store::file(std::env::temp_dir())), ..at }
    }
}

/// So many of value, gradient and state, from the last on, rest as shards: DDP and `ZeRO` 1 to 3; from 4 on,
/// the same with state off the device; from 8 on, `ZeRO` 3 in two and in five tiles, and in two with state
/// off the device.
pub(crate) fn zero(stage: usize, subgroup: Option<usize>) -> Rest {
    let of = if stage < 8 { stage % 4 } else { 3 };
    let rest = |needs| if of >= needs { AtRest::Shard } else { AtRest::Whole };
    let (tiles, subgroup) = ([2, 5, 2].get(stage.wrapping_sub(8)).copied(), subgroup.filter(|_| of > 0));
    let [value, gradient, state] = [3, 2, 1].map(rest);
    let sharding = ShardingStrategy { value, gradient, state, subgroup, tiles: tiles.unwrap_or(1) };
    Rest(sharding, matches!(stage, 4..8 | 10))
}

/// Stages that differ.
pub(crate) const STAGES: [usize; 10] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10];

/// Two microbatches, of four and five sequences.
pub(crate) fn batch() -> Batch {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    Batch::new([5, 2, 3, 1, 4, 7, 2, 6, 3].map(sequence).to_vec(), 2).unwrap()
}

/// The batch for the oracle.
pub(crate) fn reported() -> Vec<Vec<reference::Sequence>> {
    let of = |s: &Sequence| reference::Sequence {
        ids: s.ids.to_vec(),
        targets: s.targets.to_vec(),
        ..reference::Sequence::default()
    };
    batch().microbatches().iter().map(|m| m.iter().map(of).collect()).collect()
}

/// Runs on every rank of a world, at a place where parameters rest so.
pub(crate) fn on<D: Kernels<Place = Host> + Default, T: Send>(
    sizes: &[(Axis, usize)],
    (rests, regions): (Rest, bool),
    run: impl Fn(&BuildContext<D>) -> Result<T> + Sync,
) -> Vec<T> {
    let ran = World::threads(sizes).unwrap().run(|device: D, mesh: Mesh<Host>| {
        let at = rests.builder(Builder::new(&device, &mesh, &RandomValues { seed: 2 }));
        run(&if regions { at.with([&SequenceParallel as &dyn Strategy<_>]) } else { at }.into())
    });
    ran.unwrap_or_else(|why| panic!("{sizes:?}, {rests:?}: {why}"))
}

/// Sees that clipped steps of [`batch`] give the oracle's weights, at a place in a world.
pub(crate) fn equals_the_oracle(
    at: &BuildContext<Cpu<F61>>,
    (shape, kind): (Shape, OptimizerKind),
    steps: usize,
    what: &str,
) -> Result<()> {
    let mut trainer = Trainer::new(at, shape, (kind, Some(0.5)))?;
    let start = weights(&mut trainer, at.mesh)?;
    let mut truth = reference::Trainer::new(reference::Model::from(shape), kind, Some(0.5), start);
    for step in 0..steps {
        trainer.step(&batch(), 0.5)?;
        truth.step(&reported(), 0.5);
        for (name, seen) in weights(&mut trainer, at.mesh)? {
            assert!(seen == truth.weights()[&name], "{name}, step {step}, {what}");
        }
    }
    Ok(())
}

/// Whole values by name.
pub(crate) fn weights<D: Kernels<Place = Host>>(
    trainer: &mut Trainer<D>,
    mesh: &Mesh<Host>,
) -> Result<BTreeMap<String, Vec<D::Elem>>> {
    let whole = |p: &mut Param<D>| Ok((p.name().to_string(), p.gather(mesh)?.expect("the host has values")));
    trainer.model().params().into_iter().map(whole).collect()
}

/// Two steps of dropout, clipping and decay, of two microbatches that ranks do not divide. Kills: a shard of
/// another rank, one left out or taken twice; padding that counts or moves; a gradient that is summed in one
/// microbatch only, twice, or not over all blocks; a norm that counts copies, or this rank's shards alone;
/// moments beside other numbers; a value that was not gathered, or is the last step's; what ranks share of KV
/// heads, or learn of their own tokens, under any of it; a tile that is lost or at other columns, its bias
/// taken twice, what ranks share of the heads of a tile.
#[test]
fn steps_equal_the_oracle_wherever_parameters_rest() {
    let _key = Key(6).enter();
    let reported = reported();
    let (beta1, beta2, eps, decay) = (0.5, 0.75, 0.5, 0.25);
    let theirs = ADAMW.with(&[beta1, beta2, eps, decay]);
    let (dp, tp) = (|n| (Axis::Dp, n), |n| (Axis::Tp, n));
    let layouts: [(&[_], bool, Option<usize>); 9] = [
        (&[dp(2)], false, None),
        (&[dp(3)], false, None),
        (&[dp(2), tp(2)], false, None),
        (&[dp(3), tp(2)], true, None),
        (&[dp(2), tp(4)], false, None),
        (&[dp(4)], false, Some(2)),
        (&[dp(4), tp(2)], true, Some(2)),
        (&[dp(2), tp(4)], true, Some(1)),
        (&[tp(4)], true, None),
    ];
    for tied in [false, true] {
        let dropout = Rates { embedding: 0.25, attention: 0.25, residual: 0.25 };
        let shape = Shape { dropout, tied, ..SHAPE };
        let model = reference::Model::from(shape);
        let cases = layouts.iter().flat_map(|layout| STAGES.map(|stage| (layout, stage)));
        for ((sizes, regions, subgroup), stage) in cases {
            let rests = zero(stage, *subgroup);
            on(sizes, (rests, *regions), |at: &BuildContext<Cpu<F61>>| {
                let mut trainer = Trainer::new(at, shape, (ADAMW, Some(0.5)))?.seeded(3);
                let start = weights(&mut trainer, at.mesh)?;
                let mut truth = reference::Trainer::new(model, theirs, Some(0.5), start).seeded(3);
                for step in 0..2 {
                    let (report, wanted) = (trainer.step(&batch(), 0.5)?, truth.step(&reported, 0.5));
                    let at_step = format!("step {step}, zero{stage}, {sizes:?}");
                    let loss = wanted.losses.into_iter().fold(F61::ZERO, |sum, loss| sum + loss);
                    assert_eq!(report.loss.read().unwrap(), [loss], "{at_step}");
                    assert_eq!(
                        report.norm2.as_ref().expect("one update").read().unwrap(),
                        [wanted.norm2],
                        "{at_step}"
                    );
                    for param in trainer.model().params() {
                        let name = &**param.name();
                        let (value, gradient) = (&truth.weights()[name], &wanted.gradients[name]);
                        let seen =
                            [param.gather(at.mesh)?.unwrap(), param.gather_gradient(at.mesh)?.unwrap()];
                        assert!(seen[0] == *value && seen[1] == *gradient, "{name}, {at_step}");
                        let wanted = value;
                        assert!(param.elements().into_iter().all(|(i, x)| wanted[i] == x), "{at_step}");
                        assert!(param.gradient_padding().iter().all(|x| *x == F61::ZERO), "{at_step}");
                    }
                }
                Ok::<_, Error>(())
            });
        }
    }
}

/// Traffic, peaks, and bytes off the device and moved, of two steps and an evaluation on one rank.
fn cost<D: Kernels>(device: &D, mesh: &Mesh<D::Place>, rests: Rest) -> Result<(Ledger, Peaks, usize, u64)> {
    let at = rests.builder(Builder::new(device, mesh, &RandomValues { seed: 2 })).into();
    let mut trainer = Trainer::new(&at, Shape { blocks: 8, ..SHAPE }, (ADAMW, Some(0.5)))?;
    for _ in 0..2 {
        trainer.step(&batch(), 0.5)?;
    }
    trainer.evaluate(&batch(), &|_| ())?;
    let meter = device.meter();
    Ok((mesh.ledger(), meter.peaks_of_all(), meter.away(), meter.moved()))
}

/// Kills: memory or traffic of a shard, of what is gathered or scattered, that depends on values; a weight of
/// tiles that is whole, or has a whole gradient.
#[test]
fn steps_cost_what_their_price_says_wherever_parameters_rest() {
    fn both<D: Kernels<Place = Host>>() {
        for (sizes, subgroup) in
            [(&[(Axis::Dp, 2), (Axis::Tp, 2)], None), (&[(Axis::Dp, 4), (Axis::Tp, 1)], Some(2))]
        {
            let mut parts = Vec::new();
            for stage in 0..11 {
                let rests = zero(stage, subgroup);
                let ran = World::threads(sizes)
                    .unwrap()
                    .run(|device: D, mesh| cost(&device, &mesh, rests))
                    .unwrap();
                for (rank, ran) in ran.iter().enumerate() {
                    let mesh = Mesh::ghost(sizes, rank).unwrap();
                    assert_eq!(
                        cost(&kernels::meta_of::<D>(), &mesh, rests).unwrap(),
                        *ran,
                        "zero{stage}, rank {rank}"
                    );
                }
                let held = |category| ran[0].1.category[category as usize];
                parts.push([Category::Weights, Category::Gradients, Category::Optimizer].map(held));
            }
            let falls = |stage: usize, part: usize| parts[stage][part] < parts[stage - 1][part] * 3 / 4;
            assert!(falls(1, 2) && falls(2, 1) && falls(3, 0), "{parts:?}");
            let [whole, away, values] = [&parts[3], &parts[5], &parts[7]];
            assert!(
                away[2] == 0 && values[2] == 0 && away[0] > whole[0] && values[0] < whole[0],
                "{parts:?}"
            );
            let beside =
                |part: usize| parts[8][part] * 10 < parts[3][part] * 9 && parts[9][part] == parts[8][part];
            assert!(beside(0) && beside(1), "an embedding is whole, and no linear layer: {parts:?}");
        }
    }
    both::<Cpu<f32>>();
    both::<Cpu<Bf16>>();
}

/// Bits of all values, masters and losses after three steps of so many microbatches.
fn trained<D>(sizes: &[(Axis, usize)], rests: Rest, microbatches: usize) -> Vec<Vec<u32>>
where
    D: Kernels<Place = Host> + Default,
    Wide<D>: Real,
{
    let bits = |all: Vec<Wide<D>>| all.into_iter().map(|x| (x.to_f64() as f32).to_bits()).collect::<Vec<_>>();
    let all = on(sizes, (rests, false), |at: &BuildContext<D>| {
        let batch = Batch::new(batch().microbatches().concat(), microbatches)?;
        let (mut trainer, mut seen) = (Trainer::new(at, SHAPE, (ADAMW, None))?, Vec::new());
        for _ in 0..3 {
            seen.push(bits(trainer.step(&batch, 0.1)?.loss.read().unwrap()));
        }
        seen.push(bits(trainer.evaluate(&batch, &|_| ())?.read().unwrap()));
        seen.extend(checkpoint::tests::saved(&mut trainer)?.into_values());
        for param in trainer.model().params() {
            seen.push(bits(param.gather(at.mesh)?.unwrap().into_iter().map(Scalar::widen).collect()));
        }
        Ok(seen)
    });
    assert!(all.iter().all(|seen| *seen == all[0]), "all ranks have the same");
    all.into_iter().next().unwrap()
}

/// A shard is added up in rank order, as all of it would be, and the rest is done number by number. So floats
/// have the same bits, and an evaluation sees the same values; gradients that rest as shards are added
/// microbatch by microbatch, which is the same of one. Kills: a sum in another order, a master or a moment
/// that is another number's, a value that is the last step's where it is only read.
#[test]
fn floats_have_the_same_bits_wherever_parameters_rest() {
    fn same<D>()
    where
        D: Kernels<Place = Host> + Default,
        Wide<D>: Real,
    {
        for sizes in [&[(Axis::Dp, 2)][..], &[(Axis::Dp, 3), (Axis::Tp, 2)]] {
            for (microbatches, stages) in [(2, &[1, 4, 5][..]), (1, &[1, 2, 3, 7])] {
                let whole = trained::<D>(sizes, WHOLE, microbatches);
                for &stage in stages {
                    assert!(
                        trained::<D>(sizes, zero(stage, None), microbatches) == whole,
                        "zero{stage}, {sizes:?}"
                    );
                }
            }
        }
    }
    same::<Cpu<f32>>();
    same::<Cpu<Bf16>>();
}

/// Kills: a value that is not gathered, or not let go, where a model only generates.
#[test]
fn models_generate_wherever_parameters_rest() {
    let logits = |rests| {
        on(&[(Axis::Dp, 2), (Axis::Tp, 2)], (rests, false), |at: &BuildContext<Cpu<f32>>| {
            let mut model = Stages::new(at, Shape { tied: true, ..SHAPE })?;
            let mut cx = PassContext::infer([3]).with_cache(5);
            let mut seen = Vec::new();
            for (n, ids) in [&[1, 2, 3][..], &[7], &[12]].into_iter().enumerate() {
                (0..n.min(1)).for_each(|_| cx.advance(&[1]));
                let ids = TokenIds::new(at.device.place(), ids, SHAPE.vocabulary)?;
                seen.push(model.logits(&cx, ids, false)?.read().unwrap());
            }
            Ok((seen, at.device.meter().now(Category::Weights)))
        })
    };
    let whole = logits(WHOLE);
    for stage in [3, 8, 9] {
        for ((seen, held), (wanted, all)) in logits(zero(stage, None)).iter().zip(&whole) {
            assert!(seen == wanted && held * 2 < all + all / 10, "zero{stage}: {held} of {all}");
        }
    }
}

/// A trainer after so many steps on all sequences of a batch as one microbatch: fresh, or going on from the
/// files of a folder.
pub(crate) fn goes_on<D>(
    at: &BuildContext<D>,
    (shape, kind, batch): (Shape, OptimizerKind, &Batch),
    from: Option<&Path>,
    steps: usize,
) -> Result<Trainer<D>>
where
    D: Kernels<Place = Host>,
    Wide<D>: Real,
{
    // not clipped: a norm is added up in another order where shards are
    let mut trainer = match from {
        Some(folder) => checkpoint::tests::restored(folder, at, (shape, kind), entries)?,
        None => Trainer::new(at, shape, (kind, None))?,
    };
    let batch = Batch::new(batch.microbatches().concat(), 1)?;
    (0..steps).try_for_each(|_| trainer.step(&batch, 0.1).map(drop))?;
    Ok(trainer)
}

fn entries(params: &[Named]) -> Vec<Entry> {
    params.iter().map(|of| Entry::whole(of.name.clone(), of.shape)).collect()
}

/// The bytes of model and state as they are saved.
pub(crate) fn files<D>(trainer: &mut Trainer<D>, folder: &Path) -> Result<[Vec<u8>; 2]>
where
    D: Kernels<Place = Host>,
    Wide<D>: Real,
{
    let files = checkpoint::tests::files(folder, trainer, u64::MAX, entries)?;
    checkpoint::tests::written(files, trainer, false)?;
    Ok(read(folder))
}

fn read(folder: &Path) -> [Vec<u8>; 2] {
    ["model", "optimizer"].map(|name| std::fs::read(folder.join(name)).unwrap())
}

/// Kills: a master or a moment of another shard in a file, or read for one; a master that is the rounded
/// value; a value that is not its master's; files that depend on where parameters rest.
#[test]
fn runs_that_resume_equal_runs_that_do_not_stop() {
    fn same<D>(kinds: &[OptimizerKind])
    where
        D: Kernels<Place = Host> + Default,
        Wide<D>: Real,
    {
        let sizes = &[(Axis::Dp, 2), (Axis::Tp, 2)];
        let mut first = BTreeMap::new();
        for (stage, &kind) in STAGES.into_iter().zip(kinds.iter().cycle()) {
            let of = (crate::coded_moments::SHAPE, kind, &batch());
            let [whole, part, again] = [(); 3].map(|()| tempfile::tempdir().unwrap());
            on(sizes, (zero(stage, None), false), |at: &BuildContext<D>| {
                let all = files(&mut goes_on(at, of, None, 3)?, whole.path())?;
                let some = files(&mut goes_on(at, of, None, 2)?, part.path())?;
                let resumed = files(&mut goes_on(at, of, Some(part.path()), 1)?, again.path())?;
                assert!(resumed == all && some != all, "zero{stage}, {kind}");
                Ok(())
            });
            let other = [(Axis::Dp, 3), (Axis::Tp, 1)];
            on(&other, (zero((stage + 3) % 11, None), false), |at: &BuildContext<D>| {
                let copied = files(&mut goes_on(at, of, Some(part.path()), 0)?, again.path())?;
                assert!(copied == files(&mut goes_on(at, of, Some(again.path()), 0)?, whole.path())?);
                assert!(copied == read(part.path()));
                Ok(())
            });
            let same = *first.entry(kind.name()).or_insert_with(|| read(part.path())) == read(part.path());
            // dX adds up in another order
            assert!(same || stage > 3, "zero{stage} writes what zero0 does, {kind}");
        }
    }
    same::<Cpu<f32>>(&[ADAMW]);
    same::<Cpu<Bf16>>(&kinds().collect::<Vec<_>>());
}
