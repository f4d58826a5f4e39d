//! Runs that end before their time: killed, without a reader, on a full disk. What they leave is whole, and
//! goes on.
use crate::child::{Watched, binary, equipart, output};
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// A model small enough to be trained in no time, and a text.
pub(crate) fn small() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,
        "num_attention_heads":4,"vocab_size":256,"max_position_embeddings":48}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    std::fs::write(dir.path().join("text"), "all work and no play makes a dull text. ".repeat(40)).unwrap();
    let (config, text) = (path(&dir, "config.json"), path(&dir, "text"));
    (dir, config, text)
}

/// Kills: a test that waits for ever for a child which nothing but a kill ends, and does not say for which.
#[test]
fn a_child_that_does_not_end_is_killed_and_named() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT TERM; echo so far >&2; exec cat"]); // which reads until its input ends
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Watched::within(Duration::from_millis(100), &mut command);
    let _open = child.process.stdin.take();
    let reported = catch_unwind(AssertUnwindSafe(|| child.output())).unwrap_err();
    let reported = reported.downcast_ref::<String>().unwrap();
    assert!(reported.contains(r#""sh" "-c""#) && reported.contains("did not end within 100ms"), "{reported}");
}

/// A run that is killed leaves the last checkpoint whole, and goes on from it.
#[test]
fn a_killed_run_leaves_a_whole_checkpoint() {
    let (dir, config, text) = small();
    let out = path(&dir, "model");
    let args =
        ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "1000000", "--out", &out];
    let args = [&args[..], &["--checkpoint-every", "1", "--json"]].concat();
    let mut child = Watched::start(binary().args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let said = BufReader::new(child.process.stdout.take().unwrap());
    assert_eq!(said.lines().take(20).map_while(Result::ok).count(), 20, "steps before it ended");
    // which, other than Ctrl-C, a run that began in the background cannot ignore
    child.process.kill().unwrap();
    assert!(!child.output().status.success());
    let args = ["train", "--data", &text, "--resume", &out, "--stop-after", "2", "--json"];
    let steps = equipart(&args);
    assert!(steps.status.success(), "{}", String::from_utf8_lossy(&steps.stderr));
    let first: serde_json::Value =
        serde_json::Deserializer::from_slice(&steps.stdout).into_iter().next().unwrap().unwrap();
    assert!(first["step"].as_u64().unwrap() >= 20, "{first}");
    let left = std::fs::read_dir(&out).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let optimizers = left.filter(|name| name.starts_with("optimizer-")).count();
    assert_eq!(optimizers, 1, "older optimizer files are removed by the next checkpoint");
}

/// A reader that stops reading stops nothing: the run goes on and its model is kept.
#[test]
fn a_closed_pipe_ends_no_training() {
    let (dir, config, text) = small();
    let out = path(&dir, "model");
    let args = [
        "train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "30", "--out", &out,
        "--json",
    ];
    let mut child = Watched::start(binary().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop((child.process.stdout.take(), child.process.stderr.take()));
    assert!(child.output().status.success());
    assert!(equipart(&["generate", "--model", &out, "--prompt", "a"]).status.success());
}

/// The command, where no file can have more than 10 KiB, as on a disk that is full. The signal that tells of
/// it ends who does not pass over it.
fn on_a_full_disk(args: &[&str]) -> Output {
    let script = "ulimit -f 20; exec \"$0\" \"$@\"";
    output(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_equipart")]).args(args))
}

fn files(dir: &str) -> Vec<(String, Vec<u8>)> {
    let file =
        |f: std::fs::DirEntry| (f.file_name().into_string().unwrap(), std::fs::read(f.path()).unwrap());
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| file(f.unwrap())).collect();
    all.retain(|(name, _)| name != "log.jsonl"); // it may be ahead of the checkpoint
    all.sort();
    all
}

/// Plain descent keeps nothing in its file, so that is written and the model's is not. Kills: an optimizer's
/// file without its model, which is taken for a model by the next run; one beside an older model, which fills
/// the disk; a temporary file that stays, or is named.
#[test]
fn a_save_that_fails_leaves_nothing_and_the_next_one_works() {
    let (dir, config, text) = small();
    let out = path(&dir, "model");
    let train = ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "3"];
    let train = [&train[..], &["--optimizer", "sgd", "--out", &out]].concat();
    let fails = |args: &[&str]| {
        let output = on_a_full_disk(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        let reported = error.lines().find(|line| line.starts_with("error: ")).expect("a sentence");
        assert!(reported.ends_with("(os error 27)") && !error.contains("/.model."), "{error}");
    };
    fails(&train);
    let names = |files: Vec<(String, Vec<u8>)>| files.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(files(&out)), ["config.json", "tokenizer.json"]);
    assert!(equipart(&[&train[..], &["--stop-after", "2"]].concat()).status.success());
    let before = files(&out);
    let resume = ["train", "--data", &text, "--resume", &out];
    fails(&resume);
    assert!(files(&out) == before, "{:?} became {:?}", names(before), names(files(&out)));
    assert!(equipart(&resume).status.success());
    let all = ["config.json", "model.safetensors", "optimizer-3.safetensors", "tokenizer.json"];
    assert_eq!(names(files(&out)), all);

    let copy = path(&dir, "copy");
    let convert = ["convert", "--model", &out, "--out", &copy];
    fails(&convert);
    assert!(files(&copy).is_empty());
    // goes along, last but one
    std::fs::write(PathBuf::from(&out).join("vocab.json"), [b' '; 11_000]).unwrap();
    assert!(equipart(&[&convert[..], &["--dtype", "bf16"]].concat()).status.success());
    std::fs::remove_dir_all(&copy).unwrap();
    fails(&[&convert[..], &["--dtype", "bf16"]].concat());
    assert!(files(&copy).is_empty());
    assert!(equipart(&convert).status.success());

    let left = path(&dir, "left");
    let begun = [&train[..11], &["--layout", "tp=2"]].concat();
    let prompt = ["generate", "--model", &out, "--prompt", "a", "--max-new", "30"];
    for (args, flag, name) in [
        (&begun[..], "--dump", ""),
        (&begun, "--trace", "trace.json"),
        (&["schedule", "--stages", "8", "--microbatches", "32"], "--svg", "a.svg"),
        (&["context"], "--svg", "a.svg"),
        (&["schedule", "--stages", "16", "--microbatches", "64"], "--csv", "a.csv"),
        (&prompt, "--dump", ""),
    ] {
        std::fs::create_dir(&left).unwrap();
        let to = PathBuf::from(&left).join(name).display().to_string();
        fails(&[args, &[flag, &to]].concat());
        assert!(files(&left).is_empty(), "{args:?} {flag}: {:?}", names(files(&left)));
        std::fs::remove_dir_all(&left).unwrap();
    }
}

/// A search with millions of layouts, in a memory that many do not fit into, is cut once it says what it
/// does. Kills: a search that nobody sees or can end, one that goes on after its cut, or tells nothing of it.
#[test]
fn a_search_shows_its_progress_and_can_be_cut() {
    let (dir, ..) = small();
    let config = r#"{"model_type":"qwen3_moe","hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":94,
        "num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"vocab_size":151936,"num_experts":128,
        "num_experts_per_tok":8,"moe_intermediate_size":1536,"max_position_embeddings":40960,
        "norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[]}"#;
    std::fs::write(dir.path().join("large.json"), config).unwrap();
    let args = ["plan", "--config", &path(&dir, "large.json"), "--devices", "64"];
    let mut child = Watched::start(binary().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut said = BufReader::new(child.process.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert!(first.starts_with("pricing blocks and states: ") && first.ends_with(" left"), "{first}");
    let number = child.process.id().to_string();
    assert!(Command::new("kill").args(["-INT", &number]).status().unwrap().success());
    let cut = "error: the search was cut before it weighed a layout that fits";
    assert_eq!(said.last().unwrap().unwrap(), cut);
    assert_eq!(child.output().status.code(), Some(2));
}
