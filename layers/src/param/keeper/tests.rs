//! Sums of units in one call.
use super::*;
use crate::{Builder, Draw, Error, Placed, Placement, Random};
use comm::{Axis, Mesh, Op, World};
use tensor::Cpu;

/// A parameter whose gradient is `1 + salt` on rank 0, twice as much on rank 1, and so on.
fn param(at: &Builder<Cpu<f32>>, name: &str, placement: &Placement, salt: usize) -> Result<Param<Cpu<f32>>> {
    let mut param = Param::new(at, name, [2, 3], placement.clone(), Draw { mean: 0.0, std: 1.0 })?;
    let addend = ((1 + salt) * (1 + at.mesh.rank())) as f32;
    param.accumulate(|device, gradient, _| device.fill(gradient, addend));
    Ok(param)
}

/// Six parameters of one shape on four ranks, in units of two, three, and what is left. Gradients have addends along dp,
/// tp, both or none. Two steps. Kills: a gradient that another parameter gets, one that is summed twice, not at all or
/// along another axis, a call for each parameter, a unit that is not waited for, a step that the next one takes for its own.
#[test]
fn units_are_summed_in_one_call_for_each_group() {
    let run = |device: Cpu<f32>, mesh: Mesh<_>| {
        let at = Builder::new(&device, &mesh, &Random { seed: 1 });
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
            ("norm", &data, over_dp),
            ("head", &both, over_both),
        ];
        let mut sums = Keeper::default();
        for _ in 0..2 {
            let new = |(salt, (name, placement, _)): (_, &(&str, &_, _))| param(&at, name, placement, salt);
            let mut made = params.iter().enumerate().map(new).collect::<Result<Vec<_>>>()?;
            let mut all: Vec<_> = made.iter_mut().collect();
            let before = mesh.ledger();
            sums.complete(&mut all[4..])?;
            sums.complete(&mut all[1..4])?;
            let sets = [Axis::Dp.into(), Axis::Tp.into(), Axis::Dp | Axis::Tp];
            let begun = mesh.ledger() - &before;
            assert_eq!(sets.map(|axes| begun.get(axes, Op::AllReduce).calls), [1, 1, 2]);
            sums.finish(&mut all)?;
            assert_eq!(sums.units.len(), 3, "a step's units are the next one's");
            let said = mesh.ledger() - &before;
            let said = sets.map(|axes| said.get(axes, Op::AllReduce)).map(|said| (said.calls, said.elements));
            assert_eq!(said, [(2, 2 * 6), (1, 6), (2, 2 * 6)]);
            for (salt, (param, (name, _, sum))) in made.iter().zip(params).enumerate() {
                let gradient: Vec<_> = param.gradient_elements().into_iter().map(|(_, g)| g).collect();
                assert_eq!(gradient, [((1 + salt) * sum) as f32; 6], "{name} on {}", mesh.rank());
            }
        }
        Ok::<_, Error>(())
    };
    World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap().run(run).unwrap();
}

/// Kills: a name cut within a part, a shared part of two parameters that not all have, a sum that is taken for that of
/// a parameter whose name begins alike.
#[test]
fn a_unit_is_called_what_its_parameters_share() {
    let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &Random { seed: 1 });
    let name = |names: &[&str]| {
        let new = |name: &&str| param(&at, name, &Placement::default(), 0).unwrap();
        let mut params: Vec<_> = names.iter().map(new).collect();
        label(OF, &params.iter_mut().collect::<Vec<_>>())
    };
    let blocks = ["blocks.1.norm1", "blocks.1.mlp.up", "blocks.1.mlp.down"];
    assert_eq!(name(&["head.weight"]), "gradients of head.weight");
    assert_eq!(name(&blocks), "gradients of blocks.1");
    assert_eq!(name(&["blocks.1.norm1", "blocks.10.norm1"]), "gradients of blocks");
    assert_eq!(name(&["norm", "head", "normal"]), "gradients of norm, head, normal");
    for (of, name, wanted) in [
        ("gradients of blocks.1", "blocks.1.norm1", true),
        ("gradients of blocks.1", "blocks.10.norm1", false),
        ("gradients of norm, head", "head", true),
        ("gradients of norm, head", "normal", false),
        ("blocks.1", "blocks.1.norm1", false),
    ] {
        assert_eq!(is_summed_in(of, name), wanted, "{name} in {of}");
    }
}
