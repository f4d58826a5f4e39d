//! Random calls in random worlds with a rank that does something else at a random call: every run ends, and
//! names that rank. `cargo xtask faults` tries many and counts them.
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
pub(crate) enum Fault {
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
    // of a process
    Kill,
    Stop,
    Exit,
}
impl Fault {
    /// True if the fault ends or stops a process.
    pub(crate) fn is_of_processes(self) -> bool {
        [Self::Kill, Self::Stop, Self::Exit].contains(&self)
    }
}
pub(crate) const FAULTS: [Fault; 11] = [
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

/// A run: its world, and which rank makes which fault at which call. Numbers are drawn by what they are for.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    seed: u64,
    sizes: [usize; 2], // dp, tp
    pub(crate) fault: Fault,
    pub(crate) culprit: usize,
    at: u64,
}
impl Run {
    /// Draws a run with one of these faults.
    pub(crate) fn drawn(seed: u64, faults: &[Fault]) -> Self {
        const SIZES: [[usize; 2]; 9] =
            [[1, 2], [1, 3], [1, 4], [2, 2], [2, 3], [2, 4], [1, 8], [3, 2], [7, 1]];
        let mut run = Self { seed, sizes: [1, 1], fault: Fault::None, culprit: 0, at: 0 };
        run.fault = faults[run.draw(2, faults.len())];
        let most = if run.fault.is_of_processes() { 4 } else { SIZES.len() };
        run.sizes = SIZES[run.draw(1, most)];
        (run.culprit, run.at) = (run.draw(3, run.ranks()), run.draw(4, CALLS as usize) as u64);
        run
    }
    pub(crate) fn ranks(&self) -> usize {
        self.sizes[0] * self.sizes[1]
    }
    /// True if few calls follow the culprit's, so that other ranks may have ended.
    pub(crate) fn is_near_the_end(&self) -> bool {
        self.at > CALLS / 2
    }
    fn axes(&self) -> [(Axis, usize); 2] {
        [(Axis::Dp, self.sizes[0]), (Axis::Tp, self.sizes[1])]
    }
    /// The world, in which ranks wait as long as that for one that does not come.
    pub(crate) fn world(&self, late: Duration) -> World {
        let limit = if [Fault::Delay, Fault::Stop].contains(&self.fault) { late } else { PATIENT };
        World::threads(&self.axes()).unwrap().limit(limit)
    }
    pub(crate) fn draw(&self, what: u64, below: usize) -> usize {
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
    /// True if the culprit is alone in its group.
    fn is_alone(&self) -> bool {
        let mesh = Mesh::ghost(&self.axes(), self.culprit).unwrap();
        let (axis, cut) = self.over(self.at, self.fault);
        part(&mesh, axis, cut).size() == 1
    }
    /// One call of a rank, over the group that it draws, unless it differs; named if it does.
    fn act(&self, device: &Field, mesh: &Mesh<tensor::Host>, call: u64, fault: Fault) -> Result<(), String> {
        let (axis, cut) = self.over(call, fault);
        let (mut group, act) = (part(mesh, axis, cut), self.draw(300 + call, ACTS.len()));
        if fault != Fault::None {
            group = group.named("the culprit");
        }
        // few elements, or many, which processes add up each in part
        let rows = self.draw(400 + call, 4) * if self.draw(600 + call, 3) == 0 { 50 } else { 1 };
        let rows = rows + 9 * usize::from(fault == Fault::OtherShape);
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
    /// All calls of a rank. For a rank that others wait for too long, or whose process ends, `apart` is
    /// called.
    pub(crate) fn rank(
        &self,
        device: &Field,
        mesh: &Mesh<tensor::Host>,
        apart: &dyn Fn(),
    ) -> Result<(), String> {
        for call in 0..CALLS {
            let here = (mesh.rank(), call) == (self.culprit, self.at);
            match self.fault {
                Fault::Error if here => return Err("the culprit".into()),
                Fault::Panic if here => panic!("the culprit"),
                Fault::Ends if here => return Ok(()),
                Fault::Delay if here => {
                    apart();
                    return Ok(());
                }
                fault => {
                    if here && fault.is_of_processes() {
                        apart();
                    }
                    let makes = here && !fault.is_of_processes();
                    self.act(device, mesh, call, if makes { fault } else { Fault::None })?;
                }
            }
        }
        Ok(())
    }
    /// Checks what a run has reported: `None` if no rank failed, which `may_end` allows.
    pub(crate) fn check(&self, reported: Option<&str>, may_end: bool, calls: &str) {
        let Self { seed, sizes: [dp, tp], fault, culprit, at } = self;
        let good = match reported {
            None => may_end && ![Fault::Error, Fault::Panic].contains(fault),
            Some(reported) => named(*fault, reported, *culprit, self.is_alone()),
        };
        let reported = reported.unwrap_or("nothing");
        let what =
            format!("seed {seed}, dp={dp} tp={tp}, {fault:?} of rank {culprit} at call {at}: {reported}");
        assert!(good, "{what}\n{calls}");
    }
}

/// One world of threads; how it failed, and what became of it.
fn run(seed: u64) -> Fault {
    let run = Run::drawn(seed, &FAULTS);
    let others = AtomicUsize::new(0);
    let outcome = run.world(Duration::from_millis(200)).run(|device: Field, mesh| {
        let reported = run.rank(&device, &mesh, &|| until(|| others.load(SeqCst) > 0));
        others.fetch_add(usize::from(reported.is_err() || mesh.rank() != run.culprit), SeqCst);
        reported
    });
    let calls = outcome.as_ref().err().map(|error| error.calls.to_string()).unwrap_or_default();
    run.check(outcome.err().map(|error| error.to_string()).as_deref(), true, &calls);
    run.fault
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
        Fault::Kill | Fault::Exit => own && reported.contains(": its process exited without a report"),
        Fault::Stop if reported.contains(&format!("rank {culprit} made no call and did not end within")) => {
            true
        }
        Fault::Delay | Fault::Stop => {
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
