//! Bytes, norms and padding of parameters.
use super::*;
use crate::param::placement::{Pieces, Section};
use crate::{ADAMW, Error, Keeper, Optimizer, Placed, RandomValues, SGD};
use comm::{Axis, Mesh, Op, World};
use tensor::Cpu;

/// A matrix of 13 rows of 5 numbers over 4 ranks: 4 rows on each, 80 bytes, of which the last rank's are
/// padding but for one. Values, gradients and each of two moments take as much; to put them together takes
/// 4·80 bytes, and then, when these are gone, 13·5·4 = 260.
fn padded_bytes<D: Kernels<Elem = f32, Wide = D> + Default>(mesh: &Mesh<D::Place>) -> Result<()> {
    let (device, values) = (D::default(), RandomValues { seed: 1 });
    let at = ParamOrigin::new(&device, mesh, &values);
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
        let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
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

/// Kills: the last step's gradient used again, a value that moves without a gradient.
#[test]
fn no_contribution_is_a_zero_contribution() {
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
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
