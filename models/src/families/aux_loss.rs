//! Balance of experts in the families of `transformers`. If `output_router_logits` is true (default: false),
//! `transformers` adds `router_aux_loss_coef` times one balance loss over all blocks; else none. An
//! `equipart_balance` of `"block"` gives each block its own balance all the same.
use super::experts::{BALANCE, BLOCK, ExpertKeys, NAMES};
use crate::config::{Config, ConfigKeys, KeyValue};
use layers::{Balance, Experts};
use parallel::Result;
use serde_json::json;

const LOGITS: &str = "output_router_logits";
const WEIGHT: &str = "router_aux_loss_coef";
/// Default of `transformers` for the weight of its auxiliary loss.
const COEFFICIENT: f64 = 0.001;

/// Experts with this balance, none of them shared.
pub(super) const EXPERTS: ExpertKeys = ExpertKeys {
    count: &["num_experts"],
    hidden: "moe_intermediate_size",
    shared: "",
    read_keys: || vec![BALANCE, LOGITS, WEIGHT],
    settings: |_, experts| Ok(experts),
    dense: |_| Ok(Box::new(|_| false)),
    balance: read,
    keys,
    names: NAMES,
    packed: false,
};

/// Adds the balance to experts. Also returns the coefficient, if training does not add a balance, so that it
/// can be written again; else 0.
fn read(keys: &ConfigKeys<'_>, experts: Experts) -> Result<(Experts, f64)> {
    // The loss of transformers is E·Σ_e (N_e/R)·(Σ P/R); ours has N_e/(k·R). So our weight is its weight
    // times k.
    let weight = keys.weight(WEIGHT, COEFFICIENT, experts.chosen)?;
    let none = Balance::default();
    let wanted = format!("\"{BLOCK}\", or left out; {LOGITS} asks for one balance of all blocks");
    let block = keys.read(BALANCE, &wanted, |value| (value == BLOCK).then_some(()))?.is_some();
    let balance = match (block, keys.flag(LOGITS, false)?) {
        (true, true) => {
            let wanted = format!("left out if {LOGITS} is true, which asks for one balance of all blocks");
            return Err(keys.wrong(BALANCE, &json!(BLOCK), &wanted));
        }
        (true, false) => Balance { microbatch: weight, ..none },
        (false, true) => Balance { pooled: weight, ..none },
        (false, false) => none,
    };
    let spare = if balance == none { keys.weight(WEIGHT, COEFFICIENT, 1)? } else { 0.0 };
    Ok((Experts { balance, ..experts }, spare))
}

/// Returns the keys of the balance.
fn keys(config: &Config, experts: &Experts) -> Vec<KeyValue> {
    let Balance { microbatch, pooled, .. } = experts.balance;
    let weight = coefficient(microbatch.max(pooled), experts.chosen).max(config.spare_coefficient);
    let block = (microbatch != 0.0).then_some((BALANCE, json!(BLOCK)));
    [(WEIGHT, json!(weight)), (LOGITS, json!(pooled != 0.0))].into_iter().chain(block).collect()
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
