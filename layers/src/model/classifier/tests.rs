mod hidden;
mod stages;

use super::*;
use crate::{Design, Half};
use comm::{Ledger, Mesh, Op, World};
use ops::{Draw, Error, Keeper, Optimizer, ParamValues, Pass, RandomValues, SGD, ValueSource};
use stages::Model;
use std::collections::BTreeMap;
use tensor::{Category, Cpu, Device, Dual, F61, Key, Phase, Real, Scalar, Tensor, TokenIds, mix};

/// One, two, three and four layers. Features that must be shared are divided by every number of ranks here;
/// those that need not be are not, nor are the classes: of 13 and 10, some of eight ranks have none.
const SIZES: [&[usize]; 4] = [&[5, 13], &[5, 24, 10], &[5, 24, 7, 10], &[5, 24, 48, 7, 11]];
const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
const ROWS: [usize; 2] = [5, 2];
const STEPS: usize = 2;

/// Whole tensors by name.
type Trace<S> = BTreeMap<String, Vec<S>>;
/// The features and labels of a step's microbatches.
type Given<S> = Vec<(Vec<S>, Vec<u32>)>;

fn given<S: Scalar>(sizes: &[usize], step: usize) -> Given<S> {
    let (inputs, classes) = (sizes[0], sizes[sizes.len() - 1] as u64);
    let microbatch = |(m, rows): (usize, usize)| {
        let draw = |i: usize| mix(mix((step * 2 + m) as u64) ^ i as u64);
        let x = (0..rows * inputs).map(|i| S::sample(draw(i), 1.0)).collect();
        (x, (0..rows).map(|i| (draw(i) % classes) as u32).collect())
    };
    ROWS.into_iter().enumerate().map(microbatch).collect()
}

/// Results of one rank: weights before; losses, logits, gradients and new weights; the traffic of the first
/// step.
struct Seen<S> {
    start: Trace<S>,
    trace: Trace<S>,
    traffic: Ledger,
}

/// Two steps of two microbatches, both in flight at once, with plain descent of rate 1.
fn run<D: Kernels<Wide = D>>(
    device: &D,
    mesh: &Mesh<D::Place>,
    (sizes, regions): (&[usize], bool),
    given: &dyn Fn(usize) -> Given<D::Elem>,
) -> Result<Seen<D::Elem>> {
    run_cut(device, mesh, (sizes, regions), (&[0, sizes.len() - 1], Half::Both), given)
}

