mod padding;

use super::*;
use crate::Shape;
use comm::{Axis, Mesh, Op, World};
use ops::{Draw, Error, ParamValues, Partial, Pass, Pieces, RandomValues, ValueSource};
use tensor::{Category, Cpu, Device, Dual, F16, F61, IGNORED, Key, Real, Scalar};

/// The logits of a head.
fn logits<D: Kernels>(head: &Head<D>, cx: &PassContext<D>, x: Stream<D>) -> Result<Tensor<D>> {
    let (Some(Output::Logits(logits)), _) =
        head.forward(cx, (x, Some(StageRequest::Logits { all: true })))?
    else {
        panic!("logits are wanted")
    };
    Ok(logits)
}

/// Its loss, and what it keeps.
type Lost<D> = (Partial<<D as Kernels>::Wide>, <Head<D> as Layer<D>>::Saved);

fn loss<D: Kernels>(
    head: &Head<D>,
    cx: &PassContext<D>,
    x: Stream<D>,
    targets: Targets<D>,
) -> Result<Lost<D>> {
    let (Some(Output::Loss(loss)), saved) = head.forward(cx, (x, Some(StageRequest::Loss(targets))))? else {
        panic!("a loss is wanted")
    };
    Ok((loss, saved))
}

const D: usize = 5;
const V: usize = 12;
const TARGETS: [u32; 4] = [0, 11, 5, 6];
const SOME: [u32; 4] = [IGNORED, 9, IGNORED, 2];
const MEAN_OVER: usize = 7; // more than these tokens: other microbatches have some

/// A head under proof.
#[derive(Clone, Copy, Debug)]
struct Case {
    tied: bool,
    vocabulary: usize,
    loss: Objective,
    targets: [u32; 4],
    regions: bool,
}
const PLAIN: Case = Case {
    tied: false,
    vocabulary: V,
    loss: Objective { smoothing: 0.0, z: 0.0 },
    targets: TARGETS,
    regions: false,
};

/// Every kind of head at least once: tied or not, with padding, smoothed, with z-loss, with targets that are
/// ignored.
fn cases() -> Vec<Case> {
    let loss = Objective { smoothing: 0.1, z: 1e-2 };
    vec![
        PLAIN,
        Case { tied: true, ..PLAIN },
        Case { vocabulary: 13, loss, targets: SOME, ..PLAIN },
        Case { vocabulary: 14, tied: true, loss: Objective { smoothing: 0.0, ..loss }, ..PLAIN },
        Case { regions: true, ..PLAIN },
        Case { vocabulary: 13, tied: true, loss, targets: SOME, regions: true },
    ]
}

