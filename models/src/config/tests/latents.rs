//! Published files of the families with attention from latents, and what is refused of them.
use super::decoders::read;
use super::experts::why_of;
use super::real::is_known;
use super::*;
use kernels::ScoreTerms;
use layers::{Experts, Groups, Latent, Scoring, SharedExpert};
use tensor::{Rope, Scaling};

const DEEPSEEK_V3: &str = r#"{ "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "auto_map": {}, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": { "activation_scheme": "dynamic",
    "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128] }, "rms_norm_eps": 1e-06,
    "rope_scaling": { "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn" }, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "seq_aux": true, "aux_loss_alpha": 0.001, "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
    "use_cache": true, "v_head_dim": 128, "vocab_size": 129280 }"#;
const DEEPSEEK_V2: &str = r#"{ "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "auto_map": {}, "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001,
    "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 160, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 128, "num_experts_per_tok": 6, "num_hidden_layers": 60,
    "num_key_value_heads": 128, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_scaling": { "beta_fast": 32, "beta_slow": 1, "factor": 40,
    "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn" },
    "rope_theta": 10000, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 3, "topk_method": "group_limited_greedy", "torch_dtype": "bfloat16",
    "transformers_version": "4.39.3", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400 }"#;
/// Keys in which DeepSeek-V2-Lite differs.
const LITE: &[(&str, &str)] = &[
    ("hidden_size", "2048"),
    ("intermediate_size", "10944"),
    ("moe_intermediate_size", "1408"),
    ("n_group", "1"),
    ("n_routed_experts", "64"),
    ("num_attention_heads", "16"),
    ("num_hidden_layers", "27"),
    ("num_key_value_heads", "16"),
    ("q_lora_rank", "null"),
    ("routed_scaling_factor", "1.0"),
    ("topk_group", "1"),
    ("topk_method", "\"greedy\""),
];

fn heads(n: usize) -> Heads {
    Heads { value: 128, plain: 128, rotated: 64, neighbours: true, ..Heads::new(n, n, 192) }
}
fn yarn(mscale: f64) -> (Positions, ScoreTerms) {
    let (original, magnitude) = (4096.0, 1.0);
    let scaling = Scaling::Yarn { factor: 40.0, original, fast: 32.0, slow: 1.0, magnitude, truncate: true };
    let factor = Some((0.1 * mscale * 40f64.ln() + 1.0).powi(2));
    (Positions::Rotary(Rope { base: 1e4, scaling }), ScoreTerms { factor, ..ScoreTerms::NONE })
}
fn latent(queries: Option<usize>) -> Latent {
    Latent { keys: 512, queries, eps: 1e-6 }
}
fn dense(n: usize) -> Pattern {
    Pattern { dense: (0..n).collect(), ..Pattern::NONE }
}
fn shared(hidden: usize) -> SharedExpert {
    SharedExpert { hidden, gated: false }
}

/// Compares every size and setting with values written by hand. Kills: plain features taken for rotated
/// ones, a value's size for the key's, a latent of the other, a factor of scores that is not squared.
#[test]
fn deepseek_v3_as_it_is_found_has_the_shape_it_is_known_for() {
    let experts = Experts {
        count: 256,
        chosen: 8,
        hidden: 2048,
        scoring: Scoring::Sigmoid,
        scale: 2.5,
        bias: Some(0.0),
        groups: Some(Groups { count: 8, chosen: 4 }),
        shared: Some(shared(2048)),
        ..Experts::MIXTRAL
    };
    let (positions, scores) = yarn(1.0);
    let shape = Shape {
        width: 7168,
        blocks: 61,
        heads: heads(128),
        hidden: 18432,
        vocabulary: 129_280,
        positions,
        scores,
        eps: 1e-6,
        latent: Some(latent(Some(1536))),
        experts: Some(experts),
        pattern: dense(3),
        ..Shape::LLAMA
    };
    is_known(
        DEEPSEEK_V3,
        (crate::families::DEEPSEEK_V3, shape, 163_840, (Some(0), vec![1]), 671_026_419_200),
    );
}

/// The same of both sizes of DeepSeek-V2. Kills: gates of sum 1, groups where none are asked for, a rank
/// where queries have none.
#[test]
fn deepseeks_of_version_2_have_the_shapes_they_are_known_for() {
    let experts = Experts {
        count: 160,
        chosen: 6,
        hidden: 1536,
        scale: 16.0,
        normalize: false,
        groups: Some(Groups { count: 8, chosen: 3 }),
        shared: Some(shared(3072)),
        ..Experts::MIXTRAL
    };
    let (positions, scores) = yarn(0.707);
    let shape = Shape {
        width: 5120,
        blocks: 60,
        heads: heads(128),
        hidden: 12288,
        vocabulary: 102_400,
        positions,
        scores,
        eps: 1e-6,
        latent: Some(latent(Some(1536))),
        experts: Some(experts),
        pattern: dense(1),
        ..Shape::LLAMA
    };
    let ids = (Some(100_000), vec![100_001]);
    is_known(DEEPSEEK_V2, (crate::families::DEEPSEEK_V2, shape, 163_840, ids, 235_741_434_880));
    let lite = read(DEEPSEEK_V2, LITE).unwrap().shape;
    let experts =
        Experts { count: 64, hidden: 1408, scale: 1.0, groups: None, shared: Some(shared(2816)), ..experts };
    let smaller = Shape { width: 2048, blocks: 27, heads: heads(16), hidden: 10944, ..shape };
    assert_eq!(lite, Shape { latent: Some(latent(None)), experts: Some(experts), ..smaller });
    assert_eq!(parallel::price::parameters(lite).unwrap(), 15_706_484_224);
}

