//! A model in words: what sets it apart.
use super::{FeedForward, NormKind, Positions, Shape};
use kernels::{Activation, Heads};
use std::fmt;
use tensor::Scaling;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { width, blocks, heads: Heads { queries, keys, dim }, hidden, vocabulary, .. } = *self;
        let mut says = vec![
            counted(blocks, "block"),
            format!("width {width}"),
            format!("{} of {}", counted(queries, "query head"), counted(dim, "feature")),
            counted(keys, "KV head"),
            format!("{hidden} hidden"),
            counted(vocabulary, "id"),
            format!("{}, ε {}", if self.norm == NormKind::Rms { "RMS norm" } else { "layer norm" }, self.eps),
            match self.feed_forward {
                FeedForward::SwiGlu => "SwiGLU",
                FeedForward::Plain(Activation::Gelu) => "GELU",
                FeedForward::Plain(Activation::GeluTanh) => "GELU by tanh",
                FeedForward::Plain(Activation::Relu) => "ReLU",
            }
            .into(),
            match self.positions {
                Positions::Learned(n) => counted(n, "learned position"),
                Positions::Rotary(rope) => {
                    let scaling = match rope.scaling {
                        Scaling::None => "",
                        Scaling::Linear { .. } => ", scaled alike",
                        Scaling::Llama3 { .. } => ", scaled as Llama 3's",
                    };
                    format!("rotary from {}{scaling}", rope.base)
                }
            },
        ];
        says.extend(self.padding.map(|id| format!("padding {id}")));
        let window = self
            .window
            .map(|w| format!("window {}, {}, from block {}", w.size, counted(w.sinks, "sink"), w.from));
        says.extend(window);
        let flags = [
            (self.tied, "tied head"),
            (self.head_norm, "norms of queries and keys"),
            (self.bias.qkv, "bias of QKV"),
            (self.bias.out, "bias of attention's output"),
            (self.bias.mlp, "biases of the feed-forward"),
        ];
        says.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, what)| what.to_string()));
        let rates = [
            (self.dropout.embedding, "dropout of the embedding"),
            (self.dropout.attention, "dropout of probabilities"),
            (self.dropout.residual, "dropout of residuals"),
            (self.loss.smoothing, "label smoothing"),
            (self.loss.z, "z-loss"),
        ];
        says.extend(
            rates.into_iter().filter(|(rate, _)| *rate > 0.0).map(|(rate, what)| format!("{what} {rate}")),
        );

        f.write_str(&says.join(", "))
    }
}

/// "1 rank", "2 ranks", "2 batches".
#[must_use]
pub fn counted(n: usize, what: &str) -> String {
    let plural = if what.ends_with("ch") { "es" } else { "s" };
    format!("{n} {what}{}", if n == 1 { "" } else { plural })
}