/// Whole tensors by name, in program order.
type Trace<S> = Vec<(&'static str, Vec<S>)>;

/// Two microbatches of the same head, and the gradients they sum up to.
fn run<S: Scalar<Wide = S>>(device: &Cpu<S>, mesh: &Mesh<tensor::Host>, case: Case) -> Result<Trace<S>>
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host, Wide = Cpu<S>>,
{
    let Case { tied, vocabulary, loss, targets, regions } = case;
    let at = Builder::new(device, mesh, &RandomValues { seed: 3 });
    let at = if regions { at.in_regions() } else { at };
    let tp = mesh.group(Axis::Tp);
    let shape = Shape { width: D, vocabulary, tied, loss, ..Shape::LLAMA };
    let mut head = Head::shard(&at, &strategy::Head::of(Axis::Tp, &shape))?;
    let draw = Draw { mean: 0.0, std: 1.0 };
    let table = RowWeight::new(&at, Axis::Tp, "table", [vocabulary, D], Pieces::Padded, draw)?;
    head.table().map(|place| place.insert(table));
    let mut trace = Trace::new();
    let whole = |t: &Tensor<Cpu<S>>| t.read().expect("the host has values");
    let before = mesh.ledger();
    for microbatch in 0..2u64 {
        let cx = PassContext::train(microbatch as usize, [3, 1], MEAN_OVER);
        let draw = |i: usize| S::sample(microbatch * 100 + i as u64, 1.0);
        let x = Tensor::from_fn(device, Category::Activations, 4, D, draw);
        trace.push(("X", whole(&x)));
        let x = Stream::cut(&x, at.region);
        trace.push(("logits", whole(&logits(&head, &cx, x.clone())?)));
        let targets = Targets::Ids(TokenIds::targets(device.place(), &targets, vocabulary)?);
        let (loss, saved) = self::loss(&head, &cx, x, targets)?;
        trace.push(("loss", whole(&loss.all_reduce(&mesh.over(comm::Axes::LOSS)?)?)));
        let (dx, _) = head.backward(&cx, saved, None)?;
        trace.push(("dX", whole(&dx.gather(tp)?)));
    }
    let said = mesh.ledger() - &before;
    if mesh.size() > 1 && !regions {
        // Of 4 tokens, twice: one stabiliser, two or three sums, D gradients; gathered logits are not for
        // training.
        let sums = if loss.smoothing == 0.0 { 2 } else { 3 };
        assert_eq!(said.get(Axis::Tp, Op::AllReduce).elements, 2 * 4 * (1 + sums + D));
        let share = vocabulary.div_ceil(mesh.size());
        assert_eq!(said.get(Axis::Tp, Op::AllGather).elements, 2 * 4 * share);
    }
    let mut params = crate::Params::new();
    head.params(&mut params);
    let gain = params.remove(0);
    let weight = params.remove(0);
    for (names, param) in [(["gain", "dgain"], gain), (["W", "dW"], weight)] {
        param.sync()?;
        trace.push((names[0], param.gather(mesh)?.expect("values")));
        trace.push((names[1], param.gather_gradient(mesh)?.expect("a gradient")));
    }
    Ok(trace)
}

fn get<S: Clone>(trace: &Trace<S>, name: &str, nth: usize) -> Vec<S> {
    let found = trace.iter().filter(|(n, _)| *n == name).nth(nth);
    found.unwrap_or_else(|| panic!("{name} {nth}")).1.clone()
}

fn transpose<S: Copy>(x: &[S], cols: usize) -> Vec<S> {
    (0..cols).flat_map(|c| (0..x.len() / cols).map(move |r| x[r * cols + c])).collect()
}

/// The oracle's values for one rank's trace.
fn check(trace: &Trace<F61>, case: Case, at: &str) {
    let Case { tied, vocabulary: v, targets, .. } = case;
    let (gain, w) = (get(trace, "gain", 0), get(trace, "W", 0));
    let w = if tied { transpose(&w, D) } else { w };
    let mut sums = (vec![F61::ZERO; D], vec![F61::ZERO; D * v]);
    for microbatch in 0..2 {
        let x = get(trace, "X", microbatch);
        let n = reference::rms_norm(&x, &gain, 1e-5);
        let logits = reference::linear(&n, &w, [D, v]);
        assert_eq!(get(trace, "logits", microbatch), logits, "logits, {at}");
        let loss = reference::cross_entropy(&logits, &targets, v, MEAN_OVER, &case.loss);
        assert_eq!(get(trace, "loss", microbatch), [loss], "loss, {at}");
        let d = reference::cross_entropy_backward(&logits, &targets, v, MEAN_OVER, &case.loss);
        let (dn, dw) = reference::linear_backward(&n, &w, &d, [D, v]);
        let (dx, dgain) = reference::rms_norm_backward(&x, &gain, &dn, 1e-5);
        assert_eq!(get(trace, "dX", microbatch), dx, "dX, {at}");
        sums.0.iter_mut().zip(dgain).for_each(|(sum, g)| *sum += g);
        sums.1.iter_mut().zip(dw).for_each(|(sum, g)| *sum += g);
    }
    let dw = if tied { transpose(&sums.1, v) } else { sums.1 };
    assert_eq!(get(trace, "dgain", 0), sums.0, "{at}");
    assert_eq!(get(trace, "dW", 0), dw, "{at}");
}

/// Kills: a target's logit not reduced, a mask off by one, a mean over the wrong count, a stabiliser that
/// does not cancel, a sum for a stabiliser, a tied gradient lost or turned; padding in a softmax, a smoothing
/// over this rank's part of the vocabulary, an ignored target that counts, z-loss without its gradient.
#[test]
fn head_equals_norm_linear_and_cross_entropy_bit_for_bit() {
    let _key = Key(4).enter();
    for (case, ranks) in cases().into_iter().flat_map(|case| [1, 2, 3, 4, 8].map(|n| (case, n))) {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let traces = world.run::<Cpu<F61>, _, Error>(|device, mesh| run(&device, &mesh, case)).unwrap();
        for (rank, trace) in traces.iter().enumerate() {
            check(trace, case, &format!("{case:?}, rank {rank} of {ranks}"));
        }
    }
}

/// The hand-written backward is the loss' derivative, exactly.
#[test]
fn head_backward_is_the_derivative_exactly() {
    let _key = Key(5).enter();
    for (case, ranks) in cases().into_iter().flat_map(|case| [1, 2].map(|n| (case, n))) {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let run = |device, mesh| run(&device, &mesh, case);
        let trace = world.run::<Cpu<Dual<F61>>, _, Error>(run).unwrap().swap_remove(0);
        let along = |gradient: &str, moving: &str, nth: usize| {
            let pairs = get(&trace, gradient, nth).into_iter().zip(get(&trace, moving, nth));
            pairs.fold(F61::ZERO, |sum, (g, m)| sum + g.value * m.tangent)
        };
        let moved = get(&trace, "loss", 0)[0].tangent + get(&trace, "loss", 1)[0].tangent;
        let sum = along("dX", "X", 0) + along("dX", "X", 1) + along("dgain", "gain", 0);
        assert_eq!(moved, sum + along("dW", "W", 0), "{case:?}, {ranks} ranks");
        assert_ne!(moved, F61::ZERO);
    }
}

/// 2 tokens, a vocabulary of 13 over 4 ranks, 4 columns on each with padding: a rank's share of W[5, 13]
/// takes 5·4·4 = 80 bytes, the gain 20, the logits of its columns 2·4·4 = 32, all that are gathered 2·13·4 =
/// 104.
fn padded_bytes<D: Kernels<Elem = f32, Wide = D> + Default>(mesh: &Mesh<D::Place>, tied: bool) -> Result<()> {
    let (device, shape) = (D::default(), Shape { width: 5, vocabulary: 13, tied, ..Shape::LLAMA });
    let values = RandomValues { seed: 3 };
    let at = Builder::new(&device, mesh, &values);
    let mut head = Head::shard(&at, &strategy::Head::of(Axis::Tp, &shape))?;
    let draw = Draw { mean: 0.0, std: 1.0 };
    if let Some(place) = head.table() {
        *place = Some(RowWeight::new(&at, Axis::Tp, "table", [13, 5], Pieces::Padded, draw)?);
    }
    assert_eq!(device.meter().now(Category::Weights), 80 + 20);
    let x = Tensor::from_fn(&device, Category::Weights, 2, 5, |i| i as f32);
    let before = mesh.ledger();
    let logits = logits(&head, &PassContext::infer([2]), x.into())?;
    let peaks = device.meter().peaks_of_all().category;
    assert_eq!((logits.shape(), peaks[Category::Buffers as usize]), ([2, 13], 104));
    let said = (mesh.ledger() - &before).get(Axis::Tp, Op::AllGather);
    assert_eq!((said.payload, said.bytes), (32, 3 * 32));
    Ok(())
}

/// Kills: room for a whole table, or for logits of padding; a share too small where the ranks do not divide.
#[test]
fn a_padded_vocabulary_takes_the_bytes_that_are_worked_out_by_hand() {
    let sizes = [(Axis::Tp, 4)];
    for tied in [false, true] {
        World::threads(&sizes)
            .unwrap()
            .run(|_: Cpu<f32>, mesh| padded_bytes::<Cpu<f32>>(&mesh, tied))
            .unwrap();
        for rank in 0..4 {
            padded_bytes::<kernels::Meta<f32>>(&Mesh::ghost(&sizes, rank).unwrap(), tied).unwrap();
        }
    }
}

/// Kills: a text judged by what training adds to its loss.
#[test]
fn without_a_backward_to_follow_the_loss_is_cross_entropy_alone() {
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 3 });
    let loss = |loss, cx: PassContext<Cpu<f64>>| {
        let shape = Shape { width: D, vocabulary: V, loss, ..Shape::LLAMA };
        let head = Head::shard(&at, &strategy::Head::of(Axis::Tp, &shape))?;
        let x = Tensor::from_fn(&device, Category::Activations, 4, D, |i| f64::sample(i as u64, 1.0));
        let targets = Targets::Ids(TokenIds::targets(device.place(), &TARGETS, V)?);
        let (loss, _) = self::loss(&head, &cx, x.into(), targets)?;
        Ok::<_, Error>(loss.all_reduce(&mesh.over(comm::Axes::LOSS)?)?.read().unwrap()[0])
    };
    let judges =
        || PassContext::default().then(Pass { mean_over: kernels::MeanOver::of(4), ..Pass::default() }, [4]);
    let more = Objective { smoothing: 0.1, z: 0.1 };
    let [plain, judged] = [PLAIN.loss, more].map(|objective| loss(objective, judges()).unwrap());
    assert_eq!((plain, loss(PLAIN.loss, PassContext::train(0, [4], 4)).unwrap()), (judged, plain));
    assert_ne!(loss(more, PassContext::train(0, [4], 4)).unwrap(), plain);
}

