//! The trainer: evaluations that end a run, logs and their plots, several texts, flags that are refused.
use crate::child::{equipart, refused};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tensor::safetensors::File;

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":32,"num_hidden_layers":1,
    "num_attention_heads":2,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":64,
    "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu"}"#;

/// A folder with a config and a text, and flags that train on them.
fn begun() -> (tempfile::TempDir, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let [config, text] = ["config.json", "a.txt"].map(|name| dir.path().join(name));
    fs::write(&config, CONFIG).unwrap();
    let words: String =
        (0..900u32).map(|i| ["the ", "fox ", "ran\n", "far "][(i * i / 7 % 4) as usize]).collect();
    fs::write(&text, words).unwrap();
    let [config, text] = [config, text].map(|path| path.display().to_string());
    let flags =
        ["train", "--config", &config, "--data", &text, "--seq", "16", "--batch-size", "4", "--lr", "0.1"];
    (dir, flags.map(String::from).to_vec())
}

/// Runs the binary with these flags and more; gives its output and its notes.
fn ran(flags: &[String], more: &[&str]) -> (String, String) {
    let args: Vec<_> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let output = equipart(&args);
    let [out, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {notes}");
    (out, notes)
}

/// Lines of a log without what depends on the time or the process.
fn log(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("log.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    let line = |text| {
        let mut line: Value = serde_json::from_str(text).unwrap();
        assert!(line["tokens_per_second"].as_f64().unwrap() > 0.0 && line["peak_bytes"].is_array(), "{line}");
        line.as_object_mut()
            .unwrap()
            .retain(|field, _| !["tokens_per_second", "peak_bytes"].contains(&&**field));
        line
    };
    text.lines().map(line).collect()
}

/// A run whose rate is too large, stopped and resumed between its evaluations. Kills: a best value or a
/// count that begins anew, an early end without its checkpoint; a log with steps after its checkpoint, with
/// half a line, or twice with a step.
#[test]
fn a_resumed_run_ends_where_the_uninterrupted_one_does() {
    let (dir, flags) = begun();
    let [once, twice] = ["once", "twice"].map(|name| dir.path().join(name));
    let [a, b] = [&once, &twice].map(|dir| dir.display().to_string());
    let judged = ["--steps", "300", "--eval-every", "2", "--patience", "2", "--lr-schedule", "constant"];
    let (_, notes) = ran(&flags, &[&judged[..], &["--out", &a]].concat());
    let lines = log(&once);
    let values: Vec<_> = lines.iter().filter_map(|line| line["held_out_bits_per_byte"].as_f64()).collect();
    let (steps, best) = (lines.len(), values.iter().copied().fold(f64::INFINITY, f64::min));
    assert!(steps < 300 && steps == 2 * values.len() && values[values.len() - 3] == best, "{values:?}");
    let says = format!(
        "note: the run ends after step {steps}: no value better than {best:.4} bits a byte in the last 2"
    );
    assert!(notes.contains(&says) && steps > 6, "{notes}");

    let stop = (steps - 1).to_string(); // after the first of the two
    ran(&flags, &[&judged[..], &["--out", &b, "--stop-after", &stop]].concat());
    let path = twice.join("log.jsonl");
    let whole = fs::read_to_string(once.join("log.jsonl")).unwrap();
    let later = whole.lines().nth(steps - 1).unwrap(); // of a run that went on and was lost
    let half = fs::read_to_string(&path).unwrap() + later + "\n{\"step\":";
    fs::write(&path, half).unwrap();
    let data = [vec!["train".to_string()], flags[3..5].to_vec()].concat();
    ran(&data, &["--resume", &b]);
    assert_eq!(log(&twice), lines);
    for file in ["model.safetensors", &format!("optimizer-{steps}.safetensors")] {
        assert!(fs::read(once.join(file)).unwrap() == fs::read(twice.join(file)).unwrap(), "{file}");
    }
    let again = |more: &[&str], says: &str| {
        let begin = data.iter().map(String::as_str).chain(["--resume", &b]);
        refused(&begin.chain(more.iter().copied()).collect::<Vec<_>>(), says);
    };
    again(&[], "in the last 2 evaluations; give a larger --patience to continue");
    again(
        &["--lr-schedule", "wsd"],
        "--lr-schedule is wsd, but the run to resume began with constant; leave it out",
    );
    again(
        &["--betas", "0.9,0.9"],
        "--betas is 0.9,0.9, but the run to resume began with 0.9,0.95; leave it out",
    );
    again(&["--min-lr", "0"], "--min-lr is 0, but --lr-schedule constant has no use for it; leave it out");

    let (table, _) = ran(&["plot".into()], &[&a, &path.display().to_string()]);
    let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(
        row(&a).contains(&format!(" {steps} ")) && row(&a).contains(&format!("{best:.4} bits a byte")),
        "{table}"
    );
    let (rows, _) = ran(&["plot".into()], &[&a, "--json"]);
    let speed =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["tokens_per_second"].as_f64().unwrap();
    let mut speeds: Vec<_> = whole.lines().map(speed).collect();
    speeds.sort_by(f64::total_cmp);
    let median = f64::midpoint(speeds[(speeds.len() - 1) / 2], speeds[speeds.len() / 2]);
    assert_eq!(speed(rows.lines().next().unwrap()), median, "the median");
    let svg = dir.path().join("a.svg");
    let (json, _) = ran(&["plot".into()], &[&b, "--json", "--svg", &svg.display().to_string()]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["steps"], &json["best_held_out_bits_per_byte"]), (&steps.into(), &best.into()));
    assert!(fs::read_to_string(svg).unwrap().contains("held-out text, bits a byte"));
    fs::write(&path, "{\"step\": 1}\n").unwrap();
    refused(
        &["plot", &a, &b],
        &format!("{}, line 1 is not the log of a step: missing field", path.display()),
    );
    fs::write(&path, whole.clone() + "{\"step\": 1, \"lo").unwrap(); // of a run that goes on
    let (torn, _) = ran(&["plot".into()], &[&b, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&torn).unwrap()["steps"], steps);
    fs::write(&path, "").unwrap();
    refused(&["plot", &b], "log.jsonl is empty (0 bytes)");
    refused(&["plot", &dir.path().display().to_string()], "log.jsonl: there is no such file");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    again(&["--patience", "9"], "log.jsonl");
}

