//! The binary: what its commands print, and what bad input gets: one sentence, exit code 2, nothing written.
use crate::child::{equipart, foreign, refused};
use crate::narrow::LARGEST;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect()
}

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// A model small enough to be trained in no time, and a text.
fn small() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,
        "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":48,
        "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu"}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    std::fs::write(dir.path().join("text"), "all work and no play makes a dull text. ".repeat(40)).unwrap();
    let (config, text) = (path(&dir, "config.json"), path(&dir, "text"));
    (dir, config, text)
}

/// Trains the small model into a folder of its own.
fn trained() -> (tempfile::TempDir, String, String) {
    let (dir, config, text) = small();
    let out = path(&dir, "model");
    let args = ["train", "--config", &config, "--data", &text, "--seq", "32", "--batch-size", "4"];
    let args = [&args[..], &["--steps", "4", "--layout", "tp=2", "--out", &out, "--json"]].concat();
    let said = lines(&equipart(&args));
    assert_eq!(said.len(), 4, "a line for each step");
    for (step, line) in said.iter().enumerate() {
        assert_eq!(line["step"], step + 1);
        assert!(line["loss"].as_f64().unwrap() > 1.0 && line["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!(line["peak_bytes"].as_array().unwrap().len(), 2);
    }
    (dir, out, text)
}

#[test]
fn compare_shows_equality_in_every_row() {
    let (_dir, model, text) = trained();
    let args = [
        "compare",
        "--model",
        &model,
        "--data",
        &text,
        "--layout",
        "tp=2",
        "--layout",
        "tp=2,dp=2",
        "--seconds",
        "0",
        "--json",
    ];
    let rows = lines(&equipart(&args));
    let names: Vec<_> = rows.iter().map(|r| (r["workload"].clone(), r["layout"].clone())).collect();
    let layouts = ["none", "tp=2", "tp=2,dp=2"];
    let wanted: Vec<_> = ["inference", "training"]
        .iter()
        .flat_map(|w| layouts.map(|l| (Value::from(*w), Value::from(l))))
        .collect();
    assert_eq!(names, wanted);
    for row in &rows {
        assert_eq!(row["equal"], true, "{row}");
        assert!(row["seconds"].as_f64().unwrap() > 0.0 && row["tokens_per_second"].as_f64().unwrap() > 0.0);
        let ranks = match row["layout"].as_str().unwrap() {
            "none" => 1,
            "tp=2" => 2,
            _ => 4,
        };
        for phase in ["load", "inference", "total"] {
            let bytes = row["peak_bytes"][phase].as_array().unwrap();
            assert!(bytes.len() == ranks && bytes.iter().all(|b| b.as_u64().unwrap() > 0), "{row}");
        }
        assert_eq!(row["traffic_bytes"].as_u64().unwrap() == 0, ranks == 1, "{row}");
        assert!(row["error_ratio"].as_f64().unwrap() < LARGEST, "{row}");
        let lacks = row["never_ran"].as_array().unwrap();
        assert!(lacks.contains(&"layer norm".into()) && !lacks.contains(&"SwiGLU".into()), "{row}");
        let unsplit = row["layout"] == "none";
        assert!(!unsplit || row["error_ratio"] == 1.0);
        match row["workload"].as_str().unwrap() {
            "inference" => assert!(row["tokens_equal"] == true || row["tie"].is_object(), "{row}"),
            _ => assert_eq!(row["tokens_equal"], Value::Null),
        }
    }
    let printed = String::from_utf8(equipart(&args[..args.len() - 1]).stdout).unwrap();
    for row in &rows {
        crate::compared::printed_as_told(&printed, row);
    }
}

#[test]
fn generate_continues_and_prove_states_and_price_prices() {
    let (_dir, model, _) = trained();
    let args = [
        "generate",
        "--model",
        &model,
        "--prompt",
        "all",
        "--prompt-ids",
        "97,108",
        "--max-new",
        "5",
        "--json",
    ];
    let one = lines(&equipart(&args));
    assert_eq!(one.len(), 2, "a line for each prompt");
    let ids = |line: &Value| line["ids"].as_array().unwrap().clone();
    assert_eq!((ids(&one[0])[..2].to_vec(), ids(&one[0]).len()), (vec![97.into(), 108.into()], 7));
    assert_eq!(
        (ids(&one[1])[..3].to_vec(), ids(&one[1]).len()),
        (vec![97.into(), 108.into(), 108.into()], 8)
    );
    assert_eq!(one[0]["prompt_logits"].as_array().unwrap().len(), 256);
    let again = lines(&equipart(&[&args[..], &["--layout", "tp=2"]].concat()));
    assert_eq!(ids(&again[0]), ids(&one[0]));

    let config = Path::new(&model).join("config.json").display().to_string();
    let proof = ["prove", "--layout", "tp=2,dp=2", "--config", &config];
    let fixed = lines(&equipart(&[&proof[..], &["--key", "0x10", "--json"]].concat()));
    assert_eq!((&fixed[0]["equal"], &fixed[0]["first_difference"]), (&true.into(), &Value::Null));
    assert_eq!(fixed[0]["keys"][0], "0x0000000000000010");
    assert!(
        fixed[0]["bound_log2"].as_f64().unwrap() < -30.0 && fixed[0]["elements"].as_u64().unwrap() > 10_000
    );
    let same = lines(&equipart(&[&proof[..], &["--key", "16", "--json"]].concat()));
    assert_eq!(fixed, same, "the same key gives the same output");
    let said = String::from_utf8(equipart(&proof).stdout).unwrap();
    assert!(
        said.starts_with("Randomised proof: under tp=2,dp=2") && said.contains("probability at most 2^-"),
        "{said}"
    );
    assert!(said.contains("It says nothing about rounding, overflow, other shapes or deadlock."), "{said}");
    let never = fixed[0]["never_ran"].as_array().unwrap();
    assert!(never.contains(&"bias of attention's output".into()), "{never:?}");
    assert!(said.contains("Never ran here: ") && said.contains("bias of attention's output; "), "{said}");

    let panel = ["prove", "--layout", "tp=2", "--key", "0x10"];
    let proven = &lines(&equipart(&[&panel[..], &["--json"]].concat()))[0];
    let keys = |of: &Value| of["keys"].as_array().unwrap().clone();
    assert_eq!((&proven["equal"], &keys(proven)[..2]), (&true.into(), &keys(&fixed[0])[..]));
    assert!(proven["models"].as_array().unwrap().len() > 5 && proven["bound_log2"].as_f64().unwrap() < -30.0);
    let reported = lines(&equipart(&["eval", "--model", &model, "--layout", "dp=2", "--json"]));
    assert_eq!(
        reported[0]["tokens"],
        models::embedded::CORPUS.len() / 10 - 1,
        "without a text, what is held out of ours"
    );

    let prices =
        lines(&equipart(&["price", "--config", &config, "--layout", "tp=2", "--seq", "32", "--json"]));
    let [both] = &prices[..] else { panic!("two ranks are alike: {prices:?}") };
    assert!(both["peak_bytes"]["weights"].as_u64().unwrap() > 0 && both["flops"].as_u64().unwrap() > 0);
    assert!(both["traffic_bytes"].as_u64().unwrap() > 0 && both["rank"] == 0 && both["ranks"] == 2);
}

#[test]
fn layouts_and_sizes_that_do_not_fit_are_refused() {
    refused(&["prove", "--layout", "tp=17"], "no small model fits tp=17");
    refused(&["prove", "--dump", "there"], "--config");
    refused(&["prove", "--layout", "xp=2"], "xp");
    for command in ["train", "eval", "price"] {
        let says = "a sequence of 2 tokens cannot be dealt over cp=4: each rank needs at least one";
        refused(&[command, "--seq", "2", "--layout", "cp=4"], says);
    }
    let generate = ["generate", "--prompt-ids", "1", "--max-new", "2", "--layout", "cp=4"];
    refused(&generate, "a sequence of 3 tokens cannot be dealt over cp=4: each rank needs at least one");
    refused(
        &["train", "--model", "mlp", "--layout", "cp=2"],
        "cp=2 does not fit 1 token of an example: cp can be 1",
    );
    refused(
        &["train", "--layout", "cp=8:ulysses"],
        "cp=8:ulysses does not fit 4 query heads: cp can be 2 or 4 with ulysses; cp=8 fits with ring or gathered",
    );
    refused(
        &["price", "--layout", "cp=4:ulysses/3"],
        "cp=4:ulysses/3 does not fit 4 context ranks, 4 query heads",
    );
    refused(&["train", "--layout", "recompute,recompute"], "recompute is written twice; write it once");
    refused(&["price", "--layout", "dp=2:zero1/3"], "does not fit 2 data ranks: dp can be 3, 6, 9, ");
    refused(&["prove", "--layout", "tp=2,tp=2"], "tp");
    refused(&["prove", "--layout", "tp=99999999999999999999999"], "99999999999999999999999");
    refused(&["prove", "--layout", "dp=1048577"], "1048577");
    refused(&["prove", "--layout", "tp=0"], "0");
    refused(&["prove", "--layout", "tp=2", "--key", "0xg"], "0xg");
    for (layout, says) in [
        ("dp=2:zero1:zero1", "zero1 is written twice; write it once"),
        ("tp=2:zero1", "goes with dp, not with tp: write dp=2:zero1"),
        ("dp=1:zero1", "needs dp ranks, 2 or more: write dp=2:zero1"),
        (
            "cp=2:foo",
            "\"foo\" is not a method of cp; write zigzag, contiguous, striped, ring, ulysses or gathered",
        ),
        ("cp=4:ring/2", "ring takes no number; write ring"),
        ("dp=2:offload-file/2", "offload-file takes no number; write offload-file"),
        ("recompute:full/0", "distance between recomputed blocks must be a whole number, 1 or more"),
        ("recompute:selective:full/2", "selective and full exclude each other; write one of them"),
        ("tp=2,sp=2", "sp has no ranks of its own; write tp=2,sp"),
        ("edp=2", "edp is never written"),
        ("tp=2,dp=2,order=tp", "lacks dp; each split axis is named once, innermost first: order=tp.dp"),
    ] {
        refused(&["prove", "--layout", layout], says);
    }
    let (_dir, config, text) = small();
    refused(&["prove", "--layout", "pp=9", "--config", &config], "does not fit 1 block: pp can be 1");
    for layout in ["tp=3", "tp=8"] {
        refused(&["prove", "--layout", layout, "--config", &config], "tp can be 1, 2 or 4");
    }
    let train = |more: &[&str], says: &str| {
        refused(&[&["train", "--config", &config, "--data", &text, "--seq", "32"], more].concat(), says);
    };
    refused(&["train", "--config", &config, "--data", &text, "--seq", "0"], "0");
    refused(&["train", "--config", &config, "--data", &text, "--seq", "49"], "the model has 48 positions");
    refused(&["train", "--config", &config, "--data", &text, "--seq", "200"], "sequences of 200");
    train(&["--steps", "0"], "--steps is 0");
    train(&["--microbatches", "0"], "--microbatches is 0");
    train(&["--batch-size", "2", "--microbatches", "3"], "2 sequences in 3 microbatches");
    train(&["--batch-size", "2", "--microbatches", "2", "--layout", "dp=2"], "cannot be dealt over dp=2");
    train(&["--lr", "nan"], "learning rate");
    train(&["--lr", "-1"], "-1");
    train(&["--clip", "0"], "--clip is 0");
    train(&["--optimizer", "adam"], "adam");
    train(&["--batch-size", "18446744073709551615"], "tokens; it may have at most 16777216");
    train(&["--checkpoint-every", "0"], "--checkpoint-every is 0");
    train(&["--steps", "1", "--lr", "1e40"], "a smaller --lr may help");
    train(&["--steps", "99999999999999999999"], "99999999999999999999");
    refused(&["price", "--config", &config, "--seq", "0"], "--seq is 0");
    refused(&["price", "--config", &config, "--seq", "99999999999"], "the model has 48 positions");
    refused(&["price", "--seq", "512", "--batch-size", "99999999999"], "it may have at most 16777216");
}

#[test]
fn files_that_are_not_what_they_should_be_are_refused() {
    let (dir, model, text) = trained();
    let at = |name: &str| path(&dir, name);
    std::fs::write(at("empty"), "").unwrap();
    let (empty, missing, folder) = (at("empty"), at("missing"), dir.path().display().to_string());
    refused(&["train", "--data", &empty], &empty);
    refused(&["train", "--data", &missing], &missing);
    refused(&["train", "--data", &folder], &folder);
    refused(&["generate", "--prompt", "a", "--model", &missing], "does not exist");
    refused(&["generate", "--prompt", "a", "--model", &text], "is a file");
    refused(&["generate", "--prompt", "a", "--model", &folder], "model.safetensors");
    refused(&["price", "--config", &folder], &folder);
    refused(&["price", "--config", &text], "is not a model configuration");
    refused(&["train", "--data", &text, "--seq", "32", "--out", &text], "is a file");
    refused(&["train", "--data", &text, "--seq", "32", "--out", "/proc/nowhere/x"], "/proc/nowhere/x");
    refused(&["train", "--data", &text, "--seq", "32", "--out", &model], "holds a model already");
    refused(&["train", "--data", &text, "--resume", &folder], "model.safetensors");
    let ends =
        |at: usize| format!("the run has done 4 steps and ends at {at}; give a larger --steps to continue");
    refused(&["train", "--data", &text, "--resume", &model], &ends(4));
    refused(&["train", "--data", &text, "--resume", &model, "--steps", "3"], &ends(3));
    let copy = at("copy");
    let more = ["train", "--data", &text, "--resume", &model, "--steps", "5", "--out", &copy, "--json"];
    let more = equipart(&more);
    assert_eq!(lines(&more).len(), 1);
    let note = "note: this run began with 4 steps and now ends at 5; its learning rate follows the schedule of 5: 1.000e-4";
    assert!(String::from_utf8(more.stderr).unwrap().starts_with(note));
    refused(
        &["train", "--data", &text, "--resume", &model, "--optimizer", "sgd"],
        "sgd, but the run to resume began with adamw",
    );
    refused(
        &["train", "--data", &text, "--resume", &model, "--lr", "0.5"],
        "--lr is 0.5, but the run to resume",
    );
    refused(&["train", "--resume", &model], &ends(4));
    let other = ["train", "--resume", &model, "--data", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")];
    refused(&other, "the training data is not that of the run to resume");
    let weights = PathBuf::from(&model).join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let generate = ["generate", "--prompt", "a", "--model", &model];
    let cut = |bytes: &[u8], says: &str| {
        std::fs::write(&weights, bytes).unwrap();
        refused(&generate, says);
    };
    cut(&whole[..whole.len() - 1], "model.safetensors");
    cut(&whole[..5], "model.safetensors");
    cut(&[&[0xff; 8], &whole[8..]].concat(), "model.safetensors");
    let bare = foreign(whole.clone());
    let lie = |from: &str, to: &str, says: &str| {
        assert_eq!(from.len(), to.len());
        let header = bare.windows(from.len()).position(|w| w == from.as_bytes()).expect("in the header");
        let mut bytes = bare.clone();
        bytes[header..header + from.len()].copy_from_slice(to.as_bytes());
        cut(&bytes, says);
    };
    lie("\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "I32");
    lie("lm_head.weight", "lm_bead.weight", "lm_head.weight");
    lie("[256,16]", "[128,32]", "[128, 32]");
    std::fs::write(&weights, &whole).unwrap();
    assert!(equipart(&generate).status.success());
}

#[test]
fn prompts_that_cannot_be_continued_are_refused() {
    let (_dir, model, _) = trained();
    let generate =
        |more: &[&str], says: &str| refused(&[&["generate", "--model", &model], more].concat(), says);
    generate(&[], "there is no prompt");
    generate(&["--prompt", ""], "the prompt is empty");
    generate(
        &["--prompt-ids", "1,256", "--max-new", "1"],
        "token id 256 at position 1 is not in the vocabulary of 256",
    );
    generate(&["--prompt-ids", "1,x"], "\"x\" is not a token id");
    generate(&["--prompt", "abc", "--max-new", "46"], "the model has 48 positions");
    generate(&["--prompt", "abc", "--max-new", "18446744073709551615"], "the model has 48 positions");
    generate(&["--prompt", "a", "--layout", "dp=2"], "1 prompt cannot be dealt over dp=2");
    generate(&["--prompt", "a", "--temperature", "0"], "the temperature is 0");
    generate(&["--prompt", "a", "--top-k", "3"], "there is no temperature");
    generate(&["--prompt", "a", "--seed", "0"], "the seed is 0, but there is no temperature");
    generate(&["--prompt", "a", "--temperature", "1", "--top-p", "1.5"], "top_p is 1.5");
}

/// Kills: a sentence of two lines, or one that colours what follows.
#[test]
#[cfg(unix)]
fn a_path_is_told_on_one_line() {
    refused(
        &["price", "--config", "/no\nwhere\u{1b}[31m"],
        r"error: /no\nwhere\u{1b}[31m: there is no such file",
    );
}

/// Kills: a GPT-2 as `transformers` writes it refused, what is odd about it told twice or never.
#[test]
fn special_tokens_that_the_vocabulary_lacks_are_noted_once() {
    let (dir, ..) = small();
    let config = r#"{"model_type":"gpt2","n_embd":16,"n_head":4,"n_layer":1,"n_positions":32,"vocab_size":97,
        "bos_token_id":50256,"eos_token_id":50256}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let output = equipart(&["price", "--config", &path(&dir, "config.json"), "--seq", "8"]);
    let reported = "note: the vocabulary of 97 has no bos_token_id 50256, eos_token_id 50256 of config.json; no text can have it\n";
    assert_eq!((String::from_utf8(output.stderr).unwrap(), output.status.code()), (reported.into(), Some(0)));
}

/// Kills: a name that is mistyped and taken for a folder, the embedded model that has no name, one of
/// pictures continued.
#[test]
fn models_have_names() {
    let prompt = ["generate", "--prompt", "a", "--max-new", "2"];
    let unknown = "no folder and no model has this name; the models are embedded, moe and mlp";
    refused(&[&prompt[..], &["--model", "embeded"]].concat(), unknown);
    refused(&["train", "--model", "mpl"], unknown);
    refused(&[&prompt[..], &["--model", "./mlp"]].concat(), "./mlp does not exist");
    refused(&[&prompt[..], &["--model", "./moe"]].concat(), "./moe does not exist");
    refused(&[&prompt[..], &["--model", "mlp"]].concat(), "mlp is a classifier of pictures");
    let reported =
        |model: &[&str]| lines(&equipart(&[&prompt[..], &["--json"], model].concat())).swap_remove(0);
    let (named, default) = (reported(&["--model", "embedded"]), reported(&[]));
    assert_eq!(
        ["ids", "prompt_logits"].map(|key| &named[key]),
        ["ids", "prompt_logits"].map(|key| &default[key])
    );
}
