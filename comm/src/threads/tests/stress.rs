//! Random calls in random worlds with a rank that does something else at a random call: every run ends, and
//! names that rank. `EQUIPART_FAULTS=10000 cargo test -p comm every_run_ends -- --nocapture` tries so many
//! and counts them.
use super::acts::{ACTS, Bring, Field, part};
use super::until;
use crate::tag::TAG;
use crate::threads::watch::PATIENT;
use crate::{Axis, Mesh, World};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tensor::{F61, Scalar, mix};

const CALLS: u64 = 24;

/// Faults that a rank may make in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    None,
    Error,
    Panic,
    Poison,
    Ends,
    Delay,
    OtherCall,
    OtherShape,
    OtherAxis,
    OtherPart,
    Forgets,
}
const FAULTS: [Fault; 11] = [
    Fault::None,
    Fault::Error,
    Fault::Panic,
    Fault::Poison,
    Fault::Ends,
    Fault::Delay,
    Fault::OtherCall,
    Fault::OtherShape,
    Fault::OtherAxis,
    Fault::OtherPart,
    Fault::Forgets,
];

/// A draw of this run: numbers by what they are for.
struct Run {
    seed: u64,
}
impl Run {
    fn draw(&self, what: u64, below: usize) -> usize {
        (mix(self.seed ^ mix(what)) % below as u64) as usize
    }
    fn axis(&self, call: u64) -> Axis {
        if self.draw(100 + call, 2) == 0 { Axis::Dp } else { Axis::Tp }
    }
    /// The axis of a call, and what part of its group.
    fn over(&self, call: u64, fault: Fault) -> (Axis, usize) {
        let other = |axis| if axis == Axis::Tp { Axis::Dp } else { Axis::Tp };
        let axis = if fault == Fault::OtherAxis { other(self.axis(call)) } else { self.axis(call) };
        (axis, self.draw(200 + call, 1 << 20) + usize::from(fault == Fault::OtherPart))
    }
    /// How many ranks are in that part with this one.
    fn group(&self, sizes: [usize; 2], rank: usize, call: u64, fault: Fault) -> usize {
        let sizes = [(Axis::Dp, sizes[0]), (Axis::Tp, sizes[1])];
        let mesh = Mesh::ghost(&sizes, rank).unwrap();
        let (axis, cut) = self.over(call, fault);
        part(&mesh, axis, cut).size()
    }
    /// One call of a rank, over the group that it draws, unless it differs; named if it does.
    fn act(&self, device: &Field, mesh: &Mesh<tensor::Host>, call: u64, fault: Fault) -> Result<(), String> {
        let (axis, cut) = self.over(call, fault);
        let (mut group, act) = (part(mesh, axis, cut), self.draw(300 + call, ACTS.len()));
        if fault != Fault::None {
            group = group.named("the culprit");
        }
        let rows = self.draw(400 + call, 4) + 9 * usize::from(fault == Fault::OtherShape);
        let value = if fault == Fault::Poison { F61::NEG_INF } else { F61::ONE };
        let root = self.draw(500 + call, group.size());
        let bring = Bring { device, group: &group, rows, root, value };
        if [Fault::OtherCall, Fault::OtherAxis, Fault::OtherPart].contains(&fault) {
            return group.all_gather(&bring.tensor(77)).map(drop).map_err(|error| error.to_string());
        }
        if fault == Fault::Forgets && group.size() > 1 {
            drop(group.start_send((group.rank() + 1) % group.size(), bring.tensor(77), TAG));
        }
        ACTS[act].1(&bring).map_err(|error| error.to_string())
    }
}

