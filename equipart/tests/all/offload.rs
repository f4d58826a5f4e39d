//! State off the device, as a user sees it: flags, folders without room, files that are left, checkpoints.
use crate::child::{binary, equipart, output};
use crate::endings::small;
use std::process::{Command, Output};
use tempfile::TempDir;

const SMALL: [&str; 7] = ["train", "--seq", "16", "--batch-size", "2", "--steps", "2"];

fn train(more: &[&str]) -> Output {
    equipart(&[&SMALL[..], more].concat())
}
fn refused(output: &Output) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    let reported = error.lines().find_map(|line| line.strip_prefix("error: "));
    reported.unwrap_or_else(|| panic!("no sentence in {error}")).to_string()
}
fn at(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// Kills: a folder that takes no file and is found in the middle of a run, a flag that is passed over, a
/// store that saves nothing.
#[test]
fn folders_and_stores_that_do_not_work_are_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    for (folder, why) in [("none", "(os error 2)"), ("file", "(os error 20)")] {
        let folder = at(&dir, folder);
        let said = refused(&train(&["--layout", "dp=2:zero1:offload-file", "--offload-dir", &folder]));
        let wanted = format!("{folder} does not take a file of 1 B of offloaded state: ");
        assert!(
            said.starts_with(&wanted) && said.contains(why) && said.ends_with("with --offload-dir"),
            "{said}"
        );
    }
    let folder = at(&dir, "");
    for layout in ["dp=2:zero1", "none"] {
        let said = refused(&train(&["--layout", layout, "--offload-dir", &folder]));
        assert!(said.starts_with("--offload-dir needs a layout with files of offloaded state; "), "{said}");
    }
    for command in
        [&["train", "--layout", "offload-host"][..], &["price", "--layout", "dp=2:zero3:offload-host"]]
    {
        let said = refused(&equipart(command));
        assert!(
            said.starts_with("offload-host keeps state in the host's memory, where --device cpu "),
            "{said}"
        );
    }
    let twice = refused(&train(&["--layout", "dp=2:offload-file:offload-host"]));
    assert!(twice.contains("offload-file and offload-host exclude each other; write one of them"), "{twice}");
}

/// A limit on the size of files stands for a full disk. Kills: a full disk that is found after work was done,
/// a signal that ends the process, a file that is left.
#[test]
fn a_full_disk_is_found_before_anything_runs() {
    let (dir, script) = (tempfile::tempdir().unwrap(), "ulimit -f 4000; exec \"$0\" \"$@\"");
    let (folder, out) = (at(&dir, ""), at(&dir, "out"));
    let args = [&SMALL[..], &["--layout", "offload-file", "--offload-dir", &folder, "--out", &out]].concat();
    let run = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_equipart")]).args(args).output();
    let said = refused(&run.unwrap());
    assert!(said.contains("does not take a file of 6.82 MB of offloaded state: File too large"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is begun, and nothing left");
}

/// Kills: a file of state that has a name while a run goes on, or after it; a store that is passed over where
/// nothing is trained.
#[test]
fn files_of_state_have_no_name() {
    let ((dir, config, text), empty) = (small(), tempfile::tempdir().unwrap());
    let (folder, out) = (at(&empty, ""), at(&dir, "model"));
    let layout = ["--layout", "pp=1,tp=2,offload-file", "--offload-dir", &folder, "--out", &out];
    let fresh = ["train", "--config", &config, "--data", &text, "--seq", "16", "--steps", "2"];
    let run = equipart(&[&fresh[..], &layout].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    let said =
        output(binary().args(["eval", "--model", &out, "--data", &text, "--seq", "16"]).args(&layout[..2]));
    let note = String::from_utf8_lossy(&said.stderr);
    assert!(
        note.contains("offload to a file has no effect here: it applies to state of an optimizer"),
        "{note}"
    );
}

/// A run that changes its means at a checkpoint. Kills: a checkpoint that lacks state that is off the device,
/// or state that is not restored there; losses that depend on the means.
#[test]
fn checkpoints_go_into_and_out_of_every_means() {
    let (dir, config, text) = small();
    let read = |folder: &str| {
        let (model, moments) = ("model.safetensors", "optimizer-2.safetensors");
        [model, moments].map(|file| std::fs::read(dir.path().join(folder).join(file)).unwrap())
    };
    let run = |args: &[&str]| {
        let done = equipart(&[&["train", "--data", &text], args].concat());
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let fresh = ["--config", &config, "--seq", "16", "--batch-size", "4", "--steps", "2"];
    let whole = at(&dir, "whole");
    run(&[&fresh[..], &["--out", &whole, "--layout", "dp=2"]].concat());
    let means = [
        "dp=2",
        "dp=2:offload-file",
        "dp=2,recompute:selective",
        "dp=2:zero1:offload-file",
        "dp=2:zero3:offload-file,recompute",
    ];
    for (i, first) in means.iter().enumerate() {
        let (folder, second) = (format!("part{i}"), means[(i + 1) % means.len()]);
        let part = at(&dir, &folder);
        run(&[&fresh[..], &["--out", &part, "--layout", first, "--stop-after", "1"]].concat());
        run(&["--resume", &part, "--layout", second]);
        assert!(read(&folder) == read("whole"), "{first}, then {second}");
    }
}
