//! Sums of units in one call.
use super::*;
use crate::param::origin::ParamOrigin;
use crate::param::{buckets, shards::Shards};
use crate::{ADAMW, Draw, Error, Optimizer, Placed, Placement, RandomValues, SGD, ValueSource};
use comm::{Axes, Axis, Mesh, Op, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensor::{Category, Cpu, F61, Host, Key, Scalar, Tensor};

/// A parameter whose gradient is `1 + salt` on rank 0, twice as much on rank 1, and so on.
fn param(
    at: &ParamOrigin<Cpu<f32>>,
    name: &str,
    placement: &Placement,
    salt: usize,
) -> Result<Param<Cpu<f32>>> {
    let mut param = Param::new(at, name, [2, 3], placement.clone(), Draw { mean: 0.0, std: 1.0 })?;
    let addend = ((1 + salt) * (1 + at.mesh.rank())) as f32;
    param.accumulate(|device, gradient, _| device.fill(gradient, addend));
    Ok(param)
}

/// Seven parameters of one shape on four ranks, in units of two, four, and what is left. Gradients are
/// partial sums along dp, tp, both or none. Two steps. Kills: a gradient that another parameter gets, one
/// that is summed twice, not at all or along another axis, a call for each parameter, a unit that is not
/// waited for, a step that the next one takes for its own.
#[test]
fn units_are_summed_in_one_call_for_each_group() {
    let run = |device: Cpu<f32>, mesh: Mesh<_>| {
        let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
        let data = Placement::default();
        let [both, tensor] = [&data, &data.clone().on(Axis::Dp, Placed::Replicate)]
            .map(|placement| placement.clone().on(Axis::Tp, Placed::Partial));
        let none = data.clone().on(Axis::Dp, Placed::Replicate);
        let [tp, dp] = [Axis::Tp, Axis::Dp].map(|axis| mesh.group(axis).rank());
        let mine = 1 + mesh.rank();
        assert_eq!(mine, 1 + tp + 2 * dp, "tp is innermost");
        let (over_dp, over_tp, over_both) = (2 * (1 + tp) + 2, 2 * (1 + 2 * dp) + 1, 1 + 2 + 3 + 4);
        let params = [
            ("table", &data, over_dp),
            ("blocks.0.a", &both, over_both),
            ("blocks.0.b", &none, mine),
            ("blocks.0.c", &tensor, over_tp),
            ("blocks.0.d", &both, over_both),
            ("norm", &data, over_dp),
            ("head", &both, over_both),
        ];
        let mut sums = Keeper::new(ShardingStrategy::WHOLE);
        for _ in 0..2 {
            let new = |(salt, (name, placement, _)): (_, &(&str, &_, _))| param(&at, name, placement, salt);
            let mut made = params.iter().enumerate().map(new).collect::<Result<Vec<_>>>()?;
            let mut all: Vec<_> = made.iter_mut().collect();
            let before = mesh.ledger();
            sums.release(&mut all[5..], true)?;
            sums.release(&mut all[1..5], true)?;
            let sets = [Axis::Dp.into(), Axis::Tp.into(), Axis::Dp | Axis::Tp];
            let begun = mesh.ledger() - &before;
            assert_eq!(sets.map(|axes| begun.get(axes, Op::AllReduce).calls), [1, 1, 2]);
            sums.finish(&mut all)?;
            assert_eq!(sums.buckets.len(), 3, "a step's units are the next one's");
            let said = mesh.ledger() - &before;
            let said = sets.map(|axes| said.get(axes, Op::AllReduce)).map(|said| (said.calls, said.elements));
            assert_eq!(said, [(2, 2 * 6), (1, 6), (2, 3 * 6)]);
            for (salt, (param, (name, _, sum))) in made.iter().zip(params).enumerate() {
                let gradient: Vec<_> = param.gradient_elements().into_iter().map(|(_, g)| g).collect();
                assert_eq!(gradient, [((1 + salt) * sum) as f32; 6], "{name} on {}", mesh.rank());
            }
        }
        Ok::<_, Error>(())
    };
    World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap().run(run).unwrap();
}

/// The sums of a parameter over dp and of one over edp are of the same two ranks, and of as many numbers.
/// Kills: calls that one rank starts in another order, so that each gets the other's sum.
#[test]
fn calls_of_the_same_ranks_start_in_one_order() {
    let run = |device: Cpu<f32>, mesh: Mesh<_>| {
        let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
        let dense = Placement::default();
        let alike = Axes::TOKENS.iter().fold(dense.clone(), |all, axis| all.on(axis, Placed::Replicate));
        let expert = alike.on(Axis::Edp, Placed::Partial);
        let placements = [("dense", &dense), ("experts", &expert)];
        let new = |(salt, (name, placement)): (usize, (&str, &_))| param(&at, name, placement, salt);
        let mut made = placements.into_iter().enumerate().map(new).collect::<Result<Vec<_>>>()?;
        Keeper::new(ShardingStrategy::WHOLE).finish(&mut made.iter_mut().collect::<Vec<_>>())?;
        for (salt, param) in made.iter().enumerate() {
            let gradient: Vec<_> = param.gradient_elements().into_iter().map(|(_, g)| g).collect();
            assert_eq!(gradient, [((1 + salt) * 3) as f32; 6], "{} on {}", param.name(), mesh.rank());
        }
        Ok::<_, Error>(())
    };
    World::threads(&[(Axis::Dp, 2)]).unwrap().run(run).unwrap();
}

/// Two steps of plain descent, of each the value before and after it as layers are given it. Kills: a value
/// that was gathered before the update and is used after it (also where it stays gathered: stage 4), another
/// rank's shard, one at the wrong place.
#[test]
fn what_is_gathered_after_an_update_is_the_new_value() {
    let _key = Key(5).enter();
    for (stage, subgroup) in
        [(0, None), (1, None), (2, None), (3, None), (4, None), (1, Some(2)), (3, Some(2))]
    {
        let run = |device: Cpu<F61>, mesh: Mesh<Host>| {
            let rests = zero(stage.min(3), subgroup);
            let rests =
                if stage == 4 { ShardingStrategy { value: AtRest::Gathered, ..rests } } else { rests };
            let at = ParamOrigin { rests, ..ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 }) };
            let draw = Draw { mean: 0.0, std: 1.0 };
            let mut param = Param::new(&at, "w", [13, 5], at.placement(), draw)?;
            let (mut keeper, mut optimizer) = (Keeper::new(rests), Optimizer::new(SGD, None));
            let number = |rank: usize| F61::sample(rank as u64, 1.0);
            let sum = (0..4).fold(F61::ZERO, |sum, rank| sum + number(rank));
            let drawn = ValueSource::<F61>::of(&RandomValues { seed: 1 }, "w", [13, 5], draw)?;
            let mut wanted: Vec<_> = (0..65).map(|i| drawn.at([i / 5, i % 5])).collect();
            for step in 0..3 {
                keeper.gather_ahead(&mut [&mut param])?;
                keeper.gather(&mut [&mut param])?;
                let seen = param.value().read().unwrap();
                assert!(seen == wanted, "step {step} of zero{stage} in {subgroup:?}, rank {}", mesh.rank());
                param.accumulate(|device, gradient, _| device.fill(gradient, number(mesh.rank())));
                keeper.release(&mut [&mut param], true)?;
                keeper.finish(&mut [&mut param])?;
                optimizer.step(&mut [&mut param], &mesh, 1.0, &mut keeper)?;
                for w in &mut wanted {
                    *w = *w - sum;
                }
            }
            Ok::<_, Error>(())
        };
        World::threads(&[(Axis::Dp, 4)]).unwrap().run(run).unwrap();
    }
}

