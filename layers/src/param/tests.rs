//! Bytes, norms and padding of parameters.
use super::*;
use crate::Builder;
use crate::Placed;
use crate::model::strategy;
use crate::param::placement::{Pieces, Section};
use crate::{
    ADAMW, Embedding, Error, Head, Keeper, Layer, Objective, Optimizer, PassContext, RandomValues, SGD,
    Shape, StageRequest, Targets,
};
use comm::{Axis, Mesh, Op, World};
use tensor::{Cpu, Device, TokenIds};

/// A matrix of 13 rows of 5 numbers over 4 ranks: 4 rows on each, 80 bytes, of which the last rank's are
/// padding but for one. Values, gradients and each of two moments take as much; to put them together takes
/// 4·80 bytes, and then, when these are gone, 13·5·4 = 260.
fn padded_bytes<D: Kernels<Elem = f32, Wide = D> + Default>(mesh: &Mesh<D::Place>) -> Result<()> {
    let (device, values) = (D::default(), RandomValues { seed: 1 });
    let at = Builder::new(&device, mesh, &values);
    let sections = vec![Section::new(13, Pieces::Padded)];
    let placement = Placement::default().on(Axis::Tp, Placed::Shard { dim: 0, sections });
    let mut param = Param::new(&at, "w", [13, 5], placement, Draw { mean: 0.0, std: 1.0 })?;
    param.accumulate(|device, gradient, _| device.wide().fill(gradient, 0.5));
    Optimizer::new(ADAMW, None).step(&mut [&mut param], mesh, 1.0, &mut Keeper::default())?;
    let buffers = || device.meter().peaks_of_all().category[Category::Buffers as usize];
    assert_eq!(buffers(), 4 + 4, "the norm and the factor of clipping");
    let before = mesh.ledger();
    param.gather(mesh)?;
    let said = (mesh.ledger() - &before).get(Axis::Tp, Op::AllGather);
    assert_eq!((buffers(), said.payload, said.bytes), (320, 80, 240));
    assert_eq!(device.meter().peaks_of_all().category[..3], [80, 80, 160]);
    Ok(())
}

/// Kills: a share of which only what is no padding has room, moments of the whole, padding left out of what
/// is sent.
#[test]
fn padded_parameters_take_the_bytes_that_are_worked_out_by_hand() {
    let sizes = [(Axis::Tp, 4)];
    World::threads(&sizes).unwrap().run(|_: Cpu<f32>, mesh| padded_bytes::<Cpu<f32>>(&mesh)).unwrap();
    for rank in 0..4 {
        padded_bytes::<kernels::Meta<f32>>(&Mesh::ghost(&sizes, rank).unwrap()).unwrap();
    }
}

/// The last 4 of 12 columns are two pieces, each on two ranks with partial sums of one half: summed, these
/// are 1. So the norm² is 8·0.25 + 4·1 = 6, on every rank. Kills: a replica's numbers counted once for each
/// holder, or not at all.
#[test]
fn numbers_that_several_ranks_hold_count_once_in_the_norm() {
    let sections = vec![8.into(), Section::new(4, Pieces::Shared(2))];
    let placement = Placement::default().on(Axis::Tp, Placed::Shard { dim: 1, sections });
    let run = |device: Cpu<f32>, mesh: Mesh<_>| {
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let draw = Draw { mean: 0.0, std: 1.0 };
        for clip in [None, Some(100.0)] {
            let mut param = Param::new(&at, "w", [1, 12], placement.clone(), draw)?;
            param.accumulate(|device, gradient, _| device.wide().fill(gradient, 0.5));
            param.sync()?;
            let norm2 =
                Optimizer::new(SGD, clip).step(&mut [&mut param], &mesh, 1.0, &mut Keeper::default())?;
            assert_eq!(norm2.read().unwrap(), [6.0]);
        }
        Ok::<_, Error>(())
    };
    World::threads(&[(Axis::Tp, 4)]).unwrap().run(run).unwrap();
}

