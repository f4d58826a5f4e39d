//! Each family of the list: what it writes, it reads.
use super::*;
use crate::config::{Config, ConfigKeys};
use crate::names;
use serde_json::{Map, json};
use std::collections::BTreeSet;

/// Returns a small model of a family: of these keys, those that the family reads.
fn small(family: &dyn Family) -> Config {
    let about = family.about();
    let sizes = r#"{ "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
        "num_hidden_layers": 2, "vocab_size": 11, "n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 5,
        "num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
        "moe_intermediate_size": 3, "shared_expert_intermediate_size": 6, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "kv_lora_rank": 3, "q_lora_rank": 4,
        "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 4,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "mlp_only_layers": [0] }"#;
    let mut keys: Map<String, Value> = serde_json::from_str(sizes).unwrap();
    keys.retain(|key, _| {
        key == "vocab_size" || about.read.iter().any(|list| list.split(' ').any(|word| word == key))
    });
    if keys.contains_key("kv_lora_rank") {
        keys.retain(|key, _| !["num_key_value_heads", "topk_method"].contains(&&**key));
    }
    keys.insert("model_type".into(), json!(about.model_type));
    Config::parse(&Value::Object(keys).to_string(), about.model_type).unwrap()
}

/// Kills: a key written and not read, a setting lost in writing, a family that no `model_type` finds.
#[test]
fn a_small_model_of_each_family_reads_back_as_itself() {
    for family in ALL.iter().copied() {
        let config = small(family);
        assert_eq!(config.family, family);
        assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config, "{family:?}");
    }
}

/// Kills: a key written that no file of the family may have, also one whose value is null; an empty key that
/// an empty list accepts.
#[test]
fn a_family_reads_or_fixes_every_key_that_it_writes() {
    for family in ALL.iter().copied() {
        let is_unknown = |key: &str| {
            let map = [(key.to_owned(), json!({ "no": "value" }))].into_iter().collect();
            let checked = family.about().check(&ConfigKeys { map: &map, origin: "a.json", within: "" });
            checked.is_err_and(|why| why.to_string().contains("this key is not supported"))
        };
        for (key, value) in family.keys(&small(family)) {
            assert!(!is_unknown(key), "{family:?}: {key} is {value}");
        }
        assert!(is_unknown("") && is_unknown("a_key_of_no_family"), "{family:?}");
    }
}

/// Kills: two tensors of one name, in a file or as parts of a parameter; a part of the model without a
/// tensor.
#[test]
fn names_of_each_family_are_distinct_and_complete() {
    for family in ALL.iter().copied() {
        let config = small(family);
        let entries = names::entries(&config);
        let theirs: BTreeSet<_> = entries.iter().map(|entry| &entry.name).collect();
        let ours: BTreeSet<_> =
            entries.iter().map(|entry| (&entry.param, entry.rows.start, entry.columns.start)).collect();
        assert_eq!([theirs.len(), ours.len()], [entries.len(); 2], "{family:?}");
        let numbers: usize = entries.iter().map(|entry| entry.shape().iter().product::<usize>()).sum();
        assert_eq!(numbers, parallel::price::parameters(config.shape).unwrap(), "{family:?}");
    }
}