/// The same in stages, with the weight halves at once or later.
fn run_cut<D: Kernels<Wide = D>>(
    device: &D,
    mesh: &Mesh<D::Place>,
    (sizes, regions): (&[usize], bool),
    (cuts, half): (&[usize], Half),
    given: &dyn Fn(usize) -> Given<D::Elem>,
) -> Result<Seen<D::Elem>> {
    let at = Builder::new(device, mesh, &RandomValues { seed: 9 });
    let at = if regions { at.in_regions() } else { at };
    let mut model = Model::cut(&at, sizes, cuts)?;
    let mut optimizer = Optimizer::new(SGD, None);
    let whole = |x: Option<Vec<_>>| x.unwrap_or_default();
    let (mut start, mut trace, mut traffic) = (Trace::new(), Trace::new(), Ledger::default());
    for param in model.params() {
        start.insert(param.name().to_string(), whole(param.gather(mesh)?));
    }
    for step in 0..STEPS {
        let (mut seen, before) = (Vec::new(), mesh.ledger());
        let put = |x: &[D::Elem]| {
            Tensor::from_fn(device, Category::Activations, x.len() / sizes[0], sizes[0], |i| x[i])
        };
        let all = given(step);
        let contexts: Vec<_> = (0..all.len())
            .map(|m| PassContext::train(m, vec![1; all[m].1.len()], ROWS.iter().sum()))
            .collect();
        for (cx, (x, labels)) in contexts.iter().zip(&all) {
            seen.push(model.forward(
                cx,
                put(x),
                TokenIds::new(device.place(), labels, sizes[sizes.len() - 1])?,
            )?);
        }
        contexts.iter().try_for_each(|cx| model.backward(cx, half))?;
        if half == Half::Input {
            let later =
                |(cx, stage): (_, &mut Chunk<_>)| stage.backward_weight(0, cx, &mut Keeper::default(), false);
            contexts
                .iter()
                .try_for_each(|cx| model.0.iter_mut().map(|stage| (cx, stage)).try_for_each(later))?;
        }
        if step == 0 {
            traffic = mesh.ledger() - &before;
        }
        for (m, loss) in seen.into_iter().enumerate() {
            let loss = loss.all_reduce(&mesh.over(comm::Axes::LOSS)?)?;
            trace.insert(format!("step {step}: loss {m}"), whole(loss.read()));
            let cx = PassContext::infer(vec![1; all[m].1.len()]);
            trace
                .insert(format!("step {step}: logits {m}"), whole(model.logits(&cx, put(&all[m].0))?.read()));
        }
        let mut params = model.params();
        for param in &mut params {
            param.sync()?;
            trace.insert(
                format!("step {step}: gradient of {}", param.name()),
                whole(param.gather_gradient(mesh)?),
            );
        }
        optimizer.step(&mut params, mesh, 1.0, &mut Keeper::default())?;
        for param in params {
            trace.insert(format!("step {step}: new {}", param.name()), whole(param.gather(mesh)?));
        }
    }
    Ok(Seen { start, trace, traffic })
}

/// The same from the oracle.
fn truth<S: Scalar>(sizes: &[usize], start: &Trace<S>, given: &dyn Fn(usize) -> Given<S>) -> Trace<S> {
    let (oracle, mut trace) = (reference::Classifier { sizes: sizes.to_vec() }, Trace::new());
    let (shapes, sgd) = (oracle.shapes(), SGD);
    let mut updates = reference::Updates::new(shapes, sgd, None, start.clone());
    for step in 0..STEPS {
        let mut sums: Option<Trace<S>> = None;
        for (m, (x, labels)) in given(step).iter().enumerate() {
            trace.insert(format!("step {step}: logits {m}"), oracle.logits(updates.weights(), x));
            let mut walk = reference::Walk::unseen(updates.weights(), None);
            let (loss, g) = oracle.gradients_recorded(x, labels, ROWS.iter().sum(), &mut walk);
            trace.insert(format!("step {step}: loss {m}"), vec![loss]);
            match &mut sums {
                None => sums = Some(g),
                Some(sums) => sums.iter_mut().for_each(|(name, sum)| {
                    sum.iter_mut().zip(&g[name]).for_each(|(sum, &g)| *sum += g);
                }),
            }
        }
        let sums = sums.expect("two microbatches");
        updates.apply(&sums, 1.0);
        trace.extend(sums.into_iter().map(|(name, g)| (format!("step {step}: gradient of {name}"), g)));
        let new = updates.weights().iter();
        trace.extend(new.map(|(name, w)| (format!("step {step}: new {name}"), w.clone())));
    }
    trace
}

/// Elements of a step on each of several ranks, by operation: what the header says.
fn predicted(sizes: &[usize], ranks: usize, regions: bool) -> BTreeMap<&'static str, usize> {
    let rows: usize = ROWS.iter().sum();
    let share: usize = ROWS.iter().map(|rows| rows.div_ceil(ranks)).sum(); // padding counted
    let (layers, mut own) = (sizes.len() - 1, false); // if a rank has its own examples of a layer's input
    let mut said = BTreeMap::from([("all-reduce", 3 * rows)]);
    let mut say = |op, n| *said.entry(op).or_default() += n;
    for (i, &features) in sizes.iter().enumerate().take(layers).skip(1) {
        let gathered = i == 1 && layers.is_multiple_of(2);
        let after_row = !(layers - i).is_multiple_of(2);
        if gathered {
            say("all-gather", rows * features / ranks);
            own = false;
        } else if !after_row {
            continue; // split, between the layers of a pair
        } else if regions {
            say("reduce-scatter", ranks * share * features); // Y
            say("all-gather", share * features); // dY
            own = true;
        } else {
            say("all-reduce", rows * features); // Y
        }
        if own {
            say("all-gather", 2 * share * features); // X, again for dW
            say("reduce-scatter", ranks * share * features); // dX
        } else {
            say("all-reduce", rows * features); // dX
        }
    }
    said
}

