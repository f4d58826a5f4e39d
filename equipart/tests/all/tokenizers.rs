//! Text through a model's own tokenizer.json: in every command, and one sentence where it cannot be.
use crate::child::{equipart, refused};
use models::config::Config;
use models::generate::all_logits;
use models::text::{Corpus, windows};
use models::tokenizer::{self, Tokenizer};
use models::{Model, embedded};
use ops::SGD;
use parallel::{Layout, Network, Trainer};
use run::train::data::held_out;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tensor::Cpu;

fn said(args: &[&str]) -> String {
    let output = equipart(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(args: &[&str]) -> Vec<Value> {
    said(&[args, &["--json"]].concat()).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Bytes and three merges: th 256, the 257, Ġthe 258; and `<s>` 259, which is put before prompts.
fn merges() -> Value {
    let mut whole: Value = serde_json::from_str(&tokenizer::json()).unwrap();
    whole["pre_tokenizer"]["use_regex"] = json!(true);
    for (id, token) in [(256, "th"), (257, "the"), (258, "Ġthe")] {
        whole["model"]["vocab"][token] = json!(id);
    }
    whole["model"]["merges"] = json!(["t h", "th e", "Ġ the"]);
    whole["added_tokens"] = json!([{ "id": 259, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true }]);
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    whole["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, sequence("A")],
        "pair": [sequence("A"), sequence("B")],
        "special_tokens": { "<s>": { "id": "<s>", "ids": [259], "tokens": ["<s>"] } },
    });
    whole
}

/// A configuration for 260 ids, the tokenizer beside it, and a text.
struct Beside(TempDir);

impl Beside {
    fn new() -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        let config = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,
            "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":260,"max_position_embeddings":48,
            "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","initializer_range":0.5,
            "bos_token_id":null,"eos_token_id":null}"#;
        fs::write(dir.path("config.json"), config).unwrap();
        fs::write(dir.path("tokenizer.json"), merges().to_string()).unwrap();
        fs::write(dir.path("tokenizer_config.json"), "{}").unwrap();
        fs::write(dir.path("text"), " the other".repeat(100)).unwrap();
        dir
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
    /// Two steps into a folder.
    fn trained(&self) -> String {
        let (config, text, out) = (self.at("config.json"), self.at("text"), self.at("model"));
        let args =
            ["train", "--config", &config, "--data", &text, "--seq", "16", "--steps", "2", "--out", &out];
        assert!(said(&args).starts_with("2 steps done; "));
        out
    }
}

/// Kills: a special token left out of a prompt or put into a text that is told, ids shown where text could
/// be, a tokenizer that stays behind.
#[test]
fn text_is_read_and_written_in_the_models_own_tokens() {
    let dir = Beside::new();
    let (model, text) = (dir.trained(), dir.at("text"));
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(fs::read(Path::new(&model).join(file)).unwrap(), fs::read(dir.path(file)).unwrap());
    }
    let generate = ["generate", "--model", &model, "--prompt", "the other", "--max-new", "1"];
    let ids = lines(&generate)[0]["ids"].as_array().unwrap().clone();
    assert_eq!(ids[..6], [259, 257, 32, 111, 257, 114].map(Value::from));
    assert!(said(&generate).starts_with("the other"), "{}", said(&generate));
    let of_ids = ["generate", "--model", &model, "--prompt-ids", "258,111,259", "--max-new", "0"];
    assert_eq!(said(&of_ids), " theo\n");

    let reported = lines(&["eval", "--model", &model, "--data", &text, "--seq", "16"]);
    assert_eq!(reported[0]["tokens"], 100 * 5 - 1);
    let rest = lines(&["eval", "--model", &model, "--seq", "48"]);
    let tokenizer = Tokenizer::read(&dir.path("tokenizer.json")).unwrap();
    let embedded = Corpus::tokenized(embedded::CORPUS, "the embedded text", 48, &tokenizer).unwrap();
    assert!(embedded.held_out.len() < embedded::CORPUS.len() / 10);
    assert_eq!(rest[0]["tokens"], embedded.held_out.len() - 1);
}

