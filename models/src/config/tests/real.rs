//! Published configurations, and the shapes they mean.
use super::experts::{MIXTRAL, OWN, QWEN2_MOE, QWEN3_MOE};
use super::*;

pub(super) const LLAMA: &str = r#"{ "architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": { "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3" }, "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256 }"#;
pub(super) const MISTRAL: &str = r#"{ "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
    "use_cache": true, "vocab_size": 32000 }"#;
pub(super) const QWEN2: &str = r#"{ "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
    "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 131072,
    "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936 }"#;
pub(super) const QWEN3: &str = r#"{ "architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936 }"#;
pub(super) const GPT2: &str = r#"{ "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": { "text-generation": { "do_sample": true, "max_length": 50 } }, "vocab_size": 50257 }"#;
pub(super) const PHI3: &str = r#"{ "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "auto_map": { "AutoConfig": "configuration_phi3.Phi3Config" }, "bos_token_id": 199999,
    "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
    "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 200064 }"#;
pub(super) const SMOLLM3: &str = r#"{ "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": null, "eos_token_id": 128012, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0,
    1, 1, 1, 0], "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
    "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0,
    "sliding_window": null, "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 128256 }"#;
pub(super) const ALL: [&str; 11] =
    [LLAMA, MISTRAL, QWEN2, QWEN3, GPT2, PHI3, SMOLLM3, MIXTRAL, QWEN2_MOE, QWEN3_MOE, OWN];

fn rope(base: f64, scaling: Scaling) -> Positions {
    Positions::Rotary(Rope { base, scaling })
}
fn ids(bos: u32, eos: u32) -> (Option<u32>, Vec<u32>) {
    (Some(bos), vec![eos])
}

/// Compares every size and setting with values written by hand. Kills: two keys exchanged, a key read and
/// forgotten.
#[test]
fn models_as_they_are_found_have_the_shapes_they_are_known_for() {
    let llama3 = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
    let seven =
        Shape { width: 4096, blocks: 32, heads: Heads::new(32, 8, 128), hidden: 14336, ..Shape::LLAMA };
    let llama = Shape { vocabulary: 128_256, positions: rope(5e5, llama3), ..seven };
    let window = Some(Window { size: 4096, sinks: 0 });
    let mistral = Shape { vocabulary: 32000, positions: rope(1e4, Scaling::None), window, ..seven };
    let qwen = Shape {
        vocabulary: 151_936,
        eps: 1e-6,
        tied: true,
        positions: rope(1e6, Scaling::None),
        ..Shape::LLAMA
    };
    let qwen2 = Shape {
        width: 896,
        blocks: 24,
        heads: Heads::new(14, 2, 64),
        hidden: 4864,
        bias: Biases { qkv: true, out: false, mlp: false },
        ..qwen
    };
    let qwen3 = Shape {
        width: 1024,
        blocks: 28,
        heads: Heads::new(16, 8, 128),
        hidden: 3072,
        head_norm: true,
        ..qwen
    };
    let gpt2 = Shape {
        width: 768,
        blocks: 12,
        heads: Heads::new(12, 12, 64),
        hidden: 3072,
        vocabulary: 50257,
        norm: NormKind::Layer,
        positions: Positions::Learned(1024),
        feed_forward: FeedForward::Plain(Activation::GeluTanh),
        dropout: Rates { embedding: 0.1, attention: 0.1, residual: 0.1 },
        ..Shape::GPT2
    };
    let wanted = [
        (crate::families::LLAMA, llama, 131_072, ids(128_000, 128_001), 8_030_261_248),
        (crate::families::MISTRAL, mistral, 32768, ids(1, 2), 7_241_732_096),
        (crate::families::QWEN2, qwen2, 131_072, ids(151_643, 151_643), 494_032_768),
        (crate::families::QWEN3, qwen3, 40960, ids(151_643, 151_645), 596_049_920),
        (crate::families::GPT2, gpt2, 1024, ids(50256, 50256), 124_439_808),
    ];
    for (text, known) in ALL.into_iter().zip(wanted) {
        is_known(text, known);
    }
}

/// Checks the family, shape, positions, ends and published number of parameters of a file.
pub(super) fn is_known(
    text: &str,
    (family, shape, positions, (bos, eos), parameters): (
        &'static dyn Family,
        Shape,
        usize,
        (Option<u32>, Vec<u32>),
        usize,
    ),
) {
    let config = Config::parse(text, "a.json").unwrap();
    let wanted = (family, shape, positions, bos, eos);
    assert_eq!((config.family, config.shape, config.positions, config.bos, config.eos), wanted);
    assert_eq!(config.wrapper, None);
    assert_eq!(parallel::price::parameters(shape).unwrap(), parameters, "{family:?}");
}

/// Kills: a key of any family written and not read, a key read as another.
#[test]
fn what_is_written_of_any_family_reads_back_as_itself() {
    for text in ALL {
        let config = Config::parse(text, "a.json").unwrap();
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let text = config.to_json_in(dtype);
            assert_eq!(Config::parse(&text, "a.json").unwrap(), config, "{text}");
        }
    }
}

/// Changes each written key alone: the result is another model or an error, so no setting is written and
/// never read. Kills: a key with a value ignored.
#[test]
fn every_key_that_is_written_is_read() {
    const FREE: [&str; 4] = ["initializer_range", "use_cache", "max_window_layers", "use_sliding_window"];
    for text in ALL {
        let config = Config::parse(text, "a.json").unwrap();
        let written: Value = serde_json::from_str(&config.to_json_in(Dtype::F32)).unwrap();
        for (key, value) in written.as_object().unwrap() {
            let changed = match value {
                Value::Bool(yes) => Value::from(!yes),
                Value::Number(n) if n.is_u64() => Value::from(n.as_u64().unwrap() + 1),
                Value::Number(n) => Value::from(n.as_f64().unwrap() + 0.25),
                _ => continue,
            };
            let mut other = written.clone();
            other[key] = changed.clone();
            let same = Config::parse(&other.to_string(), "a.json").is_ok_and(|other| other == config);
            assert!(!same || FREE.contains(&&**key), "{key} is {value}, and {changed} is the same");
        }
    }
}

/// Checks that every setting of a published model that affects the computation is written again. Kills: a
/// setting lost in writing.
#[test]
fn every_key_of_a_model_as_it_is_found_is_written_again() {
    for text in ALL {
        let config = Config::parse(text, "a.json").unwrap();
        let written: Value = serde_json::from_str(&config.to_json_in(Dtype::BF16)).unwrap();
        let read: Value = serde_json::from_str(text).unwrap();
        for (key, value) in read.as_object().unwrap() {
            let fixed = config.family.about().fixed.join(" ");
            let is_fixed = fixed.split(' ').any(|word| word.split('=').next() == Some(key));
            let is_free =
                key.starts_with("summary_") || is_fixed && !written.as_object().unwrap().contains_key(key);
            let others = [
                "auto_map",
                "n_ctx",
                "no_rope_layer_interval",
                "original_max_position_embeddings",
                "output_router_logits",
                "pretraining_tp",
                "task_specific_params",
                "transformers_version",
            ];
            if is_free || others.contains(&&**key) || value.is_null() {
                continue;
            }
            let same =
                written[key] == *value || written[key].as_f64().is_some_and(|x| Some(x) == value.as_f64());
            let windowless = matches!(&**key, "sliding_window" | "max_window_layers");
            assert!(same || windowless, "{key}: {value} became {}", written[key]);
        }
    }
}