fn elements(ledger: &Ledger) -> BTreeMap<&'static str, usize> {
    let all =
        [("all-reduce", Op::AllReduce), ("all-gather", Op::AllGather), ("reduce-scatter", Op::ReduceScatter)];
    let counted = all.map(|(name, op)| (name, ledger.get(Axis::Tp, op).elements));
    assert_eq!(ledger.iter().count(), counted.iter().filter(|(_, n)| *n > 0).count(), "other traffic");
    counted.into_iter().filter(|(_, n)| *n > 0).collect()
}

/// Kills: a forgotten or doubled reduction, a ReLU lost, doubled or of the wrong side of a bias, another
/// rank's columns, padding among the classes, microbatches mixed up, a mean over one of them, `=` for `+=` on
/// a gradient, logits that are gathered in training, a dX of the examples.
#[test]
fn classifiers_equal_the_oracle_bit_for_bit() {
    for key in [Key(1), Key(1).next()] {
        let _key = key.enter();
        let cases = SIZES.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]);
        for (case, ranks) in cases.flat_map(|case| RANKS.map(|ranks| (case, ranks))) {
            let (sizes, regions) = case;
            let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
            let given = |step| given::<F61>(sizes, step);
            let seen =
                world.run::<Cpu<F61>, _, Error>(|device, mesh| run(&device, &mesh, case, &given)).unwrap();
            let truth = truth(sizes, &seen[0].start, &given);
            for (rank, seen) in seen.iter().enumerate() {
                let at = format!("{sizes:?}, regions {regions}, rank {rank} of {ranks}");
                for (name, want) in &truth {
                    assert!(seen.trace[name] == *want, "{name} differs, {at}");
                }
                assert_eq!(seen.trace.len(), truth.len(), "{at}");
                if ranks > 1 {
                    assert_eq!(elements(&seen.traffic), predicted(sizes, ranks, regions), "{at}");
                }
            }
        }
    }
}

/// The hand-written backward is the derivative of the loss along every parameter, exactly.
#[test]
fn classifier_backward_is_the_derivative_exactly() {
    let _key = Key(5).enter();
    for (sizes, ranks) in SIZES.into_iter().flat_map(|sizes| [1, 2].map(|n| (sizes, n))) {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let still = |(x, labels): (Vec<F61>, _)| (x.into_iter().map(Dual::constant).collect(), labels);
        let given = |step| given(sizes, step).into_iter().map(still).collect();
        let run = |device, mesh| run::<Cpu<Dual<F61>>>(&device, &mesh, (sizes, false), &given);
        let Seen { start, trace, .. } = world.run::<_, _, Error>(run).unwrap().swap_remove(0);
        let moved = (0..2).fold(F61::ZERO, |sum, m| sum + trace[&format!("step 0: loss {m}")][0].tangent);
        let along = |(name, w): (&String, &Vec<Dual<F61>>)| {
            let pairs = trace[&format!("step 0: gradient of {name}")].iter().zip(w);
            pairs.fold(F61::ZERO, |sum, (g, w)| sum + g.value * w.tangent)
        };
        let sum = start.iter().map(along).fold(F61::ZERO, |a, b| a + b);
        assert_eq!(moved, sum, "{sizes:?}, {ranks} ranks");
        assert_ne!(moved, F61::ZERO);
    }
}

