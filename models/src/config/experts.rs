//! Experts: how many, which of them a token is handed to, and what training adds to the loss for their balance.
//!
//! Keys of `equipart_moe` are DeepSeek-V3's where it has them. `topk_method` is `greedy`, `group_limited_greedy` (the same
//! with groups) or `noaux_tc` (with or without groups; a bias takes part in the choice). Its own are `capacity_factor`,
//! `balance_loss_coef` (of a microbatch), `sequence_balance_loss_coef` and `router_z_loss_coef`; with `mlp_only_layers`, as
//! Qwen has them, any blocks can be without experts. Where `expert_choice` is true, experts choose tokens; `router_noise` is
//! the standard deviation of what learning adds to scores for the choice, `router_bias_update_rate` (Megatron's name) how much
//! the bias of `noaux_tc` moves after each step.
//!
//! `transformers` adds `router_aux_loss_coef` times one balance of all blocks where `output_router_logits` is true (its default is
//! false), and else none. `equipart_balance` is `"block"` where each block of these families has a balance of its own all the same, as
//! those of `equipart_moe` have unless it is `"pooled"`.
use super::Architecture;
use super::keys::{Keys, whole};
use layers::{Balance, Blocks, Experts, Groups, Scoring, Shape, SharedExpert};
use parallel::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use shape::{ConfigField, FEATURES};

/// The most experts that a block may have.
pub const MAX_EXPERTS: usize = 4096;

const BIAS_RATE: &str = "router_bias_update_rate";
const CHOSEN: &str = "num_experts_per_tok";
const KIND: &str = "equipart_balance";
const LOGITS: &str = "output_router_logits";
const WEIGHT: &str = "router_aux_loss_coef";
const BLOCK: &str = "block";
const POOLED: &str = "pooled";
/// The weight that `transformers` gives to its auxiliary loss where none is given.
const COEFFICIENT: f64 = 0.001;

/// The options of experts that are a key of `equipart_moe` each. The rest of its keys depend on each other.
fn fields() -> impl Iterator<Item = (&'static str, ConfigField)> {
    FEATURES.iter().filter_map(|feature| feature.key)
}

/// Whether a key is such a field of this architecture.
pub(super) fn is_field(architecture: Architecture, key: &str) -> bool {
    architecture == Architecture::EquipartMoe && fields().any(|(own, _)| own == key)
}

impl Architecture {
    /// The keys of how many experts there are, of the hidden features of each, and of those of a shared one.
    pub(super) fn expert_keys(self) -> Option<[&'static str; 3]> {
        let (qwen, hidden) = ("shared_expert_intermediate_size", "moe_intermediate_size");
        match self {
            Self::Mixtral => Some(["num_local_experts", "intermediate_size", ""]),
            Self::Qwen2Moe | Self::Qwen3Moe => Some(["num_experts", hidden, qwen]),
            Self::EquipartMoe => {
                Some(["n_routed_experts", hidden, "n_shared_experts × moe_intermediate_size"])
            }
            _ => None,
        }
    }
}

