//! Trace: what every rank did and when, for a timeline viewer. A rank's time is in a call, or the rank
//! computes; in a call, it may wait for others. Spans name stretches of both: a step, a microbatch. While a
//! rank is profiled ([`Mesh::profile`](crate::Mesh::profile)), the trace has its layers and kernels instead
//! of compute.
use crate::{Call, CallRecord};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensor::{Direction, KernelKind, Work};

/// A trace of runs, filled by worlds ([`World::traced`](crate::World::traced)). Clones share one trace.
#[derive(Clone, Debug)]
pub struct Trace {
    start: Instant,
    traced: Traced,
    runs: Arc<Mutex<Vec<TraceRun>>>,
}

/// One run of a world.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRun {
    /// Name of the run.
    pub name: String,
    /// Events of each rank. Of two that overlap, one contains the other; of those that begin together, the
    /// longer comes first.
    pub ranks: Vec<Vec<Event>>,
}

/// A stretch of one rank's time, counted from the start of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Activity of the rank.
    pub what: TimeUse,
    /// Start of the event.
    pub from: Duration,
    /// End of the event.
    pub to: Duration,
}

impl Event {
    /// Duration of the event.
    pub fn took(&self) -> Duration {
        self.to.saturating_sub(self.from)
    }
}

/// Activity of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeUse {
    /// A named span: a step, a microbatch.
    Span(String),
    /// The rank is in no call; not traced while its layers and kernels are.
    Compute,
    /// The rank is in a layer.
    Layer {
        /// Name of the layer in the model.
        name: Arc<str>,
        /// Forward or backward.
        pass: Direction,
    },
    /// The rank is in a kernel.
    Kernel {
        /// Name of the kernel.
        name: &'static str,
        /// Kind of the kernel.
        kind: KernelKind,
        /// Floating point operations, of products and attention.
        flops: u64,
    },
    /// The rank is in a call; for a request, only the wait.
    Call(CallRecord),
    /// The rank starts to send a message; its wait for the message is a later call.
    Start(CallRecord),
    /// The rank waits for other ranks, or for a slow link.
    Wait,
}

impl Default for Trace {
    fn default() -> Self {
        Self { start: Instant::now(), traced: Traced::Always, runs: Arc::default() }
    }
}

impl Trace {
    /// Makes an empty trace; its time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Makes a trace of ranks only while they are profiled.
    #[must_use]
    pub fn of_profiles() -> Self {
        Self { traced: Traced::Profiles, ..Self::default() }
    }
    /// Returns the runs so far, in the order in which they ended.
    ///
    /// # Panics
    /// If a thread panicked while it added a run.
    pub fn runs(&self) -> Vec<TraceRun> {
        self.runs.lock().expect("nothing panics under this lock").clone()
    }
    /// Start of the trace's times, and when ranks keep times.
    pub(crate) fn settings(&self) -> (Instant, Traced) {
        (self.start, self.traced)
    }
    pub(crate) fn add(&self, run: TraceRun) {
        self.runs.lock().expect("nothing panics under this lock").push(run);
    }
}

/// Condition under which a rank keeps times for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traced {
    Never,
    /// While the rank is profiled.
    Profiles,
    /// From beginning to end.
    Always,
}

/// A stretch of one rank's time, kept at its end. A call is formatted only when the trace is read.
pub(crate) struct Stretch {
    pub(crate) did: Did,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}
pub(crate) enum Did {
    Call(Call),
    Start(Call),
    Known(TimeUse),
}

impl TimeUse {
    /// Converts an entry of a profile.
    pub(crate) fn work(work: Work) -> Self {
        match work {
            Work::Layer { name, pass } => Self::Layer { name, pass },
            Work::Kernel { name, kind, flops } => Self::Kernel { name, kind, flops },
        }
    }
}

/// Returns the events of these stretches, and compute in between: a rank computes from the end of one call to
/// the beginning of the next, cut where a span begins or ends, unless its work is traced there.
pub(crate) fn events(stretches: Vec<Stretch>) -> Vec<Event> {
    let event = |Stretch { did, from, to }| match did {
        Did::Known(what) => Event { what, from, to },
        Did::Call(call) => Event { what: TimeUse::Call((&call).into()), from, to },
        Did::Start(call) => Event { what: TimeUse::Start((&call).into()), from, to },
    };
    let mut events: Vec<_> = stretches.into_iter().map(event).collect();
    events.extend(compute(&events));
    events.sort_by(|a, b| (a.from, b.to, depth(&a.what)).cmp(&(b.from, a.to, depth(&b.what))));
    events
}

/// Nesting depth of stretches that begin and end together.
fn depth(what: &TimeUse) -> usize {
    match what {
        TimeUse::Span(_) => 0,
        TimeUse::Layer { .. } => 1,
        TimeUse::Compute | TimeUse::Call(_) | TimeUse::Start(_) => 2,
        TimeUse::Wait | TimeUse::Kernel { .. } => 3,
    }
}

