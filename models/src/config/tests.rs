//! Reading, writing and refusing configurations: the parts that all families share, tested on Llama.
use super::*;
use kernels::{Activation, Heads};
use layers::{Biases, FeedForward, NormKind, Pattern, Positions, Rates, Shape, Window};
use parallel::Result;
use serde_json::{Map, Value, json};
use tensor::dtype::Dtype;
use tensor::{Rope, Scaling};

mod balances;
mod decoders;
mod experts;
mod families;
mod found;
mod generation;
mod gpt_oss;
mod latents;
mod olmo2;
mod real;
mod rope;
mod windows;

/// Llama 2 7B, without the keys that `transformers` fills in.
const SHORT: &str = r#"{ "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000 }"#;

fn small() -> Config {
    let heads = Heads::new(6, 2, 5);
    let shape = Shape {
        width: 24,
        blocks: 3,
        heads,
        hidden: 40,
        vocabulary: 256,
        eps: 1e-5,
        tied: true,
        positions: rotary(5e5),
        ..Shape::LLAMA
    };
    Config {
        family: crate::families::LLAMA,
        shape,
        positions: 128,
        bos: None,
        eos: vec![],
        spare_coefficient: 0.0,
        wrapper: None,
    }
}
fn rotary(base: f64) -> Positions {
    Positions::Rotary(base.into())
}
/// Configuration `text` with these keys set to these JSON values.
fn changed(text: &str, keys: &[(&str, &str)]) -> Result<Config> {
    let mut text: Value = serde_json::from_str(text).unwrap();
    for (key, value) in keys {
        text[key] = serde_json::from_str(value).unwrap();
    }
    Config::parse(&text.to_string(), "a.json")
}
/// `SHORT` with a key set to this JSON value.
fn with(key: &str, value: &str) -> Result<Config> {
    changed(SHORT, &[(key, value)])
}
fn why(key: &str, value: &str) -> String {
    with(key, value).unwrap_err().to_string()
}
fn without(text: &str, key: &str) -> Result<Config> {
    let mut text: Value = serde_json::from_str(text).unwrap();
    text.as_object_mut().unwrap().remove(key);
    Config::parse(&text.to_string(), "a.json")
}
fn why_without(key: &str) -> String {
    without(SHORT, key).unwrap_err().to_string()
}

/// Kills: a key written and not read, a key read as another, a key lost on the way.
#[test]
fn what_is_written_reads_back_as_itself() {
    let mut all = vec![small()];
    for tied in [false, true] {
        for (bos, eos) in [(Some(1), vec![2]), (None, vec![0, 255]), (Some(255), vec![])] {
            let shape = Shape { tied, positions: rotary(1e4), eps: 1e-6, ..small().shape };
            all.push(Config { shape, bos, eos, positions: 7, ..small() });
        }
    }
    for config in all {
        assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config);
    }
    let text = small().to_json();
    assert!(text.starts_with("{\n  \"architectures\": [") && text.ends_with("}\n"), "{text}");
}

/// Checks the meaning of each key by its name. Kills: two keys exchanged in both reading and writing.
#[test]
fn keys_mean_what_transformers_means() {
    let text: Value = serde_json::from_str(&small().to_json()).unwrap();
    for (key, wanted) in [
        ("hidden_size", json!(24)),
        ("intermediate_size", json!(40)),
        ("num_hidden_layers", json!(3)),
        ("num_attention_heads", json!(6)),
        ("num_key_value_heads", json!(2)),
        ("head_dim", json!(5)),
        ("vocab_size", json!(256)),
        ("max_position_embeddings", json!(128)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(5e5)),
        ("rope_parameters", json!({ "rope_type": "default", "rope_theta": 5e5 })),
        ("tie_word_embeddings", json!(true)),
        ("bos_token_id", Value::Null), // left out, it defaults to 1
        ("eos_token_id", Value::Null), // left out, it defaults to 2
        ("architectures", json!(["LlamaForCausalLM"])),
        ("torch_dtype", json!("float32")),
        ("dtype", json!("float32")),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("attention_dropout", json!(0.0)),
    ] {
        assert_eq!(text.get(key), Some(&wanted), "{key}");
    }
    for (dtype, wanted) in [(Dtype::F16, "float16"), (Dtype::BF16, "bfloat16"), (Dtype::F64, "float64")] {
        let text: Value = serde_json::from_str(&small().to_json_in(dtype)).unwrap();
        assert_eq!([&text["torch_dtype"], &text["dtype"]], [wanted, wanted]);
    }
}