/// Kills: a name cut within a part, a shared part of two parameters that not all have, a sum that is taken
/// for that of a parameter whose name begins alike.
#[test]
fn a_unit_is_called_what_its_parameters_share() {
    let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
    let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
    let name = |names: &[&str]| {
        let new = |name: &&str| param(&at, name, &Placement::default(), 0).unwrap();
        let mut params: Vec<_> = names.iter().map(new).collect();
        format!("gradients of {}", buckets::name(&params.iter_mut().collect::<Vec<_>>()))
    };
    let blocks = ["blocks.1.norm1", "blocks.1.mlp.up", "blocks.1.mlp.down"];
    assert_eq!(name(&["head.weight"]), "gradients of head.weight");
    assert_eq!(name(&blocks), "gradients of blocks.1");
    assert_eq!(name(&["blocks.1.norm1", "blocks.10.norm1"]), "gradients of blocks");
    assert_eq!(name(&["norm", "head", "normal"]), "gradients of norm, head, normal");
    let new = |name: &&str| param(&at, name, &Placement::default(), 0).unwrap();
    let mut params: Vec<_> = blocks.iter().map(new).collect();
    assert_eq!(params[0].call_names(), ["blocks.1.norm1"; 2], "nothing was summed");
    Keeper::new(ShardingStrategy::WHOLE).release(&mut params.iter_mut().collect::<Vec<_>>(), true).unwrap();
    assert!(params.iter().all(|param| param.call_names() == ["gradients of blocks.1", &**param.name()]));
}

