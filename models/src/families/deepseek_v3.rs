//! DeepSeek-V3: attention from latents, and experts by sigmoids with a bias of the choice. Source:
//! DeepSeek-AI, arXiv:2412.19437.
use super::decoder::{DEFAULTS, Decoder, Defaults, ExpertKeys, Family, ShapeKeys};
use super::latents::{EXPERTS, LATENTS};
use super::parts::QUANTIZED;
use layers::{Experts, Scoring};
use serde_json::json;

/// DeepSeek-V3 and R1. Blocks that predict further tokens, which files have after the others, are left out.
pub const DEEPSEEK_V3: &dyn Family = &Decoder {
    fixed: "attention_bias=false mlp_bias=false moe_layer_freq=1 scoring_func=\"sigmoid\" topk_method=\"noaux_tc\"",
    defaults: Defaults { head_dim: Some(64), positions: 4096, ids: [Some(0), Some(1)], ..DEFAULTS },
    parts: &[
        LATENTS,
        ShapeKeys {
            read_keys: "num_mtp_layers num_nextn_predict_layers rope_interleave",
            read: |keys, shape| {
                shape.heads.neighbours = keys.flag("rope_interleave", true)?;
                Ok(())
            },
            keys: |shape| vec![("rope_interleave", json!(shape.heads.neighbours))],
        },
        QUANTIZED,
    ],
    experts: Some(ExpertKeys {
        count: &["n_routed_experts", "num_local_experts"],
        read_keys: || [(EXPERTS.read_keys)(), vec!["norm_topk_prob"]].concat(),
        settings: |keys, experts| {
            Ok(Experts {
                scoring: Scoring::Sigmoid,
                bias: Some(0.0),
                normalize: keys.flag("norm_topk_prob", true)?,
                groups: keys.groups(experts.count, [Some(8), Some(4)])?,
                ..keys.scaled(experts, 2.5, 1)?
            })
        },
        dense: |keys| {
            let first = keys.count("first_k_dense_replace", 3)?;
            Ok(Box::new(move |block| block < first))
        },
        ..EXPERTS
    }),
    spare: |shape, name| {
        let block = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        block.and_then(|(block, _)| block.parse().ok()).is_some_and(|block: usize| block >= shape.blocks)
    },
    ..Decoder::of("deepseek_v3", "DeepseekV3ForCausalLM")
};
