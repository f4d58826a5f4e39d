//! Differences of each family: defaults, biases, activations, sizes.
use super::real::{GPT2, MISTRAL, QWEN2, QWEN3};
use super::*;

fn why_of(text: &str, key: &str, value: &str) -> String {
    changed(text, &[(key, value)]).unwrap_err().to_string()
}

#[test]
fn keys_left_out_are_what_transformers_makes_them_in_each_family() {
    let bare = |text: &str, keep: &[&str]| {
        let mut map: Map<String, Value> = serde_json::from_str(text).unwrap();
        map.retain(|key, _| keep.contains(&&**key) || matches!(&**key, "model_type" | "vocab_size"));
        Config::parse(&Value::Object(map).to_string(), "a.json").unwrap()
    };
    let sizes = ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"];
    let mistral = bare(MISTRAL, &sizes);
    assert_eq!(mistral.shape.heads, Heads::new(32, 8, 128));
    assert_eq!((mistral.positions, mistral.bos, mistral.eos), (131_072, Some(1), vec![2]));
    assert_eq!((mistral.shape.eps, mistral.shape.tied, mistral.shape.positions), (1e-6, false, rotary(1e4)));

    let qwen = |text: &str| {
        let text: String = changed(text, &[("num_attention_heads", "32")]).unwrap().to_json();
        let config = bare(&text, &sizes);
        assert_eq!((config.positions, config.bos, &config.eos[..]), (32768, None, &[][..]));
        assert_eq!((config.shape.eps, config.shape.tied, config.shape.positions), (1e-6, false, rotary(1e4)));
        (config.shape.heads, config.shape.bias.qkv)
    };
    assert_eq!(qwen(QWEN2), (Heads::new(32, 32, 28), true));
    assert_eq!(qwen(QWEN3), (Heads::new(32, 32, 128), false));
    for text in [MISTRAL, QWEN2, QWEN3] {
        let config = changed(text, &[("num_key_value_heads", "null")]).unwrap();
        assert_eq!(config.shape.heads.keys, config.shape.heads.queries, "null is one KV head a query head");
    }

    let gpt2 = bare(GPT2, &["n_embd", "n_head", "n_layer"]);
    assert_eq!(gpt2, Config::parse(GPT2, "a.json").unwrap());
    assert!(bare(&GPT2.replace("50257", "50256"), &["n_embd", "n_head", "n_layer"]).eos.is_empty());
}

/// Kills: a refusal of a small GPT-2 that `transformers` wrote, an id lost when the configuration is written
/// again, a needless note.
#[test]
fn special_tokens_that_the_vocabulary_lacks_are_taken_and_noted() {
    let small = changed(GPT2, &[("vocab_size", "97")]).unwrap();
    assert_eq!((small.bos, &small.eos[..]), (Some(50256), &[50256][..]));
    assert_eq!(Config::parse(&small.to_json(), "a.json").unwrap(), small);
    let note = "the vocabulary of 97 has no bos_token_id 50256, eos_token_id 50256 of config.json; no text can have it";
    assert_eq!(small.note().as_deref(), Some(note));
    let some = changed(GPT2, &[("vocab_size", "97"), ("bos_token_id", "96"), ("eos_token_id", "[3, 97]")]);
    let note = "the vocabulary of 97 has no eos_token_id 97 of config.json; no text can have it";
    assert_eq!(some.unwrap().note().as_deref(), Some(note));
    assert_eq!(Config::parse(GPT2, "a.json").unwrap().note(), None);
}

/// Kills: a bias or a norm of one family in another.
#[test]
fn biases_and_norms_are_those_of_the_family() {
    let parse = |text: &str, keys: &[(&str, &str)]| {
        let config = changed(text, keys).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        let Biases { qkv, out, mlp } = config.shape.bias;
        ([qkv, out, mlp], config.shape.head_norm)
    };
    assert_eq!(parse(MISTRAL, &[("attention_bias", "false")]), ([false; 3], false));
    assert_eq!(parse(QWEN2, &[]), ([true, false, false], false));
    assert_eq!(parse(QWEN3, &[]), ([false; 3], true));
    assert_eq!(parse(QWEN3, &[("attention_bias", "true")]), ([true, true, false], true));
    assert_eq!(parse(GPT2, &[]), ([true; 3], false));
    for (text, key) in
        [(MISTRAL, "attention_bias"), (MISTRAL, "mlp_bias"), (QWEN2, "mlp_bias"), (QWEN3, "mlp_bias")]
    {
        assert_eq!(
            why_of(text, key, "true"),
            format!("a.json: {key} is true; it must be false, or left out")
        );
    }
    assert!(why_of(QWEN2, "attention_bias", "false").contains("but this key is not supported"));
}

