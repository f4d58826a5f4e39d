//! A feed-forward made of experts, of which each token is handed to a few: all that its parameters do not say.
use serde::{Deserialize, Serialize};

/// Experts in place of the feed-forward of some blocks (mixture of experts). The router gives each token a score for every
/// expert; the token goes through those with the highest, and their outputs are added, each times its gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Experts {
    /// How many there are, `E`.
    pub count: usize,
    /// How many each token is handed to, `k`.
    pub chosen: usize,
    /// Hidden features of each, `F`.
    pub hidden: usize,
    /// What a score is.
    pub scoring: Scoring,
    /// Whether a token's gates are divided by their sum.
    pub normalize: bool,
    /// What gates are multiplied by, after that.
    pub scale: f64,
    /// A bias is added to the scores for the choice, and not to the gates. It has no gradient: after each step it rises by so much
    /// for an expert that fewer of the step's tokens chose than the mean, and falls for one that more did. Source: Wang et al.,
    /// "Auxiliary-loss-free load balancing", arXiv:2408.15664.
    pub bias: Option<f64>,
    /// Experts lie in so many groups, of which a token chooses from the best few alone.
    pub groups: Option<Groups>,
    /// The most tokens of a microbatch that one expert takes, as a multiple of what each would take if all took as many:
    /// `⌈capacity·k·B/E⌉`. Later tokens are dropped there. None: nothing is dropped.
    pub capacity: Option<f64>,
    /// Hidden features of an expert that all tokens go through besides.
    pub shared: Option<SharedExpert>,
    /// What training adds to the loss.
    pub balance: Balance,
    /// Which blocks have a usual feed-forward.
    pub dense: Blocks,
    /// Whether tokens are dealt to experts in turn, whatever the scores: for measurements.
    pub forced: bool,
    /// Whether experts choose: of a microbatch each takes as many tokens as its capacity says, those of its highest scores.
    /// A token may have all experts, or none. Source: Zhou et al., "Expert choice routing", arXiv:2202.09368.
    pub by_experts: bool,
    /// The standard deviation of the noise that learning adds to the logits of softmax, or to scores by sigmoids, for the choice
    /// alone. Source: Shazeer et al., §2.1, arXiv:1701.06538, where it is learnt.
    pub noise: f64,
}

/// What a score is, and its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// The softmax of a token's logits over all experts.
    Softmax,
    /// Each logit's sigmoid.
    Sigmoid,
}

/// Groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// How many there are; each has as many consecutive experts.
    pub count: usize,
    /// How many of them a token chooses from.
    pub chosen: usize,
}

/// An expert that all tokens go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExpert {
    /// Its hidden features.
    pub hidden: usize,
    /// Whether its output is multiplied by the sigmoid of a product of the token with a vector.
    pub gated: bool,
}

/// What training adds to the loss for experts' sake: weights of the auxiliary losses, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Balance {
    /// Weight of the balance of a microbatch, block by block.
    pub microbatch: f64,
    /// Of the balance of each sequence.
    pub sequence: f64,
    /// Of one balance of a microbatch, over the rows of all blocks together.
    pub pooled: f64,
    /// Of the squares of the logits' log-sum-exp.
    pub z: f64,
}

/// Some blocks of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<usize>", into = "Vec<usize>")]
pub struct Blocks(u128);

impl Blocks {
    /// The highest number of a block, and one more.
    pub const MOST: usize = 128;
    /// The first one alone.
    pub const FIRST: Self = Self(1);

    /// Whether a block is among them.
    #[must_use]
    pub fn contains(self, block: usize) -> bool {
        block < Self::MOST && self.0 >> block & 1 == 1
    }
    /// These, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::MOST).filter(move |&block| self.contains(block))
    }
}

impl FromIterator<usize> for Blocks {
    /// Blocks beyond the last that can be among them are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(blocks: I) -> Self {
        Self(blocks.into_iter().filter(|&block| block < Self::MOST).fold(0, |all, block| all | 1 << block))
    }
}
impl From<Vec<usize>> for Blocks {
    fn from(blocks: Vec<usize>) -> Self {
        blocks.into_iter().collect()
    }
}
impl From<Blocks> for Vec<usize> {
    fn from(blocks: Blocks) -> Self {
        blocks.iter().collect()
    }
}

impl Default for Experts {
    fn default() -> Self {
        Self::MIXTRAL
    }
}

impl Experts {
    /// The fewest experts of a Mixtral; others are written `Experts { count: 8, ..Experts::MIXTRAL }`.
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
        dense: Blocks(0),
        forced: false,
        by_experts: false,
        noise: 0.0,
    };

    /// The most tokens that one expert takes of a microbatch of so many, if that is limited.
    #[must_use]
    pub fn capacity_of(&self, tokens: usize) -> Option<usize> {
        let each = (self.chosen * tokens) as f64 / self.count as f64;
        self.capacity.map(|capacity| ((capacity * each).ceil() as usize).min(tokens))
    }
    /// How many copies a token has at most: `k`, or one for each expert where these choose.
    #[must_use]
    pub fn copies(&self) -> usize {
        if self.by_experts { self.count } else { self.chosen }
    }
    /// What these experts would have to be otherwise so that they can choose tokens, if they are to.
    #[must_use]
    pub fn cannot_choose(&self) -> Option<&'static str> {
        let balanced = self.balance != Balance::default();
        let all = [
            (self.capacity.is_none(), "need a capacity, which says how many each takes"),
            (self.scoring == Scoring::Sigmoid, "need scores by softmax, not sigmoids"),
            (self.normalize, "cannot have gates of sum 1, as a token may have none"),
            (balanced, "cannot add to the loss, as each takes as many anyway"),
            (self.groups.is_some(), "cannot lie in groups, from which tokens choose"),
            (self.bias.is_some(), "cannot have a bias, by which tokens choose"),
            (self.noise != 0.0, "cannot have noise, by which tokens choose"),
            (self.forced, "cannot have tokens dealt to them in turn"),
        ];
        all.into_iter().find(|(is, _)| self.by_experts && *is).map(|(_, why)| why)
    }
    /// Whether what a token gets, or what is added to the loss, depends on other tokens of the microbatch.
    #[must_use]
    pub fn are_of_microbatches(&self) -> bool {
        let Balance { microbatch, sequence, pooled, .. } = self.balance;
        self.capacity.is_some() || self.forced || [microbatch, sequence, pooled] != [0.0; 3]
    }
}