/// Kills: a default of the other family, null read as a missing rank, frequencies that lose the factor of
/// scores in writing, a factor where frequencies are not stretched.
#[test]
fn keys_of_latents_mean_what_transformers_means() {
    let none = |keys: &[&str]| keys.iter().map(|key| (key.to_string(), Value::Null)).collect::<Vec<_>>();
    let bare = |text: &str, keys: &[&str]| {
        let mut map: Map<String, Value> = serde_json::from_str(text).unwrap();
        map.retain(|key, _| none(keys).iter().all(|(none, _)| none != key));
        read(&Value::Object(map).to_string(), &[]).unwrap().shape
    };
    let sizes = ["kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"];
    let router =
        ["n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace"];
    let whole = read(DEEPSEEK_V3, &[]).unwrap().shape;
    assert_eq!(bare(DEEPSEEK_V3, &[&sizes[..], &router, &["n_shared_experts"]].concat()), whole);
    let v2 =
        bare(DEEPSEEK_V2, &["topk_method", "n_group", "topk_group", "n_shared_experts"]).experts.unwrap();
    assert_eq!((v2.groups, v2.shared.map(|shared| shared.hidden)), (None, Some(3072)));
    assert_eq!(read(DEEPSEEK_V3, &[("q_lora_rank", "null")]).unwrap().shape.latent.unwrap().queries, None);
    assert!(!read(DEEPSEEK_V3, &[("rope_interleave", "false")]).unwrap().shape.heads.neighbours);
    let yarn =
        |more: &str| format!(r#"{{ "type": "yarn", "original_max_position_embeddings": 4096, {more} }}"#);
    let factor = |object: &str| read(DEEPSEEK_V3, &[("rope_scaling", object)]).unwrap().shape.scores.factor;
    for (more, wanted) in [
        (r#""factor": 40"#, None),
        (r#""factor": 0.5, "mscale_all_dim": 0.7"#, None),
        (r#""factor": 7.3, "mscale_all_dim": 0.3141"#, Some((0.1 * 0.3141 * 7.3f64.ln() + 1.0).powi(2))),
        (
            r#""factor": 16, "mscale_all_dim": 1e-3, "attention_factor": 2"#,
            Some((1e-4 * 16f64.ln() + 1.0).powi(2)),
        ),
    ] {
        assert_eq!(factor(&yarn(more)), wanted, "{more}");
    }
    assert_eq!(factor("null"), None);
}

/// Kills: sizes that contradict each other and are taken, a key of the other family, weights of fewer bits
/// that are not fp8.
#[test]
fn latents_that_cannot_be_are_refused() {
    let why = |text, key, value| why_of(text, &[(key, value)]);
    for (text, key, value, wanted) in [
        (DEEPSEEK_V3, "num_key_value_heads", "64", "128, as num_attention_heads is"),
        (DEEPSEEK_V3, "head_dim", "128", "64, as qk_rope_head_dim is"),
        (DEEPSEEK_V3, "qk_head_dim", "128", "192, as the sum of qk_nope_head_dim and qk_rope_head_dim is"),
        (DEEPSEEK_V3, "qk_rope_head_dim", "63", "even"),
        (DEEPSEEK_V3, "kv_lora_rank", "0", "a whole number, 1 or more"),
        (DEEPSEEK_V3, "topk_method", "\"greedy\"", "\"noaux_tc\", or left out"),
        (DEEPSEEK_V3, "topk_group", "9", "at most the 8 of n_group"),
        (
            DEEPSEEK_V3,
            "quantization_config",
            r#"{"bits":4}"#,
            "an object whose quant_method is \"fp8\" or \"mxfp4\", or left out",
        ),
        (DEEPSEEK_V2, "topk_method", "\"noaux_tc\"", "\"greedy\" or \"group_limited_greedy\""),
        (DEEPSEEK_V2, "norm_topk_prob", "true", "false, or left out"),
        (DEEPSEEK_V2, "attention_bias", "true", "false, or left out"),
    ] {
        assert_eq!(why(text, key, value), format!("a.json: {key} is {value}; it must be {wanted}"));
    }
    let unknown = "but this key is not supported; remove it if the model computes the same without it";
    assert_eq!(
        why(DEEPSEEK_V2, "rope_interleave", "true"),
        format!("a.json: rope_interleave is true, {unknown}")
    );
    let huge = why(DEEPSEEK_V3, "v_head_dim", "9223372036854775808");
    assert!(huge.contains("at most 4611686018427387904 elements"), "{huge}");
}