/// Epochs of pictures are evaluations. Kills: an accuracy whose smaller values are better, a log without it.
#[test]
fn epochs_that_do_not_improve_end_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run").display().to_string();
    let sizes =
        ["--hidden", "none", "--batch-size", "2000", "--lr", "1e-9", "--epochs", "9", "--patience", "1"];
    let plot = dir.path().join("a.svg").display().to_string();
    let (_, notes) = ran(
        &["train".into(), "--model".into(), "mlp".into()],
        &[&sizes[..], &["--out", &out, "--plot", &plot]].concat(),
    );
    let lines = log(&dir.path().join("run"));
    assert_eq!(lines.iter().filter(|line| line["accuracy"].is_f64()).count(), 2);
    assert!(lines.len() == 10 && lines[9]["accuracy"] == lines[4]["accuracy"], "{lines:?}");
    assert!(notes.contains("the run ends after step 10") && notes.contains(" % right"), "{notes}");
    assert!(fs::read_to_string(plot).unwrap().contains("test accuracy"));
    let learns = ["train", "--model", "mlp", "--json", "--patience", "1"].map(String::from);
    let (epochs, _) = ran(&learns, &["--hidden", "none", "--batch-size", "500", "--lr", "0.05"]);
    assert_eq!(epochs.lines().count(), 3, "each is better: {epochs}");
    let again = ["train", "--resume", &out];
    refused(&again, "in the last 1 evaluation; give a larger --patience to continue");
    refused(
        &[&again[..], &["--data", "a", "--data", "b"]].concat(),
        "--data is given 2 times; --model mlp reads one",
    );
}

/// Kills: a column without its value, a step that is left out or told twice, another number than JSON's; a
/// file that two views write; one that is left where another rank reports.
#[test]
fn steps_and_epochs_are_written_as_comma_separated_values() {
    let (dir, flags) = begun();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let csv = path("steps.csv");
    let (lines, _) =
        ran(&flags, &["--steps", "3", "--json", "--layout", "dp=2", "--csv", &csv, "--eval-every", "2"]);
    let steps: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = fs::read_to_string(&csv).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 4, "{text}");
    for (row, step) in rows[1..].iter().zip(&steps) {
        for (key, value) in rows[0].iter().zip(row) {
            match &step[*key] {
                Value::Number(number) => assert_eq!(value.parse::<f64>().ok(), number.as_f64(), "{key}"),
                Value::Array(bytes) => {
                    assert_eq!(value.parse().ok(), bytes.iter().filter_map(Value::as_u64).max(), "{key}");
                }
                _ => assert!(["", "0"].contains(value), "{key}: {value}"),
            }
        }
    }
    assert!(!rows[2][2].is_empty() && rows[1][2].is_empty(), "{text}");
    let csv = path("epochs.csv");
    let learns =
        ["train", "--model", "mlp", "--hidden", "none", "--epochs", "2", "--csv", &csv].map(String::from);
    ran(&learns, &[]);
    let text = fs::read_to_string(&csv).unwrap();
    assert_eq!(text.lines().next(), Some("epoch,loss,accuracy,seconds,examples_per_second"));
    assert_eq!(text.lines().count(), 3);
    let all: Vec<_> = flags.iter().map(String::as_str).collect();
    let same = [&all[..], &["--csv", "a", "--plot", "a"]].concat();
    refused(&same, "--csv and --plot both want a; give each a file of its own");
    let nowhere = path("none/a.csv");
    refused(&[&all[..], &["--csv", &nowhere]].concat(), "none");
}