/// Numbers of a rank's padding, each with its gradient.
fn padding(param: &Param<Cpu<f32>>) -> Vec<[f32; 2]> {
    let (cols, value) = (param.local()[1], param.value.at_rest().unwrap().read().unwrap());
    let both = value.into_iter().zip(param.gradient.at.at_rest().unwrap().read().unwrap());
    let beyond = |(i, _): &(usize, _)| param.sharding.cuts.whole_index([i / cols, i % cols]).is_none();
    both.enumerate().filter(beyond).map(|(_, (value, gradient))| [value, gradient]).collect()
}

/// A vocabulary of 13 over 4 ranks, of which the last has one row of 4: its ids come and are targets, its
/// padding is neither. Kills: padding that a softmax, an id of another rank or decay touches.
#[test]
fn padding_has_no_gradient_and_stays_zero_while_its_neighbours_learn() {
    let run = |device: Cpu<f32>, mesh: Mesh<_>, tied| {
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let loss = Objective { smoothing: 0.1, z: 0.01 };
        let shape = Shape { width: 5, vocabulary: 13, tied, loss, ..Shape::LLAMA };
        let (axis, name, sizes) = (Axis::Tp, "table", [13, 5]);
        let ids = strategy::Embedding { axis, name, sizes, padding: None, context: None, rate: 0.0, tied };
        let mut embedding = Embedding::shard(&at, &ids)?;
        let mut head = Head::shard(&at, &strategy::Head::of(axis, &shape))?;
        let (mut optimizer, cx) = (Optimizer::new(ADAMW, Some(0.5)), PassContext::train(0, [4], 4));
        for step in 0..3 {
            let targets = Targets::Ids(TokenIds::targets(device.place(), &[12, 1, 3, 12], 13)?);
            let (x, kept) = embedding.forward(&cx, TokenIds::new(device.place(), &[0, 12, 5, 11], 13)?)?;
            let lend = |head: &mut Head<_>, embedding: &mut Embedding<_>| {
                if let Some(table) = head.table() {
                    std::mem::swap(table, embedding.table().unwrap());
                }
            };
            lend(&mut head, &mut embedding);
            let (_, saved) = head.forward(&cx, (x, Some(StageRequest::Loss(targets))))?;
            let (dx, _) = head.backward(&cx, saved, None)?;
            lend(&mut head, &mut embedding);
            embedding.backward(&cx, kept, dx)?;
            let mut params = crate::Params::new();
            embedding.params(&mut params);
            head.params(&mut params);
            for param in &mut params {
                param.sync()?;
            }
            optimizer.step(&mut params, &mesh, 0.1, &mut Keeper::default())?;
            let beyond: Vec<_> = params.iter().flat_map(|p| padding(p)).collect();
            let tables = if tied { 1 } else { 2 };
            let wanted = if mesh.rank() == 3 { tables * 3 * 5 } else { 0 };
            assert_eq!(beyond, vec![[0.0; 2]; wanted], "rank {}, step {step}", mesh.rank());
            let head = if tied { "table" } else { "head" };
            let head = params.iter().find(|p| &**p.name() == head).unwrap().gradient_elements();
            assert!(!head.is_empty() && head.iter().all(|(_, g)| *g != 0.0), "every id learns");
        }
        Ok::<_, Error>(())
    };
    for tied in [true, false] {
        let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
        world.run(|device, mesh| run(device, mesh, tied)).unwrap();
    }
}

/// Kills: the last step's gradient used again, a value that moves without a gradient.
#[test]
fn no_contribution_is_a_zero_contribution() {
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
    let mut param = Param::new(&at, "w", [2, 2], Placement::default(), Draw { mean: 0.0, std: 1.0 }).unwrap();
    let mut optimizer = Optimizer::new(SGD, None);
    let start = param.gather(&mesh).unwrap().unwrap();
    param.accumulate(|device, gradient, _| device.wide().fill(gradient, 0.5));
    for (step, gradient) in [0.5, 0.0].into_iter().enumerate() {
        param.sync().unwrap();
        assert_eq!(param.gather_gradient(&mesh).unwrap().unwrap(), [gradient; 4], "step {step}");
        optimizer.step(&mut [&mut param], &mesh, 1.0, &mut Keeper::default()).unwrap();
        let moved: Vec<f64> = start.iter().map(|w| w - 0.5).collect();
        assert_eq!(param.gather(&mesh).unwrap().unwrap(), moved, "step {step}");
    }
}
