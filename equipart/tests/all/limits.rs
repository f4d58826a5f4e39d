//! Threads, memory and files that the machine refuses, or that are not what they seem: one sentence each, and
//! exit code 2.
use crate::child::{binary, equipart, foreign, output, refused};
use crate::endings::small;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Stacks that are larger than all addresses: no thread starts that does not ask for its own. Kills: a
/// refused thread that is taken for a wrong layout, for a case to keep, or for a bug; one that others wait
/// for; a second sentence.
#[test]
fn a_thread_that_does_not_start_ends_every_command() {
    let (dir, config, data) = small();
    let out = dir.path().join("out").display().to_string();
    let train = ["train", "--config", &config, "--data", &data, "--seq", "16", "--steps", "3"];
    for args in [
        &["prove", "--cases", "2", "--key", "1"][..],
        &["prove", "--layout", "tp=2", "--config", &config],
        &["plan", "--devices", "2"],
        &["bench", "--only", "machine_peak", "--small"],
        &[&train[..], &["--out", &out, "--save", "async"]].concat(),
        &["launch", "-n", "2", "--", "prove", "--layout", "tp=2", "--config", &config],
    ] {
        let ended = output(binary().args(args).env("RUST_MIN_STACK", (1u64 << 47).to_string()));
        let said = text(&ended.stderr);
        let errors: Vec<_> = said.lines().filter(|line| line.contains("error: ")).collect();
        assert_eq!((ended.status.code(), errors.len()), (Some(2), 1), "{args:?}: {said}");
        let why = if args[0] == "launch" { " cannot be started: " } else { "error: cannot start a thread: " };
        assert!(errors[0].contains(why) && errors[0].contains("(os error 11)"), "{args:?}: {said}");
        assert!(ended.stdout.is_empty() && !said.contains("panicked"), "{args:?}: {said}");
    }
}

/// Kills: results of ranks that are lost without a word.
#[test]
fn results_of_ranks_that_cannot_be_written_are_an_error() {
    let (_dir, config, _) = small();
    let prove = ["prove", "--layout", "tp=2", "--config", &config];
    let launch = ["launch", "-n", "2", "--"];
    for args in [&prove[..], &[&launch[..], &prove].concat()] {
        let mut command = binary();
        command.args(args).stdout(fs::File::create("/dev/full").unwrap());
        let ended = command.stderr(std::process::Stdio::piped()).output().unwrap();
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("error: the results could not be written to standard output: "), "{said}");
    }
}

/// A run that has done its three steps. Returns its folder and the text.
fn trained() -> (tempfile::TempDir, String, String) {
    let (dir, config, data) = small();
    let out = dir.path().join("out").display().to_string();
    let train = ["train", "--config", &config, "--data", &data, "--seq", "32", "--steps", "3", "--out", &out];
    assert!(equipart(&train).status.success());
    (dir, out, data)
}

/// Kills: files of earlier steps that stay once a kill has spared them; a finished run that cannot be
/// evaluated again, or that does a step.
#[test]
fn a_finished_run_is_tidied_and_evaluated_again() {
    let (_dir, out, _data) = trained();
    let old = Path::new(&out).join("optimizer-2.safetensors");
    fs::write(&old, "of an earlier step").unwrap();
    let resume = ["train", "--resume", &out];
    refused(&resume, "the run has done 3 steps and ends at 3; give a larger --steps to continue");
    assert!(!old.exists() && Path::new(&out).join("optimizer-3.safetensors").exists());
    let weights = fs::read(Path::new(&out).join("model.safetensors")).unwrap();
    let ended = equipart(&[&resume[..], &["--stop-after", "0"]].concat());
    let said = text(&ended.stdout);
    assert!(ended.status.success() && said.contains("3 steps done; "), "{said}{}", text(&ended.stderr));
    assert!(said.contains(" bits a byte on the held-out text"), "{said}");
    assert!(fs::read(Path::new(&out).join("model.safetensors")).unwrap() == weights);
    let (_dir, config, data) = small();
    let new = ["train", "--config", &config, "--data", &data, "--seq", "32", "--stop-after", "0"];
    refused(&new, "--stop-after is 0; it must be at least 1");
}

/// Kills: a pipe that is waited for, in place of a log.
#[test]
fn a_pipe_in_the_place_of_a_log_is_refused() {
    let (_dir, out, _data) = trained();
    let log = Path::new(&out).join("log.jsonl");
    fs::remove_file(&log).unwrap();
    assert!(output(Command::new("mkfifo").arg(&log)).status.success());
    let resume = ["train", "--resume", &out, "--steps", "4"];
    refused(&resume, "log.jsonl is a pipe, socket or device where a regular file should be");
}

/// Kills: numbers of a file that are used before they are checked: a loop without end.
#[test]
fn settings_of_a_file_are_checked() {
    let (_dir, out, _data) = trained();
    let begin = "microbatches\\\":1,";
    for name in ["model.safetensors", "optimizer-3.safetensors"] {
        let path = Path::new(&out).join(name);
        let bytes = foreign(fs::read(&path).unwrap());
        let (len, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
        let header = String::from_utf8(header.to_vec()).unwrap();
        assert!(header.contains(begin), "{header}");
        let header = header.replace(begin, "microbatches\\\":9007199254740992,");
        let all = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        fs::write(&path, all).unwrap();
    }
    refused(&["train", "--resume", &out, "--steps", "4"], "9007199254740992 microbatches");
}

/// Kills: a run that saves and cannot be resumed.
#[test]
fn data_that_a_checkpoint_cannot_name_is_refused() {
    let (dir, config, data) = small();
    let odd = dir.path().join(OsStr::from_bytes(b"te\xffxt"));
    fs::copy(&data, &odd).unwrap();
    let out = dir.path().join("out");
    let train = ["train", "--config", &config, "--seq", "32", "--steps", "1", "--data"];
    let ended = output(binary().args(train).arg(&odd).arg("--out").arg(&out));
    let said = text(&ended.stderr);
    assert!(ended.status.code() == Some(2) && said.contains("is not valid UTF-8"), "{said}");
    assert!(!out.exists() && output(binary().args(train).arg(&odd)).status.success());
}

/// Kills: a name of a file that a terminal obeys, or that makes a picture no XML.
#[test]
fn names_are_shown_without_control_characters() {
    let (_dir, out, _data) = trained();
    let named = Path::new(&out).join("a\u{1b}[31m.jsonl");
    fs::copy(Path::new(&out).join("log.jsonl"), &named).unwrap();
    let (named, svg) = (named.display().to_string(), out.clone() + ".svg");
    let ended = equipart(&["plot", &named, &named, "--svg", &svg]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    for shown in [text(&ended.stdout), text(&ended.stderr), fs::read_to_string(&svg).unwrap()] {
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
    assert!(fs::read_to_string(&svg).unwrap().contains("a\\u{1b}[31m"));
}
