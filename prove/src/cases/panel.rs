//! `prove --layout` without a model: a panel of small models, of every family and with every habit of cases,
//! so that no part of a strategy goes unproven because one model does not use it. The panel is a list.
//! [`HABITS`] tells the properties of its members, and so those that a proof of one model lacks.
use super::case::ProofCase;
use super::fitted::{fitted, in_blocks};
use super::habits::HABITS;
use crate::Subject;
use kernels::{Activation, Heads, ScoreTerms};
use layers::{
    Balance, Biases, Blocks, Experts, FeedForward, Gate, Groups, Latent, NormKind, NormPlaces, Objective,
    OptimizerKind, Pattern, Positions, Rates, Scoring, Shape, SharedExpert, Window,
};
use ops::{GradientScaling, LossScaling, OPTIMIZERS};
use parallel::{Error, Layout, Result, Scheme};
use shape::{FEATURES, Feature, Range};
use std::sync::LazyLock;
use tensor::{Cpu, F61, Rope, Scaling};

/// A model of the panel, before its sizes are fitted to a layout.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Name of the model.
    pub name: &'static str,
    /// The model.
    pub shape: Shape,
    /// The optimizer, and how it scales gradients.
    pub optimizer: (OptimizerKind, GradientScaling),
}

const CLIPPED: GradientScaling = GradientScaling { clip: Some(0.5), loss: None };
const SCALED: GradientScaling = GradientScaling { loss: Some(LossScaling::USUAL), ..CLIPPED };
const SGD: (OptimizerKind, GradientScaling) = (ops::SGD, CLIPPED);
const ADAMW: (OptimizerKind, GradientScaling) = (ops::ADAMW, CLIPPED);
const EVERY_BIAS: Biases = Biases { qkv: true, out: true, mlp: true };

const fn heads(keys: usize) -> Heads {
    Heads::new(8, keys, 3)
}
const fn rotary(scaling: Scaling) -> Positions {
    Positions::Rotary(Rope { base: 100.0, scaling })
}

/// Sizes that ranks do not divide, except where they must.
const LLAMA: Shape = Shape {
    width: 9,
    blocks: 2,
    heads: heads(4),
    hidden: 8,
    vocabulary: 13,
    positions: rotary(Scaling::None),
    ..Shape::LLAMA
};
const BIASED: Shape = Shape {
    heads: heads(1),
    positions: rotary(Scaling::Linear { factor: 2.0 }),
    pattern: Pattern { other_positions: Blocks::FIRST, ..Pattern::NONE },
    bias: EVERY_BIAS,
    loss: Objective { smoothing: 0.125, z: 1e-3 },
    vocabulary: 19,
    padding: Some(16), // an id that is read
    ..LLAMA
};
const QWEN2: Shape = Shape {
    heads: heads(2),
    bias: Biases { qkv: true, out: false, mlp: false },
    window: Some(Window { size: 2, sinks: 1 }),
    pattern: Pattern { whole: Blocks::FIRST, ..Pattern::NONE },
    tied: true,
    vocabulary: 11,
    padding: Some(2), // an id that is read, too
    ..LLAMA
};
const GEMMA2: Shape = Shape {
    heads: heads(2),
    norms: NormPlaces::Both,
    embedding_root: Some(9),
    scores: ScoreTerms { divisor: Some(5), cap: Some(2.0), ..ScoreTerms::NONE },
    logit_cap: Some(3.0),
    feed_forward: FeedForward::Gated(Gate::GeluTanh),
    window: Some(Window { size: 2, sinks: 0 }),
    pattern: Pattern { whole: Blocks::FIRST, ..Pattern::NONE },
    tied: true,
    ..LLAMA
};
const GPT2: Shape = Shape {
    width: 9,
    blocks: 2,
    heads: heads(8),
    hidden: 8,
    vocabulary: 17,
    positions: Positions::Learned(8),
    dropout: Rates { embedding: 0.25, attention: 0.5, residual: 0.125 },
    ..Shape::GPT2
};
const MIXTRAL: Experts = Experts {
    count: 3,
    chosen: 2,
    hidden: 3,
    balance: Balance { microbatch: 0.0, sequence: 0.0, pooled: 0.125, z: 0.125 },
    ..Experts::MIXTRAL
};
/// One expert per token and little capacity, so that tokens are dropped; and the other features of Qwen2's
/// experts.
const SWITCH: Experts = Experts {
    chosen: 1,
    normalize: false,
    capacity: Some(0.5),
    shared: Some(SharedExpert { hidden: 8, gated: true }),
    balance: Balance { microbatch: 0.125, sequence: 0.0, pooled: 0.0, z: 0.125 },
    ..MIXTRAL
};
/// Experts that choose tokens.
const CHOOSING: Experts = Experts {
    by_experts: true,
    normalize: false,
    capacity: Some(1.0),
    balance: Balance { microbatch: 0.0, sequence: 0.0, pooled: 0.0, z: 0.0 },
    ..MIXTRAL
};
const DEEPSEEK: Experts = Experts {
    noise: 0.5,
    count: 6,
    chosen: 3,
    scoring: Scoring::Sigmoid,
    scale: 2.5,
    bias: Some(0.25),
    groups: Some(Groups { count: 3, chosen: 2 }),
    shared: Some(SharedExpert { hidden: 8, gated: false }),
    balance: Balance { microbatch: 0.0, sequence: 0.125, pooled: 0.125, z: 0.0 },
    ..MIXTRAL
};
const DENSE_FIRST: Pattern = Pattern { dense: Blocks::FIRST, ..Pattern::NONE };
const LLAMA3: Scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8.0 };

