//! Mixture of experts: a feed-forward made of experts, with a few of them for each token. Everything but its
//! parameters.
use serde::{Deserialize, Serialize};

/// Experts in place of the feed-forward of some blocks (mixture of experts). The router gives each token a
/// score for every expert. The token is dispatched to the experts with the highest scores, and their outputs
/// are added, each multiplied by its gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Experts {
    /// Number of experts, `E`.
    pub count: usize,
    /// Number of experts per token, `k`.
    pub chosen: usize,
    /// Hidden features of each expert, `F`.
    pub hidden: usize,
    /// Function that turns logits into scores.
    pub scoring: Scoring,
    /// True if a token's gates are divided by their sum.
    pub normalize: bool,
    /// Factor that multiplies the gates, after that division.
    pub scale: f64,
    /// Amount by which the bias of the choice moves; `None` for no bias. The bias is added to the scores for
    /// the choice, not to the gates. It has no gradient: after each step it rises by this amount for an
    /// expert chosen by fewer of the step's tokens than the mean, and falls by it for an expert chosen by
    /// more. Source: Wang et al., "Auxiliary-loss-free load balancing", arXiv:2408.15664.
    pub bias: Option<f64>,
    /// Groups of experts; a token chooses from its best few groups only.
    pub groups: Option<Groups>,
    /// Capacity factor: an expert takes at most `⌈capacity·k·B/E⌉` of the `B` tokens of a microbatch and
    /// drops later ones. The factor is a multiple of the number that each takes under an even load. `None`:
    /// nothing is dropped.
    pub capacity: Option<f64>,
    /// Shared expert that processes every token in addition to the routed ones.
    pub shared: Option<SharedExpert>,
    /// Auxiliary losses that training adds.
    pub balance: Balance,
    /// True if tokens are assigned to experts in turn, ignoring the scores: for measurements.
    pub forced: bool,
    /// True if experts choose tokens (expert choice): each takes its highest-scoring tokens of a microbatch,
    /// as many as its capacity allows. A token may be taken by all experts, or by none. Source: Zhou et al.,
    /// "Expert choice routing", arXiv:2202.09368.
    pub by_experts: bool,
    /// Standard deviation of the noise that training adds to the logits of softmax, or to the scores of
    /// sigmoid, for the choice only. Source: Shazeer et al., §2.1, arXiv:1701.06538, where it is learned.
    pub noise: f64,
    /// True if the router's logits and both products of each expert have biases. Source: `OpenAI`, "gpt-oss",
    /// §2, arXiv:2508.10925.
    #[serde(skip_serializing_if = "crate::shape::is_usual")]
    pub biases: bool,
}

/// Function that turns a token's logits into scores and gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// The softmax of a token's logits over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
}

/// Groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// Number of groups; each has the same number of consecutive experts.
    pub count: usize,
    /// Number of groups that a token chooses from.
    pub chosen: usize,
}

/// An expert that processes all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExpert {
    /// Hidden features of the shared expert.
    pub hidden: usize,
    /// True if its output is multiplied by the sigmoid of a dot product of the token with a vector.
    pub gated: bool,
}

/// Weights of the auxiliary losses that training adds for the experts, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Balance {
    /// Weight of the balance loss of a microbatch, computed per block.
    pub microbatch: f64,
    /// Weight of the balance loss of each sequence.
    pub sequence: f64,
    /// Weight of one balance loss of a microbatch, over the rows of all blocks together.
    pub pooled: f64,
    /// Weight of the router's z-loss, on the squares of the logits' log-sum-exp.
    pub z: f64,
}

impl Default for Experts {
    fn default() -> Self {
        Self::MIXTRAL
    }
}

impl Experts {
    /// The smallest Mixtral; others are written `Experts { count: 8, ..Experts::MIXTRAL }`.
    pub const MIXTRAL: Self = Self {
        count: 2,
        chosen: 1,
        hidden: 2,
        scoring: Scoring::Softmax,
        normalize: true,
        scale: 1.0,
        bias: None,
        groups: None,
        capacity: None,
        shared: None,
        balance: Balance { microbatch: 0.0, sequence: 0.0, pooled: 0.0, z: 0.0 },
        forced: false,
        by_experts: false,
        noise: 0.0,
        biases: false,
    };

    /// Returns the most tokens that one expert takes of a microbatch of `tokens`, or `None` without a
    /// capacity.
    #[must_use]
    pub fn capacity_of(&self, tokens: usize) -> Option<usize> {
        let each = (self.chosen * tokens) as f64 / self.count as f64;
        self.capacity.map(|capacity| ((capacity * each).ceil() as usize).min(tokens))
    }
    /// Returns the largest number of copies of a token: `k`, or one per expert if experts choose.
    #[must_use]
    pub fn copies(&self) -> usize {
        if self.by_experts { self.count } else { self.chosen }
    }
    /// Returns in words the first option that contradicts experts that choose tokens, or `None` if there is
    /// none.
    #[must_use]
    pub fn expert_choice_conflict(&self) -> Option<&'static str> {
        let balanced = self.balance != Balance::default();
        let needs = [
            (self.capacity.is_none(), "need a capacity: it sets how many each takes"),
            (self.scoring == Scoring::Sigmoid, "need scores by softmax, not sigmoids"),
            (self.normalize, "cannot have gates of sum 1: a token may have no expert"),
            (balanced, "cannot have auxiliary losses: each takes the same number of tokens anyway"),
            (self.groups.is_some(), "cannot have groups: tokens do not choose"),
            (self.bias.is_some(), "cannot have a bias: tokens do not choose"),
            (self.noise != 0.0, "cannot have noise: tokens do not choose"),
            (self.forced, "cannot have tokens dealt to them in turn"),
        ];
        needs.into_iter().find(|(is, _)| self.by_experts && *is).map(|(_, why)| why)
    }
    /// Returns true if a token's output, or the auxiliary loss, depends on other tokens of the microbatch.
    #[must_use]
    pub fn depends_on_microbatch(&self) -> bool {
        let Balance { microbatch, sequence, pooled, .. } = self.balance;
        self.capacity.is_some() || self.forced || [microbatch, sequence, pooled] != [0.0; 3]
    }
}
