//! Load-balancing losses of experts: the one a configuration asks for, and its weight.
use super::experts::{MIXTRAL, OWN, QWEN2_MOE, QWEN3_MOE, why_of};
use super::*;
use layers::Balance;

/// Kills: a balance loss that transformers does not add, a balance loss of another kind, a weight without the
/// factor k, a coefficient lost where no loss uses it, two balance losses at once.
#[test]
fn balances_are_those_that_transformers_or_the_own_key_ask_for() {
    let balance = |text: &str, keys: &[(&str, &str)]| {
        let config = changed(text, keys).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        let Balance { microbatch, pooled, .. } = config.shape.experts.unwrap().balance;
        (microbatch, pooled, config.spare_coefficient)
    };
    let (on, block) = (("output_router_logits", "true"), ("equipart_balance", "\"block\""));
    for (text, k, weight) in [(MIXTRAL, 2.0, 0.02), (QWEN2_MOE, 4.0, 0.001), (QWEN3_MOE, 8.0, 0.001)] {
        assert_eq!(balance(text, &[]), (0.0, 0.0, weight));
        assert_eq!(balance(text, &[("output_router_logits", "null")]), (0.0, 0.0, weight));
        assert_eq!(balance(text, &[on]), (0.0, k * weight, 0.0));
        assert_eq!(balance(text, &[block]), (k * weight, 0.0, 0.0));
        assert_eq!(balance(text, &[on, ("router_aux_loss_coef", "0")]), (0.0, 0.0, 0.0));
        let wanted = "left out if output_router_logits is true, which asks for one balance of all blocks";
        let why = why_of(text, &[on, block]);
        assert_eq!(why, format!("a.json: equipart_balance is \"block\"; it must be {wanted}"));
        let wanted = "\"block\", or left out; output_router_logits asks for one balance of all blocks";
        let why = why_of(text, &[("equipart_balance", "\"pooled\"")]);
        assert_eq!(why, format!("a.json: equipart_balance is \"pooled\"; it must be {wanted}"));
        let why = why_of(text, &[("output_router_logits", "1")]);
        assert_eq!(why, "a.json: output_router_logits is 1; it must be true or false");
    }
    assert_eq!([balance(OWN, &[]), balance(OWN, &[block])], [(0.01, 0.0, 0.0); 2]);
    assert_eq!(balance(OWN, &[("equipart_balance", "\"pooled\"")]), (0.0, 0.01, 0.0));
    let why = why_of(OWN, &[("equipart_balance", "1")]);
    assert_eq!(why, "a.json: equipart_balance is 1; it must be \"block\" or \"pooled\"");
}

/// Kills: a product or a quotient whose last digit rounding changes, in reading or in writing.
#[test]
fn weights_of_the_balance_are_written_as_they_were_read() {
    for chosen in 1..=60 {
        for weight in
            ["0.0", "0.001", "0.02", "0.1", "0.7", "1.0", "0.01234567890123", "1e-300", "3.0", "1e-5"]
        {
            let keys = [
                ("num_experts_per_tok", chosen.to_string()),
                ("router_aux_loss_coef", weight.into()),
                ("output_router_logits", "true".into()),
            ];
            let config = changed(QWEN2_MOE, &keys.each_ref().map(|(key, value)| (*key, &**value))).unwrap();
            let seen = config.shape.experts.unwrap().balance.pooled;
            assert_eq!(seen, weight.parse::<f64>().unwrap() * f64::from(chosen));
            let written: Value = serde_json::from_str(&config.to_json()).unwrap();
            assert_eq!(written["router_aux_loss_coef"].as_f64(), weight.parse().ok(), "{weight} of {chosen}");
            assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config, "{weight} of {chosen}");
        }
    }
    for bad in ["-0.5", "\"0.1\"", "true", "1e308"] {
        let seen: Value = serde_json::from_str(bad).unwrap();
        let wanted = format!("a.json: router_aux_loss_coef is {seen}; it must be a number of 0 or more");
        assert_eq!(why_of(QWEN2_MOE, &[("router_aux_loss_coef", bad)]), wanted);
    }
}
