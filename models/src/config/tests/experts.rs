//! Mixture-of-experts configurations: published models, keys read and written, keys refused.
use super::*;
use crate::names;
use layers::{Balance, Experts, Groups, Scoring, SharedExpert};

pub(super) const MIXTRAL: &str = r#"{ "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000 }"#;
pub(super) const QWEN2_MOE: &str = r#"{ "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
    "max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 16, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936 }"#;
pub(super) const QWEN3_MOE: &str = r#"{ "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936 }"#;
/// DeepSeek-V3's experts with every setting that this crate adds.
pub(super) const OWN: &str = r#"{ "architectures": ["EquipartMoeForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "balance_loss_coef": 0.01, "bos_token_id": 0, "capacity_factor": 1.25,
    "eos_token_id": 1, "expert_biases": true, "expert_choice": false, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "max_position_embeddings": 4096, "mlp_only_layers": [7],
    "model_type": "equipart_moe", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "routed_scaling_factor": 2.5, "router_bias_update_rate": 0.001,
    "router_noise": 0.0625, "router_z_loss_coef": 0.001,
    "scoring_func": "sigmoid", "sequence_balance_loss_coef": 0.0001, "tie_word_embeddings": false, "topk_group": 4,
    "topk_method": "noaux_tc", "vocab_size": 129280 }"#;

fn experts(text: &str, keys: &[(&str, &str)]) -> Experts {
    let config = changed(text, keys).unwrap();
    assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
    config.shape.experts.unwrap()
}
pub(super) fn why_of(text: &str, keys: &[(&str, &str)]) -> String {
    changed(text, keys).unwrap_err().to_string()
}

/// Compares every size and setting of published models, and their number of parameters, with values written
/// by hand. Kills: two keys exchanged, a key read and forgotten, a balance loss where `output_router_logits`
/// is false.
#[test]
fn models_as_they_are_found_have_the_experts_they_are_known_for() {
    let of = |text: &str| {
        let config = Config::parse(text, "a.json").unwrap();
        let numbers: usize =
            names::entries(&config).iter().map(|e| e.shape().iter().product::<usize>()).sum();
        assert_eq!(numbers, parallel::price::parameters(config.shape).unwrap());
        (config.shape, numbers)
    };
    let (mixtral, numbers) = of(MIXTRAL);
    let eight = Experts { count: 8, chosen: 2, hidden: 14336, ..Experts::MIXTRAL };
    assert_eq!((mixtral.experts, mixtral.window, numbers), (Some(eight), None, 46_702_792_704));
    let (qwen2, numbers) = of(QWEN2_MOE);
    let sixty = Experts {
        count: 60,
        chosen: 4,
        hidden: 1408,
        normalize: false,
        shared: Some(SharedExpert { hidden: 5632, gated: true }),
        ..Experts::MIXTRAL
    };
    assert_eq!((qwen2.experts, qwen2.window, numbers), (Some(sixty), None, 14_315_784_192));
    assert_eq!((qwen2.bias, qwen2.head_norm), (Biases { qkv: true, out: false, mlp: false }, false));
    let (qwen3, numbers) = of(QWEN3_MOE);
    let all = Experts { count: 128, chosen: 8, hidden: 768, ..Experts::MIXTRAL };
    assert_eq!((qwen3.experts, qwen3.window, numbers), (Some(all), None, 30_532_122_624));
    assert_eq!((qwen3.bias, qwen3.head_norm), (Biases::default(), true));
    assert_eq!(qwen3.heads, Heads::new(32, 4, 128));
    let own = Experts {
        count: 256,
        chosen: 8,
        hidden: 2048,
        scoring: Scoring::Sigmoid,
        normalize: true,
        scale: 2.5,
        bias: Some(0.001),
        groups: Some(Groups { count: 8, chosen: 4 }),
        capacity: Some(1.25),
        shared: Some(SharedExpert { hidden: 2048, gated: false }),
        balance: Balance { microbatch: 0.01, sequence: 0.0001, pooled: 0.0, z: 0.001 },
        forced: false,
        by_experts: false,
        noise: 0.0625,
        biases: true,
    };
    let own_shape = of(OWN).0;
    assert_eq!((own_shape.experts, own_shape.pattern.dense), (Some(own), vec![0, 1, 2, 7].into()));
}