/// The first loss is that of fresh weights: it tells which tokens the batch has. Kills: a rank that draws a
/// batch of its own, a batch that depends on the number of data or context ranks, or on its microbatches.
#[test]
fn losses_and_batches_do_not_depend_on_the_layout() {
    let (_dir, flags) = begun();
    let losses = |more: &[&str]| -> Vec<f64> {
        let (lines, _) = ran(&flags, &[&["--steps", "4", "--json"], more].concat());
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap())
            .collect()
    };
    let alone = losses(&[]);
    for more in [
        &["--layout", "dp=2"][..],
        &["--layout", "cp=2"],
        &["--layout", "dp=2,cp=2"],
        &["--layout", "dp=2", "--microbatches", "2"],
    ] {
        let seen = losses(more);
        let apart = alone.iter().zip(&seen).map(|(a, b)| (a - b).abs());
        assert!(
            (alone[0] - seen[0]).abs() < 1e-5 && apart.fold(0.0, f64::max) < 1e-3,
            "{more:?}: {alone:?} {seen:?}"
        );
    }
    let other = losses(&["--seed", "1"]);
    assert!(alone.iter().zip(&other).all(|(a, b)| (a - b).abs() > 1e-4), "{alone:?} {other:?}");
}

/// Kills: a flag that is ignored where it has no meaning, a range that is not checked.
#[test]
fn flags_of_the_trainer_are_refused_in_one_sentence() {
    let (dir, flags) = begun();
    let short = dir.path().join("short.jsonl").display().to_string();
    fs::write(&short, format!("{{\"text\": \"{}\"}}", "word ".repeat(60))).unwrap();
    let ids = dir.path().join("ids.json").display().to_string();
    fs::write(&ids, "[[1,2,3],[4,5,6]]").unwrap();
    let no = |more: &[&str], says: &str| {
        refused(&flags.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>(), says);
    };
    no(&["--min-lr", "0.2"], "--min-lr is 0.2; it must be 0 or more and at most the largest rate, 0.1");
    no(&["--min-lr", "-1"], "--min-lr is -1; it must be");
    no(&["--min-lr", "nan"], "--min-lr is NaN; it must be");
    no(
        &["--min-lr", "0", "--lr-schedule", "constant"],
        "--min-lr is 0, but --lr-schedule constant has no use for it",
    );
    no(&["--betas", "0.9,1"], "--betas is 0.9,1; both must be 0 or more and below 1 in f32");
    no(&["--betas", "0.99999999999,0.9"], "--betas is 0.99999999999,0.9; both");
    no(&["--eps", "0"], "--eps is 0; it must be above 0 in f32");
    no(&["--weight-decay", "-0.1"], "--weight-decay is -0.1; it must be 0 or more");
    no(
        &["--optimizer", "sgd", "--eps", "1"],
        "--eps is for --optimizer adamw, adamw-8bit or muon; sgd has no use for it",
    );
    for command in ["train", "price"] {
        let cut = [command, "--optimizer", "adamw-8bit", "--layout", "tp=2", "--block-size", "64"];
        refused(&cut, "it must be a multiple of 64, the elements of a block; blocks of 32 fit all cuts");
    }
    no(&["--patience", "2"], "--patience counts evaluations on the held-out text; give --eval-every too");
    no(&["--eval-every", "0"], "--eval-every is 0; it must be at least 1");
    no(&["--eval-every", "1", "--patience", "0"], "--patience is 0; it must be at least 1");
    no(
        &["--eval-every", "1", "--patience", "1", "--dump", "x"],
        "--dump keeps the last step, but --patience",
    );
    no(&["--data-field", "body"], "no file of --data ends in .jsonl, .ndjson or .json; leave it out");
    let compressed = dir.path().join("a.jsonl.gz").display().to_string();
    fs::write(&compressed, b"\x1f\x8b\x08").unwrap();
    no(&["--data", &compressed], "a.jsonl.gz is compressed by gzip; decompress it first");
    no(
        &["--data", &short, "--data-field", "body"],
        "short.jsonl, line 1 has no field \"body\"; its fields are \"text\"",
    );
    let of_ids = ["train", "--config", &flags[2], "--batch", &ids];
    refused(&[&of_ids[..], &["--eval-every", "1"]].concat(), "need a held-out text, but --batch has none");
    let short = ["train", "--config", &flags[2], "--data", &short, "--seq", "16", "--layout", "dp=4"];
    refused(
        &[&short[..], &["--eval-every", "1"]].concat(),
        "the held-out text has 30 tokens, and sequences have 16",
    );
    refused(
        &["train", "--model", "mlp", "--eval-every", "1"],
        "--eval-every is for models of text; --model mlp has no",
    );
    refused(&["plot"], "<RUN>...");
}

