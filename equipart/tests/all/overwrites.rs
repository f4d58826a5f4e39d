//! Files that a command writes beside its results replace nothing that it reads or keeps.
use crate::child::{SHORT, equipart, refused};
use std::fs;
use std::path::Path;

/// Kills: a run's own checkpoint, or an input, that a view replaces; a path that is the same under another
/// name; a picture in a run's folder that is refused; an end of a name that stands for another flag.
#[test]
fn views_replace_no_file_that_a_command_uses() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, config, out) = (at("a.txt"), at("config.json"), at("run"));
    let small = ["train", "--steps", "1", "--seq", "8", "--batch-size", "1"];
    let train = |more: &[&str], says: &str| refused(&[&small[..], more].concat(), says);
    let works = |args: &[&str]| assert!(equipart(args).status.success(), "{args:?}");
    fs::copy(SHORT, &text).unwrap();
    let around =
        format!("{}/../{}/a.txt", folder.path().display(), folder.path().file_name().unwrap().display());
    for same in [&text, &around] {
        train(&["--data", &text, "--csv", same], "which this command uses, too; choose another file");
    }
    train(&["--out", &out, "--csv", &format!("{out}/config.json")], "is inside");
    assert!(!Path::new(&out).exists(), "nothing was begun");
    works(&[&small[..], &["--data", &text, "--out", &out]].concat());
    let kept = |name: &str| fs::read(format!("{out}/{name}")).unwrap();
    let [log, model] = [kept("log.jsonl"), kept("model.safetensors")];
    for (flag, name) in [("--csv", "log.jsonl"), ("--plot", "config.json"), ("--report", "model.safetensors")]
    {
        refused(&["train", "--resume", &out, flag, &format!("{out}/{name}")], "is inside");
    }
    refused(&["plot", &out, "--svg", &format!("{out}/log.jsonl")], "or one that ends in .svg");
    works(&["plot", &out, "--svg", &format!("{out}/curves.svg")]);
    assert!(log == kept("log.jsonl") && model == kept("model.safetensors"));
    fs::copy(format!("{out}/config.json"), &config).unwrap();
    refused(&["price", "--config", &config, "--report", &config], "would replace");
    // files that no flag names: the data of a resumed run, a tokenizer beside a config
    let again = ["train", "--resume", &out, "--steps", "2"];
    for flag in ["--csv", "--report", "--trace", "--plot"] {
        let words = fs::read(&text).unwrap();
        refused(&[&again[..], &[flag, &text]].concat(), "which this command uses, too; choose another file");
        assert_eq!(fs::read(&text).unwrap(), words, "{flag}");
    }
    let beside = at("tokenizer.json");
    fs::copy(format!("{out}/tokenizer.json"), &beside).unwrap();
    train(&["--config", &config, "--trace", &beside], "which this command uses, too; choose another file");
    train(&["--plot", &at("none/x.svg")], "cannot write beside");
}

/// Kills: options that are accepted and ignored, and processes without end.
#[test]
fn options_that_nothing_uses_are_refused() {
    for (args, says) in [
        (&["train", "--machine", "foo", "--steps", "1"][..], "is neither a machine"),
        (&["train", "--steps", "1", "--max-shard-size", "1GB"], "--max-shard-size needs --out"),
        (&["price", "--largest-batch", "--machine", "h100"], "cannot be used with"),
        (&["machine", "h100", "--small"], "cannot be used with"),
        (&["sparse", "--steps", "0", "--epochs", "3"], "--epochs is for the runs of a model"),
        (&["shard", "--model", "mlp", "--seq", "3"], "--seq is of --model block"),
        (&["train", "--machine", "h100", "--steps", "1"], "--machine is for --layout auto"),
        (&["train", "--batch", "b.json", "--data-field", "x"], "--data-field is for documents of --data"),
        (&["train", "--steps", "-5"], "for '--steps <STEPS>': it must be a whole number, 0 or more"),
        (&["train", "--steps", "99999999999999999999"], "it must be at most 18446744073709551615"),
        (&["launch", "-n", "2", "--", "train", "--seq", "1.5"], "it must be a whole number, 0 or more"),
        (&["launch", "-n", "5000", "--", "prove"], "--ranks is 5000; on one machine it must be at most 4096"),
    ] {
        refused(args, says);
    }
}