#[test]
fn keys_left_out_are_what_transformers_makes_them_with_experts() {
    let bare = |text: &str, drop: &[&str]| {
        let mut map: Map<String, Value> = serde_json::from_str(text).unwrap();
        map.retain(|key, _| !drop.contains(&&**key));
        Config::parse(&Value::Object(map).to_string(), "a.json").unwrap()
    };
    let all = [
        "rms_norm_eps",
        "rope_theta",
        "output_router_logits",
        "router_aux_loss_coef",
        "sliding_window",
        "num_key_value_heads",
        "max_position_embeddings",
        "head_dim",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "bos_token_id",
        "eos_token_id",
    ];
    let of = |text: &str| {
        let Config { shape, positions, bos, eos, spare_coefficient: weight, .. } = bare(text, &all);
        let experts = shape.experts.unwrap();
        assert_eq!((shape.window, shape.pattern), (None, Pattern::NONE));
        assert_eq!(experts.balance, Balance::default());
        (shape.eps, shape.positions, shape.heads, positions, (bos, eos), experts.normalize, weight)
    };
    let heads = |queries, keys, dim| Heads::new(queries, keys, dim);
    let ends = (Some(1), vec![2]);
    assert_eq!(of(MIXTRAL), (1e-5, rotary(1e6), heads(32, 8, 128), 131_072, ends, true, 0.001));
    let ends = || (None, vec![]);
    assert_eq!(of(QWEN2_MOE), (1e-6, rotary(1e4), heads(16, 16, 128), 32768, ends(), false, 0.001));
    assert_eq!(of(QWEN3_MOE), (1e-6, rotary(1e4), heads(32, 4, 64), 32768, ends(), false, 0.001));
    let dropped = "balance_loss_coef capacity_factor expert_biases expert_choice first_k_dense_replace mlp_only_layers \
        moe_layer_freq n_group n_shared_experts norm_topk_prob routed_scaling_factor \
        router_bias_update_rate router_noise router_z_loss_coef sequence_balance_loss_coef topk_group";
    let own = bare(OWN, &dropped.split_whitespace().collect::<Vec<_>>());
    let wanted = Experts {
        count: 256,
        chosen: 8,
        hidden: 2048,
        scoring: Scoring::Sigmoid,
        bias: Some(0.0),
        ..Experts::MIXTRAL
    };
    assert_eq!(own.shape.experts, Some(wanted));
}

/// Kills: `decoder_sparse_step` counted from block 0, a listed dense block with experts, a list shortened in
/// writing.
#[test]
fn blocks_without_experts_are_those_that_are_said() {
    let dense = |text: &str, keys: &[(&str, &str)]| {
        let all = [&[("num_hidden_layers", "7")], keys].concat();
        let config = changed(text, &all).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        config.shape.pattern.dense.iter().collect::<Vec<_>>()
    };
    for text in [QWEN2_MOE, QWEN3_MOE] {
        assert_eq!(dense(text, &[]), [0; 0]);
        assert_eq!(dense(text, &[("decoder_sparse_step", "3")]), [0, 1, 3, 4, 6]);
        assert_eq!(dense(text, &[("mlp_only_layers", "[5, 0, 90]")]), [0, 5]);
        assert_eq!(dense(text, &[("mlp_only_layers", "[5]"), ("decoder_sparse_step", "2")]), [0, 2, 4, 5, 6]);
    }
    let first = |n| ("first_k_dense_replace", n);
    let listed = ("mlp_only_layers", "[]");
    assert_eq!(dense(OWN, &[first("2"), listed]), [0, 1]);
    assert_eq!(dense(OWN, &[first("1"), listed, ("moe_layer_freq", "3")]), [0, 1, 2, 4, 5]);
    assert_eq!(dense(OWN, &[first("0"), ("mlp_only_layers", "[6, 4]")]), [4, 6]);
    for (key, value, wanted) in [
        ("mlp_only_layers", "3", "a list of whole numbers"),
        ("mlp_only_layers", "[-1]", "a list of whole numbers"),
        ("decoder_sparse_step", "0", "a whole number, 1 or more"),
    ] {
        let seen = why_of(QWEN2_MOE, &[(key, value)]);
        assert_eq!(seen, format!("a.json: {key} is {value}; it must be {wanted}"));
    }
}

