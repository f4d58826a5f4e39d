//! Names of tensors, compared with the golden folders, which `transformers` wrote; and other tensors that a
//! file may hold.
use super::*;
use crate::Config;
use crate::model::tests::{self as model, goldens};
use std::collections::BTreeSet;
use tensor::safetensors::File;

fn golden(name: &str) -> (Config, File) {
    let dir = model::golden(name);
    (Config::read(&dir.join("config.json")).unwrap(), File::open_folder(&dir).unwrap())
}

/// A dense block, and a block with four experts of three features and two shared experts.
pub(crate) const OWN: &str = r#"{ "model_type": "equipart_moe", "hidden_size": 8, "num_attention_heads": 2,
    "intermediate_size": 5, "num_hidden_layers": 2, "vocab_size": 7, "first_k_dense_replace": 1, "n_group": 2,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3, "n_shared_experts": 2,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "topk_group": 1 }"#;

/// Compares the name and shape of every tensor of every golden folder. Kills: a tensor that one family has
/// and another lacks, sizes exchanged, a matrix taken for its transpose.
#[test]
fn names_and_shapes_are_those_that_transformers_writes() {
    for name in &goldens() {
        let (config, shards) = golden(name);
        let ours: BTreeSet<_> = entries(&config).iter().map(|e| (e.name.clone(), e.shape())).collect();
        let theirs = shards.names().map(|name| (name.to_owned(), shards.info(name).unwrap().shape.clone()));
        assert_eq!(ours, theirs.collect(), "{name}");
    }
}

/// Kills: a part left out, a part placed twice, a part at the wrong place, a bias that is not a row.
#[test]
fn the_parts_of_a_parameter_are_all_of_it_in_order() {
    for name in &goldens() {
        let (config, _) = golden(name);
        let entries = entries(&config);
        let names: BTreeSet<_> = entries.iter().map(|entry| &entry.param).collect();
        let mut numbers = 0;
        for param in names {
            let parts: Vec<_> = entries.iter().filter(|entry| entry.param == *param).collect();
            let (height, width) = (parts[0].height, parts.last().unwrap().columns.end);
            assert_eq!((parts[0].rows.start, parts[0].columns.start), (0, 0), "{param}");
            for (part, next) in parts.iter().zip(&parts[1..]) {
                let is_beside = part.rows == next.rows && part.columns.end == next.columns.start;
                let ends = part.columns.end == width && next.columns.start == 0;
                assert!(is_beside || ends && part.rows.end == next.rows.start, "{param}");
            }
            assert_eq!(parts.last().unwrap().rows.end, height, "{param}");
            let first = entries.iter().position(|entry| entry.param == *param).unwrap();
            assert!(
                entries[first..][..parts.len()].iter().all(|entry| entry.param == *param),
                "{param} is in one piece"
            );
            assert!(parts.iter().all(|part| part.height == height));
            assert_eq!(height == 1, parts[0].orientation == Orientation::Vector, "{param}");
            numbers += height * width;
        }
        assert_eq!(numbers, parallel::price::parameters(config.shape).unwrap(), "{name}");
    }
}

#[test]
fn ours_are_the_canonical_names() {
    let in_block = |name: &str, block: usize| {
        let mut names: Vec<_> = entries(&golden(name).0).into_iter().map(|entry| entry.param).collect();
        names.retain(|name| !name.starts_with(&format!("blocks.{}.", 1 - block)));
        names.dedup();
        names.join(" ").replace(&format!("blocks.{block}."), "")
    };
    let of = |name| in_block(name, 0);
    assert_eq!(
        of("llama"),
        "embedding norm1 attention.qkv attention.qkv.bias attention.out attention.out.bias norm2 \
         mlp.gate_up mlp.gate_up.bias mlp.down mlp.down.bias norm head"
    );
    assert_eq!(
        of("qwen3"),
        "embedding norm1 attention.qkv attention.q_norm attention.k_norm attention.out norm2 mlp.gate_up mlp.down norm"
    );
    assert_eq!(
        of("gpt2-erf"),
        "embedding positions norm1 norm1.bias attention.qkv attention.qkv.bias attention.out attention.out.bias \
         norm2 norm2.bias mlp.up mlp.up.bias mlp.down mlp.down.bias norm norm.bias head"
    );
    let attention = "embedding norm1 attention.qkv attention.out norm2";
    let experts = "mlp.router mlp.experts.gate_up mlp.experts.down";
    assert_eq!(of("mixtral"), format!("{attention} {experts} norm head"));
    let attention = "embedding norm1 attention.qkv attention.qkv.bias attention.out norm2";
    let shared = "mlp.shared.gate_up mlp.shared.down mlp.shared.gate";
    assert_eq!(in_block("qwen2-moe", 1), format!("{attention} {experts} {shared} norm head"));
    assert_eq!(of("qwen2-moe"), format!("{attention} mlp.gate_up mlp.down norm head"));
    let attention = "embedding norm1 attention.qkv attention.q_norm attention.k_norm attention.out norm2";
    assert_eq!(of("qwen3-moe"), format!("{attention} {experts} norm"));
    assert_eq!(in_block("qwen3-moe", 1), format!("{attention} mlp.gate_up mlp.down norm"));
}

