//! GPT-2, whose configuration has its own keys.
use super::Config;
use super::architecture::Architecture;
use super::keys::ConfigKeys;
use kernels::{Activation, Heads};
use layers::{FeedForward, Positions, Rates, Shape};
use parallel::Result;
use serde_json::{Value, json};

/// Activation functions of the feed-forward, by their names in `transformers`. The first name of each
/// function is the one written.
const ACTIVATIONS: [(&str, Activation); 4] = [
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu", Activation::Gelu),
    ("relu", Activation::Relu),
];

impl ConfigKeys<'_> {
    pub(super) fn gpt2(&self) -> Result<Config> {
        let (width, heads) = (self.size("n_embd", None)?, self.size("n_head", None)?);
        if !width.is_multiple_of(heads) {
            return Err(self.wrong("n_embd", &json!(width), &format!("a multiple of the {heads} n_head")));
        }
        let positions = self.size("n_positions", Some(1024))?;
        let wanted = format!("{positions}, as n_positions is, or left out");
        self.read("n_ctx", &wanted, |other| (*other == positions).then_some(()))?;
        let vocabulary = self.size("vocab_size", None)?;
        let shape = Shape {
            width,
            blocks: self.size("n_layer", None)?,
            heads: Heads { queries: heads, keys: heads, dim: width / heads },
            hidden: self.size("n_inner", Some(width.saturating_mul(4)))?,
            vocabulary,
            eps: self.positive("layer_norm_epsilon")?.unwrap_or(1e-5),
            tied: self.flag("tie_word_embeddings", true)?,
            positions: Positions::Learned(positions),
            feed_forward: FeedForward::Plain(self.activation()?),
            dropout: Rates {
                embedding: self.rate("embd_pdrop", 0.1)?,
                attention: self.rate("attn_pdrop", 0.1)?,
                residual: self.rate("resid_pdrop", 0.1)?,
            },
            ..Shape::GPT2
        };
        let (bos, eos) = self.ends([Some(50256); 2], vocabulary)?;
        Ok(Config {
            architecture: Architecture::Gpt2,
            shape,
            positions,
            bos,
            eos,
            spare_coefficient: 0.0,
            wrapper: None,
        })
    }
    fn activation(&self) -> Result<Activation> {
        let wanted = ACTIVATIONS.map(|(name, _)| format!("\"{name}\"")).join(" or ") + ", or left out";
        let known = |value: &Value| Some(ACTIVATIONS.iter().find(|(name, _)| value == name)?.1);
        Ok(self.read("activation_function", &wanted, known)?.unwrap_or(Activation::GeluTanh))
    }
}

/// Returns the keys from which both versions of `transformers` read this model.
pub(super) fn keys(config: &Config) -> Vec<(&'static str, Value)> {
    let shape = &config.shape;
    let activation = match shape.feed_forward {
        FeedForward::Plain(f) => ACTIVATIONS.iter().find(|(_, other)| *other == f).expect("all are named").0,
        FeedForward::SwiGlu => unreachable!("GPT-2 has a plain feed-forward"),
    };
    vec![
        ("activation_function", json!(activation)),
        ("add_cross_attention", json!(false)),
        ("attn_pdrop", json!(shape.dropout.attention)),
        ("embd_pdrop", json!(shape.dropout.embedding)),
        ("layer_norm_epsilon", json!(shape.eps)),
        ("n_embd", json!(shape.width)),
        ("n_head", json!(shape.heads.queries)),
        ("n_inner", json!(shape.hidden)),
        ("n_layer", json!(shape.blocks)),
        ("n_positions", json!(config.positions)),
        ("reorder_and_upcast_attn", json!(false)),
        ("resid_pdrop", json!(shape.dropout.residual)),
        ("scale_attn_by_inverse_layer_idx", json!(false)),
        ("scale_attn_weights", json!(true)),
    ]
}