/// Kills: the key of version 5, which version 4 lacks, ignored.
#[test]
fn qwen3s_experts_are_counted_under_either_key() {
    let eight = ("num_local_experts", "8");
    assert_eq!(experts(QWEN3_MOE, &[("num_experts", "null"), eight]).count, 8);
    assert_eq!(experts(QWEN3_MOE, &[("num_experts", "8"), eight]).count, 8);
    let two = "a.json: num_local_experts is 8; it must be 128, as num_experts is";
    assert_eq!(why_of(QWEN3_MOE, &[eight]), two);
    assert!(why_of(QWEN2_MOE, &[eight]).contains("num_local_experts is 8, but this key is not supported"));
}

/// Kills: a bias without sigmoids, groups that the method does not have.
#[test]
fn ways_to_choose_are_read_together() {
    let method = |scoring: &str, groups: &str, method: &str| {
        let keys =
            [("scoring_func", scoring), ("n_group", groups), ("topk_group", "1"), ("topk_method", method)];
        let keys = [&keys[..], &[("router_bias_update_rate", "0")]].concat();
        let config = changed(OWN, &keys).map_err(|why| why.to_string())?;
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        let experts = config.shape.experts.unwrap();
        Ok::<_, String>((experts.bias.is_some(), experts.groups.map(|groups| groups.count)))
    };
    let [softmax, sigmoid] = ["\"softmax\"", "\"sigmoid\""];
    let [greedy, limited, noaux] = ["\"greedy\"", "\"group_limited_greedy\"", "\"noaux_tc\""];
    for scoring in [softmax, sigmoid] {
        assert_eq!(method(scoring, "1", greedy), Ok((false, None)));
        assert_eq!(method(scoring, "8", limited), Ok((false, Some(8))));
    }
    assert_eq!(method(sigmoid, "1", noaux), Ok((true, None)));
    assert_eq!(method(sigmoid, "8", noaux), Ok((true, Some(8))));
    for (scoring, groups, seen, wanted) in [
        (softmax, "1", noaux, greedy.to_owned()),
        (softmax, "8", noaux, limited.to_owned()),
        (softmax, "8", greedy, limited.to_owned()),
        (sigmoid, "8", greedy, format!("{limited} or {noaux}")),
        (sigmoid, "1", limited, format!("{greedy} or {noaux}")),
        (sigmoid, "1", "3", format!("{greedy} or {noaux}")),
    ] {
        let wanted = format!("{wanted} where scoring_func is {scoring} and n_group {groups}");
        assert_eq!(
            method(scoring, groups, seen),
            Err(format!("a.json: topk_method is {seen}; it must be {wanted}"))
        );
    }
    let wanted = "it must be 0, or left out, because topk_method has no bias";
    let seen = why_of(OWN, &[("topk_method", limited)]);
    assert_eq!(seen, format!("a.json: router_bias_update_rate is 0.001; {wanted}"));
    let known = r#"it must be "softmax" or "sigmoid""#;
    assert_eq!(method("\"tanh\"", "1", greedy), Err(format!("a.json: scoring_func is \"tanh\"; {known}")));
    assert_eq!(
        without(OWN, "scoring_func").unwrap_err().to_string(),
        format!("a.json has no scoring_func; {known}")
    );
}

