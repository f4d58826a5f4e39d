//! Runs one program once, to its end or to a limit, and interprets the end of a proof.
use super::build::{ExhibitPrograms, program};
use super::header::Killer;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a proof; each needs seconds.
pub(super) const LIMIT: Duration = Duration::from_mins(2);

/// End of a program, and its output.
pub(super) struct Ended {
    /// Exit status; `None` if the program did not end in time.
    pub(super) status: Option<ExitStatus>,
    /// Output on both streams.
    pub(super) output: String,
}

/// Runs a program until it ends or the limit is over.
///
/// # Errors
/// If the program cannot be started or watched.
pub(super) fn run(mut command: Command, limit: Duration) -> Result<Ended, String> {
    let program = command.get_program().display().to_string();
    let cannot = |why: std::io::Error| format!("{program} cannot be run ({why})");
    let (mut reader, writer) = std::io::pipe().map_err(cannot)?;
    command.stdout(writer.try_clone().map_err(cannot)?).stderr(writer);
    let mut child = command.spawn().map_err(cannot)?;
    drop(command); // also our ends of the pipe, so that reading ends with the program
    let output = std::thread::spawn(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).map(|_| output)
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(cannot)? {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => {
                let _ = child.kill(); // it may have ended just now
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // Children of a killed program may live on and hold the pipe, so do not wait for its end.
    let output = match status {
        Some(_) => output.join().expect("reading does not panic").map_err(cannot)?,
        None => Vec::new(),
    };
    Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned() })
}

/// Runs one test, and returns how it ended.
pub(super) fn ran(built: &ExhibitPrograms, killer: &Killer, on: &str) -> Result<Ended, String> {
    let Killer::Test { krate, target, test } = killer else {
        return Err("the compiler is not a test".into());
    };
    let mut command = program(built.of(krate, target)?, &built.scratch.tree.join(krate), on);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    run(command, LIMIT)
}

/// Does `work` for each item, with one thread per core.
pub(super) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < items.len());
    let some = || std::iter::from_fn(take).map(|at| (at, work(&items[at]))).collect::<Vec<_>>();
    let done: BTreeMap<usize, R> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.min(items.len())).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("work does not panic")).collect()
    });
    done.into_values().collect()
}

/// Verdict of a proof on the tree in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProofVerdict {
    /// The proof passed.
    Passed,
    /// An assertion failed.
    Killed,
    /// Neither: the proof did not end, did not run, or failed by something else than an assertion.
    Broken(String),
}

/// Interprets the end of a test program that was asked for one test. The failure is an assertion's if the
/// panic's line in the tree asserts something.
pub(super) fn verdict(tree: &Path, test: &str, ended: &Ended) -> ProofVerdict {
    let Ended { status, output } = ended;
    let last = || output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    match status.map(|status| status.code()) {
        None => ProofVerdict::Broken("it did not end in time".into()),
        Some(_) if output.contains("running 0 tests") => {
            ProofVerdict::Broken(format!("there is no test `{test}`"))
        }
        Some(Some(0)) => ProofVerdict::Passed,
        Some(Some(101)) => match panicked(output) {
            Some((file, line)) if asserts(&tree.join(file), line) => ProofVerdict::Killed,
            Some((file, line)) => {
                ProofVerdict::Broken(format!("it fails at {file}:{line}, which is no assertion"))
            }
            None => ProofVerdict::Broken(format!("it fails without a panic: {}", last())),
        },
        _ => ProofVerdict::Broken(format!("it crashed: {}", last())),
    }
}

/// Returns the place of the last panic in an output, `panicked at layers/src/linear/row.rs:12:3:`. A test
/// that panics with the message of a rank's panic prints both.
fn panicked(output: &str) -> Option<(&str, usize)> {
    let (_, place) = output.rsplit_once("panicked at ")?;
    let (file, rest) = place.split_once(':')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((file, rest[..digits].parse().ok()?))
}

/// True if a line of a file begins an assertion.
fn asserts(file: &Path, line: usize) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    line.checked_sub(1).and_then(|line| text.lines().nth(line)).is_some_and(|line| line.contains("assert"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, limit).unwrap()
    }

    /// Kills: a survivor, a crash, a stuck proof or a missing test counted as a kill.
    #[test]
    fn only_an_assertion_kills() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("x.rs"), "let x = 1;\nassert_eq!(\nx[3]\n").unwrap();
        let of = |script: &str| verdict(tree.path(), "a::b", &shell(script, Duration::from_secs(20)));
        assert_eq!(of("echo running 1 test"), ProofVerdict::Passed);
        let panics = |at: &str| of(&format!("echo \"rank 0: panicked at {at} of 3 differ\"; exit 101"));
        assert_eq!(
            (panics("x.rs:2:1:\n2"), panics("x.rs:2: 2")),
            (ProofVerdict::Killed, ProofVerdict::Killed)
        );
        assert_eq!(panics("x.rs:1:1:\nrank 1: panicked at x.rs:2: 2"), ProofVerdict::Killed);
        let broken = |verdict| matches!(verdict, ProofVerdict::Broken(_));
        assert!(
            ["x.rs:3:1:", "x.rs:9:1:", "x.rs:0:1:", "y.rs:2:1:", "x.rs"].map(panics).into_iter().all(broken)
        );
        assert!(["echo running 0 tests", "exit 101", "kill -9 $$", "exit 1"].map(of).into_iter().all(broken));
        let stuck = verdict(tree.path(), "a", &shell("sleep 60", Duration::from_millis(50)));
        assert_eq!(stuck, ProofVerdict::Broken("it did not end in time".into()));
    }
}