impl Keys<'_> {
    /// The experts of a model of so many blocks, if its architecture has such.
    pub(super) fn experts(&self, architecture: Architecture, blocks: usize) -> Result<Option<Experts>> {
        let Some([count, hidden, shared]) = architecture.expert_keys() else { return Ok(None) };
        if blocks > Blocks::MOST {
            let wanted = format!("at most {} in a model with experts", Blocks::MOST);
            return Err(self.wrong("num_hidden_layers", &json!(blocks), &wanted));
        }
        let (chosen, hidden) = (self.size(CHOSEN, None)?, self.size(hidden, None)?);
        let of =
            Experts { count: self.expert_count(architecture, count)?, chosen, hidden, ..Experts::MIXTRAL };
        let experts = match architecture {
            Architecture::Mixtral => of,
            Architecture::EquipartMoe => self.equipart_moe(of, blocks)?,
            _ => {
                let step = self.size("decoder_sparse_step", Some(1))?;
                let shared = (architecture == Architecture::Qwen2Moe).then(|| self.size(shared, None));
                Experts {
                    normalize: self.flag("norm_topk_prob", false)?,
                    shared: shared.transpose()?.map(|hidden| SharedExpert { hidden, gated: true }),
                    dense: self.dense(blocks, |block| !(block + 1).is_multiple_of(step))?,
                    ..of
                }
            }
        };
        let allowed = experts.groups.map_or(experts.count, |g| experts.count / g.count * g.chosen);
        if chosen > allowed {
            let wanted = format!("at most {allowed}, the experts that a token chooses from");
            return Err(self.wrong(CHOSEN, &json!(chosen), &wanted));
        }
        if let Some(why) = experts.cannot_choose() {
            let wanted = format!("false, or left out, where experts that choose tokens {why}");
            return Err(self.wrong("expert_choice", &json!(true), &wanted));
        }
        if architecture == Architecture::EquipartMoe {
            return Ok(Some(experts));
        }
        // The loss of transformers is E·Σ_e (N_e/R)·(Σ P/R), where ours has N_e/(k·R): its weight times k is ours.
        let weight = self.weight(WEIGHT, COEFFICIENT, chosen)?;
        let none = Balance::default();
        let balance = match (self.block_by_block()?, self.flag(LOGITS, false)?) {
            (true, true) => {
                let wanted =
                    format!("left out where {LOGITS} is true, as that asks for one balance of all blocks");
                return Err(self.wrong(KIND, &json!(BLOCK), &wanted));
            }
            (true, false) => Balance { microbatch: weight, ..none },
            (false, true) => Balance { pooled: weight, ..none },
            (false, false) => none,
        };
        Ok(Some(Experts { balance, ..experts }))
    }
    /// True if a model of a family of `transformers` asks for a balance in each block.
    fn block_by_block(&self) -> Result<bool> {
        let wanted = format!("\"{BLOCK}\", or left out: {LOGITS} says whether there is one of all blocks");
        Ok(self.read(KIND, &wanted, |value| (value == BLOCK).then_some(()))?.is_some())
    }
    /// A `router_aux_loss_coef` that nothing in training is multiplied by, for whoever asks for the balance later; else 0.
    pub(super) fn spare_coefficient(
        &self,
        experts: Option<Experts>,
        architecture: Architecture,
    ) -> Result<f64> {
        let added = |of: Experts| [of.balance.microbatch, of.balance.pooled] != [0.0; 2];
        let spare = experts.filter(|of| architecture != Architecture::EquipartMoe && !added(*of));
        spare.map_or(Ok(0.0), |_| self.weight(WEIGHT, COEFFICIENT, 1))
    }
    /// How many experts there are. Version 5 of `transformers` writes Qwen3's under Mixtral's key, version 4 under its own.
    fn expert_count(&self, architecture: Architecture, key: &str) -> Result<usize> {
        let other =
            (architecture == Architecture::Qwen3Moe).then(|| self.given("num_local_experts")).flatten();
        let key = match (other, self.given(key)) {
            (Some(_), None) => "num_local_experts",
            (Some(other), Some(own)) if other != own => {
                return Err(self.wrong("num_local_experts", other, &format!("{own}, as num_experts is")));
            }
            _ => key,
        };
        match self.size(key, None)? {
            count if count > MAX_EXPERTS => {
                Err(self.wrong(key, &json!(count), &format!("at most {MAX_EXPERTS}")))
            }
            count => Ok(count),
        }
    }
    /// Blocks with a usual feed-forward: those that are listed, and those that a rule says.
    fn dense(&self, blocks: usize, rule: impl Fn(usize) -> bool) -> Result<Blocks> {
        let list = |value: &Value| value.as_array()?.iter().map(whole).collect::<Option<Vec<_>>>();
        let listed = self.read("mlp_only_layers", "a list of whole numbers", list)?.unwrap_or_default();
        Ok((0..blocks).filter(|block| rule(*block) || listed.contains(block)).collect())
    }
    /// The balance of a model of the own family.
    fn own_balance(&self, balance: Balance) -> Result<Balance> {
        let (weight, wanted) =
            (self.weight("balance_loss_coef", 0.0, 1)?, format!("\"{BLOCK}\" or \"{POOLED}\""));
        let kind = |value: &Value| [BLOCK, POOLED].iter().position(|kind| value == kind);
        let pooled = self.read(KIND, &wanted, kind)? == Some(1);
        Ok(Balance {
            microbatch: if pooled { 0.0 } else { weight },
            pooled: if pooled { weight } else { 0.0 },
            ..balance
        })
    }
    fn equipart_moe(&self, of: Experts, blocks: usize) -> Result<Experts> {
        let mut of = of;
        for (key, field) in fields() {
            match field {
                ConfigField::Switch(at) => *at(&mut of) = self.flag(key, *at(&mut of))?,
                ConfigField::Weight(at) => *at(&mut of) = self.weight(key, *at(&mut of), 1)?,
                ConfigField::Factor(at) => *at(&mut of) = self.positive(key)?.unwrap_or(*at(&mut of)),
                ConfigField::Limit(at) => *at(&mut of) = self.positive(key)?,
            }
        }
        let (scoring, groups) = (self.scoring()?, self.groups(of.count)?);
        let (first, step) = (self.count("first_k_dense_replace", 0)?, self.size("moe_layer_freq", Some(1))?);
        let shared = self.count("n_shared_experts", 0)?;
        let hidden = shared.saturating_mul(of.hidden);
        Ok(Experts {
            scoring,
            bias: self.bias_rate(scoring, groups)?,
            groups,
            shared: (shared > 0).then_some(SharedExpert { hidden, gated: false }),
            balance: self.own_balance(of.balance)?,
            dense: self.dense(blocks, |block| block < first || !block.is_multiple_of(step))?,
            ..of
        })
    }
    fn scoring(&self) -> Result<Scoring> {
        const WANTED: &str = r#""softmax" or "sigmoid""#;
        let known = |value: &Value| Scoring::deserialize(value).ok();
        self.read("scoring_func", WANTED, known)?.ok_or_else(|| self.missing("scoring_func", WANTED))
    }
    /// Groups of so many experts, if there are several.
    fn groups(&self, experts: usize) -> Result<Option<Groups>> {
        let (count, chosen) = (self.size("n_group", Some(1))?, self.size("topk_group", Some(1))?);
        if !experts.is_multiple_of(count) {
            let wanted = format!("a divisor of the {experts} n_routed_experts");
            return Err(self.wrong("n_group", &json!(count), &wanted));
        }
        if chosen > count {
            return Err(self.wrong("topk_group", &json!(chosen), &format!("at most the {count} of n_group")));
        }
        Ok((count > 1).then_some(Groups { count, chosen }))
    }
    /// How much a bias of the choice moves after each step, where `topk_method` says that there is one.
    fn bias_rate(&self, scoring: Scoring, groups: Option<Groups>) -> Result<Option<f64>> {
        let known = [false, true].map(|bias| method(bias, groups));
        let known = if scoring == Scoring::Sigmoid { &known[..] } else { &known[..1] };
        let (names, n) = (known.join("\" or \""), groups.map_or(1, |groups| groups.count));
        let wanted = format!("\"{names}\" where scoring_func is {} and n_group {n}", json!(scoring));
        let bias =
            self.read("topk_method", &wanted, |value| known.iter().position(|known| value == known))?;
        let bias = bias.ok_or_else(|| self.missing("topk_method", &wanted))? == 1;
        let rate = self.weight(BIAS_RATE, 0.0, 1)?;
        if rate > 0.0 && !bias {
            return Err(self.wrong(BIAS_RATE, &json!(rate), "0, or left out, where topk_method has no bias"));
        }
        Ok(bias.then_some(rate))
    }
    /// The weight of an auxiliary loss, times so much.
    fn weight(&self, key: &str, default: f64, times: usize) -> Result<f64> {
        let times = times as f64;
        let weight = |value: &Value| {
            value.as_f64().map(|weight| weight * times).filter(|weight| *weight >= 0.0 && weight.is_finite())
        };
        Ok(self.read(key, "a number of 0 or more", weight)?.unwrap_or(default * times))
    }
}

