//! Names against the golden folders, which `transformers` wrote, and what a file may hold besides.
use super::*;
use crate::Config;
use crate::model::tests::{self as model, GOLDEN};
use std::collections::BTreeSet;
use tensor::safetensors::Shards;

fn golden(name: &str) -> (Shape, Shards) {
    let dir = model::golden(name);
    (Config::read(&dir.join("config.json")).unwrap().shape, Shards::open(&dir).unwrap())
}

/// Every tensor of every golden folder, its name and its shape. Kills: a tensor that one family has and another has
/// not, sizes exchanged, a matrix taken for its transpose.
#[test]
fn names_and_shapes_are_those_that_transformers_writes() {
    for name in GOLDEN {
        let (shape, shards) = golden(name);
        let ours: BTreeSet<_> = entries(&shape).iter().map(|e| (e.name.clone(), e.shape())).collect();
        let theirs = shards.names().map(|name| (name.to_owned(), shards.info(name).unwrap().shape.clone()));
        assert_eq!(ours, theirs.collect(), "{name}");
    }
}

/// Kills: a part left out, put twice, or beside its place; a bias that is no row.
#[test]
fn the_parts_of_a_parameter_are_all_of_it_in_order() {
    for name in GOLDEN {
        let (shape, _) = golden(name);
        let entries = entries(&shape);
        let names: BTreeSet<_> = entries.iter().map(|entry| &entry.param).collect();
        let mut numbers = 0;
        for param in names {
            let parts: Vec<_> = entries.iter().filter(|entry| entry.param == *param).collect();
            assert_eq!(parts[0].columns.start, 0, "{param}");
            assert!(parts.windows(2).all(|two| two[0].columns.end == two[1].columns.start), "{param}");
            let first = entries.iter().position(|entry| entry.param == *param).unwrap();
            assert!(
                entries[first..][..parts.len()].iter().all(|entry| entry.param == *param),
                "{param} is in one piece"
            );
            assert!(parts.iter().all(|part| part.rows == parts[0].rows));
            assert_eq!(parts[0].rows == 1, parts[0].orientation == Orientation::Vector, "{param}");
            numbers += parts[0].rows * parts.last().unwrap().columns.end;
        }
        assert_eq!(numbers, parallel::price::parameters(shape).unwrap(), "{name}");
    }
}

#[test]
fn ours_are_the_canonical_names() {
    let of = |name: &str| {
        let mut names: Vec<_> = entries(&golden(name).0).into_iter().map(|entry| entry.param).collect();
        names.retain(|name| !name.starts_with("blocks.1."));
        names.dedup();
        names.join(" ").replace("blocks.0.", "")
    };
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
}

/// Kills: a prefix that is wanted where there is none, or taken off the head.
#[test]
fn gpt2s_names_are_found_with_and_without_their_prefix() {
    let (shape, shards) = golden("gpt2-erf");
    let theirs: Vec<_> = shards.names().collect();
    assert_eq!(entries_in(&shape, theirs.iter().copied()), entries(&shape));
    let bare: BTreeSet<_> = theirs.iter().map(|name| name.trim_start_matches(PREFIX)).collect();
    let found: Vec<_> = entries_in(&shape, bare.iter().copied());
    assert_eq!(found.iter().map(|entry| &*entry.name).collect::<BTreeSet<_>>(), bare);
    assert_eq!((found.last().unwrap().name.as_str(), embedding(&found)), (HEAD, "wte.weight"));
    let (llama, _) = golden("llama");
    assert_eq!(entries_in(&llama, std::iter::empty()), entries(&llama));
}

/// Kills: a parameter passed over, a buffer of one family passed over in another.
#[test]
fn only_what_is_no_parameter_is_passed_over() {
    for (name, others) in [
        ("gpt2", &["transformer.h.0.attn.bias", "h.11.attn.bias", "h.1.attn.masked_bias", HEAD][..]),
        ("gpt2-erf", &["transformer.h.0.attn.bias"]),
        ("qwen3", &["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", HEAD]),
        ("llama", &["model.layers.1.self_attn.rotary_emb.inv_freq"]),
    ] {
        let (shape, _) = golden(name);
        assert!(others.iter().all(|other| is_passed_over(&shape, other)), "{name}");
        assert!(!entries(&shape).iter().any(|entry| is_passed_over(&shape, &entry.name)), "{name}");
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
        assert!(!is_passed_over(&golden(name).0, other), "{name}: {other}");
    }
}
