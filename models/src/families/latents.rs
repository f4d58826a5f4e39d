//! Attention from latents: the keys of its sizes, and names of its tensors; and the experts of the models
//! that have it.
//!
//! | ours, in `.attention` | theirs, in `self_attn` |
//! |---|---|
//! | `.q` | `.q_proj` |
//! | or `.q_a`, `.q_norm`, `.q_b` | `.q_a_proj`, `.q_a_layernorm`, `.q_b_proj` |
//! | `.kv_a`, `.kv_norm`, `.kv_b` | `.kv_a_proj_with_mqa`, `.kv_a_layernorm`, `.kv_b_proj` |
use super::experts::{ExpertKeys, NAMES, grouped};
use super::parts::ShapeKeys;
use super::rope;
use crate::config::ConfigKeys;
use crate::names::Entries;
use kernels::Heads;
use layers::{Experts, Latent, Positions, Shape, SharedExpert};
use parallel::Result;
use serde_json::{Value, json};
use tensor::{Rope, Scaling};

/// Factor of rotated parts in `YaRN`'s object, whose square multiplies scores.
const ALL_DIM: &str = "mscale_all_dim";
/// ε of the norms of latents in `transformers`, whatever that of others.
const EPS: f64 = 1e-6;

/// Sizes of heads and latents.
pub(super) const LATENTS: ShapeKeys = ShapeKeys {
    read_keys: "kv_lora_rank q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim",
    read,
    keys: |shape| {
        let Heads { plain, rotated, value, .. } = shape.heads;
        let latent = shape.latent.expect("it has latents");
        let mut keys = vec![
            ("head_dim", json!(rotated)),
            ("kv_lora_rank", json!(latent.keys)),
            ("q_lora_rank", json!(latent.queries)),
            ("qk_nope_head_dim", json!(plain)),
            ("qk_rope_head_dim", json!(rotated)),
            ("v_head_dim", json!(value)),
        ];
        if let (Some(factor), Positions::Rotary(rope)) = (shape.scores.factor, shape.positions) {
            let all_dim = all_dim(factor, rope).expect("a factor by YaRN");
            keys.extend(rope::keys(rope, None, None).into_iter().filter(|(_, value)| value.is_object()));
            for (_, object) in keys.iter_mut().filter(|(_, value)| value.is_object()) {
                object[ALL_DIM] = json!(all_dim);
            }
        }
        keys
    },
};

fn read(keys: &ConfigKeys<'_>, shape: &mut Shape) -> Result<()> {
    let plain = keys.size("qk_nope_head_dim", Some(128))?;
    let rotated = keys.size("qk_rope_head_dim", Some(64))?;
    let value = keys.size("v_head_dim", Some(128))?;
    if rotated % 2 == 1 {
        return Err(keys.wrong("qk_rope_head_dim", &json!(rotated), "even"));
    }
    let Heads { queries, keys: kv_heads, .. } = shape.heads;
    for (key, seen, wanted, why) in [
        ("num_key_value_heads", Some(kv_heads), queries, "num_attention_heads"),
        ("head_dim", keys.given("head_dim").map(|_| shape.heads.dim), rotated, "qk_rope_head_dim"),
        (
            "qk_head_dim",
            keys.given("qk_head_dim").map(|_| keys.size("qk_head_dim", None)).transpose()?,
            plain.saturating_add(rotated),
            "the sum of qk_nope_head_dim and qk_rope_head_dim",
        ),
    ] {
        if let Some(seen) = seen.filter(|seen| *seen != wanted) {
            return Err(keys.wrong(key, &json!(seen), &format!("{wanted}, as {why} is")));
        }
    }
    shape.heads = Heads {
        value,
        plain,
        rotated,
        neighbours: true,
        ..Heads::new(queries, queries, plain.saturating_add(rotated))
    };
    shape.latent = Some(Latent {
        keys: keys.size("kv_lora_rank", Some(512))?,
        queries: match keys.map.get("q_lora_rank") {
            Some(Value::Null) => None,
            _ => Some(keys.size("q_lora_rank", Some(1536))?),
        },
        eps: EPS,
    });
    let objects = ["rope_scaling", "rope_parameters"].map(|key| keys.given(key).and_then(Value::as_object));
    let object = objects.into_iter().flatten().find(|object| !object.is_empty());
    let all_dim = object.and_then(|object| object.get(ALL_DIM)).and_then(Value::as_f64);
    if let (Some(all_dim), Positions::Rotary(rope)) = (all_dim, shape.positions) {
        shape.scores.factor = Some(factor(all_dim, rope)).filter(|factor| *factor != 1.0);
    }
    Ok(())
}