/// So many of value, gradient and state, from the last on, rest as shards: DDP and `ZeRO` 1 to 3.
fn zero(stage: usize, subgroup: Option<usize>) -> ShardingStrategy {
    let rest = |needs| if stage >= needs { AtRest::Shard } else { AtRest::Whole };
    ShardingStrategy { value: rest(3), gradient: rest(2), state: rest(1), subgroup, tiles: 1 }
}

/// 65 numbers over 4 ranks, or blocks of 2: 17 or 33 on each, in 68 or 66 of room, of 4 bytes each. Two
/// microbatches that use the value once forward and once back, then a step: bytes of value, gradient and
/// moments as they rest between the backward passes and after the step, the peak of gradients, and elements
/// of (all-reduce, reduce-scatter, all-gather), less 3 numbers of the norm.
fn bytes<D: Kernels<Elem = f32, Wide = D> + Default>(mesh: &Mesh<D::Place>) -> Result<()> {
    let (whole, room, quarter, half) = (65 * 4, 68 * 4, 17 * 4, 33 * 4);
    for (stage, subgroup, resting, between, peak, said) in [
        (0, None, [whole, whole, 2 * whole], whole, whole, [65, 0, 0]),
        (1, None, [room, quarter, 2 * quarter], room, room + quarter, [0, 68, 17]),
        (2, None, [room, quarter, 2 * quarter], quarter, room + quarter, [0, 2 * 68, 17]),
        (3, None, [quarter, quarter, 2 * quarter], quarter, room + quarter, [0, 2 * 68, 4 * 17]),
        (1, Some(2), [66 * 4, half, 2 * half], 66 * 4, 66 * 4 + half, [33, 66, 33]),
        (3, Some(2), [half, half, 2 * half], half, 66 * 4 + half, [33, 2 * 66, 4 * 33]),
    ] {
        let (device, rests) = (D::default(), zero(stage, subgroup));
        let at = ParamOrigin { rests, ..ParamOrigin::new(&device, mesh, &RandomValues { seed: 1 }) };
        let mut param = Param::new(&at, "w", [13, 5], at.placement(), Draw { mean: 0.0, std: 1.0 })?;
        let (mut keeper, mut optimizer) = (Keeper::new(rests), Optimizer::new(ADAMW, Some(1.0)));
        let now = |category| device.meter().now(category);
        let before = mesh.ledger();
        for last in [false, true] {
            keeper.gather(&mut [&mut param])?;
            assert_eq!(param.value().len(), 65);
            let here = if stage == 3 { peak } else { resting[0] }; // as gradients: all of it beside the shard
            assert_eq!((stage, subgroup, now(Category::Weights)), (stage, subgroup, here));
            keeper.release(&mut [&mut param], false)?;
            keeper.gather(&mut [&mut param])?;
            param.accumulate(|device, gradient, write| {
                device.wide().fill(gradient, if write == kernels::Write::Set { 0.5 } else { 1.0 });
            });
            keeper.release(&mut [&mut param], false)?;
            assert_eq!((last, now(Category::Gradients)), (last, between));
            if last {
                keeper.release(&mut [&mut param], true)?;
            }
        }
        keeper.finish(&mut [&mut param])?;
        let norm2 = optimizer.step(&mut [&mut param], mesh, 1.0, &mut keeper)?;
        assert!(
            norm2.read().is_none_or(|sum| sum == [65.0 * 16.0]),
            "4 ranks have 2 contributions of 0.5 each"
        );
        let names = [Category::Weights, Category::Gradients, Category::Optimizer];
        assert_eq!((stage, subgroup, names.map(now)), (stage, subgroup, resting));
        let gradients = device.meter().peaks_of_all().category[Category::Gradients as usize];
        assert_eq!((stage, subgroup, gradients), (stage, subgroup, peak));
        let traffic = mesh.ledger() - &before;
        let ops = [Op::AllReduce, Op::ReduceScatter, Op::AllGather];
        let seen =
            ops.map(|op| traffic.iter().filter(|(_, of, _)| *of == op).map(|(_, _, t)| t.elements).sum());
        let norm = usize::from(stage != 0);
        assert_eq!((stage, subgroup, seen), (stage, subgroup, [said[0] + norm, said[1], said[2]]));
    }
    Ok(())
}

