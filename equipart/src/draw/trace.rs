//! A trace as a file: the Chrome trace event format, which ui.perfetto.dev and Chrome itself open. A run is a process,
//! a rank a row of it; in a row, a rank computes or is in a call, and in a call it may wait. Of a profile there are
//! layers and kernels in place of "it computes". Arrows go from where a message is sent to what its receiver does once it is
//! there; below a rank of a pipeline is a row of its plan.
//!
//! Source: "Trace Event Format", Google, 2016; how Perfetto reads it: its `src/trace_processor/importers/json`.
mod plan;

use comm::{CallRecord, Event, Op, Run, Trace, What};
use parallel::Result;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;
use tensor::files::{Error, Replacement};

const PROCESS: [&str; 2] = ["process_name", "process_sort_index"];
const THREAD: [&str; 2] = ["thread_name", "thread_sort_index"];

/// The whole file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    trace_events: Vec<Line<'a>>,
    display_time_unit: &'static str,
}

/// One entry: a stretch of time (`X`), how a row is called and where it stands (`M`), or an end of an arrow: from the
/// stretch around it (`s`), to the next one that begins (`f`). Perfetto draws to where a stretch begins, and one that receives may
/// begin before the message is sent.
#[derive(Serialize)]
struct Line<'a> {
    ph: &'static str,
    name: Cow<'a, str>,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

/// When and how long, in microseconds, and of which kind.
#[derive(Serialize)]
struct Time {
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    cat: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name {
        name: String,
    },
    Place {
        sort_index: usize,
    },
    Layer {
        pass: &'static str,
    },
    Kernel {
        flops: u64,
    },
    Call {
        call: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        label: &'a str,
        bytes: usize,
    },
}

/// Whether a trace can be written to this path.
///
/// # Errors
/// If a folder, pipe or device has this name, or no file can be made beside it.
pub fn prepare(path: &Path) -> Result<()> {
    drop(Replacement::beside(path)?);
    Ok(())
}

/// Writes all runs so far, in the place of the file at `path`.
///
/// # Errors
/// If the file cannot be written; the old one is then untouched.
pub fn write(path: &Path, trace: &Trace) -> Result<()> {
    let runs = trace.runs();
    let (mut trace_events, mut arrow) = (Vec::new(), 0);
    for (run, pid) in runs.iter().zip(1..) {
        trace_events.extend(called(PROCESS, run.name.clone(), [pid, thread(pid, 0)], pid));
        let plans = plan::plans(run);
        for (rank, events) in run.ranks.iter().enumerate() {
            let tid = thread(pid, row(rank));
            trace_events.extend(called(THREAD, format!("rank {rank}"), [pid, tid], row(rank)));
            trace_events.extend(events.iter().map(|event| stretch(event, pid, tid)));
            let Some(plan) = plans.get(rank).filter(|plan| !plan.is_empty()) else { continue };
            let (name, row) = (format!("plan of rank {rank}"), row(rank) + 1);
            let tid = thread(pid, row);
            trace_events.extend(called(THREAD, name, [pid, tid], row));
            let cell = |(name, from, to): &(String, Duration, Duration)| {
                let time = Some(Time::new(*from, Some(to.saturating_sub(*from)), "plan"));
                Line { time, ..Line::new("X", name.clone(), [pid, tid]) }
            };
            trace_events.extend(plan.iter().map(cell));
        }
        let end = |ph, (rank, at): (usize, Duration), id| {
            let time = Some(Time::new(at, None, "message"));
            Line { time, id: Some(id), ..Line::new(ph, "message", [pid, thread(pid, row(rank))]) }
        };
        for [from, to] in arrows(run) {
            arrow += 1;
            trace_events.extend([end("s", from, arrow), end("f", to, arrow)]);
        }
    }
    let failed = |why: std::io::Error| Error::System { action: "write", path: path.to_owned(), why };
    let mut file = BufWriter::new(Replacement::beside(path)?);
    let all = File { trace_events, display_time_unit: "ms" };
    serde_json::to_writer(&mut file, &all).map_err(|why| failed(why.into()))?;
    file.flush().map_err(failed)?;
    let file = file.into_inner().map_err(|why| failed(why.into_error()))?;
    Ok(file.finish()?)
}

/// From when each message is sent to when it has been received: rank and time. Of a run that failed, some are not received.
fn arrows(run: &Run) -> Vec<[(usize, Duration); 2]> {
    let (mut sent, mut arrows) = (HashMap::<_, VecDeque<Duration>>::new(), Vec::new());
    let all = || run.ranks.iter().enumerate().flat_map(|(rank, all)| all.iter().map(move |e| (rank, e)));
    for (rank, event) in all() {
        if let What::Start(CallRecord { message: Some((to, tag)), .. }) = &event.what {
            sent.entry((rank, *to, *tag)).or_default().push_back(event.from);
        }
    }
    for (rank, event) in all() {
        if let What::Call(CallRecord { op: Op::Receive, message: Some((from, tag)), .. }) = &event.what
            && let Some(at) = sent.get_mut(&(*from, rank, *tag)).and_then(VecDeque::pop_front)
        {
            arrows.push([(*from, at), (rank, event.to)]);
        }
    }
    arrows
}

