//! The same model, optimizer and batch in the oracle's words.
use kernels::{Activation, Heads};
use layers::{Design, FeedForward, Kind, NormKind, Objective, Positions, Rates, Shape, Window};
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