/// Kills: bytes where tokens are meant, in the given text or in the embedded one.
#[test]
fn a_model_of_eight_words_reads_text() {
    let dir = Beside::new();
    let config = fs::read_to_string(dir.path("config.json")).unwrap().replace("260", "8");
    fs::write(dir.path("config.json"), config).unwrap();
    let words = json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "?": 0, "the": 1, "other": 2 } } });
    fs::write(dir.path("tokenizer.json"), words.to_string()).unwrap();
    fs::write(dir.path("text"), " the other".repeat(250)).unwrap();
    let (model, text) = (dir.trained(), dir.at("text"));
    for more in [&["--data", &text][..], &[]] {
        let rows =
            lines(&[&["compare", "--model", &model, "--layout", "tp=2", "--seconds", "0"], more].concat());
        assert!(rows.len() == 4 && rows.iter().all(|row| row["equal"] == true), "{rows:?}");
        assert!(lines(&[&["eval", "--model", &model, "--seq", "48"], more].concat())[0]["tokens"].is_u64());
    }
    let generate = ["generate", "--model", &model, "--prompt", "other the hat", "--max-new", "0"];
    assert_eq!(
        (lines(&generate)[0]["ids"].clone(), said(&generate)),
        (json!([2, 1, 0]), "other the ?\n".into())
    );
}

/// Kills: a resumed run that reads its text otherwise, or loses its tokenizer.
#[test]
fn a_resumed_run_reads_its_text_as_before() {
    let dir = Beside::new();
    let (config, text, out, copy) = (dir.at("config.json"), dir.at("text"), dir.at("model"), dir.at("copy"));
    let begin = ["train", "--config", &config, "--data", &text, "--seq", "16", "--steps", "3", "--out", &out];
    said(&[&begin[..], &["--stop-after", "1"]].concat());
    let go_on = ["train", "--resume", &out, "--data", &text];
    let own = Path::new(&out).join("tokenizer.json");
    fs::write(&own, merges().to_string().replace("th e", "h e")).unwrap();
    refused(&go_on, "tokenizer.json is not a readable tokenizer: ");
    fs::write(&own, tokenizer::json()).unwrap();
    refused(&go_on, "the training data is not that of the run to resume");
    fs::copy(dir.path("tokenizer.json"), &own).unwrap();
    assert_eq!(lines(&[&go_on[..], &["--out", &copy, "--stop-after", "1"]].concat())[0]["step"], 2);
    assert_eq!(lines(&["train", "--resume", &copy, "--data", &text])[0]["step"], 3);
    assert_eq!(fs::read(&own).unwrap(), fs::read(dir.path("tokenizer.json")).unwrap());
}

/// Kills: a vocabulary of more than 256 ids whose bytes are not known again.
#[test]
fn new_models_learn_bytes_where_there_is_no_tokenizer() {
    let dir = Beside::new();
    fs::remove_file(dir.path("tokenizer.json")).unwrap();
    let model = dir.trained();
    assert_eq!(fs::read_to_string(Path::new(&model).join("tokenizer.json")).unwrap(), tokenizer::json());
    let seen = lines(&["eval", "--model", &model, "--data", &dir.at("text"), "--seq", "16"]);
    assert_eq!(seen[0]["tokens"], 999);
    fs::write(dir.path("ids"), "[[1,2,3]]").unwrap();
    let of_ids = dir.at("of ids");
    said(&["train", "--config", &dir.at("config.json"), "--batch", &dir.at("ids"), "--out", &of_ids]);
    assert!(!Path::new(&of_ids).join("tokenizer.json").exists(), "nobody knows what these ids are");
    let config = fs::read_to_string(dir.path("config.json")).unwrap().replace("260", "255");
    fs::write(dir.path("config.json"), config).unwrap();
    let beyond = "text that is read as bytes has token ids up to 255; they must be below the model's vocab_size of 255";
    refused(&["train", "--config", &dir.at("config.json"), "--data", &dir.at("text"), "--seq", "16"], beyond);
}

