//! Blocks alone, without embedding and head: rows of features, judged by the mean square.
use super::{LENGTHS, SHAPE, one_run};
use crate::{Builder, Chunk, Half, Input, Output, Rates, Shape, StageRequest, Targets};
use comm::{Axis, Mesh, World};
use kernels::Kernels;
use ops::{Error, Keeper, PassContext, RandomValues, SGD};
use std::collections::BTreeMap;
use tensor::{Category, Cpu, Device, Dual, F61, Host, Key, Scalar, Tensor};

/// Results of a run, by name.
type Trace<S> = Vec<(String, Vec<S>)>;

/// Rows of small numbers, other ones for other salts.
fn numbers(rows: usize, salt: usize) -> Vec<f32> {
    (0..rows * SHAPE.width).map(|i| ((i * 7 + salt * 5) % 13) as f32 * 0.25 - 1.0).collect()
}

fn rows<D: Kernels>(device: &D, n: usize, salt: usize) -> Tensor<D> {
    let all = numbers(n, salt);
    let number = |i: usize| D::Elem::from_f64(f64::from(all[i]));
    Tensor::from_fn(device, Category::Activations, n, SHAPE.width, number)
}

/// One microbatch through these parts.
fn through<D: Kernels>(
    parts: &mut [Chunk<D>],
    cx: &PassContext<D>,
    x: Tensor<D>,
    wanted: StageRequest<D>,
) -> Result<Output<D>, Error> {
    let (mut x, mut wanted, last) = (Input::Rows(x), Some(wanted), parts.len() - 1);
    for (i, part) in parts.iter_mut().enumerate() {
        match part.forward(0, cx, &mut Keeper::default(), x, wanted.take_if(|_| i == last))? {
            Output::Activation(y) => x = Input::Activation(y),
            output => return Ok(output),
        }
    }
    unreachable!("the last part gives what is wanted")
}

/// Outputs of the first microbatch; the losses of three in flight at once through these parts; gradients by
/// name.
fn of_blocks<D: Kernels<Wide = D>>(
    at: &Builder<D>,
    shape: &Shape,
    (cuts, half): (&[usize], Half),
) -> Result<Trace<D::Elem>, Error> {
    let part = |c: &[usize]| Chunk::bare(at, shape, &one_run(c));
    let mut parts = cuts.windows(2).map(part).collect::<Result<Vec<_>, _>>()?;
    let (tokens, mut first) = (LENGTHS.concat().iter().sum(), 0);
    let mut all = Vec::new();
    for (m, lengths) in LENGTHS.iter().enumerate() {
        all.push(PassContext::train(m, *lengths, tokens).numbered_from(first).dropping(3, 0));
        first += lengths.len();
    }
    let mut trace = Vec::new();
    for every in [true, false] {
        let x = rows(at.device, LENGTHS[0].iter().sum(), 0);
        let output =
            through(&mut parts, &PassContext::infer(LENGTHS[0]), x, StageRequest::Logits { all: every })?;
        let Output::Logits(y) = output else { unreachable!() };
        trace.push((format!("rows, all: {every}"), y.read().unwrap_or_default()));
    }
    for cx in &all {
        let [x, y] = [0, 7].map(|salt| rows(at.device, cx.rows(), cx.pass().microbatch + salt));
        let output = through(&mut parts, cx, x, StageRequest::Loss(Targets::Rows(y)))?;
        let Output::Loss(loss) = output else { unreachable!() };
        let loss = loss.all_reduce(&at.mesh.over(comm::Axes::LOSS)?)?;
        trace.push((format!("loss {}", cx.pass().microbatch), loss.read().unwrap_or_default()));
    }
    for cx in all.iter().rev() {
        let mut dy = None;
        for part in parts.iter_mut().rev() {
            dy = part.backward(0, cx, &mut Keeper::default(), dy, half, false)?;
        }
        assert!(dy.is_none(), "what enters the model has no gradient");
    }
    if half == Half::Input {
        for cx in &all {
            parts
                .iter_mut()
                .try_for_each(|part| part.backward_weight(0, cx, &mut Keeper::default(), false))?;
        }
    }
    for param in parts.iter_mut().flat_map(Chunk::params) {
        param.sync()?;
        trace.push((param.name().to_string(), param.gather_gradient(at.mesh)?.unwrap_or_default()));
    }
    Ok(trace)
}

const DROPPING: Shape = Shape { dropout: Rates { embedding: 0.5, attention: 0.25, residual: 0.5 }, ..SHAPE };
const WHOLE: (&[usize], Half) = (&[0, 3], Half::Both);

fn under<T>(
    (ranks, regions): (usize, bool),
    run: impl Fn(&Builder<Cpu<T>>) -> Result<Trace<T>, Error> + Sync,
) -> Vec<Trace<T>>
where
    T: Scalar + Send,
    Cpu<T>: Kernels<Elem = T, Place = Host>,
{
    let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
    world
        .run(|device: Cpu<T>, mesh: Mesh<_>| {
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            run(&if regions { at.in_regions() } else { at })
        })
        .unwrap()
}

