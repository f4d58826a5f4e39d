//! Experts: their number, the routing of tokens, and the load-balancing losses.
//!
//! Keys of `equipart_moe` have DeepSeek-V3's names where it has them. `topk_method` is `greedy`,
//! `group_limited_greedy` (the same with groups) or `noaux_tc` (with or without groups; a bias takes part in
//! the choice). Its own keys are `capacity_factor`, `balance_loss_coef` (of a microbatch),
//! `sequence_balance_loss_coef` and `router_z_loss_coef`. With `mlp_only_layers`, as in Qwen, any blocks can
//! be without experts. If `expert_choice` is true, experts choose tokens. `router_noise` is the standard
//! deviation of the noise added in training to the scores for the choice. `router_bias_update_rate`
//! (Megatron's name) is the change of `noaux_tc`'s bias after each step.
//!
//! If `output_router_logits` is true (default: false), `transformers` adds `router_aux_loss_coef` times one
//! balance loss over all blocks; else none. An `equipart_balance` of `"block"` gives each block of these
//! families its own balance all the same. It is the default of `equipart_moe`, whose other value is
//! `"pooled"`.
use super::architecture::Architecture;
use super::keys::{ConfigKeys, whole};
use layers::{Balance, Blocks, Experts, Groups, Scoring, Shape, SharedExpert};
use parallel::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use shape::{ConfigField, FEATURES};

/// Largest number of experts of a block.
pub const MAX_EXPERTS: usize = 4096;

const BIAS_RATE: &str = "router_bias_update_rate";
const CHOSEN: &str = "num_experts_per_tok";
const KIND: &str = "equipart_balance";
const LOGITS: &str = "output_router_logits";
const WEIGHT: &str = "router_aux_loss_coef";
const BLOCK: &str = "block";
const POOLED: &str = "pooled";
/// Default of `transformers` for the weight of its auxiliary loss.
const COEFFICIENT: f64 = 0.001;

/// Options of experts that are one key of `equipart_moe` each. Its other keys depend on each other.
fn fields() -> impl Iterator<Item = (&'static str, ConfigField)> {
    FEATURES.iter().filter_map(|feature| feature.key)
}

/// Returns true if a key is such an option of this architecture.
pub(super) fn is_field(architecture: Architecture, key: &str) -> bool {
    architecture == Architecture::EquipartMoe && fields().any(|(own, _)| own == key)
}

