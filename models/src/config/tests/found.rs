//! Published files with keys that change nothing, or of models that hold a supported one.
use super::experts::QWEN3_MOE;
use super::real::{LLAMA, QWEN3};
use super::*;

fn with(text: &str, keys: &[(&str, &str)]) -> std::result::Result<Config, String> {
    changed(text, keys).map_err(|why| why.to_string())
}

/// Kills: a key refused that `transformers` ignores, one ignored that would change the model.
#[test]
fn keys_that_transformers_ignores_change_nothing() {
    let coder = [
        ("qkv_bias", "false"),
        ("shared_expert_intermediate_size", "0"),
        ("use_qk_norm", "true"),
        ("router_aux_loss_coef", "0.001"),
    ];
    assert_eq!(with(QWEN3_MOE, &coder), with(QWEN3_MOE, &[]));
    assert_eq!(with(LLAMA, &[("max_sequence_length", "2048")]), with(LLAMA, &[]));
    for (key, other) in
        [("qkv_bias", "true"), ("shared_expert_intermediate_size", "64"), ("use_qk_norm", "false")]
    {
        assert!(with(QWEN3_MOE, &[(key, other)]).unwrap_err().contains("or left out"), "{key}");
    }
}

/// The file of DeepSeek-R1-0528-Qwen3-8B, with the magnitude of `transformers`, which ignores `attn_factor`.
/// Kills: constants exchanged, a magnitude of the base, a key of `YaRN` that is ignored.
#[test]
fn yarn_is_read_as_transformers_reads_it() {
    let scaling = |text: &str| {
        let config = with(QWEN3, &[("rope_scaling", text)]).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        let Positions::Rotary(rope) = config.shape.positions else { panic!("rotary") };
        rope.scaling
    };
    let found = r#"{ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
        "attn_factor": 0.8782488562869419 }"#;
    let yarn = Scaling::Yarn {
        factor: 4.0,
        original: 32768.0,
        fast: 32.0,
        slow: 1.0,
        magnitude: 0.1 * 4f64.ln() + 1.0,
        truncate: true,
    };
    assert_eq!(scaling(found), yarn);
    let own = r#"{ "rope_type": "yarn", "factor": 40, "beta_fast": 16, "beta_slow": 2, "mscale": 0.5,
        "mscale_all_dim": 2.0, "truncate": false }"#;
    let magnitude = (0.1 * 0.5 * 40f64.ln() + 1.0) / (0.1 * 2.0 * 40f64.ln() + 1.0);
    let original = 40960.0; // max_position_embeddings
    assert_eq!(
        scaling(own),
        Scaling::Yarn { factor: 40.0, original, fast: 16.0, slow: 2.0, magnitude, truncate: false }
    );
    let why = with(QWEN3, &[("rope_scaling", r#"{ "rope_type": "yarn", "low_freq_factor": 1 }"#)]);
    assert!(why.unwrap_err().contains("this key is not supported"));
}

/// Mistral Small 3.1: 23.57 billion parameters of text. Kills: a model that is refused for its wrapper, keys
/// of the wrapper that are ignored, an inner model that is read where the outer one is known.
#[test]
fn a_text_model_inside_of_another_is_read() {
    let inner = r#"{ "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 32768, "max_position_embeddings": 131072, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0, "sliding_window": null, "vocab_size": 131072 }"#;
    let outer = |more: &str| {
        let text = format!(
            r#"{{ "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
            "vision_config": {{}}{more}, "text_config": {inner} }}"#
        );
        Config::parse(&text, "a.json").unwrap()
    };
    let config = outer("");
    assert_eq!(Config { wrapper: None, ..config.clone() }, Config::parse(inner, "a.json").unwrap());
    assert_eq!(parallel::price::parameters(config.shape).unwrap(), 23_572_403_200);
    let note = "only the text model of this mistral3 model is meant (text_config)";
    assert_eq!(config.note().as_deref(), Some(note));
    assert!(!config.shape.tied && outer(r#", "tie_word_embeddings": true"#).shape.tied);
    let known = with(LLAMA, &[("text_config", inner)]).unwrap_err();
    assert!(known.contains("text_config is") && known.contains("not supported"), "{known}");
}
