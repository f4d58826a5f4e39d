//! Random collectives in random worlds with a rank that fails at a random call: every run ends, and names that rank.
use crate::{Axis, CommError, Group, Mesh, Reduce, World};
use std::time::{Duration, Instant};
use tensor::{Category, Cpu, F61, Scalar, Tensor, mix};

const CALLS: u64 = 24;

/// How a rank may fail in the middle of a run.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Error,
    Panic,
    Poison,
    Ends,
    OtherCall,
    OtherAxis,
    OtherBlocks,
}
const FAULTS: [Fault; 7] = [
    Fault::Error,
    Fault::Panic,
    Fault::Poison,
    Fault::Ends,
    Fault::OtherCall,
    Fault::OtherAxis,
    Fault::OtherBlocks,
];

fn filled(device: &Cpu<F61>, rows: usize, cols: usize, value: F61) -> Tensor<Cpu<F61>> {
    Tensor::from_fn(device, Category::Buffers, rows, cols, |_| value)
}
fn holds(x: &Tensor<Cpu<F61>>, value: usize) {
    assert!(x.read().unwrap().into_iter().all(|element| element == F61::from_usize(value)));
}

/// The call that `draw` stands for; the same on all ranks of the group. All but the culprit bring ones.
fn act(device: &Cpu<F61>, group: &Group<Cpu<F61>>, draw: u64, value: F61) -> Result<(), CommError> {
    let (n, cols) = (group.size(), mix(draw) as usize % 70);
    let mut x = filled(device, n, cols, value);
    match draw % 6 {
        0 => {
            group.all_reduce(&mut x, Reduce::Sum)?;
            holds(&x, n);
        }
        1 => holds(&group.all_gather(&x)?, 1),
        2 => holds(&group.reduce_scatter(&x)?, n),
        3 => group.broadcast(&mut x, draw as usize / 8 % n)?,
        4 => group.barrier()?,
        _ if n == 1 => {}
        _ => {
            // Round the ring; the first rank sends first, so that there is a beginning.
            let (before, next) = ((group.rank() + n - 1) % n, (group.rank() + 1) % n);
            if group.rank() == 0 {
                group.send(next, &x)?;
            }
            holds(&group.receive(device, before, n, cols)?, 1);
            if group.rank() != 0 {
                group.send(next, &x)?;
            }
        }
    }
    Ok(())
}

/// The group along an axis, or its blocks of a size that `draw` stands for.
fn group(mesh: &Mesh<Cpu<F61>>, axis: Axis, draw: usize) -> Group<Cpu<F61>> {
    let group = mesh.group(axis);
    let sizes: Vec<_> = (1..=group.size()).filter(|&size| group.size().is_multiple_of(size)).collect();
    group.blocks(sizes[draw % sizes.len()]).unwrap()
}

fn fail(fault: Fault, device: &Cpu<F61>, mesh: &Mesh<Cpu<F61>>, axis: Axis, draw: u64) -> Result<(), String> {
    let other = Axis::ALL.iter().copied().find(|&other| other != axis).expect("two axes");
    let wrong = |axis, size| {
        group(mesh, axis, size).named("the culprit").all_gather(&filled(device, 77, 1, F61::ONE)).map(drop)
    };
    let size = draw as usize / 64;
    let told = match fault {
        Fault::Error => return Err("the culprit".into()),
        Fault::Panic => panic!("the culprit"),
        Fault::Poison => act(device, &group(mesh, axis, size), draw, F61::NEG_INF),
        Fault::Ends => Ok(()),
        Fault::OtherCall => wrong(axis, size),
        Fault::OtherAxis => wrong(other, size),
        Fault::OtherBlocks => wrong(axis, size + 1),
    };
    told.map_err(|error| error.to_string())
}

/// One world; what became of it.
fn run(seed: u64) {
    let draw = |what: u64, below: u64| mix(seed ^ mix(what)) % below;
    let sizes = [(Axis::Dp, 1 + draw(1, 3) as usize), (Axis::Tp, 2 + draw(2, 3) as usize)];
    let world = World::threads(&sizes).unwrap().limit(Duration::from_secs(10));
    let (culprit, at) = (draw(3, world.size() as u64) as usize, draw(4, CALLS));
    let fault = (draw(5, 4) > 0).then(|| FAULTS[draw(6, FAULTS.len() as u64) as usize]);
    let outcome = world.run(|device: Cpu<F61>, mesh| {
        for call in 0..CALLS {
            let axis = if draw(100 + call, 2) == 0 { Axis::Dp } else { Axis::Tp };
            let what = draw(200 + call, 1 << 20);
            if let Some(fault) = fault.filter(|_| (mesh.rank(), call) == (culprit, at)) {
                return fail(fault, &device, &mesh, axis, what);
            }
            let told = act(&device, &group(&mesh, axis, what as usize / 64), what, F61::ONE);
            told.map_err(|error| error.to_string())?;
        }
        Ok(())
    });
    let told = outcome.as_ref().map_or_else(ToString::to_string, |_| "nothing".to_string());
    let good = match fault {
        None => outcome.is_ok(),
        Some(Fault::Error) => told == format!("rank {culprit}: the culprit"),
        Some(Fault::Panic) => {
            told.starts_with(&format!("rank {culprit}: ")) && told.ends_with(": the culprit")
        }
        // Then the culprit ends without an error; if nobody called again, it was seen by nobody.
        _ if told.contains(&format!("rank {culprit} has finished")) || outcome.is_ok() => true,
        Some(Fault::Ends) => false,
        Some(Fault::Poison) => told.contains("panicked at"), // in the arithmetic of a peer, or in its check
        Some(Fault::OtherCall | Fault::OtherAxis | Fault::OtherBlocks) => told.contains("for the culprit at"),
    };
    assert!(good, "seed {seed}, {sizes:?}, {fault:?} of rank {culprit} at call {at}: {told}");
}

/// Kills: a lost wake, a ring seen that is none, a failure that reaches not everyone, an echo reported as the cause.
#[test]
fn every_run_ends_and_names_the_culprit() {
    let started = Instant::now();
    for seed in 0.. {
        run(seed);
        if started.elapsed() > Duration::from_millis(400) {
            break;
        }
    }
}