/// The row of a rank, which that of its plan follows.
fn row(rank: usize) -> usize {
    2 * rank
}

/// The thread of a row; viewers that know no order of rows have them by its number. To Perfetto, thread 0 and one with its
/// process' number are the same, the main one; so no row is either, and no two of the file are one.
fn thread(pid: usize, row: usize) -> usize {
    10_000 * pid + row
}

/// What a process or a thread is called, and where it stands among others.
fn called(
    names: [&'static str; 2],
    name: String,
    [pid, tid]: [usize; 2],
    sort_index: usize,
) -> [Line<'static>; 2] {
    let line = |name, args| Line { args: Some(args), ..Line::new("M", name, [pid, tid]) };
    [line(names[0], Args::Name { name }), line(names[1], Args::Place { sort_index })]
}

/// What a rank did for a while.
fn stretch(event: &Event, pid: usize, tid: usize) -> Line<'_> {
    let (name, cat, args) = match &event.what {
        What::Span(name) => (name.as_str(), "span", None),
        What::Compute => ("compute", "compute", None),
        What::Wait => ("wait", "wait", None),
        What::Layer { name, pass } => (&**name, "layer", Some(Args::Layer { pass: pass.name() })),
        What::Kernel { name, kind, flops } => {
            (*name, kind.name(), (*flops > 0).then_some(Args::Kernel { flops: *flops }))
        }
        What::Call(call) | What::Start(call) => {
            let label = call.label.as_deref().unwrap_or_default();
            let args = Args::Call { call: &call.words, label, bytes: call.bytes };
            let kind = if matches!(event.what, What::Start(_)) { "message" } else { "collective" };
            (call.op.name(), kind, Some(args))
        }
    };
    let time = Some(Time::new(event.from, Some(event.took()), cat));
    Line { time, args, ..Line::new("X", name, [pid, tid]) }
}

impl<'a> Line<'a> {
    fn new(ph: &'static str, name: impl Into<Cow<'a, str>>, [pid, tid]: [usize; 2]) -> Self {
        Self { ph, name: name.into(), pid, tid, id: None, time: None, args: None }
    }
}

impl Time {
    fn new(at: Duration, took: Option<Duration>, cat: &'static str) -> Self {
        Self { ts: microseconds(at), dur: took.map(microseconds), cat }
    }
}

/// Nanoseconds as microseconds. A viewer multiplies by 1000 and may cut off what is behind the point: so the product is
/// never below the whole number, or a stretch would end before what it contains, which Perfetto then drops.
fn microseconds(time: Duration) -> f64 {
    let nanoseconds = time.as_nanos() as f64; // below 2^49, six days, what follows is exact
    let nearest = nanoseconds / 1e3;
    if nearest * 1e3 < nanoseconds { nearest.next_up() } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a nanosecond lost where a viewer rounds down, or won where it rounds, as Perfetto does of a text.
    #[test]
    fn microseconds_read_back_as_the_same_nanoseconds() {
        let of = |ns: u64| microseconds(Duration::from_nanos(ns));
        let drawn = (0..200_000).map(|n| tensor::mix(n) >> (15 + n % 48));
        let mut nudged = 0;
        for ns in (0..200_000).chain(drawn) {
            let us = of(ns);
            assert_eq!(((us * 1e3) as u64, (us * 1e3).round() as u64), (ns, ns), "{us}");
            let text = serde_json::to_string(&us).unwrap();
            let (whole, digits) = text.split_once('.').unwrap_or((&text, ""));
            if !text.contains('e') {
                let cut = format!("{whole}{:0<3}", &digits[..digits.len().min(3)]);
                assert_eq!(cut.parse::<u64>().unwrap(), ns, "{text}");
            }
            nudged += usize::from(us != ns as f64 / 1e3);
        }
        assert!(nudged > 0, "no number showed the difference");
        assert_eq!([0, 7, 1_500, 66_993_510].map(of), [0.0, 0.007, 1.5, 66_993.510_000_000_01]);
    }

    /// Kills: a device that is replaced by a file, a folder found out about at the end, a file left behind.
    #[test]
    fn a_path_that_cannot_be_written_is_refused_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let why = |path: &Path| prepare(path).unwrap_err().why;
        assert!(why(folder.path()).ends_with(" is a directory where a file should be"));
        let none = folder.path().join("none/trace.json");
        assert!(why(&none).starts_with(&format!("cannot write beside {}: ", none.display())));
        #[cfg(unix)]
        assert_eq!(
            why(Path::new("/dev/null")),
            "/dev/null is a pipe, socket or device where a regular file should be"
        );
        let old = folder.path().join("old.json");
        std::fs::write(&old, "old").unwrap();
        prepare(&old).unwrap();
        assert_eq!(std::fs::read(&old).unwrap(), b"old");
        prepare(&folder.path().join("new.json")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