/// One world; how it failed, and what became of it.
fn run(seed: u64) -> Fault {
    let run = Run { seed };
    let (dp, tp) = [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4), (1, 8), (3, 2), (7, 1)][run.draw(1, 9)];
    let fault = FAULTS[run.draw(2, FAULTS.len())];
    let limit = if fault == Fault::Delay { Duration::from_millis(200) } else { PATIENT };
    let world = World::threads(&[(Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().limit(limit);
    let (culprit, at) = (run.draw(3, world.size()), run.draw(4, CALLS as usize) as u64);
    let others = AtomicUsize::new(0);
    let outcome = world.run(|device: Field, mesh| {
        for call in 0..CALLS {
            let here = (mesh.rank(), call) == (culprit, at);
            let reported = match fault {
                Fault::Error if here => return Err("the culprit".into()),
                Fault::Panic if here => panic!("the culprit"),
                Fault::Ends if here => return Ok(()),
                Fault::Delay if here => {
                    until(|| others.load(SeqCst) > 0);
                    return Ok(());
                }
                fault => run.act(&device, &mesh, call, if here { fault } else { Fault::None }),
            };
            if reported.is_err() {
                others.fetch_add(1, SeqCst);
                return reported;
            }
        }
        others.fetch_add(usize::from(mesh.rank() != culprit), SeqCst);
        Ok(())
    });
    let reported = outcome.as_ref().map_or_else(ToString::to_string, |_| "nothing".to_string());
    let alone = run.group([dp, tp], culprit, at, fault) == 1;
    let good = outcome.is_ok() && ![Fault::Error, Fault::Panic].contains(&fault)
        || named(fault, &reported, culprit, alone);
    let what = format!("seed {seed}, dp={dp} tp={tp}, {fault:?} of rank {culprit} at call {at}: {reported}");
    assert!(good, "{what}\n{}", outcome.err().map(|error| error.calls.to_string()).unwrap_or_default());
    fault
}

/// True if the end of a run tells of its fault and names the culprit, who may have been alone in its group.
fn named(fault: Fault, reported: &str, culprit: usize, alone: bool) -> bool {
    let own = reported.starts_with(&format!("rank {culprit}: "));
    let met = reported.contains("for the culprit at");
    match fault {
        Fault::None => false,
        Fault::Error => reported == format!("rank {culprit}: the culprit"),
        Fault::Panic => own && reported.ends_with(": the culprit"),
        // Where the culprit's last call is made alone, it is its end that is seen.
        _ if reported.contains(&format!("rank {culprit} has finished")) => true,
        Fault::Ends => false,
        Fault::Delay => {
            reported.contains(" did not arrive within ")
                && (reported.contains(&format!("waits for rank {culprit} in")) || listed(reported, culprit))
        }
        // in the arithmetic of a peer, or in its check
        Fault::Poison => reported.contains("panicked at"),
        // Unless another message is expected of it first.
        Fault::Forgets => own && reported.contains("never waited for send(") || met,
        // A call that the culprit makes alone is met by nobody; it is its later calls that do not fit.
        Fault::OtherCall | Fault::OtherShape | Fault::OtherAxis | Fault::OtherPart => {
            met || alone && in_a_call(reported, culprit)
        }
    }
}

/// True if a rank is told to be in a call that does not fit.
fn in_a_call(reported: &str, rank: usize) -> bool {
    ["in", "is in"].iter().any(|words| reported.contains(&format!("rank {rank} {words} ")))
}

/// True if a rank is among several that are named as missing.
fn listed(reported: &str, rank: usize) -> bool {
    let missing = reported.split(" did not arrive within ").next().unwrap_or_default();
    missing.split([' ', ',']).any(|word| word == rank.to_string())
}

/// Kills: a lost wake, a ring seen that is none, a failure that reaches not everyone, an echo reported as the
/// cause.
#[test]
fn every_run_ends_and_names_the_culprit() {
    let wanted = std::env::var("EQUIPART_FAULTS").ok().and_then(|n| n.parse().ok());
    let started = Instant::now();
    let mut seen = BTreeMap::new();
    for seed in 0.. {
        *seen.entry(run(seed)).or_insert(0) += 1;
        let faults: usize = seen.iter().filter(|(fault, _)| **fault != Fault::None).map(|(_, n)| n).sum();
        if wanted.map_or(started.elapsed() > Duration::from_millis(800), |wanted: usize| faults >= wanted) {
            break;
        }
    }
    let runs: usize = seen.values().sum();
    println!("{runs} runs ended in {:.1?}, each fault named: {seen:?}", started.elapsed());
}
