//! Commands on models that nobody here made: converted, evaluated, trained on given ids; and what bad
//! checkpoints get.
use crate::child::{equipart, refused};
use crate::memory::settings;
use layers::{Builder, Experts, Shape};
use models::Config;
use ops::{LayerCounts, RandomValues};
use parallel::{Batch, BuildContext, Layout, Sequence, price, session};
use run::price::program;
use run::train::settings::Settings;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tensor::Cpu;

fn answer(args: &[&str]) -> Value {
    let output = equipart(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

/// The golden batch of a model, in a file.
fn batch(dir: &TempDir, name: &str) -> (String, f64) {
    let text = fs::read_to_string(golden(name).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let path = dir.path().join(format!("{name}.json"));
    fs::write(&path, golden["batch"].to_string()).unwrap();
    (path.display().to_string(), golden["loss"].as_f64().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `eval` gives transformers' loss under any layout; the perplexity is its exponential; every target counts
/// once. Kills: a mean over sequences, a first or last token told twice or never.
#[test]
fn eval_gives_the_loss_of_transformers() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen2", "qwen2-moe", "gpt2-erf"] {
        let ((ids, loss), model) = (batch(&dir, name), golden(name));
        let splits: &[&str] =
            if name == "qwen2-moe" { &["ep=2", "ep=4", "pp=2:seq1f1b"] } else { &["tp=2,sp"] };
        for layout in ["none", "dp=2"].iter().chain(splits) {
            let seen = answer(&["eval", "--model", text(&model), "--batch", &ids, "--layout", layout]);
            assert!((seen["loss"].as_f64().unwrap() - loss).abs() < 1e-4, "{name}, {layout}: {seen}");
            let perplexity = seen["perplexity"].as_f64().unwrap();
            assert!((perplexity / loss.exp() - 1.0).abs() < 1e-4, "{name}, {layout}: {seen}");
            assert_eq!(seen["tokens"], 20 + 12);
        }
    }
}

/// Kills: an end of text that is overrun, a flag that does not win, a note that is said twice or never, a
/// draw that the folder asks for and does not get.
#[test]
fn texts_go_on_as_the_folder_says() {
    let dir = tempfile::tempdir().unwrap();
    let model = copy(&dir, "llama", |_| ());
    let said = |file: &str, flags: &[&str]| {
        fs::write(model.join("generation_config.json"), file).unwrap();
        let args = ["generate", "--model", text(&model), "--prompt-ids", "1,2,3", "--json"];
        let output = equipart(&[&args, flags].concat());
        let reported = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{reported}");
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        (serde_json::from_value::<Vec<u32>>(line["ids"].clone()).unwrap(), reported)
    };
    let ids = |file: &str, flags: &[&str]| said(file, flags).0;
    let whole = ids("{}", &["--max-new", "8"]);
    let end = 1 + whole[3..].iter().position(|id| *id == whole[5]).unwrap();
    let ends = format!(r#"{{"eos_token_id":[99,{}],"max_new_tokens":8,"temperature":9.0}}"#, whole[5]);
    assert_eq!(ids(&ends, &[]), whole[..3 + end]);
    assert_eq!(ids(r#"{"max_new_tokens":4}"#, &[]), whole[..7]);
    assert_eq!(ids(r#"{"max_new_tokens":4}"#, &["--max-new", "5"]), whole[..8]);
    assert_eq!(ids(r#"{"max_new_tokens":4000}"#, &[]).len(), 64, "all positions");
    let drawn = r#"{"do_sample":true,"temperature":9.0,"top_k":7,"max_new_tokens":8}"#;
    let by_flags = |more: &[&str]| ids("{}", &[&["--max-new", "8", "--top-k", "7"], more].concat());
    assert_eq!(ids(drawn, &[]), by_flags(&["--temperature", "9"]));
    assert_eq!(ids(drawn, &["--seed", "4"]), by_flags(&["--temperature", "9", "--seed", "4"]));
    assert_eq!(ids(drawn, &["--temperature", "2"]), by_flags(&["--temperature", "2"]));
    assert!(ids(drawn, &[]) != whole && ids(drawn, &["--greedy"]) == whole);
    let (same, reported) = said(r#"{"repetition_penalty":1.5,"max_length":9}"#, &["--max-new", "8"]);
    assert_eq!((same, reported.matches("note: ").count()), (whole, 1), "{reported}");
    assert!(
        reported.contains(
            "generation_config.json asks for repetition_penalty 1.5; equipart does not support this"
        ),
        "{reported}"
    );
    fs::write(model.join("generation_config.json"), r#"{"do_sample":true,"temperature":-1}"#).unwrap();
    let wrong = "generation_config.json: temperature is -1; it must be a number above 0";
    refused(&["generate", "--model", text(&model), "--prompt-ids", "1"], wrong);
    refused(&["generate", "--prompt", "a", "--greedy", "--top-k", "3"], "cannot be used with");
}

/// Kills: experts that are given without saying how many are chosen, sizes that do not divide and are not
/// named, a load that is told as a share of something else.
#[test]
fn a_model_is_given_experts() {
    let dir = tempfile::tempdir().unwrap();
    let ((ids, _), from, out) = (batch(&dir, "linear"), golden("linear"), dir.path().join("experts"));
    let by = |flags: &[&'static str]| {
        let model = ["convert", "--model", text(&from), "--out", text(&out), "--experts", "6"];
        [&model.map(str::to_owned)[..], &flags.iter().map(|&f| f.to_owned()).collect::<Vec<_>>()].concat()
    };
    let run = |flags: &[&'static str]| {
        let args = by(flags);
        equipart(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let why = |flags: &[&'static str]| String::from_utf8(run(flags).stderr).unwrap();
    assert!(why(&[]).contains("--chosen <K>"));
    assert!(
        why(&["--chosen", "3", "--slices", "2"])
            .contains("--chosen is 3; it must be a multiple of the 2 slices")
    );
    assert!(run(&["--chosen", "4", "--slices", "2"]).status.success());
    let loss =
        |model: &Path| answer(&["eval", "--model", text(model), "--batch", &ids])["loss"].as_f64().unwrap();
    assert!((loss(&out) - loss(&from)).abs() < 1e-6);
    let output = equipart(&["eval", "--model", text(&out), "--batch", &ids]);
    let reported = String::from_utf8(output.stdout).unwrap();
    assert!(
        reported.contains("\nexperts of blocks.")
            && reported.contains(", the least even of 2 layers, each received "),
        "{reported}"
    );
    assert!(reported.contains(" % of the token copies (16.7 % is even)\n"), "{reported}");
}

/// `price` reads the expert load that `eval` prints for a text, and prices a step as one takes whose tokens
/// are dispatched in these proportions. Kills: a routing that is passed over, of another layer, or of all
/// microbatches together; a price of a rank without it; one by as many tokens on every data rank.
#[test]
fn a_routing_from_a_file_is_priced_as_it_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let ((ids, _), model, file) = (batch(&dir, "qwen2-moe"), golden("qwen2-moe"), dir.path().join("r.json"));
    let reported = answer(&["eval", "--model", text(&model), "--batch", &ids]);
    let counts = reported["experts"]["blocks.1.mlp"].as_array().unwrap();
    assert_eq!(counts.iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), 2 * (20 + 12));
    let config = Config::read(&model.join("config.json")).unwrap();
    let shape = config.shape;
    let experts = Experts { forced: true, ..shape.experts.unwrap() };
    // 3 and 4 sequences: data ranks have 1 and 2 of the first
    let settings = Settings { microbatches: 2, ..settings(16, 7) };
    let shape = settings.shape(&Config { shape: Shape { experts: Some(experts), ..shape }, ..config });
    let mut prices = Vec::new();
    for reported in [reported["experts"].clone(), json!({"blocks.1.mlp": [1, 0, 3, 3, 1]}), Value::Null] {
        let routing: Option<LayerCounts> = serde_json::from_value(reported.clone()).unwrap();
        fs::write(&file, json!({ "experts": reported }).to_string()).unwrap();
        for layout in ["none", "ep=2", "ep=2:all-gather", "dp=3,ep=3"] {
            let config = model.join("config.json");
            let own = ["price", "--config", text(&config), "--layout", layout, "--seq", "16", "--json"];
            let step = ["--microbatches", "2", "--batch-size", "7"];
            let from = ["--routing", text(&file)];
            let output =
                equipart(&[&own[..], &step, &from[..if reported.is_null() { 0 } else { 2 }]].concat());
            let seen: Vec<Value> = String::from_utf8(output.stdout)
                .unwrap()
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            let layout: Layout = layout.parse().unwrap();
            let world = layout.world().unwrap();
            let measured =
                session::run((&layout, &world), &RandomValues { seed: 1 }, |at: BuildContext<Cpu<f32>>| {
                    let builder = Builder { counts: routing.as_ref(), ..at.builder };
                    program(&BuildContext { builder, ..at }, shape, &settings)
                });
            let measured = measured.unwrap();
            if reported.is_null() {
                let batch = Batch::new(vec![Sequence::new(vec![0; 16], vec![0; 16]); 7], 2).unwrap();
                let all =
                    price::training::<Cpu<f32>>(&layout, shape, settings.optimizer(), &batch, |_, _| Ok(()));
                let held: usize = measured.iter().map(|cost| cost.peaks.total).sum();
                assert_eq!(all.unwrap().all, held as u128, "of all ranks under {layout}");
            }
            for (seen, cost) in seen.iter().zip(measured) {
                let wanted = [cost.peaks.total as u64, cost.flops, cost.traffic.wire_bytes() as u64];
                let seen = [&seen["peak_bytes"]["total"], &seen["flops"], &seen["traffic_bytes"]];
                assert_eq!(seen.map(|n| n.as_u64().unwrap()), wanted, "{reported} under {layout}");
                prices.push(wanted);
            }
        }
    }
    let of_ep = |reported: usize| prices[8 * reported + 1].to_vec();
    assert!(of_ep(0) != of_ep(1) && of_ep(1) != of_ep(2), "other counts, other prices: {prices:?}");
}

/// Kills: a file that is no routing, or of another model, and priced anyway.
#[test]
fn routings_that_no_tokens_can_have_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, config) = (dir.path().join("r.json"), golden("qwen2-moe").join("config.json"));
    let price = |reported: &str, says: &str| {
        fs::write(&file, reported).unwrap();
        refused(&["price", "--config", text(&config), "--seq", "16", "--routing", text(&file)], says);
    };
    let of = |counts: &str| format!(r#"{{"experts": {{"blocks.1.mlp": {counts}}}}}"#);
    price("[1]", "is not a JSON object whose \"experts\" are counts by layer: ");
    price(r#"{"loss": 1}"#, "missing field `experts`");
    price(&of("[1, -2]"), "is not a JSON object");
    price(&of("[1, 2, 3, 4]"), "has 4 counts of blocks.1.mlp; it must have 5, one for each expert");
    price(r#"{"experts": {}}"#, "has 0 counts of blocks.1.mlp; it must have 5");
    price(
        r#"{"experts": {"blocks.0.mlp": [1]}}"#,
        "has counts of blocks.0.mlp, but the layers of experts are blocks.1.mlp",
    );
    price(&of("[0, 0, 0, 0, 0]"), "gives expert 0 of blocks.1.mlp 0 of 0 copies; ");
    price(&of("[5, 1, 1, 1, 1]"), "gives expert 0 of blocks.1.mlp 5 of 9 copies; the most is 4, and ");
    refused(&["price", "--config", text(&config), "--seq", "16", "--routing", "/no/file"], "/no/file");
    for model in [&["--model", "mlp"][..], &[]] {
        let none = "needs a model with experts, and this model has none; leave it out";
        refused(&[&["price", "--routing", text(&file)], model].concat(), none);
    }
}

/// Converted to f32 and read again a model has the same logits; to half precision and on, the same file.
#[test]
fn converted_models_say_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mistral", "qwen3", "mixtral", "gpt2-erf"] {
        let (ids, _) = batch(&dir, name);
        let at = |part: &str| dir.path().join(format!("{name}-{part}"));
        let said =
            answer(&["convert", "--model", text(&golden(name)), "--out", text(&at("f32")), "--dtype", "f32"]);
        assert_eq!(said["dtype"], "F32");
        let loss = |model: &Path| answer(&["eval", "--model", text(model), "--batch", &ids])["loss"].clone();
        assert_eq!(loss(&at("f32")), loss(&golden(name)), "{name}");
        for (from, to, dtype) in
            [("f32", "bf16", "bf16"), ("bf16", "again", "f32"), ("again", "twice", "bf16")]
        {
            answer(&["convert", "--model", text(&at(from)), "--out", text(&at(to)), "--dtype", dtype]);
        }
        let file = |part: &str| fs::read(at(part).join("model.safetensors")).unwrap();
        assert!(file("bf16") == file("twice"), "{name}: what is rounded once stays");
        refused(&["convert", "--model", text(&golden(name)), "--out", text(&at("f32"))], "is not empty");
    }
}

/// A step on given ids is plain descent at rate 1: new weights are the old ones less the dumped gradients.
/// Kills: a rate that warms up, clipping or dropout that nobody asked for.
#[test]
fn a_step_on_ids_subtracts_the_gradient() {
    use tensor::safetensors::File;
    let dir = tempfile::tempdir().unwrap();
    let ((ids, loss), model) = (batch(&dir, "gpt2-erf"), golden("gpt2-erf"));
    let [out, dump] = ["out", "dump"].map(|part| dir.path().join(part));
    let args = ["train", "--model", text(&model), "--batch", &ids, "--steps", "1", "--layout", "tp=2"];
    let said = answer(&[&args[..], &["--out", text(&out), "--dump", text(&dump)]].concat());
    assert!((said["loss"].as_f64().unwrap() - loss).abs() < 1e-4, "{said}");
    let open = |path: PathBuf| File::open(&path).unwrap();
    let old = open(dump.join("weights.safetensors"));
    let (gradients, new) = (open(dump.join("gradients.safetensors")), open(out.join("model.safetensors")));
    for name in new.names() {
        let shape = &new.info(name).unwrap().shape;
        let read = |file: &File| file.values::<f32>(name, shape).unwrap();
        let (old, gradient, new) = (read(&old), read(&gradients), read(&new));
        assert!(old.iter().zip(&gradient).zip(&new).all(|((w, g), new)| w - g == *new), "{name}");
    }
    // Packed documents may together be longer than the positions; a second dump takes the place of the first.
    let packed = dir.path().join("packed.json");
    fs::write(
        &packed,
        json!([[(0..20).collect::<Vec<_>>(), (5..25).collect::<Vec<_>>()], [1, 2]]).to_string(),
    )
    .unwrap();
    let args =
        ["train", "--model", text(&model), "--batch", text(&packed), "--lr", "0.1", "--layout", "dp=2"];
    answer(&[&args[..], &["--dump", text(&dump)]].concat());
    let rows = open(dump.join("activations.safetensors")).metadata()["rows"].clone();
    let rows: Vec<[usize; 2]> = serde_json::from_str(&rows).unwrap();
    assert_eq!((rows.len(), rows[19], rows[38]), (19 + 19 + 1, [1, 0], [2, 0]));
    answer(&[
        "generate",
        "--model",
        text(&model),
        "--prompt-ids",
        "1,2",
        "--max-new",
        "1",
        "--dump",
        text(&dump),
    ]);
    assert!(!dump.join("gradients.safetensors").exists(), "no gradient of another run");
    refused(&["train", "--model", text(&model), "--batch", &ids, "--seq", "5"], "cannot be used with");
    refused(
        &["train", "--model", text(&model), "--batch", &ids, "--layout", "dp=3"],
        "cannot be dealt over dp=3",
    );
    refused(
        &["train", "--model", text(&model), "--batch", &ids, "--dropout", "1"],
        "--dropout is 1; it must be",
    );
    refused(&["train", "--model", text(&model), "--batch", &ids, "--dropout", "x"], "is not a rate");
    refused(&["train", "--model", text(&model), "--batch", text(dir.path())], "directory");
    refused(
        &["train", "--steps", "1", "--checkpoint-every", "5"],
        "--checkpoint-every needs --out; without it nothing is saved",
    );
    refused(&["generate", "--prompt", "a", "--dump", &ids], "cannot be created");
    let config = model.join("config.json");
    refused(&["prove", "--config", text(&config), "--dump", &ids], "cannot be created");
}

/// A copy of a golden folder, with its config.json changed.
fn copy(dir: &TempDir, name: &str, change: impl Fn(&mut Value)) -> PathBuf {
    let to = dir.path().join(format!("copy{}", fs::read_dir(dir.path()).unwrap().count()));
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(golden(name)).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    let path = to.join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    to
}

/// Kills: a checkpoint that is taken for what it is not, or half of it read before that is seen.
#[test]
fn bad_checkpoints_are_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let reads =
        |model: &Path, says: &str| refused(&["generate", "--model", text(model), "--prompt-ids", "1"], says);
    let with = |name: &str, key: &'static str, value: Value| {
        copy(&dir, name, move |config| config[key] = value.clone())
    };
    reads(&with("llama", "model_type", json!("bert")), "bert");
    reads(&with("llama", "vocab_size", json!(38)), "model.embed_tokens.weight");
    reads(&with("llama", "attention_bias", json!(false)), "proj.bias\" is not part of this model");
    reads(&with("llama", "num_hidden_layers", json!(3)), "model.layers.2.");
    reads(&with("llama", "num_key_value_heads", json!(3)), "num_key_value_heads");
    reads(&with("llama", "hidden_size", json!(1u64 << 60)), "at most");
    reads(&with("llama", "some_new_key", json!(1)), "some_new_key");
    reads(&with("gpt2", "n_head", json!(5)), "n_embd");
    reads(&with("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)), "scale_attn_by_inverse_layer_idx");
    reads(&with("qwen3", "use_sliding_window", json!("yes")), "use_sliding_window");
    let torn = copy(&dir, "qwen3", |_| ());
    let shard = fs::read_dir(&torn).unwrap().map(|f| f.unwrap().path());
    let shard = shard.filter(|f| text(f).contains("-of-")).max().unwrap();
    fs::remove_file(&shard).unwrap();
    reads(&torn, shard.file_name().unwrap().to_str().unwrap());
    refused(&["generate", "--model", text(&golden("llama")), "--prompt", "text"], "tokenizer.json");
    refused(&["train", "--model", text(&golden("llama")), "--steps", "1"], "tokenizer.json");
    refused(&["eval", "--model", text(&golden("llama"))], "tokenizer.json");
}
