//! A model in words: what sets it apart.
use super::{Balance, Experts, FeedForward, NormKind, Positions, Scoring, Shape};
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
        says.extend(self.experts.map(|experts| experts.to_string()));
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

impl fmt::Display for Experts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Experts { count, chosen, hidden, scale, .. } = *self;
        let Balance { microbatch, sequence, pooled, z } = self.balance;
        let mut says = vec![format!("{} of {hidden} hidden, {chosen} chosen", counted(count, "expert"))];
        let scoring = if self.scoring == Scoring::Softmax { "softmax" } else { "sigmoids" };
        let moves = |rate: f64| if rate > 0.0 { format!(" that moves by {rate}") } else { String::new() };
        let bias = self.bias.map_or_else(String::new, |r| format!(" with a bias of the choice{}", moves(r)));
        says.push(format!("by {scoring}{bias}"));
        says.extend(self.groups.map(|g| format!("from {} of {}", g.chosen, counted(g.count, "group"))));
        says.extend(self.normalize.then(|| "gates of sum 1".into()));
        says.extend((scale != 1.0).then(|| format!("gates × {scale}")));
        says.extend(self.capacity.map(|capacity| format!("capacity {capacity}")));
        says.extend(self.shared.map(|s| {
            format!("a shared expert of {} hidden{}", s.hidden, if s.gated { " with a gate" } else { "" })
        }));
        let balances = [
            (microbatch, "balance of microbatches"),
            (sequence, "balance of sequences"),
            (pooled, "balance of all blocks together"),
            (z, "z-loss of the router"),
            (self.noise, "noise of the router"),
        ];
        let balances = balances.into_iter().filter(|(weight, _)| *weight > 0.0);
        says.extend(balances.map(|(weight, what)| format!("{what} {weight}")));
        let dense: Vec<_> = self.dense.iter().map(|block| block.to_string()).collect();
        says.extend((!dense.is_empty()).then(|| format!("no experts in block {}", dense.join(" and "))));
        says.extend(self.by_experts.then(|| "experts choose tokens".into()));
        says.extend(self.forced.then(|| "tokens dealt in turn".into()));
        f.write_str(&says.join(", "))
    }
}

/// "1 rank", "2 ranks", "2 batches".
#[must_use]
pub fn counted(n: usize, what: &str) -> String {
    let plural = if what.ends_with("ch") { "es" } else { "s" };
    format!("{n} {what}{}", if n == 1 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocks, Groups, SharedExpert};

    /// Kills: a part of a router that is not said, or said of one that has it not.
    #[test]
    fn experts_are_said_with_all_that_sets_them_apart() {
        let mixtral = Experts { count: 8, chosen: 2, hidden: 14336, ..Experts::MIXTRAL };
        let said = "8 experts of 14336 hidden, 2 chosen, by softmax, gates of sum 1";
        assert_eq!(mixtral.to_string(), said);
        let shape = Shape { experts: Some(mixtral), ..Shape::LLAMA };
        assert_eq!(shape.to_string(), format!("{}, {said}", Shape::LLAMA));
        let everything = Experts {
            scoring: Scoring::Sigmoid,
            normalize: false,
            scale: 2.5,
            bias: Some(0.125),
            groups: Some(Groups { count: 4, chosen: 2 }),
            capacity: Some(1.25),
            shared: Some(SharedExpert { hidden: 32, gated: true }),
            balance: Balance { microbatch: 0.5, sequence: 0.25, pooled: 0.75, z: 0.125 },
            dense: Blocks::from_iter([0, 3]),
            forced: true,
            by_experts: true,
            noise: 0.0625,
            ..mixtral
        };
        assert_eq!(
            everything.to_string(),
            "8 experts of 14336 hidden, 2 chosen, by sigmoids with a bias of the choice that moves by 0.125, from 2 of 4 groups, \
             gates × 2.5, capacity 1.25, a shared expert of 32 hidden with a gate, balance of microbatches 0.5, \
             balance of sequences 0.25, balance of all blocks together 0.75, z-loss of the router 0.125, noise of the router 0.0625, no experts in block 0 and 3, experts choose tokens, \
             tokens dealt in turn"
        );
    }
}
