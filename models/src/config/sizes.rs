//! Sizes whose bytes 64 bits do not count are refused: what is made of them later never wraps.
use super::{Architecture, Config, Keys, MAX_BLOCKS, MAX_ELEMENTS};
use kernels::Heads;
use layers::Shape;
use parallel::Result;
use serde_json::json;

impl Keys<'_> {
    /// Whether each kind of weight, and the table of positions, is one whose bytes can be counted.
    pub(super) fn check_sizes(&self, config: &Config) -> Result<()> {
        let products = match config.architecture {
            Architecture::Gpt2 => gpt2(config),
            _ => llama(config),
        };
        for (key, sizes) in products {
            let product = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
            if product.is_none_or(|product| product > MAX_ELEMENTS) {
                let seen = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
                return Err(self.not_this(key, &seen, &format!("at most {MAX_ELEMENTS} elements")));
            }
        }
        let (key, blocks) = match config.architecture {
            Architecture::Gpt2 => ("n_layer", config.shape.blocks),
            _ => ("num_hidden_layers", config.shape.blocks),
        };
        if blocks > MAX_BLOCKS {
            return Err(self.wrong(key, &json!(blocks), &format!("at most {MAX_BLOCKS}")));
        }
        Ok(())
    }
}

type Products = Vec<(&'static str, Vec<usize>)>;

fn llama(config: &Config) -> Products {
    let Shape { width, blocks, heads: Heads { queries, keys, dim }, hidden, vocabulary, .. } = config.shape;
    vec![
        ("vocab_size × hidden_size", vec![vocabulary, width]),
        ("num_hidden_layers × hidden_size", vec![blocks, width]),
        (
            "num_hidden_layers × hidden_size × num_attention_heads × head_dim",
            vec![blocks, width, queries, dim],
        ),
        ("num_hidden_layers × hidden_size × num_key_value_heads × head_dim", vec![blocks, width, keys, dim]),
        ("num_hidden_layers × hidden_size × intermediate_size", vec![blocks, width, hidden]),
        ("max_position_embeddings × head_dim", vec![config.positions, dim]),
    ]
}

fn gpt2(config: &Config) -> Products {
    let Shape { width, blocks, hidden, vocabulary, .. } = config.shape;
    vec![
        ("vocab_size × n_embd", vec![vocabulary, width]),
        ("n_positions × n_embd", vec![config.positions, width]),
        ("n_layer × n_embd × n_embd", vec![blocks, width, width]),
        ("n_layer × n_embd × n_inner", vec![blocks, width, hidden]),
    ]
}
