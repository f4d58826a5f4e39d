//! `OLMo` 2: norms after both parts of a block, and one norm of all queries and one of all keys. Source:
//! `OLMo` Team, "2 `OLMo` 2 Furious", §3, arXiv:2501.00656.
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, Family};
use layers::{NormPlaces, Shape};

/// `OLMo` 2.
pub const OLMO2: &dyn Family = &Decoder {
    fixed: "clip_qkv=null mlp_bias=false",
    defaults: Defaults {
        vocabulary: Some(50_304),
        queries: Some(32),
        ids: [None, Some(50_279)],
        eps: 1e-5,
        padding: Some(1),
        ..DEFAULTS
    },
    usual: Shape { norms: NormPlaces::After, joint_norm: true, ..Shape::LLAMA },
    bias_keys: &[ATTENTION_BIAS],
    ..Decoder::of("olmo2", "Olmo2ForCausalLM")
};