/// Checks the names of DeepSeek-V3, with a dense block before the experts. Kills: a bias left out, a bias
/// with the rows of a weight, a shared expert under Qwen's name.
#[test]
fn experts_of_our_own_are_named_as_deepseeks() {
    let config = Config::parse(OWN, "a.json").unwrap();
    let all = entries(&config);
    let of = |name: &str| {
        let found = all.iter().find(|entry| entry.name == format!("model.layers.1.mlp.{name}")).expect(name);
        (
            found.param.strip_prefix("blocks.1.mlp.").unwrap(),
            found.shape(),
            found.rows.clone(),
            found.columns.clone(),
        )
    };
    assert_eq!(of("gate.weight"), ("router", vec![4, 8], 0..8, 0..4));
    assert_eq!(of("gate.e_score_correction_bias"), ("router.bias", vec![4], 0..1, 0..4));
    assert_eq!(of("experts.3.gate_proj.weight"), ("experts.gate_up", vec![3, 8], 24..32, 0..3));
    assert_eq!(of("experts.3.up_proj.weight"), ("experts.gate_up", vec![3, 8], 24..32, 3..6));
    assert_eq!(of("experts.2.down_proj.weight"), ("experts.down", vec![8, 3], 16..24, 0..3));
    assert_eq!(of("shared_experts.gate_proj.weight"), ("shared.gate_up", vec![6, 8], 0..8, 0..6));
    assert_eq!(of("shared_experts.down_proj.weight"), ("shared.down", vec![8, 6], 0..6, 0..8));
    assert_eq!(
        all.iter().filter(|entry| entry.name.starts_with("model.layers.1.mlp.")).count(),
        2 + 3 * 4 + 3
    );
    let dense: Vec<_> = all.iter().filter(|entry| entry.name.starts_with("model.layers.0.mlp.")).collect();
    assert_eq!(dense.iter().map(|entry| entry.shape()).collect::<Vec<_>>(), [[5, 8], [5, 8], [8, 5]]);
}

/// Kills: a required prefix where a file has none, a prefix removed from the head.
#[test]
fn gpt2s_names_are_found_with_and_without_their_prefix() {
    let (config, shards) = golden("gpt2-erf");
    let theirs: Vec<_> = shards.names().collect();
    assert_eq!(entries_in(&config, theirs.iter().copied()), entries(&config));
    let bare: BTreeSet<_> = theirs.iter().map(|name| name.trim_start_matches("transformer.")).collect();
    let found: Vec<_> = entries_in(&config, bare.iter().copied());
    assert_eq!(found.iter().map(|entry| &*entry.name).collect::<BTreeSet<_>>(), bare);
    assert_eq!((found.last().unwrap().name.as_str(), embedding(&found)), (HEAD, "wte.weight"));
    let (llama, _) = golden("llama");
    assert_eq!(entries_in(&llama, std::iter::empty()), entries(&llama));
}

/// Kills: a parameter ignored, a buffer of one family ignored in another.
#[test]
fn only_what_is_no_parameter_is_passed_over() {
    for (name, others) in [
        ("gpt2", &["transformer.h.0.attn.bias", "h.11.attn.bias", "h.1.attn.masked_bias", HEAD][..]),
        ("gpt2-erf", &["transformer.h.0.attn.bias"]),
        ("qwen3", &["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", HEAD]),
        ("llama", &["model.layers.1.self_attn.rotary_emb.inv_freq"]),
        ("mixtral", &["model.layers.1.self_attn.rotary_emb.inv_freq"]),
    ] {
        let (config, _) = golden(name);
        assert!(others.iter().all(|other| is_ignored(&config, other)), "{name}");
        assert!(!entries(&config).iter().any(|entry| is_ignored(&config, &entry.name)), "{name}");
    }
    for (name, other) in [
        ("gpt2", "h.x.attn.bias"),
        ("gpt2", "h.0.attn.c_attn.bias"),
        ("gpt2", "h.0.crossattention.bias"),
        ("gpt2", "model.rotary_emb.inv_freq"),
        ("llama", "h.0.attn.bias"),
        ("llama", HEAD),
        ("gpt2-erf", HEAD),
    ] {
        assert!(!is_ignored(&golden(name).0, other), "{name}: {other}");
    }
}