#[test]
fn keys_left_out_are_what_transformers_makes_them() {
    let heads = Heads::new(32, 32, 128);
    let shape = Shape {
        width: 4096,
        blocks: 32,
        heads,
        hidden: 11008,
        vocabulary: 32000,
        eps: 1e-6,
        positions: rotary(1e4),
        ..Shape::LLAMA
    };
    let wanted = Config {
        family: crate::families::LLAMA,
        shape,
        positions: 2048,
        bos: Some(1),
        eos: vec![2],
        spare_coefficient: 0.0,
        wrapper: None,
    };
    assert_eq!(Config::parse(SHORT, "a.json").unwrap(), wanted);
    let of_no_effect =
        ["rope_theta", "rope_parameters", "rope_scaling", "attention_bias", "attention_dropout"];
    for key in ["head_dim", "num_key_value_heads", "rms_norm_eps", "mlp_bias"].into_iter().chain(of_no_effect)
    {
        assert_eq!(with(key, "null").unwrap(), wanted, "{key}");
    }
    assert_eq!(with("bos_token_id", "null").unwrap().bos, None);
    assert!(with("eos_token_id", "null").unwrap().eos.is_empty());
    assert_eq!(with("eos_token_id", "[8, 9]").unwrap().eos, [8, 9]);
    assert!(with("vocab_size", "2").unwrap().eos.is_empty()); // the vocabulary has no token 2
    assert_eq!(with("head_dim", "5").unwrap().shape.heads.dim, 5);
}

