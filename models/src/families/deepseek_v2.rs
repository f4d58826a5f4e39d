//! DeepSeek-V2: attention from latents, and experts by softmax. Source: DeepSeek-AI, arXiv:2405.04434.
use super::decoder::{DEFAULTS, Decoder, Defaults, ExpertKeys, Family};
use super::latents::{EXPERTS, LATENTS};
use layers::Experts;

/// DeepSeek-V2. `topk_method` says whether experts are chosen from groups. `transformers` never makes gates
/// of sum 1.
pub const DEEPSEEK_V2: &dyn Family = &Decoder {
    fixed: "attention_bias=false mlp_bias=false moe_layer_freq=1 norm_topk_prob=false scoring_func=\"softmax\"",
    defaults: Defaults { head_dim: Some(64), ids: [Some(1), Some(2)], ..DEFAULTS },
    parts: &[LATENTS],
    experts: Some(ExpertKeys {
        count: &["n_routed_experts", "num_experts"],
        read_keys: || [(EXPERTS.read_keys)(), vec!["topk_method"]].concat(),
        settings: |keys, experts| {
            const METHODS: [&str; 2] = ["greedy", "group_limited_greedy"];
            let wanted = METHODS.map(|method| format!("\"{method}\"")).join(" or ");
            let method = |value: &serde_json::Value| METHODS.iter().position(|method| value == method);
            let groups = keys.read("topk_method", &wanted, method)? == Some(1);
            let groups = if groups { keys.groups(experts.count, [None; 2])? } else { None };
            Ok(Experts { normalize: false, groups, ..keys.scaled(experts, 1.0, 2)? })
        },
        dense: |keys| {
            let first = keys.count("first_k_dense_replace", 0)?;
            Ok(Box::new(move |block| block < first))
        },
        ..EXPERTS
    }),
    ..Decoder::of("deepseek_v2", "DeepseekV2ForCausalLM")
};
