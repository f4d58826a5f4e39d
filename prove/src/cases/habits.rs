//! What cases must often be like, because bugs hide where they are not.
use super::{Case, CaseStep, Document};
use comm::Axis;
use kernels::Activation::{Gelu, GeluTanh, Relu};
use layers::{Experts, FeedForward, Kind, NormKind, Positions, Scoring, Window};
use parallel::deal;
use tensor::Scaling;

/// Something that cases are like, in words, and whether one is.
pub type Habit = (&'static str, fn(&Case) -> bool);

/// All of them. Each occurs in at least one of fifty drawn cases.
pub const HABITS: &[Habit] = &[
    ("two steps or more", |c| c.steps.len() > 1),
    ("two microbatches or more", |c| c.steps.iter().any(|step| step.microbatches > 1)),
    ("sequences of unequal length", |c| c.steps.iter().any(unequal)),
    ("packed documents", |c| c.steps.iter().any(|step| step.sequences.iter().any(|s| s.len() > 1))),
    ("ignored targets", |c| documents(c).any(|d| d.counted().any(|counts| !counts))),
    ("a step of which no target counts", |c| c.steps.iter().any(|step| counted(&step.sequences) == 0)),
    ("a data rank of which no target counts", silent_rank),
    ("a rank without tokens", empty_region),
    ("texts read token by token", |c| c.texts.iter().any(|(tokens, prompt)| tokens > prompt)),
    ("grouped heads", |c| c.shape.heads.keys < c.shape.heads.queries),
    ("more tensor ranks than KV heads", |c| c.layout.size(Axis::LAYERS) > c.shape.heads.keys),
    ("heads that do not divide the width", |c| !c.shape.width.is_multiple_of(c.shape.heads.queries)),
    ("a width that tensor ranks do not divide", |c| {
        !c.shape.width.is_multiple_of(c.layout.size(Axis::LAYERS))
    }),
    ("ids that tensor ranks do not divide", |c| {
        !c.shape.vocabulary.is_multiple_of(c.layout.size(Axis::LAYERS))
    }),
    ("fewer ids than tensor ranks", |c| c.shape.vocabulary < c.layout.size(Axis::LAYERS)),
    ("two blocks or more", |c| c.shape.blocks > 1),
    ("RMS norm", |c| c.shape.norm == NormKind::Rms),
    ("layer norm", |c| c.shape.norm == NormKind::Layer),
    ("SwiGLU", |c| c.shape.feed_forward == FeedForward::SwiGlu),
    ("GELU", |c| c.shape.feed_forward == FeedForward::Plain(Gelu)),
    ("GELU by tanh", |c| c.shape.feed_forward == FeedForward::Plain(GeluTanh)),
    ("ReLU", |c| c.shape.feed_forward == FeedForward::Plain(Relu)),
    ("bias of queries, keys and values", |c| c.shape.bias.qkv),
    ("bias of attention's output", |c| c.shape.bias.out),
    ("biases of the feed-forward", |c| c.shape.bias.mlp),
    ("norms of queries and keys", |c| c.shape.head_norm),
    ("learned positions", |c| c.shape.context().is_some()),
    ("rotary positions, scaled", scaled),
    ("a tied head", |c| c.shape.tied),
    ("an id of padding", |c| c.shape.padding.is_some()),
    ("an id of padding, and a tied head", |c| c.shape.padding.is_some() && c.shape.tied),
    ("a window that hides tokens", |c| hides(c, |window| window.sinks == 0)),
    ("a window that hides tokens, with sinks", |c| hides(c, |window| window.sinks > 0)),
    ("a window that only later blocks have", |c| c.shape.window.is_some_and(|window| window.from > 0)),
    ("dropout of the embedding", |c| c.shape.dropout.embedding > 0.0),
    ("dropout of probabilities", |c| c.shape.dropout.attention > 0.0),
    ("dropout of residuals", |c| c.shape.dropout.residual > 0.0),
    ("smoothed labels", |c| c.shape.loss.smoothing > 0.0),
    ("z-loss", |c| c.shape.loss.z > 0.0),
    ("experts", |c| has(c, |_| true)),
    ("experts by softmax", |c| has(c, |of| of.scoring == Scoring::Softmax)),
    ("experts by sigmoids with a bias", |c| has(c, |of| of.scoring == Scoring::Sigmoid && of.bias.is_some())),
    ("a bias of the choice that moves after each step", |c| {
        has(c, |of| of.bias.is_some_and(|rate| rate > 0.0))
    }),
    ("gates that are not of sum 1", |c| has(c, |of| !of.normalize)),
    ("groups of experts, not all of which are chosen", |c| {
        has(c, |of| of.groups.is_some_and(|groups| groups.chosen < groups.count))
    }),
    ("experts that drop tokens", drops),
    ("noise of the router", |c| has(c, |of| of.noise > 0.0)),
    ("experts that choose tokens", |c| has(c, |of| of.by_experts)),
    ("a shared expert without a gate", |c| has(c, |of| of.shared.is_some_and(|shared| !shared.gated))),
    ("a shared expert with a gate", |c| has(c, |of| of.shared.is_some_and(|shared| shared.gated))),
    ("a balance of microbatches", |c| has(c, |of| of.balance.microbatch > 0.0)),
    ("a balance of sequences", |c| has(c, |of| of.balance.sequence > 0.0)),
    ("a balance of all blocks together", |c| has(c, |of| of.balance.pooled > 0.0)),
    ("z-loss of the router", |c| has(c, |of| of.balance.z > 0.0)),
    ("experts in some blocks only", |c| {
        (0..c.shape.blocks).any(|i| c.shape.experts.is_some() && c.shape.experts(i).is_none())
            && has(c, |_| true)
    }),
    ("plain descent at rate 1", |c| c.optimizer == Kind::Sgd && c.lr == 1.0),
    ("AdamW with decay", |c| matches!(c.optimizer, Kind::AdamW { decay, .. } if decay > 0.0)),
    ("AdamW with an ε that matters", |c| matches!(c.optimizer, Kind::AdamW { eps, .. } if eps > 0.1)),
    ("a limit of the norm", |c| c.clip.is_some()),
    ("no limit of the norm", |c| c.clip.is_none()),
];

/// Whether a block has such experts.
fn has(case: &Case, such: fn(&Experts) -> bool) -> bool {
    (0..case.shape.blocks).any(|i| case.shape.experts(i).is_some_and(|of| such(&of)))
}

/// Whether experts take fewer tokens of some microbatch than choose them, however these choose.
fn drops(case: &Case) -> bool {
    let rooms = |step: &CaseStep, of: Experts| {
        (0..step.microbatches).any(|m| {
            let tokens = tokens(&step.sequences[deal(step.sequences.len(), m, step.microbatches)]);
            !of.by_experts && of.capacity_of(tokens).is_some_and(|most| of.count * most < of.chosen * tokens)
        })
    };
    let of = case.shape.experts.filter(|_| has(case, |_| true));
    of.is_some_and(|of| case.steps.iter().any(|step| rooms(step, of)))
}

fn documents(case: &Case) -> impl Iterator<Item = &Document> {
    case.steps.iter().flat_map(|step| step.sequences.iter().flatten())
}

fn tokens(sequences: &[Vec<Document>]) -> usize {
    sequences.iter().flatten().map(Document::tokens).sum()
}

fn counted(sequences: &[Vec<Document>]) -> usize {
    sequences.iter().flatten().map(|d| d.counted().filter(|counts| *counts).count()).sum()
}

fn unequal(step: &CaseStep) -> bool {
    let mut lengths = step.sequences.iter().map(|s| tokens(std::slice::from_ref(s)));
    let first = lengths.next();
    lengths.any(|n| Some(n) != first)
}

/// The sequences of each data rank, microbatch by microbatch.
fn shares(case: &Case) -> impl Iterator<Item = &[Vec<Document>]> {
    let ranks = case.layout.tokens().data_ranks();
    case.steps.iter().flat_map(move |step| {
        let microbatch = move |m| &step.sequences[deal(step.sequences.len(), m, step.microbatches)];
        (0..step.microbatches)
            .flat_map(move |m| (0..ranks).map(move |r| &microbatch(m)[deal(microbatch(m).len(), r, ranks)]))
    })
}

fn silent_rank(case: &Case) -> bool {
    case.layout.tokens().data_ranks() > 1 && shares(case).any(|share| counted(share) == 0)
}

fn empty_region(case: &Case) -> bool {
    let regions = case.layout.strategies().iter().any(|about| about.word == "sp");
    regions && shares(case).any(|share| tokens(share) < case.layout.size(Axis::LAYERS))
}

fn scaled(case: &Case) -> bool {
    matches!(case.shape.positions, Positions::Rotary(rope) if rope.scaling != Scaling::None)
}

/// Whether such a window hides the first token that it may from the last of some document.
fn hides(case: &Case, such: fn(&Window) -> bool) -> bool {
    let window = case.shape.window.filter(such);
    window.is_some_and(|window| documents(case).any(|d| d.tokens() > window.size + window.sinks))
}