#[test]
fn another_function_is_refused_in_each_family() {
    for (text, key, value, wanted) in [
        (MISTRAL, "architectures", r#"["LlamaForCausalLM"]"#, r#"["MistralForCausalLM"]"#),
        (QWEN2, "architectures", r#"["Qwen2ForCausalLM","x"]"#, r#"["Qwen2ForCausalLM"]"#),
        (QWEN2, "use_mrope", "true", "false"),
        (QWEN3, "hidden_act", r#""gelu""#, r#""silu" or "swish""#),
        (QWEN3, "quantization_config", r#"{"bits":4}"#, "null"),
        (GPT2, "architectures", r#"["GPT2DoubleHeadsModel"]"#, r#"["GPT2LMHeadModel"]"#),
        (GPT2, "scale_attn_weights", "false", "true"),
        (GPT2, "scale_attn_by_inverse_layer_idx", "true", "false"),
        (GPT2, "reorder_and_upcast_attn", "true", "false"),
        (GPT2, "add_cross_attention", "true", "false"),
        (
            GPT2,
            "activation_function",
            r#""gelu_fast""#,
            r#""gelu_new" or "gelu_pytorch_tanh" or "gelu" or "relu""#,
        ),
        (GPT2, "n_ctx", "512", "1024, as n_positions is"),
    ] {
        let seen = why_of(text, key, value);
        assert_eq!(seen, format!("a.json: {key} is {value}; it must be {wanted}, or left out"));
    }
    let unknown = "but this key is not supported; remove it if the model computes the same without it";
    for (text, key) in [
        (MISTRAL, "layer_types"),
        (MISTRAL, "use_sliding_window"),
        (QWEN2, "num_experts"),
        (GPT2, "hidden_size"),
        (GPT2, "rope_theta"),
    ] {
        assert_eq!(why_of(text, key, "3"), format!("a.json: {key} is 3, {unknown}"));
    }
}

/// Kills: two activations exchanged, an activation that is written but cannot be read.
#[test]
fn gpt2s_settings_are_read_and_written() {
    let parse = |keys: &[(&str, &str)]| {
        let config = changed(GPT2, keys).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        config.shape
    };
    for (name, wanted) in [
        ("\"gelu_new\"", Activation::GeluTanh),
        ("\"gelu_pytorch_tanh\"", Activation::GeluTanh),
        ("\"gelu\"", Activation::Gelu),
        ("\"relu\"", Activation::Relu),
        ("null", Activation::GeluTanh),
    ] {
        assert_eq!(parse(&[("activation_function", name)]).feed_forward, FeedForward::Plain(wanted));
    }
    let rates = parse(&[("embd_pdrop", "0"), ("attn_pdrop", "0.2"), ("resid_pdrop", "0.3")]).dropout;
    assert_eq!(rates, Rates { embedding: 0.0, attention: 0.2, residual: 0.3 });
    assert_eq!(parse(&[("n_inner", "100")]).hidden, 100);
    assert_eq!(parse(&[("n_inner", "null"), ("n_embd", "24")]).hidden, 96);
    assert!(!parse(&[("tie_word_embeddings", "false")]).tied);
    assert_eq!(parse(&[("layer_norm_epsilon", "1e-3")]).eps, 1e-3);
    let positions = parse(&[("n_positions", "32"), ("n_ctx", "32")]).positions;
    assert_eq!(positions, Positions::Learned(32));
}

#[test]
fn sizes_that_no_model_has_are_refused_in_gpt2() {
    for key in ["n_embd", "n_head", "n_layer", "vocab_size"] {
        let wanted = "it must be a whole number, 1 or more";
        assert_eq!(without(GPT2, key).unwrap_err().to_string(), format!("a.json has no {key}; {wanted}"));
        assert_eq!(why_of(GPT2, key, "0"), format!("a.json: {key} is 0; {wanted}"));
    }
    assert_eq!(why_of(GPT2, "n_head", "7"), "a.json: n_embd is 768; it must be a multiple of the 7 n_head");
    assert!(why_of(GPT2, "resid_pdrop", "1.0").ends_with("it must be a number of 0 or more and below 1"));
    let limit = "it must be at most 4611686018427387904 elements";
    let huge = "9223372036854775800"; // a multiple of 12 near 2^63: four times that overflows
    for (key, size, product) in [
        ("vocab_size", huge, format!("vocab_size × n_embd is {huge} × 768")),
        ("n_inner", huge, format!("n_layer × n_embd × n_inner is 12 × 768 × {huge}")),
        ("n_layer", huge, format!("n_layer × n_embd × n_embd is {huge} × 768 × 768")),
        ("n_embd", huge, format!("vocab_size × n_embd is 50257 × {huge}")),
    ] {
        assert_eq!(why_of(GPT2, key, size), format!("a.json: {product}; {limit}"));
    }
    let tall = changed(GPT2, &[("n_positions", huge), ("n_ctx", huge)]).unwrap_err().to_string();
    assert_eq!(tall, format!("a.json: n_positions × n_embd is {huge} × 768; {limit}"));
    let deep = changed(GPT2, &[("n_layer", "10001"), ("n_embd", "12")]).unwrap_err().to_string();
    assert_eq!(deep, "a.json: n_layer is 10001; it must be at most 10000");
}
