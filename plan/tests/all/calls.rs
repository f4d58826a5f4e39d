//! The time of calls and of stages, beside a second computation by hand.
use crate::{KERNEL, job, machine, small};
use comm::{Axis, Reduce, Tag};
use kernels::Meta;
use parallel::{BuildContext, Layout, Result, session};
use plan::machine::{KernelRates, Sourced};
use plan::step::{KnownPrices, TrainingJob};
use plan::{Machine, StepClock};
use std::sync::Arc;
use tensor::{Bf16, Category, Clock, Cpu, KernelWork, Scalar, Tensor};

/// A machine whose nodes have `node` ranks, with these latencies and bandwidths within and between them.
fn two_levels(node: usize, latencies: [f64; 2], bandwidths: [f64; 2]) -> Machine {
    let known = |value| Sourced { value, source: "by hand".into() };
    let mut machine = machine();
    machine.levels.truncate(2);
    for (i, level) in machine.levels.iter_mut().enumerate() {
        level.operations.clear();
        (level.latency, level.bandwidth) = (known(latencies[i]), known(bandwidths[i]));
    }
    machine.levels[0].ranks = Some(node);
    machine.levels[1].ranks = None;
    machine
}

type Program = fn(&BuildContext<Meta<Bf16>>, Tensor<Meta<Bf16>>) -> Result<()>;

/// Seconds of a call over `ranks` data ranks, and the bytes that a rank sends.
fn taken(machine: &Machine, ranks: usize, call: Program) -> (f64, f64) {
    let (clock, layout) =
        (StepClock::new(&Arc::new(machine.clone()), ranks), Layout::new(&[(Axis::Dp, ranks)]));
    let program = |at: BuildContext<Meta<Bf16>>| {
        let x = Tensor::from_fn(at.device, Category::Weights, 8 * ranks, 64, |_| Bf16::ZERO);
        clock.lap();
        call(&at, x)
    };
    session::timed::<Cpu<Bf16>, _>(&layout.unwrap(), (0, None), Some(clock.of_rank()), program).unwrap();
    let lap = clock.lap();
    (lap.seconds, lap.sent as f64)
}

const ALL_REDUCE: Program = |at, mut x| Ok(at.mesh.group(Axis::Dp).all_reduce(&mut x, Reduce::Sum)?);
const ALL_GATHER: Program = |at, x| at.mesh.group(Axis::Dp).all_gather(&x).map(drop).map_err(Into::into);
const ALL_TO_ALL: Program = |at, x| at.mesh.group(Axis::Dp).all_to_all(&x).map(drop).map_err(Into::into);

/// Eight ranks on two nodes of four. A ring has seven steps, of which one crosses nodes; a tree has two steps
/// within a node and one between them. Three ranks on nodes of two are counted as half a node more, where a
/// ring is shorter than a tree. Kills: an all-reduce that is counted once, or always as a ring or a tree; a
/// level whose steps are counted for all ranks; links that carry no bytes side by side; an all-to-all whose
/// parts all leave the node.
#[test]
fn collectives_on_two_levels_take_what_rings_and_trees_take() {
    let near = |(a, _): (f64, f64), b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    let endless = [f64::MAX; 2];
    let waits = two_levels(4, [1.0, 10.0], endless);
    near(taken(&waits, 8, ALL_REDUCE), 2.0 * (2.0 * 1.0 + 1.0 * 10.0));
    near(taken(&waits, 8, ALL_GATHER), 6.0 * 1.0 + 1.0 * 10.0);
    near(taken(&waits, 8, ALL_TO_ALL), 2.0 * 1.0 + 1.0 * 10.0);
    let uneven = two_levels(2, [0.0, 10.0], endless);
    near(taken(&uneven, 3, ALL_REDUCE), 2.0 * 0.5 * 10.0);
    for (call, outside, wide) in
        [(ALL_REDUCE, 1.0, 4.0), (ALL_GATHER, 1.0, 4.0), (ALL_TO_ALL, 4.0 / 7.0, 1.0)]
    {
        let (within, between) = (two_levels(4, [0.0; 2], [1.0, 1e9]), two_levels(4, [0.0; 2], [1e9, 1.0]));
        let of_within = taken(&within, 8, call);
        near(of_within, of_within.1);
        let of_between = taken(&between, 8, call);
        near(of_between, of_between.1 * outside / wide);
    }
}

