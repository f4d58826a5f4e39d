//! Qwen2 with experts, one of them shared behind a gate, and without a window. Source: Yang et al.,
//! arXiv:2407.10671.
use super::decoder::{DEFAULTS, Decoder, Defaults, ExpertKeys, Family, QKV, windows};
use super::qwen_experts::ROUTED;
use layers::{Experts, SharedExpert};
use serde_json::json;

const SHARED: &str = "shared_expert_intermediate_size";

/// Qwen2 with experts.
pub const QWEN2_MOE: &dyn Family = &Decoder {
    fixed: "mlp_bias=false use_mrope=false use_sliding_window=false",
    defaults: Defaults { key_heads: Some(16), positions: 32_768, ..DEFAULTS },
    usual: QKV,
    bias_keys: &[("qkv_bias", |bias| vec![&mut bias.qkv])],
    parts: &[windows::UNUSED],
    experts: Some(ExpertKeys {
        shared: SHARED,
        read_keys: || [(ROUTED.read_keys)(), vec![SHARED]].concat(),
        settings: |keys, experts| {
            let experts = (ROUTED.settings)(keys, experts)?;
            let shared = SharedExpert { hidden: keys.size(SHARED, None)?, gated: true };
            Ok(Experts { shared: Some(shared), ..experts })
        },
        keys: |config, experts| {
            let shared = experts.shared.map(|expert| (SHARED, json!(expert.hidden)));
            (ROUTED.keys)(config, experts).into_iter().chain(shared).collect()
        },
        ..ROUTED
    }),
    ..Decoder::of("qwen2_moe", "Qwen2MoeForCausalLM")
};
