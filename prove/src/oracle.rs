//! The same model, optimizer and batch in the oracle's words.
use kernels::{Activation, Heads};
use layers::{
    Balance, Design, Experts, FeedForward, Groups, Kind, NormKind, Objective, Positions, Rates, Scoring,
    Shape, SharedExpert, Window,
};
use parallel::{Batch, Sequence};
use std::ops::Range;

/// A model of any kind.
pub fn design(design: &Design) -> reference::Design {
    match design {
        Design::Transformer(shape) => model(shape).into(),
        Design::Blocks(shape) => reference::Model { bare: true, ..model(shape) }.into(),
        Design::Classifier { sizes } => {
            reference::Design::Classifier(reference::Classifier { sizes: sizes.clone() })
        }
    }
}

/// A transformer.
pub fn model(shape: &Shape) -> reference::Model {
    let Heads { queries, keys, dim } = shape.heads;
    let Rates { embedding, attention, residual } = shape.dropout;
    let Objective { smoothing, z } = shape.loss;
    reference::Model {
        width: shape.width,
        blocks: shape.blocks,
        heads: reference::Heads { queries, keys, dim },
        hidden: shape.hidden,
        vocabulary: shape.vocabulary,
        padding: shape.padding,
        eps: shape.eps,
        tied: shape.tied,
        norm: match shape.norm {
            NormKind::Rms => reference::Norm::Rms,
            NormKind::Layer => reference::Norm::Layer,
        },
        positions: match shape.positions {
            Positions::Rotary(rope) => reference::Positions::Rotary(rope),
            Positions::Learned(n) => reference::Positions::Learned(n),
        },
        activation: match shape.feed_forward {
            FeedForward::SwiGlu => reference::Activation::SwiGlu,
            FeedForward::Plain(Activation::Gelu) => reference::Activation::Gelu,
            FeedForward::Plain(Activation::GeluTanh) => reference::Activation::GeluTanh,
            FeedForward::Plain(Activation::Relu) => reference::Activation::Relu,
        },
        experts: shape.experts.map(experts),
        bias_qkv: shape.bias.qkv,
        bias_out: shape.bias.out,
        bias_mlp: shape.bias.mlp,
        head_norm: shape.head_norm,
        window: shape.window.map(|Window { size, sinks, from }| reference::Window { size, sinks, from }),
        dropout: reference::Rates { embedding, attention, residual },
        objective: reference::Objective { smoothing, z },
        bare: false,
    }
}

/// Experts.
pub fn experts(of: Experts) -> reference::Experts {
    let Balance { microbatch, sequence, pooled, z } = of.balance;
    let groups = |Groups { count, chosen }| reference::Groups { count, chosen };
    let shared = |SharedExpert { hidden, gated }| reference::Shared { hidden, gated };
    reference::Experts {
        count: of.count,
        chosen: of.chosen,
        hidden: of.hidden,
        scoring: match of.scoring {
            Scoring::Softmax => reference::Scoring::Softmax,
            Scoring::Sigmoid => reference::Scoring::Sigmoid,
        },
        normalize: of.normalize,
        scale: of.scale,
        bias: of.bias,
        groups: of.groups.map(groups),
        capacity: of.capacity,
        shared: of.shared.map(shared),
        balance: reference::Balance { microbatch, sequence, pooled, z },
        dense: of.dense.iter().collect(),
        forced: of.forced,
        by_experts: of.by_experts,
        noise: of.noise,
    }
}

/// An optimizer.
pub fn optimizer(kind: Kind) -> reference::Optimizer {
    match kind {
        Kind::Sgd => reference::Optimizer::Sgd,
        Kind::AdamW { beta1, beta2, eps, decay } => reference::Optimizer::AdamW { beta1, beta2, eps, decay },
    }
}

/// A batch: the oracle knows of documents only, each a sequence of its own.
pub fn microbatches(batch: &Batch) -> Vec<Vec<reference::Sequence>> {
    batch.microbatches().iter().map(|m| m.iter().flat_map(documents).collect()).collect()
}

/// The documents of a sequence.
pub(crate) fn documents(s: &Sequence) -> Vec<reference::Sequence> {
    fn part<T: Copy>(all: &[T], tokens: usize, at: &Range<usize>) -> Vec<T> {
        let each = all.len() / tokens; // 0 where there are none
        all[at.start * each..at.end * each].to_vec()
    }
    let (mut from, tokens) = (0, s.tokens());
    let document = |n: &usize| {
        let at = from..from + n;
        from = at.end;
        let (ids, targets) = (part(&s.ids, tokens, &at), part(&s.targets, tokens, &at));
        reference::Sequence { ids, targets, x: part(&s.x, tokens, &at), y: part(&s.y, tokens, &at) }
    };
    s.documents.iter().map(document).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: two settings of the same kind exchanged, or one that the oracle is not told.
    #[test]
    fn experts_keep_all_their_settings() {
        let of = Experts {
            count: 6,
            chosen: 2,
            hidden: 5,
            scoring: Scoring::Sigmoid,
            normalize: false,
            scale: 2.5,
            bias: Some(0.125),
            groups: Some(Groups { count: 3, chosen: 1 }),
            capacity: Some(1.25),
            shared: Some(SharedExpert { hidden: 7, gated: true }),
            balance: Balance { microbatch: 0.5, sequence: 0.25, pooled: 0.75, z: 0.125 },
            dense: [0, 2].into_iter().collect(),
            forced: false,
            by_experts: false,
            noise: 0.0625,
        };
        let wanted = reference::Experts {
            count: 6,
            chosen: 2,
            hidden: 5,
            scoring: reference::Scoring::Sigmoid,
            normalize: false,
            scale: 2.5,
            bias: Some(0.125),
            groups: Some(reference::Groups { count: 3, chosen: 1 }),
            capacity: Some(1.25),
            shared: Some(reference::Shared { hidden: 7, gated: true }),
            balance: reference::Balance { microbatch: 0.5, sequence: 0.25, pooled: 0.75, z: 0.125 },
            dense: vec![0, 2],
            forced: false,
            by_experts: false,
            noise: 0.0625,
        };
        let told = model(&Shape { experts: Some(of), ..Shape::LLAMA });
        assert_eq!(told.experts, Some(wanted));
        let other = experts(Experts {
            normalize: true,
            bias: None,
            forced: true,
            by_experts: true,
            scoring: Scoring::Softmax,
            ..of
        });
        assert_eq!((other.normalize, other.bias, other.forced, other.by_experts), (true, None, true, true));
        assert_eq!((other.scoring, model(&Shape::LLAMA).experts), (reference::Scoring::Softmax, None));
    }
}