/// Kills: whole gradients that stay, or come back as copies; a value that is not let go, gathered where it
/// rests whole, or counted as something else; moments of what is elsewhere; a sum over blocks for every
/// microbatch, or of more than a shard.
#[test]
fn what_rests_takes_the_bytes_that_are_worked_out_by_hand() {
    let sizes = [(Axis::Dp, 4)];
    World::threads(&sizes).unwrap().run(|_: Cpu<f32>, mesh| bytes::<Cpu<f32>>(&mesh)).unwrap();
    for rank in 0..4 {
        bytes::<kernels::Meta<f32>>(&Mesh::ghost(&sizes, rank).unwrap()).unwrap();
    }
}

/// A table that the first and the last of three stages hold, each two data ranks of it, beside a parameter of
/// each stage's own. Kills: a sum over stages that is left out, is taken twice, or waits for a stage that has
/// not completed; a table that counts on both stages, or other stages' parameters that do not count; twins
/// that drift apart.
#[test]
fn a_parameter_of_two_stages_is_one() {
    let _key = Key(4).enter();
    let number = |i: usize| F61::sample(i as u64, 1.0);
    for (stage, clip) in (0..4).flat_map(|stage| [(stage, None), (stage, Some(0.5))]) {
        let run = |device: Cpu<F61>, mesh: Mesh<Host>| {
            let rests = zero(stage, None);
            let at = ParamOrigin { rests, ..ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 }) };
            let (pp, dp) = (mesh.group(Axis::Pp), mesh.group(Axis::Dp).rank());
            let draw = Draw { mean: 0.0, std: 1.0 };
            let mut own = Param::new(&at, format!("own.{}", pp.rank()), [1, 3], at.placement(), draw)?;
            let mut table = Param::new(&at, "table", [2, 5], at.placement(), draw)?;
            let mut params = vec![&mut own];
            if pp.rank() != 1 {
                table.tie_with(&pp.subgroup(&[0, 2])?);
                params.push(&mut table);
            }
            if pp.rank() == 2 {
                params.reverse(); // another order than the first stage's
            }
            let start: Vec<_> = params.iter().map(|p| p.gather(&mesh)).collect::<Result<_>>()?;
            let (mut keeper, mut optimizer) = (Keeper::new(rests), Optimizer::new(SGD, clip));
            keeper.gather(&mut params)?;
            for param in &mut params {
                let addend = number(1 + mesh.rank());
                param.accumulate(|device, gradient, _| device.fill(gradient, addend));
            }
            keeper.release(&mut params, true)?;
            keeper.finish(&mut params)?;
            let norm2 = optimizer.step(&mut params, &mesh, 1.0, &mut keeper)?.read().unwrap()[0];
            let sum = |ranks: &[usize]| ranks.iter().fold(F61::ZERO, |sum, &rank| sum + number(1 + rank));
            let (mine, both) = (|stage: usize| sum(&[2 * stage, 2 * stage + 1]), sum(&[0, 1, 4, 5]));
            let times = |n, x: F61| F61::from_usize(n) * x * x;
            let wanted = (0..3).fold(times(10, both), |all, stage| all + times(3, mine(stage)));
            assert_eq!(norm2, wanted, "zero{stage}, data rank {dp} of stage {}", pp.rank());
            let factor = clip.map_or(F61::ONE, |limit| F61::clip_factor(wanted, limit));
            for (param, start) in params.iter().zip(start) {
                let gradient = if &**param.name() == "table" { both } else { mine(pp.rank()) };
                let moved: Vec<_> = start.unwrap().into_iter().map(|w| w - factor * gradient).collect();
                assert!(param.gather(&mesh)?.unwrap() == moved, "{} under zero{stage}", param.name());
            }
            Ok::<_, Error>(())
        };
        World::threads(&[(Axis::Pp, 3), (Axis::Dp, 2)]).unwrap().run(run).unwrap();
    }
}