/// Kills: expert choice lost in reading or in writing, expert choice read with settings that it cannot have.
#[test]
fn experts_that_choose_tokens_have_what_they_need_alone() {
    let words = r#"expert_choice true scoring_func "softmax" norm_topk_prob false n_group 1 topk_group 1
        topk_method "greedy" balance_loss_coef 0 sequence_balance_loss_coef 0 router_z_loss_coef 0 router_noise 0
        router_bias_update_rate 0"#;
    let words: Vec<_> = words.split_whitespace().collect();
    let plain: Vec<_> = words.chunks(2).map(|pair| (pair[0], pair[1])).collect();
    let config = changed(OWN, &plain).unwrap();
    assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
    let of = config.shape.experts.unwrap();
    assert_eq!((of.by_experts, of.copies(), of.capacity_of(64)), (true, 256, Some(3)), "⌈1.25·8·64/256⌉");
    let capacity = [&plain[..], &[("capacity_factor", "9e9")]].concat();
    assert_eq!(experts(OWN, &capacity).capacity_of(64), Some(64), "there are no more");
    for (others, why) in [
        (&[("capacity_factor", "null")][..], "need a capacity: it sets how many each takes"),
        (&[("scoring_func", "\"sigmoid\"")], "need scores by softmax, not sigmoids"),
        (&[("norm_topk_prob", "true")], "cannot have gates of sum 1: a token may have no expert"),
        (
            &[("balance_loss_coef", "1")],
            "cannot have auxiliary losses: each takes the same number of tokens anyway",
        ),
        (
            &[("router_z_loss_coef", "1")],
            "cannot have auxiliary losses: each takes the same number of tokens anyway",
        ),
        (&[("router_noise", "1")], "cannot have noise: tokens do not choose"),
        (
            &[("n_group", "2"), ("topk_method", "\"group_limited_greedy\"")],
            "cannot have groups: tokens do not choose",
        ),
    ] {
        let wanted = format!("it must be false, or left out, because experts that choose tokens {why}");
        let seen = why_of(OWN, &[&plain, others].concat());
        assert_eq!(seen, format!("a.json: expert_choice is true; {wanted}"));
    }
}