/// All members: the named ones, a Llama with each feature that none of them has, and one with experts in one
/// of its blocks for each optimizer that none of them has.
pub static PANEL: LazyLock<Vec<Member>> = LazyLock::new(|| {
    let mut members = with_every(NAMED, FEATURES);
    for info in OPTIMIZERS {
        if !members.iter().any(|member| member.optimizer.0.name() == info.name) {
            let optimizer = (with_small_blocks(OptimizerKind::usual(info)), CLIPPED);
            let shape = Shape { experts: Some(MIXTRAL), pattern: DENSE_FIRST, ..LLAMA };
            members.push(Member { name: info.title, shape, optimizer });
        }
    }
    members
});

/// Returns the optimizer with the smallest blocks of state, of which small models have several in a row.
fn with_small_blocks(kind: OptimizerKind) -> OptimizerKind {
    kind.info().constants.iter().fold(kind, |kind, constant| match constant.range {
        Range::PowerOfTwo([least, _]) => {
            kind.set(constant.key, &[least as f64]).expect("a value of its range")
        }
        _ => kind,
    })
}

/// Returns these members, and one more for each feature that none of them has.
fn with_every(named: &[Member], features: &'static [Feature]) -> Vec<Member> {
    let mut members = named.to_vec();
    for feature in features.iter().filter(|feature| feature.often > 0) {
        if !members.iter().any(|member| feature.is_of(&member.shape)) {
            let with = |mut shape: Shape| {
                feature.give(&mut shape, 0);
                shape
            };
            let llamas = [None, Some(MIXTRAL), Some(DEEPSEEK)].map(|experts| Shape { experts, ..LLAMA });
            let shapes = llamas.into_iter().chain(members.iter().map(|member| member.shape)).map(with);
            let shape =
                { shapes }.find(|shape| feature.is_of(shape)).expect("a Llama or a member can have it");
            members.push(Member { name: feature.what, shape, optimizer: SGD });
        }
    }
    members
}