/// Kills: a key that changes the function the model computes, silently ignored.
#[test]
fn another_function_is_refused_by_the_key_that_makes_it_one() {
    for (key, value, wanted) in [
        ("architectures", r#"["LlamaForSequenceClassification"]"#, r#"["LlamaForCausalLM"]"#),
        ("hidden_act", r#""gelu""#, r#""silu" or "swish""#),
        ("partial_rotary_factor", "0.5", "1"),
        ("quantization_config", r#"{"bits":4}"#, "null"),
        ("sliding_window", "4096", "null"),
        ("use_sliding_window", "true", "false"),
        ("pruned_heads", r#"{"0":[1]}"#, "{}"),
        ("rope_interleaved", "true", "false"),
        ("is_encoder_decoder", "true", "false"),
        ("add_cross_attention", "true", "false"),
        ("is_llama_config", "false", "true"),
    ] {
        assert_eq!(why(key, value), format!("a.json: {key} is {value}; it must be {wanted}, or left out"));
    }
    let unknown = "but this key is not supported; remove it if the model computes the same without it";
    assert_eq!(why("logit_scale", "0.5"), format!("a.json: logit_scale is 0.5, {unknown}"));
    let long = why("layers", &format!("{:?}", "é".repeat(500)));
    assert_eq!(long, format!("a.json: layers is \"{}…, {unknown}", "é".repeat(99)));
    let hostile = with(&format!("\u{9b}2J{}", "x".repeat(5000)), "1").unwrap_err().to_string();
    assert_eq!(hostile, format!("a.json: \\u{{9b}}2J{}… is 1, {unknown}", "x".repeat(97)));
    let known = r#"it must be "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "olmo2", "phi3", "smollm3", "deepseek_v2", "deepseek_v3", "gpt_oss", "equipart_moe" or "gpt2""#;
    assert_eq!(why_without("model_type"), format!("a.json has no model_type; {known}"));
    for other in [r#""phi""#, r#""LLAMA""#, "3", "[\"llama\"]"] {
        assert_eq!(why("model_type", other), format!("a.json: model_type is {other}; {known}"));
    }
}

#[test]
fn keys_that_change_nothing_are_passed_over() {
    for (key, value) in [
        ("torch_dtype", r#""bfloat16""#),
        ("dtype", r#""float16""#),
        ("use_cache", "false"),
        ("transformers_version", r#""5.0.0""#),
        ("initializer_range", "0.1"),
        ("pretraining_tp", "2"),
        ("attention_dropout", "0.0"),
        ("attention_dropout", "0"),
        ("partial_rotary_factor", "1.0"),
        ("hidden_act", r#""swish""#),
        ("rope_scaling", "null"),
        ("is_llama_config", "true"),
        ("unsloth_version", r#""2025.1""#),
        ("a_key_of_tomorrow", "null"),
        ("_name_or_path", r#""x""#),
        ("id2label", r#"{ "0": "LABEL_0" }"#),
    ] {
        assert_eq!(with(key, value).unwrap(), Config::parse(SHORT, "").unwrap(), "{key}");
    }
}

#[test]
fn sizes_that_no_model_has_are_refused_by_name() {
    let whole = "it must be a whole number, 1 or more";
    for key in ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
    {
        assert_eq!(why_without(key), format!("a.json has no {key}; {whole}"));
        for bad in ["0", "-1", "1.5", "4096.0", "true", "\"8\"", "[8]", "18446744073709551616"] {
            let seen: Value = serde_json::from_str(bad).unwrap();
            assert_eq!(why(key, bad), format!("a.json: {key} is {seen}; {whole}"));
        }
    }
    for key in ["num_key_value_heads", "head_dim", "max_position_embeddings"] {
        assert_eq!(why(key, "0"), format!("a.json: {key} is 0; {whole}"));
    }
    for (key, bad, wanted) in [
        ("rms_norm_eps", "0", "a number above 0 and in the range of f32"),
        ("rms_norm_eps", "-1e-6", "a number above 0 and in the range of f32"),
        ("rms_norm_eps", "1e39", "a number above 0 and in the range of f32"),
        ("rope_theta", "\"1e4\"", "a number above 0 and in the range of f32"),
        ("tie_word_embeddings", "1", "true or false"),
        ("attention_bias", "0", "true or false"),
        ("mlp_bias", "\"no\"", "true or false"),
        ("attention_dropout", "1", "a number of 0 or more and below 1"),
        ("attention_dropout", "-0.1", "a number of 0 or more and below 1"),
        ("attention_dropout", "\"0.1\"", "a number of 0 or more and below 1"),
        ("bos_token_id", "[1, 2]", "one token id or null"),
        ("bos_token_id", "-1", "null, a token id (a whole number below 2^32), or a list of such ids"),
        ("eos_token_id", "4294967296", "null, a token id (a whole number below 2^32), or a list of such ids"),
    ] {
        let why = why(key, bad);
        assert!(why.ends_with(&format!("; it must be {wanted}")), "{why}");
    }
    let heads = "num_attention_heads is 32; it must be a multiple of the 5 num_key_value_heads";
    assert_eq!(why("num_key_value_heads", "5"), format!("a.json: {heads}"));
    let odd = "a multiple of the 32 num_attention_heads where head_dim is not given";
    assert_eq!(why("hidden_size", "4097"), format!("a.json: hidden_size is 4097; it must be {odd}"));
}

/// Kills: biases of the wrong layers, a dropout rate of the wrong site.
#[test]
fn biases_and_dropout_are_read_and_written() {
    let all = [("attention_bias", "true"), ("mlp_bias", "true"), ("attention_dropout", "0.25")];
    let parse = |keys: &[(&str, &str)]| {
        let config = changed(SHORT, keys).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        (config.shape.bias, config.shape.dropout)
    };
    let none = Rates { embedding: 0.0, attention: 0.0, residual: 0.0 };
    assert_eq!(parse(&all[..1]), (Biases { qkv: true, out: true, mlp: false }, none));
    assert_eq!(parse(&all[1..2]), (Biases { qkv: false, out: false, mlp: true }, none));
    let (bias, dropout) = parse(&all);
    assert_eq!((bias.qkv, bias.out, bias.mlp), (true, true, true));
    assert_eq!(dropout, Rates { attention: 0.25, ..none });
}

/// Kills: padding ignored, padding lost in writing, padding counted from the wrong end, padding accepted for
/// GPT-2.
#[test]
fn padding_is_read_and_written_where_the_embedding_knows_it() {
    for (id, wanted) in [("0", 0), ("31999", 31999), ("-1", 31999), ("-32000", 0)] {
        let config = with("pad_token_id", id).unwrap();
        assert_eq!(config.shape.padding, Some(wanted));
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
    }
    assert_eq!(with("pad_token_id", "null").unwrap().shape.padding, None);
    for bad in ["32000", "-32001", "\"0\"", "[0]", "1.5"] {
        let wanted = "it must be null or a token id below the vocab_size of 32000";
        assert_eq!(why("pad_token_id", bad), format!("a.json: pad_token_id is {bad}; {wanted}"));
    }
    for text in real::ALL {
        let padded = changed(text, &[("pad_token_id", "3")]).unwrap();
        assert_eq!(padded.shape.padding.is_some(), matches!(padded.shape.positions, Positions::Rotary(_)));
    }
}

/// Kills: a huge allocation or an overflow caused by sizes in the file.
#[test]
fn sizes_that_no_machine_holds_are_refused() {
    let limit = "it must be at most 4611686018427387904 elements";
    let huge = "9223372036854775808"; // 2^63
    for (key, size, product) in [
        ("vocab_size", huge, format!("vocab_size × hidden_size is {huge} × 4096")),
        ("num_hidden_layers", huge, format!("num_hidden_layers × hidden_size is {huge} × 4096")),
        (
            "intermediate_size",
            "35184372088833",
            "num_hidden_layers × hidden_size × intermediate_size is 32 × 4096 × 35184372088833".into(),
        ),
        (
            "head_dim",
            "1099511627777",
            "num_hidden_layers × hidden_size × num_attention_heads × head_dim is 32 × 4096 × 32 × 1099511627777"
                .into(),
        ),
        ("max_position_embeddings", huge, format!("max_position_embeddings × head_dim is {huge} × 128")),
    ] {
        assert_eq!(why(key, size), format!("a.json: {product}; {limit}"));
    }
    assert!(with("intermediate_size", "35184372088832").is_ok());
    assert!(with("head_dim", "1099511627776").is_ok());
}

/// Kills: a panic on a configuration with a lost or changed byte.
#[test]
fn broken_configurations_do_no_harm() {
    for text in real::ALL {
        let mut read = 0;
        for (at, bit) in (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut text = text.as_bytes().to_vec();
            text[at] ^= 1 << bit;
            let Ok(text) = String::from_utf8(text) else { continue };
            let Ok(config) = Config::parse(&text, "a.json") else { continue };
            assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config, "{text}");
            read += 1;
        }
        assert!(read > 100, "{read}: too few to have tried anything");
        assert!((0..text.len()).all(|len| Config::parse(&text[..len], "a.json").is_err()));
    }
}

#[test]
fn what_is_no_json_object_is_said_in_one_sentence() {
    let why = |text: &str| Config::parse(text, "a.json").unwrap_err().to_string();
    assert_eq!(why("[1]"), "a.json is not a model configuration: it must be an object in braces");
    for text in ["", "{", "{\"a\": NaN}", "{} {}", &"[".repeat(100_000)] {
        let why = why(text);
        assert!(
            why.starts_with("a.json is not a model configuration: ") && why.contains(" at line 1 "),
            "{why}"
        );
    }
}

#[test]
fn files_that_cannot_be_read_are_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let why = |name: &str| {
        let why = Config::read(&at(name)).unwrap_err().to_string();
        why.replace(folder.path().to_str().unwrap(), "")
    };
    std::fs::write(at("good.json"), SHORT).unwrap();
    assert_eq!(Config::read(&at("good.json")).unwrap(), Config::parse(SHORT, "").unwrap());
    assert_eq!(why("none.json"), "/none.json: there is no such file");
    assert_eq!(why("."), "/. is a directory where a file should be");
    std::fs::write(at("latin.json"), b"{ \"a\": \"\xe9\" }").unwrap();
    assert_eq!(
        why("latin.json"),
        "/latin.json is not a model configuration: it is not valid UTF-8 (at byte 8)"
    );
    std::fs::write(at("bad.json"), "{").unwrap();
    assert!(why("bad.json").starts_with("/bad.json is not a model configuration: "));
}
