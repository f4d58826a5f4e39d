//! Profiles of traces that are written here by hand.
use super::*;
use comm::TimeUse;

fn at(what: TimeUse, from: u64, to: u64) -> Event {
    Event { what, from: Duration::from_nanos(from), to: Duration::from_nanos(to) }
}
fn span(name: &str, from: u64, to: u64) -> Event {
    at(TimeUse::Span(name.into()), from, to)
}
fn layer(name: &str, pass: Direction, from: u64, to: u64) -> Event {
    at(TimeUse::Layer { name: name.into(), pass }, from, to)
}
fn kernel(kind: KernelKind, flops: u64, from: u64, to: u64) -> Event {
    at(TimeUse::Kernel { name: "any", kind, flops }, from, to)
}
fn call(from: u64, to: u64) -> Event {
    let (over, place) =
        (comm::Ranks { axes: comm::Axis::Tp.into(), some: None }, std::panic::Location::caller());
    let (op, words) = (comm::Op::AllReduce, String::new());
    let call =
        comm::CallRecord { op, over, shape: [1, 1], bytes: 4, label: None, message: None, at: place, words };
    at(TimeUse::Call(call), from, to)
}

/// A step that was not looked into, two that were, and what lies between.
fn events() -> Vec<Event> {
    let mut all = vec![span("rank 0", 0, 900), span("step 1", 10, 90), at(TimeUse::Compute, 10, 90)];
    for begin in [100, 300] {
        let step = [
            span(&format!("step {}", begin / 100), 0, 150),
            span("forward 0", 0, 60),
            layer("blocks.0", Direction::Forward, 5, 30),
            layer("blocks.0.up", Direction::Forward, 5, 20),
            kernel(KernelKind::Product, 40, 5, 15),
            call(15, 20),
            at(TimeUse::Wait, 16, 19),
            kernel(KernelKind::ElementWise, 0, 22, 25),
            layer("blocks.1.up", Direction::Forward, 30, 50),
            kernel(KernelKind::Product, 20, 30, 40),
            kernel(KernelKind::Norm, 0, 50, 50),
            span("backward 0", 60, 100),
            layer("blocks.1.up", Direction::Backward, 60, 100),
            kernel(KernelKind::Product, 60, 70, 90),
            span("optimizer", 100, 140),
            kernel(KernelKind::Optimizer, 0, 100, 140),
            at(TimeUse::Compute, 140, 150),
        ];
        let by = Duration::from_nanos(begin);
        all.extend(step.into_iter().map(|e| Event { from: e.from + by, to: e.to + by, ..e }));
        all.push(kernel(KernelKind::Product, 1000, begin + 160, begin + 170)); // of no step
    }
    all
}

fn profile() -> RankProfile {
    RankProfile::of(&events())
}

/// Kills: time that is counted twice, or by no row; a step of which no profile was taken; work between steps;
/// waiting that is also moving; operations that are divided by other kernels' time.
#[test]
fn each_nanosecond_of_a_step_is_of_one_kind() {
    let all = profile();
    assert_eq!((all.steps, all.time.as_nanos()), (2, 300));
    let reported: Vec<_> =
        all.kinds.iter().map(|(kind, sum)| (kind.name(), sum.time.as_nanos(), sum.calls)).collect();
    let expected = [
        ("product", 80, 6),
        ("attention", 0, 0),
        ("norm", 0, 2),
        ("element-wise", 6, 2),
        ("embedding and loss", 0, 0),
        ("optimizer", 80, 2),
        ("collective", 4, 2),
        ("wait", 6, 2),
        ("other", 124, 0),
    ];
    assert_eq!(reported, expected);
    assert_eq!(all.kinds.iter().map(|(_, sum)| sum.time).sum::<Duration>(), all.time);
    assert_eq!(all.kinds[0].1.gflops(), Some(3.0)); // 120 operations in 40 ns, in each step
    assert_eq!(all.kinds[3].1.gflops(), None);
}

/// Kills: a layer that has the time of those within, blocks in rows of their own, passes in one row, passes
/// that are counted as kernels are, time between layers that is in no row.
#[test]
fn each_nanosecond_of_a_step_is_of_one_layer() {
    let all = profile();
    let reported: Vec<_> = all
        .layers
        .iter()
        .map(|row| (&*row.name, row.pass, row.layers, row.sum.time.as_nanos(), row.sum.calls))
        .collect();
    let (forward, backward) = (Some(Direction::Forward), Some(Direction::Backward));
    let expected = [
        ("blocks.*", forward, 1, 20, 2),
        ("blocks.*.up", forward, 2, 70, 4),
        ("blocks.*.up", backward, 1, 80, 2),
        ("step *", None, 0, 20, 2),
        ("forward *", None, 0, 30, 2),
        ("backward *", None, 0, 0, 2),
        ("optimizer", None, 0, 80, 2),
    ];
    assert_eq!(reported, expected);
    assert_eq!(all.layers.iter().map(|row| row.sum.time).sum::<Duration>(), all.time);
    assert_eq!(all.layers[1].sum.gflops(), Some(3.0)); // 60 operations in 20 ns
}

/// Kills: a sum of ranks where a mean is meant, shares of another rank's step, a row that only one rank has.
#[test]
fn together_ranks_have_the_mean() {
    let (one, mut other) = (profile(), profile());
    other.time *= 3;
    other.kinds[0].1.time *= 3;
    let own = LayerTime { name: "own".into(), ..other.layers[0].clone() };
    other.layers.push(own.clone());
    let all = RankProfile::together(&[one.clone(), other.clone()]);
    assert_eq!((one.ms(), all.ms(), other.ms()), (150e-6, 300e-6, 450e-6));
    let row = all.row(&all.kinds[0].1, Some(6.0));
    assert_eq!((row.ms, row.calls, row.gflops, row.of_peak), (80e-6, 3.0, Some(3.0), Some(0.5)));
    assert!((row.share - 80.0 / 300.0).abs() < 1e-12);
    assert_eq!(all.layers.last(), Some(&own));
    assert!(one.layer(&own).is_none() && other.layer(&own).is_some());
}

#[test]
fn a_run_without_profiles_is_told() {
    let run = TraceRun { name: "training under none".into(), ranks: vec![events()[..3].to_vec()] };
    assert_eq!(of(&run, &Network::default()).unwrap_err().why, "training under none has no profiled step");
}
