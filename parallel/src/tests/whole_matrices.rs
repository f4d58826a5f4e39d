//! Optimizers that need whole matrices, of which ranks keep parts: the same numbers, for the traffic and
//! the memory that are worked out.
use crate::checkpoint::tests::kinds;
use crate::price::training;
use crate::rests::{Rest, SHAPE, STAGES, batch, equals_the_oracle, on, weights, zero};
use crate::{Batch, BuildContext, Layout, Result, Sequence, Trainer, session};
use comm::{Axis, Ledger, Mesh, World};
use kernels::Kernels;
use layers::{Builder, OptimizerKind, Shape};
use ops::{MUON, RandomValues};
use tensor::{Category, Cpu, Device, Host, Key, Peaks};

const OWNER: OptimizerKind = MUON.with(&[0.5, 0.75, 0.0, 0.0]);
const DUPLICATED: OptimizerKind = MUON.with(&[0.5, 0.75, 1.0, 1.0]);

fn dp(n: usize) -> (Axis, usize) {
    (Axis::Dp, n)
}

fn tp(n: usize) -> (Axis, usize) {
    (Axis::Tp, n)
}

/// Two clipped steps of two microbatches that ranks do not divide. Kills: a part of another rank, one left
/// out or taken twice; a home that updates before the gradient's sum, or that others do not know; a step for
/// each microbatch; `[Q|K|V]` as one matrix, or the scale of a transposed one; a norm of a shard; momentum
/// beside other elements, or of the direction; state off the device that is not stored.
#[test]
fn muon_equals_the_oracle_wherever_parameters_rest() {
    let _key = Key(6).enter();
    let layouts: [(&[_], bool, Option<usize>); 6] = [
        (&[dp(2)], false, None),
        (&[dp(3), tp(2)], true, None),
        (&[dp(2), tp(4)], false, None),
        (&[dp(4)], false, Some(2)),
        (&[dp(4), tp(2)], true, Some(2)),
        (&[tp(4)], true, None),
    ];
    let cases = layouts.iter().flat_map(|layout| STAGES.map(|stage| (layout, stage)));
    for (((sizes, regions, subgroup), stage), muon) in cases.zip([OWNER, DUPLICATED].into_iter().cycle()) {
        let what = format!("zero{stage}, {sizes:?}");
        let rests = (zero(stage, *subgroup), *regions);
        on(sizes, rests, |at| equals_the_oracle(at, (SHAPE, muon), 2, &what));
    }
}

/// An orthogonal matrix has no zeros. Kills: weights to other ranks that a step revives, under any optimizer.
#[test]
fn weights_from_features_that_are_not_sent_stay_zero() {
    let layout: Layout = "tp=2:sparse/50".parse().unwrap();
    for kind in kinds().chain([DUPLICATED]) {
        let trained = |at: BuildContext<Cpu<f32>>| {
            let shape = Shape { width: 8, ..crate::coded_moments::SHAPE };
            let mut trainer = Trainer::new(&at, shape, (kind, None))?;
            let start = weights(&mut trainer, at.mesh)?;
            trainer.step(&batch(), 0.5)?;
            Ok::<_, crate::Error>((start, weights(&mut trainer, at.mesh)?))
        };
        let world = layout.world().unwrap();
        let (start, end) =
            session::run((&layout, &world), &RandomValues { seed: 2 }, trained).unwrap().swap_remove(0);
        let zeros = |of: &[f32]| of.iter().map(|w| *w == 0.0).collect::<Vec<_>>();
        let name = "blocks.0.mlp.down";
        assert_eq!(zeros(&start[name]).iter().filter(|zero| **zero).count(), start[name].len() / 4, "{kind}");
        assert!(zeros(&start[name]) == zeros(&end[name]) && start[name] != end[name], "{kind}");
    }
}

/// Elements of all matrices of blocks.
fn elements() -> usize {
    let (width, heads) = (SHAPE.width, SHAPE.heads);
    let attention = width * heads.dim * (2 * heads.queries + 2 * heads.keys);
    SHAPE.blocks * (attention + 3 * width * SHAPE.hidden)
}

