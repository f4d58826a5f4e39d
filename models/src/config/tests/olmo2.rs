//! A published file of `OLMo` 2.
use super::real::is_known;
use super::*;
use layers::NormPlaces;
use tensor::Rope;

const OLMO2: &str = r#"{ "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false, "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0", "use_cache": true, "vocab_size": 100352 }"#;

/// Compares every size and setting with values written by hand. Kills: norms before the parts, a norm of each
/// head.
#[test]
fn olmo2_as_it_is_found_has_the_shape_it_is_known_for() {
    let shape = Shape {
        width: 4096,
        blocks: 32,
        heads: Heads::new(32, 32, 128),
        hidden: 11008,
        vocabulary: 100_352,
        padding: Some(100_277),
        eps: 1e-6,
        positions: Positions::Rotary(Rope::from(500_000.0)),
        norms: NormPlaces::After,
        joint_norm: true,
        ..Shape::LLAMA
    };
    is_known(OLMO2, (crate::families::OLMO2, shape, 4096, (None, vec![100_257]), 7_298_617_344));
}