#[test]
fn experts_that_no_model_has_are_refused() {
    let whole = "a whole number, 1 or more";
    let positive = "a number above 0 and in the range of f32";
    for (text, key, value, wanted) in [
        (MIXTRAL, "num_local_experts", "0", whole),
        (QWEN2_MOE, "num_experts", "0", whole),
        (OWN, "n_routed_experts", "-1", whole),
        (QWEN3_MOE, "num_experts_per_tok", "0", whole),
        (QWEN3_MOE, "moe_intermediate_size", "0", whole),
        (QWEN2_MOE, "shared_expert_intermediate_size", "0", whole),
        (MIXTRAL, "num_experts_per_tok", "9", "at most 8, the experts that a token chooses from"),
        (OWN, "num_experts_per_tok", "129", "at most 128, the experts that a token chooses from"),
        (MIXTRAL, "num_local_experts", "4097", "at most 4096"),
        (MIXTRAL, "num_hidden_layers", "129", "at most 128 in a model with experts"),
        (OWN, "n_group", "7", "a divisor of the 256 n_routed_experts"),
        (OWN, "topk_group", "9", "at most the 8 of n_group"),
        (OWN, "capacity_factor", "0", positive),
        (OWN, "routed_scaling_factor", "0", positive),
        (OWN, "router_bias_update_rate", "-1", "a number of 0 or more"),
        (OWN, "router_noise", "-1", "a number of 0 or more"),
        (OWN, "router_z_loss_coef", "-1", "a number of 0 or more"),
        (QWEN2_MOE, "norm_topk_prob", "1", "true or false"),
        (MIXTRAL, "router_jitter_noise", "0.1", "0, or left out"),
        (QWEN2_MOE, "use_sliding_window", "true", "false, or left out"),
        (OWN, "mlp_bias", "true", "false, or left out"),
        (QWEN3_MOE, "architectures", r#"["Qwen3ForCausalLM"]"#, r#"["Qwen3MoeForCausalLM"], or left out"#),
    ] {
        let seen = why_of(text, &[(key, value)]);
        assert_eq!(seen, format!("a.json: {key} is {value}; it must be {wanted}"));
    }
    for (text, key) in [
        (MIXTRAL, "num_local_experts"),
        (QWEN2_MOE, "moe_intermediate_size"),
        (QWEN2_MOE, "shared_expert_intermediate_size"),
        (OWN, "num_experts_per_tok"),
    ] {
        assert_eq!(
            without(text, key).unwrap_err().to_string(),
            format!("a.json has no {key}; it must be {whole}")
        );
    }
    let unknown = "but this key is not supported; remove it if the model computes the same without it";
    for (text, key) in [
        (MIXTRAL, "norm_topk_prob"),
        (MIXTRAL, "n_shared_experts"),
        (QWEN2_MOE, "capacity_factor"),
        (OWN, "kv_lora_rank"),
        (OWN, "router_aux_loss_coef"),
    ] {
        assert_eq!(why_of(text, &[(key, "3")]), format!("a.json: {key} is 3, {unknown}"));
    }
    let deep = why_of(OWN, &[("architectures", "[\"DeepseekV3ForCausalLM\"]")]);
    assert!(deep.ends_with("it must be [\"EquipartMoeForCausalLM\"], or left out"), "{deep}");
}

/// Kills: expert sizes left out of the size checks.
#[test]
fn experts_that_no_machine_holds_are_refused() {
    let limit = "it must be at most 4611686018427387904 elements";
    let huge = "9223372036854775808"; // 2^63
    for (text, key, product) in [
        (QWEN2_MOE, "moe_intermediate_size", "24 × 2048 × 60"),
        (QWEN2_MOE, "shared_expert_intermediate_size", "24 × 2048"),
    ] {
        let keys = if product.ends_with("60") { "num_experts × " } else { "" };
        let keys = format!("num_hidden_layers × hidden_size × {keys}{key}");
        assert_eq!(why_of(text, &[(key, huge)]), format!("a.json: {keys} is {product} × {huge}; {limit}"));
    }
    let shared = why_of(OWN, &[("n_shared_experts", huge)]);
    assert!(shared.contains("n_shared_experts × moe_intermediate_size is "), "{shared}");
}

/// Kills: a window in Mixtral without its key, a window of Qwen ignored.
#[test]
fn windows_of_models_with_experts() {
    let window = |text: &str, keys: &[(&str, &str)]| {
        let config = changed(text, keys).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "").unwrap(), config);
        super::windows::size_and_first(&config.shape)
    };
    assert_eq!(window(MIXTRAL, &[("sliding_window", "9")]), Some((9, 0)));
    assert_eq!(without(MIXTRAL, "sliding_window").unwrap().shape.window, None);
    let two = |types| [("num_hidden_layers", "2"), ("layer_types", types)];
    assert_eq!(window(QWEN2_MOE, &two(r#"["full_attention", "full_attention"]"#)), None);
    for types in [r#"["full_attention","sliding_attention"]"#, r#"["full_attention"]"#] {
        let wanted = format!("a.json: layer_types is {types}; it must be 2 times \"full_attention\"");
        assert_eq!(why_of(QWEN2_MOE, &two(types)), wanted);
    }
    assert_eq!(changed(QWEN2_MOE, &[("qkv_bias", "false")]).unwrap().shape.bias, Biases::default());
}