/// Kills: 0/0 where no target counts.
#[test]
fn all_ignored_is_no_loss_and_no_gradient() {
    let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 3 });
    let shape = Shape { width: D, vocabulary: V, loss: Objective { smoothing: 0.1, z: 0.1 }, ..Shape::LLAMA };
    let mut head = Head::shard(&at, &strategy::Head::of(Axis::Tp, &shape)).unwrap();
    let x = Tensor::from_fn(&device, Category::Activations, 2, D, |i| i as f32);
    let targets = Targets::Ids(TokenIds::targets(device.place(), &[IGNORED; 2], V).unwrap());
    let cx = PassContext::train(0, [2], 0);
    let (loss, saved) = self::loss(&head, &cx, x.into(), targets).unwrap();
    assert_eq!(loss.all_reduce(&mesh.over(comm::Axes::LOSS).unwrap()).unwrap().read().unwrap(), [0.0]);
    let ((dx, _), _) = head.backward_input(&cx, saved, None).unwrap();
    assert_eq!(dx.gather(mesh.group(Axis::Tp)).unwrap().read().unwrap(), [0.0; 2 * D]);
}

/// Weights as f32 holds them; the head's are so large that logits reach beyond ±200.
struct Loud;
impl<S: Scalar> ValueSource<S> for Loud {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, S>> {
        static RANDOM: RandomValues = RandomValues { seed: 3 };
        let (numbers, by): (ParamValues<f32>, _) =
            (RANDOM.of(name, shape, draw)?, if name == "head" { 200.0 } else { 1.0 });
        Ok(numbers.map(move |_, x| S::from_f64(f64::from(by * x))))
    }
}