/// What `topk_method` is of such experts.
fn method(bias: bool, groups: Option<Groups>) -> &'static str {
    match (bias, groups) {
        (true, _) => "noaux_tc",
        (false, Some(_)) => "group_limited_greedy",
        (false, None) => "greedy",
    }
}

/// What `times` so much is this weight. A product of floats is rounded, so that dividing it may miss the factor by its last
/// digit, or meet one of two that have this product: of those near that have, the one of the fewest digits, as it was written.
fn coefficient(weight: f64, times: usize) -> f64 {
    let times = times as f64;
    let near = weight / times;
    let factors = [near, near.next_down(), near.next_up()].into_iter().filter(|x| x * times == weight);
    factors.min_by_key(|x| x.to_string().len()).unwrap_or(near)
}

/// The keys of these experts. What only a run says has none: a capacity of Mixtral's and Qwen's, losses that they do not
/// have, tokens that are dealt in turn.
pub(super) fn keys(
    architecture: Architecture,
    (shape, spare_coefficient): (&Shape, f64),
) -> Vec<(&'static str, Value)> {
    let (Some([count, hidden, shared]), Some(experts)) = (architecture.expert_keys(), shape.experts) else {
        return vec![];
    };
    let dense =
        |first: usize| ("mlp_only_layers", json!(experts.dense.iter().skip(first).collect::<Vec<_>>()));
    let normalize = ("norm_topk_prob", json!(experts.normalize));
    let Balance { microbatch, pooled, .. } = experts.balance;
    let weight = coefficient(microbatch.max(pooled), experts.chosen).max(spare_coefficient);
    let block = (microbatch != 0.0).then_some((KIND, json!(BLOCK)));
    let weight = [(WEIGHT, json!(weight)), (LOGITS, json!(pooled != 0.0))].into_iter().chain(block);
    let sizes =
        [(count, json!(experts.count)), (CHOSEN, json!(experts.chosen)), (hidden, json!(experts.hidden))];
    let own = match architecture {
        Architecture::Mixtral => weight.collect(),
        Architecture::EquipartMoe => {
            let first = (0..shape.blocks).take_while(|block| experts.dense.contains(*block)).count();
            [vec![dense(first), ("first_k_dense_replace", json!(first))], equipart_moe(&experts)].concat()
        }
        _ => {
            let shared = experts.shared.map(|expert| (shared, json!(expert.hidden)));
            let step = ("decoder_sparse_step", json!(1));
            weight.chain([dense(0), step, normalize]).chain(shared).collect()
        }
    };
    sizes.into_iter().chain(own).collect()
}