/// Returns the factor of scores that `mscale_all_dim` asks for, beside these frequencies.
fn factor(all_dim: f64, rope: Rope) -> f64 {
    match rope.scaling {
        Scaling::Yarn { factor, .. } if factor > 1.0 => (0.1 * all_dim * factor.ln() + 1.0).powi(2),
        _ => 1.0,
    }
}
/// Returns the shortest `mscale_all_dim` that asks for this factor.
fn all_dim(wanted: f64, rope: Rope) -> Option<f64> {
    let Scaling::Yarn { factor: stretch, .. } = rope.scaling else { return None };
    let near = (wanted.sqrt() - 1.0) / (0.1 * stretch.ln());
    let begin = (0..8).fold(near, |number, _| number.next_down());
    let numbers = std::iter::successors(Some(begin), |number| Some(number.next_up())).take(17);
    let same = numbers.filter(|all_dim| factor(*all_dim, rope) == wanted);
    same.min_by_key(|all_dim| all_dim.to_string().len())
}

/// Adds a block's products and norms up to the heads.
pub(super) fn add(entries: &mut Entries<'_>, latent: Latent) {
    let Shape { width: d, heads, .. } = *entries.shape;
    let Heads { queries, dim, plain, value, .. } = heads;
    let linear = |entries: &mut Entries<'_>, theirs: &str, ours: &str, [inputs, outputs]: [usize; 2]| {
        let theirs = [(format!("self_attn.{theirs}"), 0..outputs)];
        entries.linear(&theirs, &format!("attention.{ours}"), inputs, false);
    };
    match latent.queries {
        None => linear(entries, "q_proj", "q", [d, queries * dim]),
        Some(n) => {
            linear(entries, "q_a_proj", "q_a", [d, n]);
            entries.norm("self_attn.q_a_layernorm", "attention.q_norm", n);
            linear(entries, "q_b_proj", "q_b", [n, queries * dim]);
        }
    }
    linear(entries, "kv_a_proj_with_mqa", "kv_a", [d, latent.keys + dim - plain]);
    entries.norm("self_attn.kv_a_layernorm", "attention.kv_norm", latent.keys);
    linear(entries, "kv_b_proj", "kv_b", [latent.keys, queries * (plain + value)]);
}

/// Returns products of keys: the elements of the largest matrices.
pub(super) fn products(shape: &Shape, latent: Latent) -> Vec<Vec<(&'static str, usize)>> {
    let Heads { queries, rotated, plain, value, .. } = shape.heads;
    let [d, n] = [("hidden_size", shape.width), ("num_hidden_layers", shape.blocks)];
    let low = [("kv_lora_rank", latent.keys), ("q_lora_rank", latent.queries.unwrap_or(1))];
    let of_head = [("qk_nope_head_dim", plain), ("qk_rope_head_dim", rotated), ("v_head_dim", value)];
    let inputs = low.into_iter().chain([d]);
    let pairs = inputs.flat_map(|inputs| of_head.map(|outputs| [inputs, outputs]));
    let up = pairs.map(|pair| vec![n, pair[0], ("num_attention_heads", queries), pair[1]]);
    low.map(|low| vec![n, d, low]).into_iter().chain(up).collect()
}

/// Experts after the first blocks, some of them shared. `transformers` adds no balance of theirs.
pub(super) const EXPERTS: ExpertKeys = ExpertKeys {
    count: &["n_routed_experts"],
    hidden: "moe_intermediate_size",
    shared: "n_shared_experts × moe_intermediate_size",
    read_keys: || {
        vec![
            "aux_loss_alpha ep_size first_k_dense_replace n_group n_shared_experts \
            routed_scaling_factor seq_aux topk_group",
        ]
    },
    settings: |_, experts| Ok(experts),
    dense: |_| Ok(Box::new(|_| false)),
    balance: |_, experts| Ok((experts, 0.0)),
    keys: |config, experts| {
        let shape = &config.shape;
        let first = (0..shape.blocks).take_while(|block| shape.block(*block).experts.is_none()).count();
        let shared = experts.shared.map_or(0, |shared| shared.hidden / experts.hidden);
        let settings = [
            ("first_k_dense_replace", json!(first)),
            ("moe_layer_freq", json!(1)),
            ("n_shared_experts", json!(shared)),
            ("norm_topk_prob", json!(experts.normalize)),
            ("routed_scaling_factor", json!(experts.scale)),
            ("scoring_func", json!(experts.scoring)),
        ];
        settings.into_iter().chain(grouped(experts)).collect()
    },
    names: NAMES,
    packed: false,
};

impl ConfigKeys<'_> {
    /// Returns experts with a factor of gates, and this number of shared experts unless the file has another.
    pub(super) fn scaled(&self, experts: Experts, scale: f64, shared: usize) -> Result<Experts> {
        let hidden = self.count("n_shared_experts", shared)?.saturating_mul(experts.hidden);
        Ok(Experts {
            scale: self.positive("routed_scaling_factor")?.unwrap_or(scale),
            shared: (hidden > 0).then_some(SharedExpert { hidden, gated: false }),
            ..experts
        })
    }
}