/// In f32 a split classifier is as near to the f64 truth as the unsplit one, which is near.
#[test]
fn split_classifiers_round_no_worse_than_whole_ones() {
    for sizes in SIZES {
        let given = |step| given::<f32>(sizes, step);
        let wide = |x: &[f32]| x.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let mut alone = BTreeMap::new();
        for ranks in RANKS {
            let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
            let run = |device: Cpu<f32>, mesh| run(&device, &mesh, (sizes, false), &given);
            let seen = world.run::<_, _, Error>(run).unwrap().swap_remove(0);
            let start = seen.start.iter().map(|(name, w)| (name.clone(), wide(w))).collect();
            let widened = |step| given(step).into_iter().map(|(x, labels)| (wide(&x), labels)).collect();
            for (name, want) in
                truth(sizes, &start, &widened).iter().filter(|(name, _)| name.starts_with("step 0"))
            {
                let pairs = seen.trace[name].iter().zip(want);
                let error = pairs.fold(0.0f64, |e, (a, b)| e.max((a.to_f64() - b).abs()));
                let size = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                if ranks == 1 {
                    assert!(error <= 1e-5 * size, "{name} of {sizes:?} errs by {error:e}, to {size:e}");
                    alone.insert(name.clone(), error);
                }
                let bound = 4.0 * alone[name] + 4.0 * f64::from(f32::EPSILON) * size;
                assert!(error <= bound, "{name} of {sizes:?} on {ranks} ranks errs by {error:e}");
            }
        }
    }
}

/// Weights by hash, and biases that make every logit about −200.
struct Low(RandomValues);
impl ValueSource<f32> for Low {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, f32>> {
        let numbers: ParamValues<f32> = self.0.of(name, shape, draw)?;
        let low = if shape[0] == 1 { -200.0 } else { 0.0 }; // a bias
        Ok(numbers.map(move |_, x| low + x))
    }
}

/// Kills: padding, whose logits are 0, among those that a row is stabilised by: then nothing is left of the
/// others.
#[test]
fn padding_is_no_class_however_low_the_logits_are() {
    let ((x, labels), low) = (given::<f32>(SIZES[0], 0).swap_remove(0), Low(RandomValues { seed: 9 }));
    let loss = |device: Cpu<f32>, mesh: Mesh<_>| {
        let mut model = Model::whole(&Builder::new(&device, &mesh, &low), SIZES[0])?;
        let x = Tensor::from_fn(&device, Category::Activations, 5, 5, |i| x[i]);
        let cx = PassContext::default()
            .then(Pass { mean_over: kernels::MeanOver::of(5), ..Pass::default() }, [1; 5]);
        let loss = model.forward(&cx, x, TokenIds::new(device.place(), &labels, 13)?)?;
        Ok::<_, Error>(loss.all_reduce(&mesh.over(comm::Axes::LOSS)?)?.read().unwrap()[0])
    };
    let losses = [1, 2, 8].map(|ranks| World::threads(&[(Axis::Tp, ranks)]).unwrap().run(loss).unwrap()[0]);
    assert!(losses[0] > 1.0 && losses.iter().all(|l| (l / losses[0] - 1.0).abs() < 1e-4), "{losses:?}");
}

