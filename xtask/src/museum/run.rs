//! One program, once: to its end or to a limit, and what a proof's end means.
use std::fs;
use std::io::{Read, Seek};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// How a program ended, and all that it said.
pub(super) struct Ended {
    /// None: it did not end in time.
    pub(super) status: Option<ExitStatus>,
    /// Both its outputs.
    pub(super) said: String,
}

/// Runs a program until it ends or the limit is over.
///
/// # Errors
/// If it cannot be started or watched.
pub(super) fn run(mut command: Command, limit: Duration) -> Result<Ended, String> {
    let cannot = |why: std::io::Error| format!("{} cannot be run ({why})", command.get_program().display());
    let mut file = tempfile::tempfile().map_err(cannot)?;
    let clone = |file: &fs::File| file.try_clone();
    let (out, error) = clone(&file).and_then(|out| Ok((out, clone(&file)?))).map_err(cannot)?;
    let mut child = command
        .stdout(out)
        .stderr(error)
        .spawn()
        .map_err(|why| format!("{} cannot be started ({why})", command.get_program().display()))?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|why| format!("a proof cannot be watched ({why})"))? {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => {
                let _ = child.kill(); // it may have ended just now
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut said = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut said));
    read.map_err(|why| format!("what a proof said cannot be read ({why})"))?;
    Ok(Ended { status, said: String::from_utf8_lossy(&said).into_owned() })
}

/// What a proof said of the tree in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passed.
    Passed,
    /// It failed by an assertion.
    Killed,
    /// Neither: it did not end, did not run, or failed by something else than an assertion.
    Broken(String),
}

/// Reads the end of a test program that was asked for one test.
pub(super) fn verdict(test: &str, ended: &Ended) -> Verdict {
    let Ended { status, said } = ended;
    let last = || said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    match status.map(|status| status.code()) {
        None => Verdict::Broken("it did not end in time".into()),
        Some(_) if said.contains("running 0 tests") => Verdict::Broken(format!("there is no test `{test}`")),
        Some(Some(0)) => Verdict::Passed,
        Some(Some(101)) if asserted(said) => Verdict::Killed,
        Some(Some(101)) => Verdict::Broken(format!("it failed by no assertion: {}", panic(said))),
        _ => Verdict::Broken(format!("it crashed: {}", last())),
    }
}

/// Whether the first panic is an assertion: the language's own, or a comparison of the harness, which says how many
/// elements `differ`.
fn asserted(said: &str) -> bool {
    let message = panic(said);
    message.starts_with("assertion ") || message.contains(" differ") || message.contains(": assertion ")
}

/// The message of the first panic.
fn panic(said: &str) -> String {
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at "));
    lines.next();
    lines.next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, limit).unwrap()
    }

    /// Kills: a survivor, a crash, a stuck proof or a test that is not there taken for a kill.
    #[test]
    fn only_an_assertion_kills() {
        let long = Duration::from_secs(20);
        let of = |script: &str| verdict("a::b", &shell(script, long));
        assert_eq!(of("echo running 1 test"), Verdict::Passed);
        let panics =
            |why: &str| of(&format!("echo \"thread 'a' panicked at x.rs:1:2:\n{why}\" >&2; exit 101"));
        assert_eq!(panics("assertion failed: 1 == 2"), Verdict::Killed);
        assert_eq!(panics("step 0: Y, rank 1 of 2: 3 of 4 differ (4 seen)"), Verdict::Killed);
        let broken = |verdict| matches!(verdict, Verdict::Broken(_));
        assert!(broken(panics("index out of bounds: the len is 3")));
        assert!(broken(of("echo running 0 tests")) && broken(of("kill -9 $$")) && broken(of("exit 1")));
        assert_eq!(
            verdict("a", &shell("sleep 60", Duration::from_millis(50))),
            Verdict::Broken("it did not end in time".into())
        );
    }
}