/// Messages of a ring: each rank sends to the next and receives from the one before at once. Kills: a message
/// that comes only after another is sent; two that are sent side by side over one link.
#[test]
fn a_message_comes_beside_the_one_that_is_sent() {
    let machine = two_levels(4, [1.0; 2], [1e3; 2]);
    let both: Program = |at, x| {
        let group = at.mesh.group(Axis::Dp);
        let [rows, cols] = x.shape();
        let sent = group.start_send(1, x, Tag::new("x", 0))?;
        let come = group.start_receive(at.device, 3, rows, cols, Tag::new("x", 0))?;
        sent.wait()?;
        come.wait()?;
        Ok(())
    };
    let twice: Program = |at, x| {
        let group = at.mesh.group(Axis::Dp);
        let y = Tensor::from_fn(at.device, Category::Weights, 8 * 4, 64, |_| Bf16::ZERO);
        let [first, second] = [(x, 0), (y, 1)].map(|(x, tag)| group.start_send(1, x, Tag::new("x", tag)));
        first?.wait()?;
        second?.wait()?;
        Ok(())
    };
    let (seconds, sent) = taken(&machine, 4, both);
    assert_eq!((seconds, sent), (1.0 + sent / 1e3, 8.0 * 4.0 * 64.0 * 2.0));
    let (seconds, sent) = taken(&machine, 4, twice);
    assert_eq!(seconds, 2.0 * (1.0 + sent / 2e3));
}

/// A kernel computes while it moves bytes. Kills: both times one after the other, or the shorter one; a
/// launch that takes no time.
#[test]
fn a_kernel_takes_its_launch_and_the_longer_of_computing_and_moving() {
    let known = |value| Sourced { value, source: "by hand".into() };
    let rates =
        KernelRates { operations: vec![[1.0, 1e9]], bytes: vec![[1.0, 1e6]], source: "by hand".into() };
    let kernels = [("*".to_string(), rates)].into();
    let machine = Arc::new(Machine { launch: known(0.5), kernels, cores: None, ..machine() });
    let of = |flops, bytes| {
        let clock = StepClock::new(&machine, 1);
        clock.kernel(&KernelWork { flops, bytes, ..KERNEL });
        clock.lap().seconds
    };
    assert_eq!([of(1_000_000_000, 500_000), of(1_000_000_000, 2_000_000), of(0, 0)], [1.5, 2.5, 0.5]);
}

fn priced(job: &TrainingJob, layout: &str, (microbatches, most): (usize, usize)) -> plan::step::StepTime {
    let (layout, machine) = (layout.parse().unwrap(), Arc::new(machine()));
    KnownPrices::default().step::<Cpu<Bf16>>(&layout, job, (microbatches, most), &machine).unwrap()
}

/// Contiguous parts of a sequence: the last of two has three quarters of attention's work. Three sequences:
/// one of two data ranks has two. Kills: the fastest rank that is timed, or the one with the
/// fewest sequences.
#[test]
fn the_slowest_rank_is_timed() {
    // operations of the rank that is timed, times the number of ranks
    let of = |layout, job: &TrainingJob| priced(job, layout, (1, usize::MAX)).flops;
    let long = TrainingJob { seq: 8192, batch_size: 1, ..job() };
    let more = of("cp=2:contiguous", &long) / of("none", &long);
    assert!(more > 1.1, "{more} of the operations");
    let three = TrainingJob { batch_size: 3, ..job() };
    let more = of("dp=2", &three) / of("none", &three);
    assert!((more / (4.0 / 3.0) - 1.0).abs() < 0.01, "{more} of the operations");
}

/// The last stage has the logits of a large vocabulary. Kills: memory that is checked on the first stage
/// alone.
#[test]
fn every_stage_must_fit() {
    let layers::Design::Transformer(shape) = small().design else { panic!("a transformer") };
    let design = layers::Design::Transformer(layers::Shape { vocabulary: 100_000, width: 64, ..shape });
    let job = TrainingJob { design, seq: 512, ..small() };
    let whole = priced(&job, "pp=2:gpipe", (2, usize::MAX));
    assert!(whole.seconds.is_finite());
    let fits = priced(&job, "pp=2:gpipe", (2, whole.peak));
    assert_eq!(fits, whole);
    let less = priced(&job, "pp=2:gpipe", (2, whole.peak - 1));
    assert_eq!((less.seconds, less.peak), (f64::INFINITY, whole.peak));
}

/// Two ranks on one core are half as fast, and two stages of them half as fast again beside each other.
/// Kills: ranks of a stage that are counted twice.
#[test]
fn stages_share_cores_with_each_other_and_within() {
    let machine = Machine { cores: Some(1), ..machine() };
    assert_eq!([machine.slower(2), machine.slower_beside(2, 2)], [2.0, 2.0]);
    assert_eq!(Machine { cores: Some(4), ..machine }.slower_beside(3, 2), 1.5);
}