/// Members of the model families.
const NAMED: &[Member] = &[
    Member { name: "Llama", shape: LLAMA, optimizer: SGD },
    Member {
        name: "Llama 3",
        shape: Shape { tied: true, positions: rotary(LLAMA3), ..LLAMA },
        optimizer: ADAMW,
    },
    Member {
        name: "biased Llama",
        shape: BIASED,
        optimizer: (ops::ADAMW.with(&[0.5, 0.25, 0.25, 0.5]), GradientScaling { clip: None, loss: None }),
    },
    Member {
        name: "Mistral",
        shape: Shape { window: Some(Window { size: 1, sinks: 0 }), ..LLAMA },
        optimizer: ADAMW,
    },
    Member { name: "Qwen2", shape: QWEN2, optimizer: SGD },
    Member {
        name: "Qwen3",
        shape: Shape { head_norm: true, heads: heads(2), vocabulary: 3, ..LLAMA },
        optimizer: ADAMW,
    },
    Member { name: "GPT-2", shape: GPT2, optimizer: ADAMW },
    Member {
        name: "GPT-2 with erf",
        shape: Shape { feed_forward: FeedForward::Plain(Activation::Gelu), tied: false, ..GPT2 },
        optimizer: SGD,
    },
    Member {
        name: "GPT-2 with ReLU",
        shape: Shape {
            norm: NormKind::Layer,
            feed_forward: FeedForward::Plain(Activation::Relu),
            bias: Biases { qkv: false, out: false, mlp: false },
            ..GPT2
        },
        optimizer: (ops::SGD, GradientScaling { clip: None, ..SCALED }),
    },
    Member { name: "experts that choose", shape: Shape { experts: Some(CHOOSING), ..LLAMA }, optimizer: SGD },
    Member {
        name: "Mixtral",
        shape: Shape { experts: Some(MIXTRAL), ..LLAMA },
        optimizer: (ops::ADAMW, SCALED),
    },
    Member {
        name: "Switch",
        shape: Shape {
            feed_forward: FeedForward::Plain(Activation::Relu),
            experts: Some(SWITCH),
            dropout: GPT2.dropout,
            ..LLAMA
        },
        optimizer: (ops::SGD, SCALED),
    },
    Member {
        name: "DeepSeek",
        shape: Shape {
            heads: Heads { value: 2, plain: 1, rotated: 2, neighbours: true, ..heads(8) },
            scores: ScoreTerms { factor: Some(1.5), ..ScoreTerms::NONE },
            latent: Some(Latent { keys: 4, queries: Some(5), eps: 0.125 }),
            experts: Some(DEEPSEEK),
            pattern: DENSE_FIRST,
            tied: true,
            ..LLAMA
        },
        optimizer: (ops::SGD, SCALED),
    },
    Member { name: "Gemma 2", shape: GEMMA2, optimizer: SGD },
    Member {
        name: "GPT-OSS",
        shape: Shape {
            scores: ScoreTerms { sinks: true, ..ScoreTerms::NONE },
            feed_forward: FeedForward::Gated(Gate::Clamped),
            experts: Some(Experts { biases: true, ..MIXTRAL }),
            ..QWEN2
        },
        optimizer: ADAMW,
    },
    Member {
        name: "OLMo 2",
        shape: Shape { norms: NormPlaces::After, joint_norm: true, ..LLAMA },
        optimizer: ADAMW,
    },
];

impl Member {
    /// Returns this member's subject under a scheme, with sizes fitted to its ranks.
    ///
    /// # Errors
    /// If no small model fits the scheme.
    pub fn subject<'a>(&self, scheme: impl Into<Scheme<'a, Cpu<F61>>>) -> Result<Subject> {
        let scheme = scheme.into();
        let shape = fitted(self.shape, &scheme).ok_or_else(|| {
            let versions = || scheme.layout.pipeline().fits(&LLAMA.into(), scheme.layout.rests()).err();
            Error::new(scheme.layout.conflict(self.shape).or_else(versions).unwrap_or_else(|| {
                format!("no small model fits {scheme}; prove a model that does, with --config")
            }))
        })?;
        let shape = in_blocks(shape, self.optimizer.0, scheme.layout);
        Ok(Subject { optimizer: self.optimizer, ..Subject::small(shape, scheme.layout)? })
    }
}

/// Returns the [`HABITS`] that the panel has under this layout and a proof of this subject lacks. Empty if no
/// small model fits the layout.
#[must_use]
pub fn never_ran(subject: &Subject, layout: &Layout) -> Vec<&'static str> {
    let Some(mine) = ProofCase::of(subject, *layout) else { return Vec::new() };
    let panel = PANEL.iter().filter_map(|member| member.subject(layout).ok());
    let panel: Vec<_> = panel.filter_map(|subject| ProofCase::of(&subject, *layout)).collect();
    HABITS.iter().filter(|(_, has)| !has(&mine) && panel.iter().any(has)).map(|(what, _)| *what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a feature that no model of the panel has, an added model for a feature that one already has.
    #[test]
    fn a_feature_that_nobody_has_gets_a_member() {
        let others =
            OPTIMIZERS.iter().filter(|info| !NAMED.iter().any(|of| of.optimizer.0.name() == info.name));
        assert_eq!(PANEL.len(), NAMED.len() + others.count());
        let llama = Member { name: "Llama", shape: LLAMA, optimizer: SGD };
        let all = with_every(&[llama], FEATURES);
        let tried = || FEATURES.iter().filter(|feature| feature.often > 0);
        assert!(tried().all(|feature| all.iter().any(|member| feature.is_of(&member.shape))));
        assert!(all.iter().any(|member| member.name == "a tied head" && member.shape.tied));
        assert!(
            !all.iter().any(|member| ["SwiGLU", "tokens dealt to experts in turn"].contains(&member.name))
        );
    }
}