/// `Meta` tells the bytes, operations and traffic that are measured; operations are those of the equations.
#[test]
fn classifiers_cost_what_is_priced() {
    for (sizes, regions) in SIZES.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]) {
        for ranks in RANKS {
            let (axes, given) = ([(Axis::Tp, ranks)], |step| given::<f32>(sizes, step));
            let measure = |device: Cpu<f32>, mesh: Mesh<_>| {
                run(&device, &mesh, (sizes, regions), &given)?;
                Ok::<_, Error>((device.meter().peaks_of_all(), device.meter().flops(), mesh.ledger()))
            };
            let measured = World::threads(&axes).unwrap().run(measure).unwrap();
            for (rank, measured) in measured.into_iter().enumerate() {
                let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::ghost(&axes, rank).unwrap());
                run(&device, &mesh, (sizes, regions), &given).unwrap();
                let priced = (device.meter().peaks_of_all(), device.meter().flops(), mesh.ledger());
                assert_eq!(priced, measured, "{sizes:?}, rank {rank} of {ranks}");
                if ranks == 1 {
                    let weights: usize = sizes.windows(2).map(|s| s[0] * s[1]).sum();
                    let rows = ROWS.iter().sum::<usize>() * STEPS;
                    // Forward twice (with the logits of the trace) and backward twice, but not the examples'
                    // dX.
                    assert_eq!(
                        priced.1 as usize,
                        2 * rows * (4 * weights - sizes[0] * sizes[1]),
                        "{sizes:?}"
                    );
                }
            }
        }
    }
}

/// Inference keeps nothing, and its loss is that of training.
#[test]
fn inference_keeps_nothing_and_gives_the_same_loss() {
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let mut model = Model::whole(&Builder::new(&device, &mesh, &RandomValues { seed: 1 }), SIZES[3]).unwrap();
    let mut loss = |cx: PassContext<_>| {
        let (x, labels) = given::<f64>(SIZES[3], 0).swap_remove(0);
        let x = Tensor::from_fn(&device, Category::Activations, 5, 5, |i| x[i]);
        let loss = model.forward(&cx, x, TokenIds::new(device.place(), &labels, 11).unwrap()).unwrap();
        loss.all_reduce(&mesh.over(comm::Axes::LOSS).unwrap()).unwrap().read().unwrap()
    };
    device.meter().begin(Phase::Inference);
    let inferred = [(); 2].map(|()| {
        loss(
            PassContext::default()
                .then(Pass { mean_over: kernels::MeanOver::of(7), ..Pass::default() }, [1; 5]),
        )
    });
    assert_eq!(device.meter().now(Category::Activations), 0);
    assert_eq!(inferred, [loss(PassContext::train(0, [1; 5], 7)), loss(PassContext::train(1, [1; 5], 7))]);
    assert!(device.meter().now(Category::Activations) > 0);
}

#[test]
fn sizes_that_cannot_be_are_refused_in_one_sentence() {
    let why = |sizes: &[usize], ranks| {
        let build = |device: Cpu<f32>, mesh: Mesh<_>| {
            let values = &RandomValues { seed: 1 };
            Model::whole(&Builder::new(&device, &mesh, values), sizes).map(drop)
        };
        World::threads(&[(Axis::Tp, ranks)]).unwrap().run(build).unwrap_err().reason
    };
    assert_eq!(why(&[4, 6, 8, 2], 4), "tp=4 does not divide the 6 columns of layers.0; tp can be 1, 2, 3, 6");
    assert_eq!(
        why(&[4, 8, 6, 5, 2], 4),
        "tp=4 does not divide the 6 columns of layers.1; tp can be 1, 2, 3, 6"
    );
    let shared = |sizes: &[usize]| Design::Classifier { sizes: sizes.to_vec() }.shared();
    assert_eq!(
        [4, 2, 5, 3].map(|layers| shared(&[1, 2, 3, 4, 5, 6][..=layers])),
        [vec![2, 3], vec![2], vec![2, 4], vec![2]]
    );
    assert!(shared(&[1, 2]).is_empty() && shared(&[1]).is_empty() && shared(&[]).is_empty());
    assert_eq!(why(&[4], 1), "the number of layers is 0; it must be at least 1");
    assert_eq!(why(&[], 1), "the number of layers is 0; it must be at least 1");
    assert_eq!(why(&[4, 0, 2], 1), "size 1 of the classifier is 0; it must be at least 1");
}