/// Traffic and peaks of a step on one rank.
fn cost<D: Kernels>(
    device: &D,
    mesh: &Mesh<D::Place>,
    rests: Rest,
    kind: OptimizerKind,
) -> Result<(Ledger, Peaks)> {
    let at = rests.builder(Builder::new(device, mesh, &RandomValues { seed: 2 })).into();
    let mut trainer = Trainer::new(&at, SHAPE, (kind, None))?;
    trainer.step(&batch(), 0.5)?;
    Ok((mesh.ledger(), device.meter().peaks_of_all()))
}

/// Bytes that all ranks send in a step, and those of optimizer state of the first. What each rank sends and
/// holds is what its price says.
fn costs(sizes: &[(Axis, usize)], rests: Rest, kind: OptimizerKind) -> [usize; 2] {
    let run = |device: Cpu<f32>, mesh: Mesh<Host>| cost(&device, &mesh, rests, kind);
    let ran = World::threads(sizes).unwrap().run(run).unwrap();
    for (rank, ran) in ran.iter().enumerate() {
        let mesh = Mesh::ghost(sizes, rank).unwrap();
        let priced = cost(&kernels::meta_of::<Cpu<f32>>(), &mesh, rests, kind).unwrap();
        assert_eq!(priced, *ran, "{kind}, {sizes:?}, rank {rank}");
    }
    let sent = ran.iter().map(|(ledger, _)| ledger.wire_bytes()).sum();
    [sent, ran[0].1.category[Category::Optimizer as usize]]
}

/// Kills: parts that are sent to homes which have them, or to all; parts that every rank sends of replicas;
/// moments of a matrix that only has momentum.
#[test]
fn whole_matrices_cost_what_is_worked_out() {
    let n = elements();
    // beyond what AdamW sends, in elements over all ranks: there and back, or to all
    let layouts: [(&[_], usize, [usize; 2]); 6] = [
        (&[dp(1)], 0, [0, 0]),
        (&[dp(2)], 0, [n, 0]),
        (&[dp(2)], 1, [n, n]),
        (&[dp(4)], 3, [6 * n / 4, 3 * n]),
        (&[tp(2)], 0, [n, n]),
        (&[dp(2), tp(2)], 0, [2 * n, 2 * n]),
    ];
    for (sizes, stage, wanted) in layouts {
        let rests = zero(stage, None);
        let [adamw, state] = costs(sizes, rests, ops::ADAMW);
        for (muon, wanted) in [OWNER, DUPLICATED].into_iter().zip(wanted) {
            let [sent, kept] = costs(sizes, rests, muon);
            assert_eq!((sent - adamw) / 4, wanted, "{muon}, {sizes:?}, zero{stage}");
            let ranks = sizes.iter().filter(|(axis, _)| *axis == Axis::Tp || stage > 0).map(|(_, n)| n);
            assert_eq!(state - kept, 4 * n / ranks.product::<usize>(), "{muon}, {sizes:?}, zero{stage}");
        }
    }
}

/// Ranks are homes of other matrices, so their peaks differ. Kills: the peak of one rank taken for those of
/// all that have the same part of the model.
#[test]
fn the_price_of_all_ranks_is_the_sum_over_homes() {
    let layout: Layout = "dp=8".parse().unwrap();
    let batch = Batch::new(vec![Sequence::new(vec![1], vec![2]); 8], 1).unwrap(); // an update holds most
    let price = training::<Cpu<f32>>(&layout, SHAPE, (OWNER, None), &batch, |_, _| Ok(())).unwrap();
    let run = |at: BuildContext<Cpu<f32>>| {
        let mut trainer = Trainer::new(&at, SHAPE, (OWNER, None))?;
        (0..3).try_for_each(|_| trainer.step(&batch, 0.5).map(drop))?;
        Result::Ok(at.device.meter().peaks_of_all().total)
    };
    let held = session::run((&layout, &layout.world().unwrap()), &RandomValues { seed: 2 }, run).unwrap();
    assert!(held.iter().any(|other| *other != held[0]), "{held:?}");
    let [all, most] = [held.iter().sum::<usize>(), held.iter().copied().max().unwrap()];
    assert_eq!((price.all, price.largest.total), (all as u128, most), "{held:?}");
}
