//! The same model, optimizer and batch in the oracle's words.
use kernels::{Activation, Heads};
use layers::{FeedForward, Kind, NormKind, Objective, Positions, Rates, Shape, Window};
use parallel::{Batch, Sequence};

/// A model.
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
        bias_qkv: shape.bias.qkv,
        bias_out: shape.bias.out,
        bias_mlp: shape.bias.mlp,
        head_norm: shape.head_norm,
        window: shape.window.map(|Window { size, sinks, from }| reference::Window { size, sinks, from }),
        dropout: reference::Rates { embedding, attention, residual },
        objective: reference::Objective { smoothing, z },
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
    let documents = |s: &Sequence| -> Vec<reference::Sequence> {
        let mut from = 0;
        let document = |n: &usize| {
            let at = from..from + n;
            from = at.end;
            reference::Sequence { ids: s.ids[at.clone()].to_vec(), targets: s.targets[at].to_vec() }
        };
        s.documents.iter().map(document).collect()
    };
    batch.microbatches().iter().map(|m| m.iter().flat_map(documents).collect()).collect()
}
