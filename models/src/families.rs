//! Families of models: each is one file, and one line in the list.
//!
//! The file says all that is the family's own: the names in `transformers` and the paper, the keys of a
//! `config.json`, their defaults, the shape that they mean and back, names of tensors, and the family that a
//! model joins when it is given experts. Most are a `Decoder` that differs from Llama in the parts it
//! chooses.
//!
//! | file | holds |
//! |---|---|
//! | `json.rs` | the whole `config.json`, of any family |
//! | `decoder.rs` | decoders with rotary positions; their parts are in the next files |
//! | `parts.rs`, `rope.rs`, `windows.rs` | keys that few families have; rotary frequencies; windows |
//! | `latents.rs` | attention from latents, and the experts of models that have it |
//! | `experts.rs`, `aux_loss.rs`, `qwen_experts.rs` | experts; their balance in `transformers`; Qwen's |
use crate::config::Family;
use serde_json::Value;

mod aux_loss;
mod decoder;
mod experts;
mod json;
mod latents;
mod parts;
mod qwen_experts;
mod rope;
mod windows;

macro_rules! families {
    ($($file:ident :: $FAMILY:ident),* $(,)?) => {
        $(mod $file;)*
        $(pub use $file::$FAMILY;)*

        /// All families, in the order of messages.
        pub const ALL: &[&dyn Family] = &[$($FAMILY),*];
    };
}
families! {
    llama::LLAMA,
    mistral::MISTRAL,
    mixtral::MIXTRAL,
    qwen2::QWEN2,
    qwen2_moe::QWEN2_MOE,
    qwen3::QWEN3,
    qwen3_moe::QWEN3_MOE,
    gemma2::GEMMA2,
    gemma3::GEMMA3,
    olmo2::OLMO2,
    phi3::PHI3,
    smollm3::SMOLLM3,
    deepseek_v2::DEEPSEEK_V2,
    deepseek_v3::DEEPSEEK_V3,
    gpt_oss::GPT_OSS,
    equipart_moe::EQUIPART_MOE,
    gpt2::GPT2,
}

/// Returns the family of a `model_type`.
fn named(model_type: &Value) -> Option<&'static dyn Family> {
    ALL.iter().copied().find(|family| model_type == family.about().model_type)
}
/// Returns these names as the alternatives in a sentence.
pub(crate) fn one_of(names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    let (last, others) = names.split_last().expect("some");
    format!("{} or {last}", others.join(", "))
}

#[cfg(test)]
mod tests;