/// A bias beside a weight. Kills: a gradient, moments, decay or a part of the norm of what is not trained,
/// one that rests as a shard, or is lost to what is gathered; a change of what is trained.
#[test]
fn what_is_not_trained_stays_and_is_gathered() {
    for stage in 0..4 {
        let run = |device: Cpu<f32>, mesh: Mesh<Host>| {
            let rests = zero(stage, None);
            let at = ParamOrigin {
                learns: true,
                rests,
                ..ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 })
            };
            let draw = Draw { mean: 0.0, std: 1.0 };
            let placement = at.placement().on(Axis::Tp, Placed::Shard { dim: 1, sections: vec![6.into()] });
            let buffer = Placement { trained: false, ..placement.clone() };
            let mut weight = Param::new(&at, "w", [3, 6], placement, draw)?;
            let mut bias = Param::new(&at, "bias", [3, 6], buffer, draw)?;
            let before = bias.gather(&mesh)?;
            bias.change(|device, mut bias, _| device.add(bias.again(), weight_of(&mesh, device).view()));
            let wanted: Vec<_> = before.unwrap().into_iter().map(|x| x + 1.0).collect();
            let (mut keeper, mut optimizer) = (Keeper::new(rests), Optimizer::new(ADAMW, Some(1.0)));
            let mut params = [&mut bias, &mut weight];
            for _ in 0..2 {
                keeper.gather(&mut params)?;
                assert_eq!(params[0].value().shape(), [3, 3]);
                params[1].accumulate(|device, gradient, _| device.fill(gradient, 0.5));
                keeper.release(&mut params, true)?;
                keeper.finish(&mut params)?;
                assert_eq!(optimizer.step(&mut params, &mesh, 1.0, &mut keeper)?.read().unwrap(), [18.0]);
            }
            assert_eq!(params[0].gather(&mesh)?.unwrap(), wanted);
            assert!(params[0].gather_gradient(&mesh)?.is_none() && params[0].elements().len() == 9);
            assert_eq!([0, 1].map(|i| params[i].states.len()), [0, 2], "a buffer has no moments");
            Ok::<_, Error>(())
        };
        World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap().run(run).unwrap();
    }
}

fn weight_of(_: &Mesh<Host>, device: &Cpu<f32>) -> Tensor<Cpu<f32>> {
    Tensor::from_fn(device, Category::Buffers, 3, 3, |_| 1.0)
}

/// Four ranks with 16 of 65 numbers each. Kills: shards that lose the last numbers, and end somewhere without
/// a name.
#[test]
fn shards_that_do_not_hold_all_are_named() {
    let sum = Mesh::ghost(&[(Axis::Dp, 4)], 0).unwrap().group(Axis::Dp).clone();
    let shards = Shards::of(&sum, zero(3, None), (65, 1)).unwrap().expect("of 17 numbers each");
    shards.hold("w", 65);
    let floor = Shards { len: 16, ..shards };
    let why = catch_unwind(AssertUnwindSafe(|| floor.hold("w", 65))).unwrap_err();
    assert_eq!(why.downcast_ref::<String>().unwrap(), "the shards of w hold 64 of 65 elements");
}

/// Kills: rests that nobody keeps, taken for others; blocks that ranks do not make up.
#[test]
fn rests_that_make_no_sense_are_refused() {
    let refused = |rests: ShardingStrategy| {
        let run = |device: Cpu<f32>, mesh: Mesh<Host>| {
            let at = ParamOrigin { rests, ..ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 }) };
            Param::new(&at, "w", [3, 6], at.placement(), Draw { mean: 0.0, std: 1.0 }).map(drop)
        };
        World::threads(&[(Axis::Dp, 4)]).unwrap().run(run).map_err(|why| why.reason)
    };
    for [value, gradient, state] in (0..8).map(|n| [n / 4, n / 2 % 2, n % 2]) {
        let rest = |n| if n == 1 { AtRest::Shard } else { AtRest::Whole };
        let reported = refused(ShardingStrategy {
            value: rest(value),
            gradient: rest(gradient),
            state: rest(state),
            ..ShardingStrategy::WHOLE
        });
        assert_eq!(reported.is_ok(), value <= gradient && gradient <= state, "{reported:?}");
    }
    let strange = ShardingStrategy { gradient: AtRest::Whole, ..zero(3, None) };
    let wanted = "whole for the first ones and shard for the others, and only shards can be in subgroups";
    for (rests, seen) in
        [(strange, "shard, whole, shard"), (zero(0, Some(2)), "whole, whole, whole in subgroups of 2")]
    {
        let why =
            format!("the sharding of value, gradient and optimizer state is {seen}; it must be {wanted}");
        assert_eq!(refused(rests), Err(why));
    }
    let why = "the dp group of 4 ranks has no subgroups of 3: the size must be 1, 2 or 4";
    assert!(refused(zero(1, Some(3))).unwrap_err().starts_with(why));
    assert!(refused(zero(1, Some(0))).is_err());
}