/// Kills: a mean square that counts a token once per rank, or this rank's alone; targets of other tokens; a
/// gradient that is kept under another microbatch; rows that are not whole again where they are asked for.
#[test]
fn blocks_equal_the_oracle_bit_for_bit() {
    let _key = Key(11).enter();
    let design = reference::Design::from(reference::Model { shape: DROPPING, bare: true });
    let sequences = |m: usize| {
        let [x, y] = [m, m + 7].map(|salt| numbers(LENGTHS[m].iter().sum(), salt));
        let (mut x, mut y) = (x.into_iter(), y.into_iter());
        let mut rows = |n: usize| [x.by_ref().take(12 * n).collect(), y.by_ref().take(12 * n).collect()];
        let sequence = |&n: &usize| {
            let [x, y] = rows(n);
            reference::Sequence { x, y, ..Default::default() }
        };
        LENGTHS[m].iter().map(sequence).collect::<Vec<_>>()
    };
    let start = under((1, false), |at: &Builder<Cpu<F61>>| {
        let mut model = Chunk::bare(at, &DROPPING, &one_run(&[0, 3]))?;
        let whole = |p: &mut ops::Param<_>| Ok((p.name().to_string(), p.gather(at.mesh)?.unwrap()));
        model.params().into_iter().map(whole).collect()
    });
    let start: BTreeMap<_, _> = start.concat().into_iter().collect();
    let rows = design.logits_recorded(&start, &sequences(0), &mut |_, _| {});
    let mut oracle = reference::Trainer::new(design, SGD, None, start).seeded(3);
    let step = oracle.step(&[0, 1, 2].map(sequences), 1.0);
    for place in [(1, false), (2, false), (4, false), (2, true), (4, true)] {
        for cuts in [&[0, 3][..], &[0, 1, 3], &[0, 1, 2, 3]] {
            for half in [Half::Both, Half::Input] {
                for mut trace in under(place, |at| of_blocks(at, &DROPPING, (cuts, half))) {
                    let at = format!("{cuts:?}, {half:?}, {place:?}");
                    let gradients: BTreeMap<_, _> = trace.split_off(5).into_iter().collect();
                    assert!(gradients == step.gradients, "gradients, {at}");
                    let [all, last, losses @ ..] = &trace[..] else { unreachable!() };
                    assert_eq!(all.1, rows, "{at}");
                    assert_eq!(last.1, [&rows[3 * 12..4 * 12], &rows[4 * 12..]].concat(), "{at}");
                    assert_eq!(losses.iter().map(|loss| loss.1[0]).collect::<Vec<_>>(), step.losses, "{at}");
                }
            }
        }
    }
}

/// The hand-written backward is the derivative of the loss along every parameter, exactly.
#[test]
fn backward_of_blocks_is_the_derivative_exactly() {
    let _key = Key(5).enter();
    for place in [(1, false), (2, true)] {
        let run = |at: &Builder<Cpu<Dual<F61>>>| {
            let mut model = Chunk::bare(at, &DROPPING, &one_run(&[0, 3]))?;
            let whole = |p: &mut ops::Param<_>| Ok((p.name().to_string(), p.gather(at.mesh)?.unwrap()));
            let start = model.params().into_iter().map(whole).collect::<Result<Trace<_>, Error>>()?;
            Ok([start, of_blocks(at, &DROPPING, WHOLE)?].concat())
        };
        let mut start = under(place, run).remove(0);
        let mut trace = start.split_off(start.len() / 2 - 2);
        let gradients = trace.split_off(5);
        let moved = trace[2..].iter().fold(F61::ZERO, |sum, (_, loss)| sum + loss[0].tangent);
        let along = |((name, w), (of, g)): (&(String, Vec<Dual<F61>>), &(String, Vec<Dual<F61>>))| {
            assert_eq!(name, of);
            w.iter().zip(g).fold(F61::ZERO, |sum, (w, g)| sum + g.value * w.tangent)
        };
        let sum = start.iter().zip(&gradients).map(along).fold(F61::ZERO, |a, b| a + b);
        assert_eq!((moved, start.len()), (sum, gradients.len()), "{place:?}");
        assert_ne!(moved, F61::ZERO);
    }
}

/// `Meta` tells the bytes, operations and traffic that are measured; of a rank's own tokens the loss is
/// summed by one number.
#[test]
fn blocks_cost_what_is_priced() {
    for (ranks, regions) in [(1, false), (2, false), (2, true)] {
        let axes = [(Axis::Tp, ranks)];
        let measure = |device: Cpu<f32>, mesh: Mesh<_>| {
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            of_blocks(&if regions { at.in_regions() } else { at }, &DROPPING, WHOLE)?;
            Ok::<_, Error>((device.meter().peaks_of_all(), device.meter().flops(), mesh.ledger()))
        };
        for (rank, measured) in World::threads(&axes).unwrap().run(measure).unwrap().into_iter().enumerate() {
            let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::ghost(&axes, rank).unwrap());
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            of_blocks(&if regions { at.in_regions() } else { at }, &DROPPING, WHOLE).unwrap();
            let priced = (device.meter().peaks_of_all(), device.meter().flops(), mesh.ledger());
            assert_eq!(priced, measured, "rank {rank} of {ranks}, regions {regions}");
            let summed = measured.2.get(Axis::Tp, comm::Op::AllReduce);
            let gains = 2 * SHAPE.blocks * SHAPE.width;
            assert!(!regions || summed.elements == 3 + gains, "three losses, and gains");
        }
    }
}