/// Logits, loss, dX and dW.
fn loud<S: Real<Wide = S>>(ranks: usize) -> [Vec<f64>; 4]
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host, Wide = Cpu<S>>,
{
    let run = |device: Cpu<S>, mesh: Mesh<_>| {
        let shape =
            Shape { width: D, vocabulary: 13, loss: Objective { smoothing: 0.1, z: 1e-3 }, ..Shape::LLAMA };
        let mut head =
            Head::shard(&Builder::new(&device, &mesh, &Loud), &strategy::Head::of(Axis::Tp, &shape))?;
        let draw = |i: usize| S::from_f64(f64::from(f32::sample(i as u64, 1.0)));
        let x = || Tensor::from_fn(&device, Category::Activations, 4, D, draw).into();
        let cx = PassContext::train(0, [4], 4);
        let logits = logits(&head, &cx, x())?.read();
        let targets = Targets::Ids(TokenIds::targets(device.place(), &TARGETS, 13)?);
        let (loss, saved) = loss(&head, &cx, x(), targets)?;
        let (dx, _) = head.backward(&cx, saved, None)?;
        let mut params = crate::Params::new();
        head.params(&mut params);
        let loss = loss.all_reduce(&mesh.over(comm::Axes::LOSS)?)?.read();
        let all = [logits, loss, dx.gather(mesh.group(Axis::Tp))?.read(), params[1].gather_gradient(&mesh)?];
        Ok::<_, Error>(all.map(|x| x.expect("values").into_iter().map(Real::to_f64).collect()))
    };
    World::threads(&[(Axis::Tp, ranks)]).unwrap().run(run).unwrap().swap_remove(0)
}

