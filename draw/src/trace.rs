//! A trace as a file in the Chrome trace event format, which ui.perfetto.dev and Chrome open. A run is a
//! process, a rank a row of it; in a row, a rank computes or is in a call, and in a call it may wait. A
//! profile has layers and kernels in place of "it computes". An arrow leads from the send of a message to the
//! receiver's next event after its arrival; below a rank of a pipeline is a row of its plan.
//!
//! Source: "Trace Event Format", Google, 2016; how Perfetto reads it: its
//! `src/trace_processor/importers/json`.
mod plan;

use comm::{CallRecord, Event, Op, TimeUse, Trace, TraceRun};
use parallel::Result;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;
use tensor::files::{Error, Replacement};

/// Checks that a trace can be written to this path.
///
/// # Errors
/// If a folder, pipe or device has this name, or no file can be created beside it.
pub fn prepare(path: &Path) -> Result<()> {
    drop(Replacement::beside(path)?);
    Ok(())
}

/// Writes all runs so far to the file at `path`, replacing it; one line for each entry.
///
/// # Errors
/// If the file cannot be written; the old one is then untouched.
pub fn write(path: &Path, trace: &Trace) -> Result<()> {
    let failed = |why: std::io::Error| Error::System { action: "write", path: path.to_owned(), why };
    let mut file = BufWriter::new(Replacement::beside(path)?);
    let mut before = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    let mut arrow = 0;
    let mut say = |entry: Value| {
        let written = write!(file, "{before}{entry}");
        before = ",\n";
        written
    };
    for (run, pid) in trace.runs().iter().zip(1..) {
        entries(run, pid, &mut arrow, &mut say).map_err(failed)?;
    }
    file.write_all(b"\n]}\n").map_err(failed)?;
    Ok(file.into_inner().map_err(|why| failed(why.into_error()))?.finish()?)
}

/// Emits the entries of a run: events with a duration (`X`), names and order of rows (`M`), and the ends of
/// arrows: from the enclosing event (`s`) to the next one that begins (`f`). Perfetto draws an arrow to the
/// start of an event, and a receive may start before its message is sent.
fn entries(
    run: &TraceRun,
    pid: usize,
    arrow: &mut usize,
    say: &mut impl FnMut(Value) -> std::io::Result<()>,
) -> std::io::Result<()> {
    called(["process", &run.name], [pid, thread(pid, 0)], pid).into_iter().try_for_each(&mut *say)?;
    let plans = plan::plans(run).unwrap_or_default();
    for (rank, events) in run.ranks.iter().enumerate() {
        let place = [pid, thread(pid, row(rank))];
        called(["thread", &format!("rank {rank}")], place, row(rank)).into_iter().try_for_each(&mut *say)?;
        events.iter().try_for_each(|event| say(ran(event, place)))?;
        let Some(plan) = plans.get(rank).filter(|plan| !plan.is_empty()) else { continue };
        let name = format!("plan of rank {rank}");
        let row = row(rank) + 1;
        let place = [pid, thread(pid, row)];
        called(["thread", &name], place, row).into_iter().try_for_each(&mut *say)?;
        plan.iter().try_for_each(|(name, from, to)| say(stretch([name, "plan"], [*from, *to], place)))?;
    }
    for ends in arrows(run) {
        *arrow += 1;
        for (ph, (rank, at)) in ["s", "f"].into_iter().zip(ends) {
            say(json!({
                "ph": ph, "name": "message", "cat": "message", "id": *arrow,
                "pid": pid, "tid": thread(pid, row(rank)), "ts": microseconds(at),
            }))?;
        }
    }
    Ok(())
}

/// Send and receive of each message: rank and time. In a failed run, some messages are not received.
fn arrows(run: &TraceRun) -> Vec<[(usize, Duration); 2]> {
    let mut sent = HashMap::<_, VecDeque<Duration>>::new();
    let mut arrows = Vec::new();
    let events = || run.ranks.iter().enumerate().flat_map(|(rank, all)| all.iter().map(move |e| (rank, e)));
    for (rank, event) in events() {
        if let TimeUse::Start(CallRecord { message: Some((to, tag)), .. }) = &event.what {
            sent.entry((rank, *to, *tag)).or_default().push_back(event.from);
        }
    }
    for (rank, event) in events() {
        if let TimeUse::Call(CallRecord { op: Op::Receive, message: Some((from, tag)), .. }) = &event.what
            && let Some(at) = sent.get_mut(&(*from, rank, *tag)).and_then(VecDeque::pop_front)
        {
            arrows.push([(*from, at), (rank, event.to)]);
        }
    }
    arrows
}

/// Row of a rank; the row of its plan is the next one.
fn row(rank: usize) -> usize {
    2 * rank
}

/// Thread id of a row; viewers without an order of rows sort by it. Perfetto takes thread 0 and the thread
/// with its process' id as the main thread, so no row has these ids, and no id repeats in the file.
fn thread(pid: usize, row: usize) -> usize {
    10_000 * pid + row
}

/// Name of a process or thread, and its place in the order.
fn called([what, name]: [&str; 2], [pid, tid]: [usize; 2], index: usize) -> [Value; 2] {
    [("name", json!({ "name": name })), ("sort_index", json!({ "sort_index": index }))].map(|(of, args)| {
        json!({ "ph": "M", "name": format!("{what}_{of}"), "pid": pid, "tid": tid, "args": args })
    })
}

/// An event with a name, a kind and a duration.
fn stretch([name, kind]: [&str; 2], [from, to]: [Duration; 2], [pid, tid]: [usize; 2]) -> Value {
    let (ts, dur) = (microseconds(from), microseconds(to.saturating_sub(from)));
    json!({ "ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, "ts": ts, "dur": dur })
}

/// Entry of an event of a rank.
fn ran(event: &Event, place: [usize; 2]) -> Value {
    let (name, kind, args) = match &event.what {
        TimeUse::Span(name) => (name.as_str(), "span", Value::Null),
        TimeUse::Compute => ("compute", "compute", Value::Null),
        TimeUse::Wait => ("wait", "wait", Value::Null),
        TimeUse::Layer { name, pass } => (&**name, "layer", json!({ "pass": pass.name() })),
        TimeUse::Kernel { name, kind, flops: 0 } => (*name, kind.name(), Value::Null),
        TimeUse::Kernel { name, kind, flops } => (*name, kind.name(), json!({ "flops": flops })),
        TimeUse::Call(call) | TimeUse::Start(call) => {
            let mut args = json!({ "call": call.words, "bytes": call.bytes });
            if let Some(label) = call.label.as_deref().filter(|label| !label.is_empty()) {
                args["label"] = label.into();
            }
            let kind = if matches!(event.what, TimeUse::Start(_)) { "message" } else { "collective" };
            (call.op.name(), kind, args)
        }
    };
    let mut line = stretch([name, kind], [event.from, event.to], place);
    if !args.is_null() {
        line["args"] = args;
    }
    line
}

/// Nanoseconds as microseconds. A viewer multiplies by 1000 and may truncate: the product is therefore never
/// below the whole number, or an event would end before the events within it, which Perfetto then drops.
fn microseconds(time: Duration) -> f64 {
    let nanoseconds = time.as_nanos() as f64; // exact below 2^49 ns, six days
    let nearest = nanoseconds / 1e3;
    if nearest * 1e3 < nanoseconds { nearest.next_up() } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a nanosecond lost by a viewer that truncates, or gained by one that rounds, as Perfetto does
    /// with a text.
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

    /// Kills: a device replaced by a file, a folder detected only at the end, a file left behind.
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