/// Keys that only `equipart_moe` has, but for that of the first blocks.
fn equipart_moe(experts: &Experts) -> Vec<(&'static str, Value)> {
    let shared = experts.shared.map_or(0, |shared| {
        let all = !shared.gated && shared.hidden.is_multiple_of(experts.hidden);
        assert!(all, "a shared expert is some experts wide and has no gate");
        shared.hidden / experts.hidden
    });
    let groups = experts.groups.unwrap_or(Groups { count: 1, chosen: 1 });
    let Balance { microbatch, pooled, .. } = experts.balance;
    let own = fields().map(|(key, field)| {
        let mut of = *experts;
        (
            key,
            match field {
                ConfigField::Switch(at) => json!(*at(&mut of)),
                ConfigField::Weight(at) | ConfigField::Factor(at) => json!(*at(&mut of)),
                ConfigField::Limit(at) => json!(*at(&mut of)),
            },
        )
    });
    let others = [
        (KIND, json!(if pooled == 0.0 { BLOCK } else { POOLED })),
        ("balance_loss_coef", json!(microbatch.max(pooled))),
        ("moe_layer_freq", json!(1)),
        ("n_group", json!(groups.count)),
        ("n_shared_experts", json!(shared)),
        (BIAS_RATE, json!(experts.bias.unwrap_or(0.0))),
        ("scoring_func", json!(experts.scoring)),
        ("topk_group", json!(groups.chosen)),
        ("topk_method", json!(method(experts.bias.is_some(), experts.groups))),
    ];
    own.chain(others).collect()
}