/// The field cannot see a stabiliser that is missing, since any cancels; e^200 overflows f32. Kills: a
/// stabiliser of 0, one that is this rank's own, one that takes the sum for the largest, padding's 0 among
/// logits that are all low.
#[test]
fn logits_of_two_hundred_do_not_overflow_on_any_rank() {
    let (truth, alone) = (loud::<f64>(1), loud::<f32>(1));
    let largest = truth[0].iter().fold(0.0f64, |m, x| m.max(x.abs()));
    assert!(largest > 200.0 && truth[1][0] > 20.0, "logits to {largest}, a loss of {}", truth[1][0]);
    let error = |x: &[f64], t: &[f64]| x.iter().zip(t).fold(0.0f64, |e, (x, t)| e.max((x - t).abs()));
    for ranks in [1, 2, 3, 4, 8] {
        for ((x, own), t) in loud::<f32>(ranks).iter().zip(&alone).zip(&truth) {
            let size = t.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let bound = 4.0 * error(own, t) + 4.0 * f64::from(f32::EPSILON) * size;
            assert!(
                x.iter().all(|x| x.is_finite()) && error(x, t) <= bound.min(1e-4 * size),
                "{ranks} ranks: {x:?}"
            );
        }
    }
}

/// Gradient of the input of a head whose loss is a mean over 2^26 targets, multiplied by a loss scale
/// and divided by it.
fn faint<D: Kernels<Place = tensor::Host, Elem: Real> + Default>(log2: u32) -> Vec<f64> {
    let (device, mesh) = (D::default(), Mesh::alone());
    let values = RandomValues { seed: 3 };
    let shape = Shape { width: self::D, vocabulary: V, ..Shape::LLAMA };
    let at = Builder::new(&device, &mesh, &values);
    let mut head = Head::shard(&at, &strategy::Head::of(Axis::Tp, &shape)).unwrap();
    let draw = |i: usize| D::Elem::from_f64(f64::from(f32::sample(i as u64, 1.0)));
    let x = Tensor::from_fn(&device, Category::Activations, 4, self::D, draw);
    let targets = Targets::Ids(TokenIds::targets(device.place(), &TARGETS, V).unwrap());
    let mean_over = kernels::MeanOver { targets: 1 << 26, log2 };
    let pass = Pass { learns: true, keeps: true, mean_over, ..Pass::default() };
    let cx = PassContext::default().then(pass, [4]);
    let (_, saved) = loss(&head, &cx, x.into(), targets).unwrap();
    let (dx, _) = head.backward(&cx, saved, None).unwrap();
    let dx = dx.gather(mesh.group(Axis::Tp)).unwrap().read().unwrap();
    dx.into_iter().map(|x| x.to_f64() / f64::from(1 << log2)).collect()
}

/// Kills: a gradient of the logits that is scaled after it was rounded, or not at all.
#[test]
fn gradients_that_f16_cannot_hold_need_a_loss_scale() {
    let truth = faint::<Cpu<f32>>(0);
    let error = |seen: Vec<f64>| -> f64 {
        seen.iter().zip(&truth).map(|(seen, truth)| (seen - truth).abs()).fold(0.0, f64::max)
    };
    let largest = error(vec![0.0; truth.len()]);
    let [alone, scaled] = [0, 24].map(|log2| error(faint::<Cpu<F16>>(log2)) / largest);
    assert!(alone == 1.0 && scaled < 0.01, "{alone} {scaled}");
    assert_eq!(faint::<Cpu<f32>>(24), truth);
}