#[test]
fn text_is_refused_where_it_cannot_be_read() {
    let dir = Beside::new();
    let (model, text) = (dir.trained(), dir.at("text"));
    let tokenizer = Path::new(&model).join("tokenizer.json");
    let again = dir.at("again");
    let commands: [&[&str]; 5] = [
        &["generate", "--model", &model, "--prompt", "the"],
        &["eval", "--model", &model, "--data", &text],
        &["eval", "--model", &model],
        &["compare", "--model", &model, "--data", &text],
        &["train", "--model", &model, "--data", &text, "--seq", "16", "--steps", "1", "--out", &again],
    ];
    let all = |says: &str| commands.iter().for_each(|command| refused(command, says));
    let ids = ["generate", "--model", &model, "--prompt-ids", "258,111", "--max-new", "0"];
    let name = tokenizer.display().to_string();
    let beyond = merges().to_string().replace("[259]", "[260]");
    for (text, says) in [
        (String::new(), " is empty (0 bytes)"),
        ("{\"version\":".into(), " is not a readable tokenizer: EOF"),
        ("null".into(), " is not a readable tokenizer: "),
        (beyond, " has token ids up to 260; they must be below the model's vocab_size of 260"),
    ] {
        fs::write(&tokenizer, text).unwrap();
        all(&format!("{name}{says}"));
        refused(&ids, &name); // what is shown would be text
        assert_eq!(lines(&ids)[0]["ids"], json!([258, 111]));
    }
    fs::remove_file(&tokenizer).unwrap();
    all(&format!(
        "{model} has no tokenizer.json to read text with; give token ids (train and eval: --batch; generate: --prompt-ids)"
    ));
    assert_eq!(said(&ids), "258,111\n");
    assert!(!Path::new(&again).exists(), "nothing was written");
    let rows = lines(&["compare", "--model", &model, "--layout", "tp=2", "--seconds", "0"]);
    assert!(rows.iter().all(|row| row["equal"] == true), "some ids are compared: {rows:?}");

    fs::write(&tokenizer, merges().to_string()).unwrap();
    fs::write(dir.path("no text"), [b"the other ".repeat(40), vec![0xe9]].concat()).unwrap();
    let no_text = "is not valid UTF-8 (at byte 400: 0xe9)";
    refused(&["eval", "--model", &model, "--data", &dir.at("no text")], no_text);
    refused(&["train", "--model", &model, "--data", &dir.at("no text"), "--seq", "2"], no_text);
    fs::write(dir.path("short"), "the ".repeat(40)).unwrap();
    let short = "that tenth has 5 tokens, but sequences of 16 need at least 17";
    refused(&["train", "--model", &model, "--data", &dir.at("short"), "--seq", "16"], short);
}

/// The loss of 19 tokens, from their logits, over the 36 bytes that they stand for. Kills: bits a token told
/// as bits a byte, a first token that counts, a mean over windows.
#[test]
fn bits_a_byte_are_those_of_all_tokens_over_all_bytes() {
    let dir = Beside::new();
    let model = Model::fresh(Config::read(&dir.path("config.json")).unwrap(), 3);
    let tokenizer = Tokenizer::read(&dir.path("tokenizer.json")).unwrap();
    let text = " the other".repeat(40); // of 400 bytes the last 40
    let corpus = Corpus::tokenized(text.as_bytes(), "a text", 8, &tokenizer).unwrap();
    assert_eq!(corpus.held_out, [258, 32, 111, 257, 114].repeat(4));
    let reported = windows(&corpus.held_out, 8);
    assert_eq!(reported.iter().map(|(ids, _)| ids.len()).collect::<Vec<_>>(), [8, 8, 3]);
    let ids: Vec<_> = reported.iter().map(|(ids, _)| ids.clone()).collect();
    let logits = all_logits::<Cpu<f64>>(&model, (&Layout::default(), &Network::default()), &ids).unwrap();
    let targets = reported.iter().flat_map(|(_, targets)| targets);
    let cost = |(row, target): (&[f64], &u32)| {
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*target as usize] // nats
    };
    let nats: f64 = logits.chunks(260).zip(targets).map(cost).sum();
    let wanted = nats / std::f64::consts::LN_2 / 36.0;
    let bits = |corpus: &Corpus, layout: &str| {
        let layout: Layout = layout.parse().unwrap();
        let world = comm::World::threads(&layout.axes()).unwrap();
        let ranks = world.run(|device: Cpu<f32>, mesh| {
            let at = layout.place(&device, &mesh, model.values());
            let mut trainer = Trainer::new(&at, model.config.shape, (SGD, None))?;
            held_out(&mut trainer, (corpus, 8), &|_, _| ())
        });
        ranks.unwrap()[0].unwrap()
    };
    for layout in ["none", "tp=2", "dp=2"] {
        let seen = bits(&corpus, layout);
        assert!((seen / wanted - 1.0).abs() < 1e-5, "{seen} under {layout}, wanted {wanted}");
    }
}
