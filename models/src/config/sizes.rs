//! Sizes whose bytes 64 bits do not count are refused: what is made of them later never wraps.
use super::{Architecture, Config, Keys, MAX_BLOCKS, MAX_ELEMENTS};
use kernels::Heads;
use layers::Shape;
use parallel::Result;
use serde_json::json;

impl Keys<'_> {
    /// Whether each kind of weight, and the table of positions, is one whose bytes can be counted.
    pub(super) fn check_sizes(&self, config: &Config) -> Result<()> {
        let (layers, products) = match config.architecture {
            Architecture::Gpt2 => gpt2(config),
            _ => llama(config),
        };
        for product in products {
            let elements = product.iter().try_fold(1usize, |elements, (_, size)| elements.checked_mul(*size));
            if elements.is_none_or(|elements| elements > MAX_ELEMENTS) {
                let keys: Vec<_> = product.iter().map(|(key, _)| *key).collect();
                let sizes: Vec<_> = product.iter().map(|(_, size)| size.to_string()).collect();
                let wanted = format!("at most {MAX_ELEMENTS} elements");
                return Err(self.not_this(&keys.join(" × "), &sizes.join(" × "), &wanted));
            }
        }
        if config.shape.blocks > MAX_BLOCKS {
            return Err(self.wrong(layers, &json!(config.shape.blocks), &format!("at most {MAX_BLOCKS}")));
        }
        Ok(())
    }
}

/// The key of the blocks, and keys with their sizes whose products are elements.
type Products = (&'static str, Vec<Vec<(&'static str, usize)>>);

fn llama(config: &Config) -> Products {
    let Shape { width, blocks, heads: Heads { queries, keys, dim }, hidden, vocabulary, experts, .. } =
        config.shape;
    let (d, n, dim) = (("hidden_size", width), ("num_hidden_layers", blocks), ("head_dim", dim));
    let mut of = vec![
        vec![("vocab_size", vocabulary), d],
        vec![n, d],
        vec![n, d, ("num_attention_heads", queries), dim],
        vec![n, d, ("num_key_value_heads", keys), dim],
        vec![n, d, ("intermediate_size", hidden)],
        vec![("max_position_embeddings", config.positions), dim],
    ];
    if let (Some(experts), Some([count, hidden, shared])) = (experts, config.architecture.expert_keys()) {
        of.push(vec![n, d, (count, experts.count), (hidden, experts.hidden)]);
        of.extend(experts.shared.map(|expert| vec![n, d, (shared, expert.hidden)]));
    }
    (n.0, of)
}

fn gpt2(config: &Config) -> Products {
    let Shape { width, blocks, hidden, vocabulary, .. } = config.shape;
    let (d, n) = (("n_embd", width), ("n_layer", blocks));
    let tables = [("vocab_size", vocabulary), ("n_positions", config.positions)].map(|table| vec![table, d]);
    (n.0, [&tables[..], &[vec![n, d, d], vec![n, d, ("n_inner", hidden)]]].concat())
}
