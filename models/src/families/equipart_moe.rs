//! Llama's attention with the experts of DeepSeek-V3 (without its latent attention); `transformers` has no
//! such model. Source of the experts: DeepSeek-AI, arXiv:2412.19437.
//!
//! Keys have DeepSeek-V3's names where it has them. `topk_method` is `greedy`, `group_limited_greedy` (the
//! same with groups) or `noaux_tc` (with or without groups; a bias takes part in the choice). Its own keys
//! are `capacity_factor`, `balance_loss_coef` (of a microbatch), `sequence_balance_loss_coef` and
//! `router_z_loss_coef`. With `mlp_only_layers`, as in Qwen, any blocks can be without experts. If
//! `expert_choice` is true, experts choose tokens. `router_noise` is the standard deviation of the noise
//! added in training to the scores for the choice. `expert_biases` adds biases to the router's logits and to
//! both products of each expert. `router_bias_update_rate` (Megatron's name) is the change of `noaux_tc`'s
//! bias after each step. `equipart_balance` is `"block"` (default: each block has its own balance) or
//! `"pooled"`.
use super::decoder::{ATTENTION_BIAS, Decoder, ExpertKeys, Family};
use super::experts::{BALANCE, BLOCK, NAMES, dense_key, grouped, method};
use crate::config::{Config, ConfigKeys, KeyValue};
use layers::{Balance, Experts, Groups, Scoring, SharedExpert};
use parallel::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use shape::{ConfigField, FEATURES};

/// Our own family.
pub const EQUIPART_MOE: &dyn Family = &Decoder {
    fixed: "mlp_bias=false",
    bias_keys: &[ATTENTION_BIAS],
    experts: Some(ExpertKeys {
        count: &["n_routed_experts"],
        hidden: "moe_intermediate_size",
        shared: "n_shared_experts × moe_intermediate_size",
        read_keys: || fields().map(|(key, _)| key).chain([READ]).collect(),
        settings,
        dense: |keys| {
            let first = keys.count("first_k_dense_replace", 0)?;
            let step = keys.size("moe_layer_freq", Some(1))?;
            Ok(Box::new(move |block| block < first || !block.is_multiple_of(step)))
        },
        balance: |_, experts| Ok((experts, 0.0)), // the settings have it
        keys,
        names: NAMES,
        packed: false,
    }),
    ..Decoder::of("equipart_moe", "EquipartMoeForCausalLM")
};

const READ: &str = "\
    balance_loss_coef equipart_balance first_k_dense_replace mlp_only_layers moe_layer_freq n_group \
    n_shared_experts router_bias_update_rate scoring_func topk_group topk_method";
const BIAS_RATE: &str = "router_bias_update_rate";
const POOLED: &str = "pooled";

/// Options of experts that are one key each. The other keys depend on each other.
fn fields() -> impl Iterator<Item = (&'static str, ConfigField)> {
    FEATURES.iter().filter_map(|feature| feature.key)
}

fn settings(keys: &ConfigKeys<'_>, mut experts: Experts) -> Result<Experts> {
    for (key, field) in fields() {
        match field {
            ConfigField::Switch(at) => *at(&mut experts) = keys.flag(key, *at(&mut experts))?,
            ConfigField::Weight(at) => *at(&mut experts) = keys.weight(key, *at(&mut experts), 1)?,
            ConfigField::Factor(at) => {
                *at(&mut experts) = keys.positive(key)?.unwrap_or(*at(&mut experts));
            }
            ConfigField::Limit(at) => *at(&mut experts) = keys.positive(key)?,
        }
    }
    let scoring = keys.scoring()?;
    let groups = keys.groups(experts.count, [Some(1); 2])?;
    let shared = keys.count("n_shared_experts", 0)?;
    let hidden = shared.saturating_mul(experts.hidden);
    Ok(Experts {
        scoring,
        bias: keys.bias_rate(scoring, groups)?,
        groups,
        shared: (shared > 0).then_some(SharedExpert { hidden, gated: false }),
        balance: keys.balance(experts.balance)?,
        ..experts
    })
}

impl ConfigKeys<'_> {
    fn balance(&self, balance: Balance) -> Result<Balance> {
        let weight = self.weight("balance_loss_coef", 0.0, 1)?;
        let kind = |value: &Value| [BLOCK, POOLED].iter().position(|kind| value == kind);
        let pooled = self.read(BALANCE, &format!("\"{BLOCK}\" or \"{POOLED}\""), kind)? == Some(1);
        let [microbatch, pooled] = if pooled { [0.0, weight] } else { [weight, 0.0] };
        Ok(Balance { microbatch, pooled, ..balance })
    }
    fn scoring(&self) -> Result<Scoring> {
        const WANTED: &str = r#""softmax" or "sigmoid""#;
        let known = |value: &Value| Scoring::deserialize(value).ok();
        self.read("scoring_func", WANTED, known)?.ok_or_else(|| self.missing("scoring_func", WANTED))
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
}

fn keys(config: &Config, experts: &Experts) -> Vec<KeyValue> {
    let shared = experts.shared.map_or(0, |shared| {
        let plain = !shared.gated && shared.hidden.is_multiple_of(experts.hidden);
        assert!(plain, "a shared expert is some experts wide and has no gate");
        shared.hidden / experts.hidden
    });
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
    let shape = &config.shape;
    let first = (0..shape.blocks).take_while(|block| shape.block(*block).experts.is_none()).count();
    let others = [
        dense_key(shape, first),
        ("first_k_dense_replace", json!(first)),
        (BALANCE, json!(if pooled == 0.0 { BLOCK } else { POOLED })),
        ("balance_loss_coef", json!(microbatch.max(pooled))),
        ("moe_layer_freq", json!(1)),
        ("n_shared_experts", json!(shared)),
        (BIAS_RATE, json!(experts.bias.unwrap_or(0.0))),
        ("scoring_func", json!(experts.scoring)),
    ];
    stored.chain(others).chain(grouped(experts)).collect()
}