/// One step under two rates and one rate of matrices. Kills: --muon-lr as a multiple of --lr, or of 1; one
/// of the two rates for all parameters.
#[test]
fn rates_of_matrices_and_of_all_others_are_two() {
    let (dir, flags) = begun();
    let stepped = |lr: &str, matrices: &str| {
        let out = dir.path().join(format!("{lr} {matrices}"));
        let muon = ["--optimizer", "muon", "--muon-lr", matrices, "--steps", "1"];
        let flags = [&flags[..7], &muon.map(String::from), &["--lr".into(), lr.into()]].concat();
        ran(&flags, &["--out", out.to_str().unwrap()]);
        let file = File::open(&out.join("model.safetensors")).unwrap();
        ["model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"]
            .map(|name| file.whole(name).unwrap().2.to_vec())
    };
    let [first, other_lr, other_matrices] =
        [("0.25", "0.125"), ("0.0625", "0.125"), ("0.25", "0.5")].map(|(lr, rate)| stepped(lr, rate));
    assert!(first[0] == other_lr[0] && first[1] != other_lr[1]);
    assert!(first[0] != other_matrices[0] && first[1] == other_matrices[1]);
}

/// Documents of several files, for a model without a token that ends a text. Kills: a file that is left out
/// or read raw, a newline that is missing or added to a plain text.
#[test]
fn several_files_are_one_text() {
    let (dir, flags) = begun();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name).display().to_string();
        fs::write(&path, text).unwrap();
        path
    };
    let config =
        write("endless.json", &CONFIG.replace("{\"model_type\"", "{\"eos_token_id\":null,\"model_type\""));
    let words = "so it went on and on. ".repeat(20);
    let line = |field: &str| format!("{{\"{field}\":\"{words}\"}}\n");
    let [documents, text] =
        [write("b.jsonl", &line("body").repeat(3)), write("b.txt", &format!("{words}\n").repeat(3))];
    let losses = |more: &[&str]| -> Vec<String> {
        let base =
            ["train", "--config", &config, "--data", &flags[4], "--seq", "16", "--steps", "3", "--json"];
        let (lines, _) = ran(&base.map(String::from), &[more, &["--eval-every", "3"]].concat());
        let fields = |line: Value| format!("{} {}", line["loss"], line["held_out_bits_per_byte"]);
        lines.lines().map(|line| fields(serde_json::from_str(line).unwrap())).collect()
    };
    let seen = losses(&["--data", &documents, "--data-field", "body"]);
    assert_eq!(seen, losses(&["--data", &text]));
    assert_ne!(seen, losses(&[]));
}

/// Ids in four microbatches, with a document of one token, resumed without their file's name, on two data
/// ranks, and from a folder where the file is gone. Kills: data that a resumed run does not remember, or
/// takes for another's; microbatches that a layout cannot deal, or another batch; a note that hides them; a
/// document of one token that is refused.
#[test]
fn a_resumed_run_keeps_its_ids_and_fits_its_microbatches() {
    let (dir, flags) = begun();
    let [ids, other, out] =
        ["ids.json", "other.json", "run"].map(|name| dir.path().join(name).display().to_string());
    fs::write(&ids, "[[1,2,3],[[4,5,6],[9]],[7,8],[5,3,1]]").unwrap();
    let new = ["--config", &flags[2], "--batch", &ids, "--microbatches", "4", "--steps", "2", "--out", &out];
    let train = ["train".to_string()];
    ran(&train, &new);
    let (_, notes) = ran(&train, &["--resume", &out, "--steps", "3"]);
    assert!(!notes.contains("microbatches"), "{notes}");
    let again = ["--resume", &out, "--layout", "dp=2"];
    let (_, notes) = ran(&train, &[&again[..], &["--steps", "4"]].concat());
    let note = "note: dp=2 cannot deal 4 sequences in 4 microbatches; the run goes on with 2";
    assert!(notes.lines().any(|line| line == note), "{notes}");
    assert_eq!(log(Path::new(&out)).len(), 4);
    fs::rename(&ids, &other).unwrap();
    let resume = ["train", "--resume", &out, "--steps", "5"];
    let place = fs::canonicalize(dir.path()).unwrap().join("ids.json");
    let gone = "which is gone; give its new place with --batch";
    refused(&resume, gone);
    refused(&resume, place.file_name().unwrap().to_str().unwrap());
    ran(&train, &[&resume[1..], &["--batch", &other]].concat());
}
