//! Slow links and traces: what takes how long at least, and what a timeline tells.
use super::acts::{ACTS, Bring, Field};
use crate::tag::TAG;
use crate::threads::watch::PATIENT;
use crate::{Axis, CommError, Event, Reduce, Result, TimeUse, Trace, World};
use algorithms::Link;
use std::time::{Duration, Instant};
use tensor::{Category, F61, Scalar, Tensor};

fn tensor(device: &Field, elements: usize) -> Tensor<Field> {
    Tensor::from_fn(device, Category::Buffers, 1, elements, F61::from_usize)
}

/// Kills: a link that is not waited for, by all or by messages, results that it changes.
#[test]
fn calls_over_a_slow_link_take_as_long_as_it_does() {
    let link: Link = "300us,100MB/s".parse().unwrap(); // 10 ns a byte
    let sizes = [(Axis::Dp, 1), (Axis::Tp, 4)];
    let world = World::threads(&sizes).unwrap().link(Axis::Tp, link);
    let ran = world.run(|device: Field, mesh| {
        let (group, rank) = (mesh.group(Axis::Tp), mesh.rank());
        let took = |call: &dyn Fn() -> Result<()>| {
            let from = Instant::now();
            call().map(|()| from.elapsed())
        };
        let sum = |group: &crate::Group<tensor::Host>| {
            let mut x = tensor(&device, 1000);
            group.all_reduce(&mut x, Reduce::Sum)?;
            assert!(x.read().unwrap().into_iter().eq((0..1000).map(|i| F61::from_usize(4 * i))));
            Ok(())
        };
        let direct = took(&|| sum(group))?;
        assert!(direct >= Duration::from_micros(6 * 300 + 2 * 3 * 20), "{direct:?}");
        group.barrier()?;
        let message = took(&|| match rank {
            0 => group.send(1, &tensor(&device, 1000), TAG),
            1 => group.receive(&device, 0, 1, 1000, TAG).map(drop),
            _ => Ok(()),
        })?;
        // Who receives may come when the message is on its way already.
        assert!(rank != 0 || message >= Duration::from_micros(300), "{message:?}");
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Kills: a rank that pauses to the end though another has failed.
#[test]
fn a_failure_ends_a_pause() {
    let (link, from) = (Link::new(PATIENT, 1e9).unwrap(), Instant::now());
    let error = World::threads(&[(Axis::Tp, 2)]).unwrap().link(Axis::Tp, link).run(|device: Field, mesh| {
        let group = mesh.group(Axis::Tp);
        if mesh.rank() == 0 {
            return group.receive(&device, 1, 1, 1, TAG).map(drop).map_err(|error| error.to_string());
        }
        let sent = group.start_send(0, tensor(&device, 1), TAG).map_err(|error| error.to_string())?;
        drop(sent);
        Err("disk on fire".to_string())
    });
    assert_eq!(error.unwrap_err().to_string(), "rank 1: disk on fire");
    assert!(from.elapsed() < PATIENT, "the pause went on to its end");
}

fn calls(events: &[Event]) -> Vec<(&'static str, &str)> {
    let calls = events.iter().filter_map(|event| match &event.what {
        TimeUse::Call(call) => Some((call.op.name(), call.label.as_deref().unwrap_or_default())),
        _ => None,
    });
    calls.collect()
}

/// Kills: a rank without its row, calls left out or in another order, waits outside calls, a failed run
/// without a trace.
#[test]
fn a_trace_shows_what_every_rank_did_when() {
    let trace = Trace::new();
    let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
    let run = |name: &str, fails: bool| {
        world.clone().traced(&trace, name).run(|device: Field, mesh| {
            for (step, (_, act)) in ACTS.iter().enumerate() {
                let _span = mesh.span(format_args!("step {step}"));
                let group = mesh.group(Axis::Tp).named(format!("act {step}"));
                act(&Bring { device: &device, group: &group, rows: 2, root: 0, value: F61::ONE })?;
            }
            if fails && mesh.rank() == 1 { Err(CommError::BadWorld(String::new())) } else { Ok(()) }
        })
    };
    run("good", false).unwrap();
    run("bad", true).unwrap_err();
    let runs = trace.runs();
    assert_eq!(
        runs.iter().map(|run| (run.name.as_str(), run.ranks.len())).collect::<Vec<_>>(),
        [("good", 3), ("bad", 3)]
    );
    for (rank, events) in runs.iter().flat_map(|run| run.ranks.iter().enumerate()) {
        let spans = events.iter().filter(|event| matches!(event.what, TimeUse::Span(_)));
        let names = spans.map(|event| match &event.what {
            TimeUse::Span(name) => name.clone(),
            _ => unreachable!(),
        });
        let steps = (0..ACTS.len()).map(|step| format!("step {step}"));
        assert!(names.eq(std::iter::once(format!("rank {rank}")).chain(steps)));
        for (step, (name, _)) in ACTS.iter().enumerate() {
            let label = format!("act {step}");
            let mut made = calls(events).into_iter().filter(|(_, of)| *of == label);
            let reported = made.next().unwrap();
            assert!(name.starts_with(reported.0) || ["u32", "send"].contains(name), "{name}: {reported:?}");
        }
        nested(events);
    }
}

/// Checks that of two events that overlap one contains the other, that waits lie in calls, and that all time
/// of the first is in calls or computes.
fn nested(events: &[Event]) {
    let mut open: Vec<&Event> = Vec::new();
    let mut spent = Duration::ZERO;
    for event in events {
        while open.last().is_some_and(|outer| outer.to <= event.from) {
            open.pop();
        }
        assert!(open.last().is_none_or(|outer| event.to <= outer.to), "{open:?} {event:?}");
        let in_call = open.iter().any(|outer| matches!(outer.what, TimeUse::Call(_)));
        assert_eq!(in_call, event.what == TimeUse::Wait, "{open:?} {event:?}");
        if matches!(event.what, TimeUse::Call(_) | TimeUse::Start(_) | TimeUse::Compute) {
            spent += event.to.abs_diff(event.from);
        }
        open.push(event);
    }
    assert_eq!(spent, events[0].to.abs_diff(events[0].from));
}