impl Architecture {
    /// Returns the keys of the number of experts, of each expert's hidden features, and of a shared expert's
    /// hidden features.
    pub(super) fn expert_keys(self) -> Option<[&'static str; 3]> {
        let hidden = "moe_intermediate_size";
        let qwen = "shared_expert_intermediate_size";
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

impl ConfigKeys<'_> {
    /// Returns the experts of a model with this number of blocks, if its architecture has experts.
    pub(super) fn experts(&self, architecture: Architecture, blocks: usize) -> Result<Option<Experts>> {
        let Some([count, hidden, shared]) = architecture.expert_keys() else { return Ok(None) };
        if blocks > Blocks::MOST {
            let wanted = format!("at most {} in a model with experts", Blocks::MOST);
            return Err(self.wrong("num_hidden_layers", &json!(blocks), &wanted));
        }
        let (chosen, hidden) = (self.size(CHOSEN, None)?, self.size(hidden, None)?);
        let experts =
            Experts { count: self.expert_count(architecture, count)?, chosen, hidden, ..Experts::MIXTRAL };
        let experts = match architecture {
            Architecture::Mixtral => experts,
            Architecture::EquipartMoe => self.equipart_moe(experts)?,
            _ => {
                let shared = (architecture == Architecture::Qwen2Moe).then(|| self.size(shared, None));
                Experts {
                    normalize: self.flag("norm_topk_prob", false)?,
                    shared: shared.transpose()?.map(|hidden| SharedExpert { hidden, gated: true }),
                    ..experts
                }
            }
        };
        let allowed = experts.groups.map_or(experts.count, |g| experts.count / g.count * g.chosen);
        if chosen > allowed {
            let wanted = format!("at most {allowed}, the experts that a token chooses from");
            return Err(self.wrong(CHOSEN, &json!(chosen), &wanted));
        }
        if let Some(why) = experts.expert_choice_conflict() {
            let wanted = format!("false, or left out, because experts that choose tokens {why}");
            return Err(self.wrong("expert_choice", &json!(true), &wanted));
        }
        if architecture == Architecture::EquipartMoe {
            return Ok(Some(experts));
        }
        // The loss of transformers is E·Σ_e (N_e/R)·(Σ P/R); ours has N_e/(k·R). So our weight is its weight
        // times k.
        let weight = self.weight(WEIGHT, COEFFICIENT, chosen)?;
        let none = Balance::default();
        let balance = match (self.block_by_block()?, self.flag(LOGITS, false)?) {
            (true, true) => {
                let wanted =
                    format!("left out if {LOGITS} is true, which asks for one balance of all blocks");
                return Err(self.wrong(KIND, &json!(BLOCK), &wanted));
            }
            (true, false) => Balance { microbatch: weight, ..none },
            (false, true) => Balance { pooled: weight, ..none },
            (false, false) => none,
        };
        Ok(Some(Experts { balance, ..experts }))
    }
    /// Returns true if a model of a `transformers` family asks for a balance in each block.
    fn block_by_block(&self) -> Result<bool> {
        let wanted = format!("\"{BLOCK}\", or left out; {LOGITS} asks for one balance of all blocks");
        Ok(self.read(KIND, &wanted, |value| (value == BLOCK).then_some(()))?.is_some())
    }
    /// Returns the `router_aux_loss_coef` that training does not use, so that it can be written again; else
    /// 0.
    pub(super) fn spare_coefficient(
        &self,
        experts: Option<Experts>,
        architecture: Architecture,
    ) -> Result<f64> {
        let added = |of: Experts| [of.balance.microbatch, of.balance.pooled] != [0.0; 2];
        let spare = experts.filter(|of| architecture != Architecture::EquipartMoe && !added(*of));
        spare.map_or(Ok(0.0), |_| self.weight(WEIGHT, COEFFICIENT, 1))
    }
    /// Returns the number of experts. For Qwen3, version 5 of `transformers` writes Mixtral's key, version 4
    /// its own.
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
    /// Returns the blocks with a dense feed-forward, in a model with this number of blocks.
    pub(super) fn dense_blocks(&self, architecture: Architecture, blocks: usize) -> Result<Blocks> {
        match architecture {
            Architecture::Qwen2Moe | Architecture::Qwen3Moe => {
                let step = self.size("decoder_sparse_step", Some(1))?;
                self.dense(blocks, |block| !(block + 1).is_multiple_of(step))
            }
            Architecture::EquipartMoe => {
                let first = self.count("first_k_dense_replace", 0)?;
                let step = self.size("moe_layer_freq", Some(1))?;
                self.dense(blocks, |block| block < first || !block.is_multiple_of(step))
            }
            _ => Ok(Blocks::NONE),
        }
    }
    /// Returns the blocks that are listed, and those that a rule gives.
    fn dense(&self, blocks: usize, rule: impl Fn(usize) -> bool) -> Result<Blocks> {
        let list = |value: &Value| value.as_array()?.iter().map(whole).collect::<Option<Vec<_>>>();
        let listed = self.read("mlp_only_layers", "a list of whole numbers", list)?.unwrap_or_default();
        Ok((0..blocks).filter(|block| rule(*block) || listed.contains(block)).collect())
    }
    /// Returns the balance of an `equipart_moe` model.
    fn own_balance(&self, balance: Balance) -> Result<Balance> {
        let weight = self.weight("balance_loss_coef", 0.0, 1)?;
        let kind = |value: &Value| [BLOCK, POOLED].iter().position(|kind| value == kind);
        let pooled = self.read(KIND, &format!("\"{BLOCK}\" or \"{POOLED}\""), kind)? == Some(1);
        Ok(Balance {
            microbatch: if pooled { 0.0 } else { weight },
            pooled: if pooled { weight } else { 0.0 },
            ..balance
        })
    }
    fn equipart_moe(&self, of: Experts) -> Result<Experts> {
        let mut of = of;
        for (key, field) in fields() {
            match field {
                ConfigField::Switch(at) => *at(&mut of) = self.flag(key, *at(&mut of))?,
                ConfigField::Weight(at) => *at(&mut of) = self.weight(key, *at(&mut of), 1)?,
                ConfigField::Factor(at) => *at(&mut of) = self.positive(key)?.unwrap_or(*at(&mut of)),
                ConfigField::Limit(at) => *at(&mut of) = self.positive(key)?,
            }
        }
        let scoring = self.scoring()?;
        let groups = self.groups(of.count)?;
        let shared = self.count("n_shared_experts", 0)?;
        let hidden = shared.saturating_mul(of.hidden);
        Ok(Experts {
            scoring,
            bias: self.bias_rate(scoring, groups)?,
            groups,
            shared: (shared > 0).then_some(SharedExpert { hidden, gated: false }),
            balance: self.own_balance(of.balance)?,
            ..of
        })
    }
    fn scoring(&self) -> Result<Scoring> {
        const WANTED: &str = r#""softmax" or "sigmoid""#;
        let known = |value: &Value| Scoring::deserialize(value).ok();
        self.read("scoring_func", WANTED, known)?.ok_or_else(|| self.missing("scoring_func", WANTED))
    }
    /// Returns the groups of this number of experts, if there are several groups.
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
    /// Returns the change of the choice's bias after each step, if `topk_method` has a bias.
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
            return Err(self.wrong(
                BIAS_RATE,
                &json!(rate),
                "0, or left out, because topk_method has no bias",
            ));
        }
        Ok(bias.then_some(rate))
    }
    /// Returns the weight of an auxiliary loss, multiplied by `times`.
    fn weight(&self, key: &str, default: f64, times: usize) -> Result<f64> {
        let times = times as f64;
        let weight = |value: &Value| {
            value.as_f64().map(|weight| weight * times).filter(|weight| *weight >= 0.0 && weight.is_finite())
        };
        Ok(self.read(key, "a number of 0 or more", weight)?.unwrap_or(default * times))
    }
}