fn compute(events: &[Event]) -> Vec<Event> {
    let calls = || events.iter().filter(|event| matches!(event.what, TimeUse::Call(_) | TimeUse::Start(_)));
    let outer = |e: &&Event| matches!(e.what, TimeUse::Span(_) | TimeUse::Call(_) | TimeUse::Start(_));
    let mut edges: Vec<_> = events.iter().filter(outer).flat_map(|e| [e.from, e.to]).collect();
    edges.sort();
    edges.dedup();
    let mut calls: Vec<_> = calls().map(|call| (call.from, call.to)).collect();
    calls.sort();
    let mut calls = calls.into_iter().peekable();
    let work = |e: &&Event| matches!(e.what, TimeUse::Layer { .. } | TimeUse::Kernel { .. });
    let mut work: Vec<_> = events.iter().filter(work).map(|event| (event.from, event.to)).collect();
    work.sort();
    let mut latest = Duration::ZERO;
    for (_, to) in &mut work {
        latest = latest.max(*to);
        *to = latest; // the latest end of all work begun so far
    }
    let traced = |from, to| {
        work.partition_point(|(at, _)| *at < to).checked_sub(1).is_some_and(|last| work[last].1 > from)
    };
    let mut gaps = Vec::new();
    for edge in edges.windows(2) {
        while calls.next_if(|(_, to)| *to <= edge[0]).is_some() {}
        let in_call = calls.peek().is_some_and(|(from, _)| *from < edge[1]);
        if !in_call && !traced(edge[0], edge[1]) {
            gaps.push(Event { what: TimeUse::Compute, from: edge[0], to: edge[1] });
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Op, Reduce};

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }
    fn call(from: u64, to: u64) -> Stretch {
        let (op, reduce, label) = (Op::AllReduce, Some(Reduce::Sum), Some("w".into()));
        let call = Call { op, reduce, rows: 2, cols: 3, label, ..Call::barrier() };
        Stretch { did: Did::Call(call), from: ms(from), to: ms(to) }
    }
    fn known(what: TimeUse, from: u64, to: u64) -> Stretch {
        Stretch { did: Did::Known(what), from: ms(from), to: ms(to) }
    }
    fn span(name: &str, from: u64, to: u64) -> Stretch {
        known(TimeUse::Span(name.into()), from, to)
    }
    /// Name, start and end of each event, in ms.
    fn brief(events: &[Event]) -> Vec<(&str, u128, u128)> {
        events.iter().map(|e| (letter(&e.what), e.from.as_millis(), e.to.as_millis())).collect()
    }
    fn letter(what: &TimeUse) -> &str {
        match what {
            TimeUse::Span(name) => name,
            TimeUse::Compute => "compute",
            TimeUse::Layer { name, .. } => name,
            TimeUse::Kernel { name, .. } => name,
            TimeUse::Call(call) | TimeUse::Start(call) => call.op.name(),
            TimeUse::Wait => "wait",
        }
    }

    /// Kills: compute that crosses a span's border or a call, a gap left out, a parent after its child.
    #[test]
    fn all_time_of_a_span_is_in_calls_or_computes() {
        let wait = known(TimeUse::Wait, 30, 40);
        let noted = vec![
            wait,
            call(30, 50),
            span("0F", 10, 60),
            call(60, 70),
            span("0B", 60, 90),
            span("step", 0, 95),
        ];
        let events = events(noted);
        let expected = [
            ("step", 0, 95),
            ("compute", 0, 10),
            ("0F", 10, 60),
            ("compute", 10, 30),
            ("all_reduce", 30, 50),
            ("wait", 30, 40),
            ("compute", 50, 60),
            ("0B", 60, 90),
            ("all_reduce", 60, 70),
            ("compute", 70, 90),
            ("compute", 90, 95),
        ];
        assert_eq!(brief(&events), expected);
        let TimeUse::Call(call) = &events[4].what else { panic!("{:?}", events[4]) };
        assert_eq!((call.op, call.shape, call.bytes), (Op::AllReduce, [2, 3], 24));
        assert!(call.is_for("w") && !call.is_for("") && call.over.axes == crate::Axis::Tp, "{call}");
        let words = call.to_string();
        assert!(
            words.starts_with("all_reduce(sum) over tp of 2x3 f32 for w at comm/src/trace.rs:"),
            "{words}"
        );
    }

    fn work(work: Work, from: u64, to: u64) -> Stretch {
        known(TimeUse::work(work), from, to)
    }

    /// Kills: compute beside the kernels that are traced, or none where none are, or across the end of a
    /// layer that goes on after its last call; a layer that hides its calls or its kernels; of work that
    /// begins and ends together, the inner before the outer.
    #[test]
    fn work_is_traced_in_place_of_compute() {
        let layer = |name: &str| Work::Layer { name: name.into(), pass: Direction::Forward };
        let kernel = |name| Work::Kernel { name, kind: KernelKind::Product, flops: 7 };
        let noted = vec![
            work(kernel("product"), 30, 40),
            call(45, 55),
            work(layer("up"), 25, 55),
            work(kernel("add"), 60, 70),
            work(layer("down"), 60, 70),
            span("step 2", 20, 80),
            span("step 1", 0, 20),
            work(layer("experts"), 85, 94),
            call(86, 92),
            span("step 3", 80, 100),
        ];
        let events = events(noted);
        let expected = [
            ("step 1", 0, 20),
            ("compute", 0, 20),
            ("step 2", 20, 80),
            ("up", 25, 55),
            ("product", 30, 40),
            ("all_reduce", 45, 55),
            ("down", 60, 70),
            ("add", 60, 70),
            ("step 3", 80, 100),
            ("experts", 85, 94),
            ("all_reduce", 86, 92),
        ];
        assert_eq!(brief(&events), expected);
        let kernel = TimeUse::Kernel { name: "product", kind: KernelKind::Product, flops: 7 };
        assert_eq!(events[4].what, kernel);
    }
}
