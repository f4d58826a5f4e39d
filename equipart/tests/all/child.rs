//! Children of tests: whoever has not ended within ten minutes is killed and named, so no test waits for
//! ever. Alone a child takes seconds, and on a busy machine forty times as long.
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(10);

/// A short text. The embedded one has a held-out tenth that takes seconds to evaluate.
pub(crate) const SHORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE-MIT");

/// Output of the binary with these arguments and empty input.
pub(crate) fn equipart(args: &[&str]) -> Output {
    output(binary().args(args))
}

/// Sees the binary refuse these arguments with one sentence that has these words: exit code 2, and no
/// results.
pub(crate) fn refused(args: &[&str], says: &str) {
    let output = equipart(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let sentences: Vec<_> = error.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(sentences.len() == 1 && !error.contains("panicked"), "{args:?}: {error}");
    assert!(error.contains(says), "{args:?} says {error:?}, wanted {says:?}");
}

/// Checks every number with its noun. Kills: "1 tokens", "2 epoches", in any output of any test.
fn counts(said: &str) {
    const NOUNS: [&str; 26] = [
        "batches",
        "blocks",
        "bytes",
        "calls",
        "checkpoints",
        "devices",
        "documents",
        "elements",
        "epochs",
        "experts",
        "features",
        "files",
        "heads",
        "ids",
        "keys",
        "layers",
        "microbatches",
        "models",
        "pictures",
        "positions",
        "prompts",
        "ranks",
        "sequences",
        "steps",
        "texts",
        "tokens",
    ];
    for (at, _) in
        said.match_indices("1 ").filter(|(at, _)| !said[..*at].ends_with(|c: char| !" (\n".contains(c)))
    {
        let noun = said[at + 2..].split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        let of_std = said[..at].ends_with("sequence of "); // an error of UTF-8
        assert!(!NOUNS.contains(&noun) || of_std, "1 {noun}: {said}");
    }
    assert!(!said.contains("epoches"), "{said}");
}

/// A safetensors file as another program writes it: without digests under the names that are looked for.
pub(crate) fn foreign(mut file: Vec<u8>) -> Vec<u8> {
    for key in ["\"digests\"", "\"header_digest\""] {
        let at = file.windows(key.len()).position(|some| some == key.as_bytes()).expect("it has digests");
        file[at + 1] = b'_';
    }
    file
}

/// The binary.
pub(crate) fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_equipart"))
}

/// Output of a command with empty input.
pub(crate) fn output(command: &mut Command) -> Output {
    Watched::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).output()
}

/// A child that is killed when its time is over, or when its test fails.
pub(crate) struct Watched {
    pub(crate) process: Child,
    ended: Sender<()>, // dropped without a word, the child is killed
    watch: JoinHandle<bool>,
    what: String,
}

impl Watched {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::within(LIMIT, command)
    }
    /// The same with another limit.
    pub(crate) fn within(limit: Duration, command: &mut Command) -> Self {
        let process = command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        let ((ended, reported), id) = (channel::<()>(), process.id().to_string());
        let watch = spawn(move || {
            let is_late = reported.recv_timeout(limit).is_err();
            if is_late {
                let _ = Command::new("kill").args(["-KILL", &id]).status(); // which no child can ignore
            }
            is_late
        });
        Self { process, ended, watch, what: format!("{command:?} did not end within {limit:?}") }
    }
    /// Returns its output until it ends; both streams are read side by side.
    ///
    /// # Panics
    /// If it has to be killed.
    pub(crate) fn output(self) -> Output {
        let Self { process, ended, watch, what } = self;
        let output = process.wait_with_output().unwrap();
        let _ = ended.send(()); // nobody listens any more if it was killed
        assert!(!watch.join().unwrap(), "{what}; it said: {}", String::from_utf8_lossy(&output.stderr));
        for said in [&output.stdout, &output.stderr] {
            counts(&String::from_utf8_lossy(said));
        }
        output
    }
}