/// Returns the `topk_method` of experts with these options.
fn method(bias: bool, groups: Option<Groups>) -> &'static str {
    match (bias, groups) {
        (true, _) => "noaux_tc",
        (false, Some(_)) => "group_limited_greedy",
        (false, None) => "greedy",
    }
}

/// Returns the factor whose product with `times` is this weight. Products of floats are rounded: dividing may
/// miss the factor by its last digit, or find one of two with this product. Of the nearby factors that have
/// the product, this returns the one with the fewest digits, as it was written.
fn coefficient(weight: f64, times: usize) -> f64 {
    let times = times as f64;
    let near = weight / times;
    let factors = [near, near.next_down(), near.next_up()].into_iter().filter(|x| x * times == weight);
    factors.min_by_key(|x| x.to_string().len()).unwrap_or(near)
}

/// Returns the keys of these experts. Settings that are given by a run alone have no keys: a capacity of
/// Mixtral's and Qwen's experts, losses that these families lack, and tokens assigned in turn.
pub(super) fn keys(
    architecture: Architecture,
    (shape, spare_coefficient): (&Shape, f64),
) -> Vec<(&'static str, Value)> {
    let (Some([count, hidden, shared]), Some(experts)) = (architecture.expert_keys(), shape.experts) else {
        return vec![];
    };
    let blocks = shape.pattern.dense;
    let dense = |first: usize| ("mlp_only_layers", json!(blocks.iter().skip(first).collect::<Vec<_>>()));
    let normalize = ("norm_topk_prob", json!(experts.normalize));
    let Balance { microbatch, pooled, .. } = experts.balance;
    let weight = coefficient(microbatch.max(pooled), experts.chosen).max(spare_coefficient);
    let block = (microbatch != 0.0).then_some((KIND, json!(BLOCK)));
    let weight = [(WEIGHT, json!(weight)), (LOGITS, json!(pooled != 0.0))].into_iter().chain(block);
    let sizes =
        [(count, json!(experts.count)), (CHOSEN, json!(experts.chosen)), (hidden, json!(experts.hidden))];
    let specific = match architecture {
        Architecture::Mixtral => weight.collect(),
        Architecture::EquipartMoe => {
            let first = (0..shape.blocks).take_while(|block| blocks.contains(*block)).count();
            [vec![dense(first), ("first_k_dense_replace", json!(first))], equipart_moe(&experts)].concat()
        }
        _ => {
            let shared = experts.shared.map(|expert| (shared, json!(expert.hidden)));
            weight.chain([dense(0), ("decoder_sparse_step", json!(1)), normalize]).chain(shared).collect()
        }
    };
    sizes.into_iter().chain(specific).collect()
}

/// Returns the keys that only `equipart_moe` has, except `first_k_dense_replace`.
fn equipart_moe(experts: &Experts) -> Vec<(&'static str, Value)> {
    let shared = experts.shared.map_or(0, |shared| {
        let plain = !shared.gated && shared.hidden.is_multiple_of(experts.hidden);
        assert!(plain, "a shared expert is some experts wide and has no gate");
        shared.hidden / experts.hidden
    });
    let groups = experts.groups.unwrap_or(Groups { count: 1, chosen: 1 });
    let Balance { microbatch, pooled, .. } = experts.balance;
    let stored = fields().map(|(key, field)| {
        let mut copy = *experts;
        (
            key,
            match field {
                ConfigField::Switch(at) => json!(*at(&mut copy)),
                ConfigField::Weight(at) | ConfigField::Factor(at) => json!(*at(&mut copy)),
                ConfigField::Limit(at) => json!(*at(&mut copy)),
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
    stored.chain(others).collect()
}
