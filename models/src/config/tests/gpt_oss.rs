//! Published files of GPT-OSS, and what is refused of them.
use super::decoders::read;
use super::experts::why_of;
use super::real::is_known;
use super::*;
use kernels::ScoreTerms;
use layers::{Biases, Experts, FeedForward, Gate};
use tensor::{Rope, Scaling};

const GPT_OSS: &str = r#"{ "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "quantization_config": { "modules_to_not_convert": ["model.layers.*.self_attn",
    "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4" }, "rms_norm_eps": 1e-05,
    "rope_scaling": { "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": false }, "rope_theta": 150000, "router_aux_loss_coef": 0.9,
    "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 201088 }"#;

/// Compares every size and setting of both sizes with values written by hand. Kills: sinks or biases left
/// out, another gate, a window in the other blocks, borders of frequencies that are rounded.
#[test]
fn both_sizes_have_the_shapes_they_are_known_for() {
    let magnitude = 0.1 * 32f64.ln() + 1.0;
    let (original, fast, slow) = (4096.0, 32.0, 1.0);
    let scaling = Scaling::Yarn { factor: 32.0, original, fast, slow, magnitude, truncate: false };
    let experts = |count| Experts { count, chosen: 4, hidden: 2880, biases: true, ..Experts::MIXTRAL };
    let of = |blocks, count| Shape {
        width: 2880,
        blocks,
        heads: Heads::new(64, 8, 64),
        hidden: 2880,
        vocabulary: 201_088,
        padding: Some(199_999),
        positions: Positions::Rotary(Rope { base: 150_000.0, scaling }),
        scores: ScoreTerms { sinks: true, ..ScoreTerms::NONE },
        feed_forward: FeedForward::Gated(Gate::Clamped),
        bias: Biases { qkv: true, out: true, mlp: false },
        window: Some(Window { size: 128, sinks: 0 }),
        experts: Some(experts(count)),
        pattern: Pattern { whole: (0..blocks).filter(|block| block % 2 == 1).collect(), ..Pattern::NONE },
        ..Shape::LLAMA
    };
    let known = |blocks, experts, n| {
        (crate::families::GPT_OSS, of(blocks, experts), 131_072, (None, vec![200_002]), n)
    };
    is_known(GPT_OSS, known(24, 32, 20_914_757_184));
    let larger = read(GPT_OSS, &[("num_hidden_layers", "36"), ("num_local_experts", "128")]).unwrap();
    assert_eq!(larger.shape, of(36, 128));
    assert_eq!(parallel::price::parameters(larger.shape).unwrap(), 116_829_156_672);
}

/// Kills: a key that changes the gate and is passed over, frequencies of a file without them that are not
/// scaled.
#[test]
fn what_would_be_another_model_is_refused() {
    for (key, value, wanted) in [
        ("swiglu_limit", "6.0", "7, or left out"),
        ("swiglu_alpha", "1.7", "1.702, or left out"),
        (
            "quantization_config",
            r#"{"quant_method":"gptq"}"#,
            "an object whose quant_method is \"fp8\" or \"mxfp4\", or left out",
        ),
    ] {
        let why = why_of(GPT_OSS, &[(key, value)]);
        assert_eq!(why, format!("a.json: {key} is {value}; it must be {wanted}"));
    }
    let without = read(GPT_OSS, &[("rope_scaling", "null")]).unwrap();
    assert_eq!(without, read(GPT_OSS, &[]).unwrap());
}
