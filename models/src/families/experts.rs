//! Experts: the keys of their sizes, checks that hold for all families, and names of their tensors.
use crate::config::{Config, ConfigKeys, KeyValue, MAX_EXPERTS, whole};
use crate::names::Entries;
use layers::{Blocks, Experts, Groups, Shape};
use parallel::{Entry, Orientation, Result, Stacked};
use serde_json::{Value, json};

/// Key of the number of experts that a token is sent to.
const CHOSEN: &str = "num_experts_per_tok";
/// Key of the blocks whose balance is a loss of its own, and its value for each block.
pub(super) const BALANCE: &str = "equipart_balance";
pub(super) const BLOCK: &str = "block";

/// Names of a family's keys and tensors of experts, and functions for the keys that other families lack.
pub(super) struct ExpertKeys {
    /// Keys of the number of experts; the first is written.
    pub(super) count: &'static [&'static str],
    /// Key of each expert's hidden features.
    pub(super) hidden: &'static str,
    /// Key of a shared expert's hidden features, or the product of keys that they are.
    pub(super) shared: &'static str,
    /// Returns lists of the keys that are read besides these.
    pub(super) read_keys: fn() -> Vec<&'static str>,
    /// Adds the settings to experts of these sizes.
    pub(super) settings: fn(&ConfigKeys<'_>, Experts) -> Result<Experts>,
    /// Returns the rule that gives blocks a dense feed-forward, besides those that `mlp_only_layers` lists.
    pub(super) dense: fn(&ConfigKeys<'_>) -> Result<DenseRule>,
    /// Adds the balance to experts that are valid without it. Also returns the coefficient of a balance that
    /// training does not add.
    pub(super) balance: fn(&ConfigKeys<'_>, Experts) -> Result<(Experts, f64)>,
    /// Returns the keys of experts besides their sizes. Settings that are given by a run alone have no keys:
    /// a capacity of Mixtral's and Qwen's experts, losses that these families lack, and tokens assigned in
    /// turn.
    pub(super) keys: fn(&Config, &Experts) -> Vec<KeyValue>,
    /// Name of the module in a block, and of an expert's matrices: gate, up and down.
    pub(super) names: (&'static str, [&'static str; 3]),
    /// True if all experts of a block are one tensor for each of their parameters, gate and up in turn.
    pub(super) packed: bool,
}

/// Returns true for the number of a block with a dense feed-forward.
pub(super) type DenseRule = Box<dyn Fn(usize) -> bool>;

/// Names of all families but Mixtral.
pub(super) const NAMES: (&str, [&str; 3]) = ("mlp", ["gate_proj", "up_proj", "down_proj"]);

impl ExpertKeys {
    /// Returns lists of all keys that are read.
    pub(super) fn read_keys(&self) -> Vec<&'static str> {
        [self.count, &[CHOSEN, self.hidden], &(self.read_keys)()].concat()
    }
    /// Gives a shape its experts, and the blocks without them. Returns the coefficient of a balance that
    /// training does not add.
    pub(super) fn read(&self, keys: &ConfigKeys<'_>, shape: &mut Shape) -> Result<f64> {
        let blocks = shape.blocks;
        if blocks > Blocks::MOST {
            let wanted = format!("at most {} in a model with experts", Blocks::MOST);
            return Err(keys.wrong("num_hidden_layers", &json!(blocks), &wanted));
        }
        let (chosen, hidden) = (keys.size(CHOSEN, None)?, keys.size(self.hidden, None)?);
        let sizes = Experts { count: self.number(keys)?, chosen, hidden, ..Experts::MIXTRAL };
        let experts = (self.settings)(keys, sizes)?;
        let is_dense = (self.dense)(keys)?;
        let list = |value: &Value| value.as_array()?.iter().map(whole).collect::<Option<Vec<_>>>();
        let listed = keys.read("mlp_only_layers", "a list of whole numbers", list)?.unwrap_or_default();
        shape.pattern.dense =
            (0..blocks).filter(|&block| is_dense(block) || listed.contains(&block)).collect();
        let allowed = experts.groups.map_or(experts.count, |g| experts.count / g.count * g.chosen);
        if chosen > allowed {
            let wanted = format!("at most {allowed}, the experts that a token chooses from");
            return Err(keys.wrong(CHOSEN, &json!(chosen), &wanted));
        }
        if let Some(why) = experts.expert_choice_conflict() {
            let wanted = format!("false, or left out, because experts that choose tokens {why}");
            return Err(keys.wrong("expert_choice", &json!(true), &wanted));
        }
        let (experts, spare) = (self.balance)(keys, experts)?;
        shape.experts = Some(experts);
        Ok(spare)
    }
    /// Returns the number of experts, which several keys may give.
    fn number(&self, keys: &ConfigKeys<'_>) -> Result<usize> {
        let given = || self.count.iter().copied().filter(|key| keys.given(key).is_some());
        let key = given().next().unwrap_or(self.count[0]);
        if let Some(other) = given().find(|other| keys.map[*other] != keys.map[key]) {
            let wanted = format!("{}, as {key} is", keys.map[key]);
            return Err(keys.wrong(other, &keys.map[other], &wanted));
        }
        let count = keys.size(key, None)?;
        if count > MAX_EXPERTS {
            return Err(keys.wrong(key, &json!(count), &format!("at most {MAX_EXPERTS}")));
        }
        Ok(count)
    }
    /// Returns all keys of these experts.
    pub(super) fn keys(&self, config: &Config, experts: &Experts) -> Vec<KeyValue> {
        let sizes = [(self.count[0], experts.count), (CHOSEN, experts.chosen), (self.hidden, experts.hidden)];
        let sizes = sizes.into_iter().map(|(key, size)| (key, json!(size)));
        sizes.chain((self.keys)(config, experts)).collect()
    }
    /// Adds a router, its experts, and the shared expert. In our matrices, experts `e` lie one below the
    /// other.
    ///
    /// | ours | Mixtral | Qwen, `equipart_moe` |
    /// |---|---|---|
    /// | `.mlp.router` | `block_sparse_moe.gate` | `mlp.gate` |
    /// | `.mlp.router.bias` | none | `mlp.gate.e_score_correction_bias` |
    /// | `.mlp.router.logit_bias`, `.experts.….bias` | none | `mlp.gate.bias`, `….bias` (`equipart_moe`) |
    /// | `.mlp.experts.gate_up` | `block_sparse_moe.experts.e.{w1,w3}` | `mlp.experts.e.{gate,up}_proj` |
    /// | `.mlp.experts.down` | `block_sparse_moe.experts.e.w2` | `mlp.experts.e.down_proj` |
    /// | `.mlp.shared` | none | `mlp.shared_expert` (gated), `mlp.shared_experts` |
    /// | `.mlp.shared.gate` | none | `mlp.shared_expert_gate` |
    ///
    /// `.mlp.experts.down` is `[outputs, inputs]`, as theirs. `.mlp.shared` has the matrices of a usual
    /// feed-forward.
    ///
    /// Packed: `mlp.router`, `mlp.experts.gate_up_proj` `[E, D, 2·F]`, `.down_proj` `[E, F, D]`, and a
    /// `_bias` of each.
    pub(super) fn add(&self, entries: &mut Entries<'_>, experts: Experts) {
        if self.packed {
            return add_packed(entries, experts);
        }
        let Experts { count, hidden: f, shared, bias, .. } = experts;
        let d = entries.shape.width;
        let (mlp, [gate, up, down]) = self.names;
        entries.linear(&[(format!("{mlp}.gate"), 0..count)], "mlp.router", d, false);
        if bias.is_some() {
            let theirs = format!("{mlp}.gate.e_score_correction_bias");
            entries.vector(&theirs, "mlp.router.bias", 0..count);
        }
        let first = [(gate, 0..f), (up, f..2 * f)].map(|part| (part, "gate_up", Orientation::Transposed));
        for parts in [&first[..], &[((down, 0..f), "down", Orientation::Same)]] {
            let each = (0..count).flat_map(|e| parts.iter().cloned().map(move |part| (e, part)));
            for (e, ((name, columns), param, orientation)) in each {
                let name = format!("{mlp}.experts.{e}.{name}.weight");
                let param = format!("mlp.experts.{param}");
                let rows = e * d..(e + 1) * d;
                let height = count * d;
                entries.push(Entry {
                    name,
                    param,
                    height,
                    rows,
                    columns,
                    orientation,
                    within: None,
                    plus_one: false,
                });
            }
        }
        if experts.biases {
            entries.vector(&format!("{mlp}.gate.bias"), "mlp.router.logit_bias", 0..count);
            let both = [(gate, 0..f), (up, f..2 * f)].map(|part| (part, "gate_up"));
            for parts in [&both[..], &[((down, 0..d), "down")]] {
                let each = (0..count).flat_map(|e| parts.iter().cloned().map(move |part| (e, part)));
                for (e, ((name, columns), param)) in each {
                    entries.push(Entry {
                        name: format!("{mlp}.experts.{e}.{name}.bias"),
                        param: format!("mlp.experts.{param}.bias"),
                        height: count,
                        rows: e..e + 1,
                        columns,
                        orientation: Orientation::Vector,
                        within: None,
                        plus_one: false,
                    });
                }
            }
        }
        let Some(shared) = shared else { return };
        let name = if shared.gated { "shared_expert" } else { "shared_experts" };
        entries.gated(&format!("{mlp}.{name}"), "mlp.shared", shared.hidden, false);
        if shared.gated {
            entries.linear(&[(format!("{mlp}.shared_expert_gate"), 0..1)], "mlp.shared.gate", d, false);
        }
    }
    /// Renames entries, and sets their places, for fused experts: as version 5 of `transformers` holds
    /// experts in memory and, if asked not to save the original format, writes them. All experts of a block
    /// are in two tensors: `mlp.experts.gate_up_proj` `[E, 2·F, H]`, with an expert's gate above its up, and
    /// `mlp.experts.down_proj` `[E, H, F]`. The router of every family is then in `mlp`, too.
    pub(super) fn fuse(&self, entries: &mut [Entry], Experts { count, hidden, .. }: Experts) {
        for entry in entries {
            entry.name = entry.name.replace(&format!(".{}.", self.names.0), ".mlp.");
            let param = entry.param.rsplit_once(".experts.").filter(|(_, param)| !param.contains('.'));
            let Some((_, param)) = param else { continue };
            let (block, _) = entry.name.split_once(".experts.").expect("it is an expert's");
            let expert = entry.rows.start / entry.rows.len();
            let (rows, above) = match entry.orientation {
                Orientation::Transposed => (2 * hidden, entry.columns.start),
                _ => (entry.shape()[0], 0),
            };
            entry.within = Some(Stacked::One { stack: [count, rows], first: expert * rows + above });
            entry.name = format!("{block}.experts.{param}_proj");
        }
    }
}

fn add_packed(entries: &mut Entries<'_>, experts: Experts) {
    let Experts { count, hidden: f, .. } = experts;
    let d = entries.shape.width;
    entries.linear(&[("mlp.router", 0..count)], "mlp.router", d, false);
    let packed = |theirs: &str, ours: &str, shape, orientation, within| Entry {
        param: format!("mlp.experts.{ours}"),
        orientation,
        within,
        ..Entry::whole(format!("mlp.experts.{theirs}"), shape)
    };
    let stack = || Some(Stacked::All(count));
    entries.push(packed("gate_up_proj", "gate_up", [count * d, 2 * f], Orientation::Alternate, stack()));
    entries.push(packed("down_proj", "down", [count * d, f], Orientation::Transposed, stack()));
    entries.vector("mlp.router.bias", "mlp.router.logit_bias", 0..count);
    entries.push(packed("gate_up_proj_bias", "gate_up.bias", [count, 2 * f], Orientation::Alternate, None));
    entries.push(packed("down_proj_bias", "down.bias", [count, d], Orientation::Same, None));
}

/// Returns the key of the blocks with a dense feed-forward, without the first of these.
pub(super) fn dense_key(shape: &Shape, first: usize) -> KeyValue {
    ("mlp_only_layers", json!(shape.pattern.dense.iter().skip(first).collect::<Vec<_>>()))
}

/// Returns the `topk_method` of experts with these options.
pub(super) fn method(bias: bool, groups: Option<Groups>) -> &'static str {
    match (bias, groups) {
        (true, _) => "noaux_tc",
        (false, Some(_)) => "group_limited_greedy",
        (false, None) => "greedy",
    }
}

/// Returns the keys of groups of experts.
pub(super) fn grouped(experts: &Experts) -> [KeyValue; 3] {
    let groups = experts.groups.unwrap_or(Groups { count: 1, chosen: 1 });
    [
        ("n_group", json!(groups.count)),
        ("topk_group", json!(groups.chosen)),
        ("topk_method", json!(method(experts.bias.is_some(), experts.groups))),
    ]
}

impl ConfigKeys<'_> {
    /// Returns the groups of this number of experts, if there are several groups. Also takes the defaults of
    /// both numbers.
    pub(super) fn groups(
        &self,
        experts: usize,
        [count, chosen]: [Option<usize>; 2],
    ) -> Result<Option<Groups>> {
        let count = self.size("n_group", count)?;
        let chosen = self.size("topk_group", chosen)?;
        if !experts.is_multiple_of(count) {
            let wanted = format!("a divisor of the {experts} n_routed_experts");
            return Err(self.wrong("n_group", &json!(count), &wanted));
        }
        if chosen > count {
            return Err(self.wrong("topk_group", &json!(chosen), &format!("at most the {count} of n_group")));
        }
        Ok((count > 1).then_some(Groups { count, chosen }))
    }
    /// Returns the weight of an auxiliary loss, multiplied by `times`.
    pub(super) fn weight(&self, key: &str, default: f64, times: usize) -> Result<f64> {
        let times = times as f64;
        let weight = |value: &Value| {
            value.as_f64().map(|weight| weight * times).filter(|weight| *weight >= 0.0 && weight.is_finite())
        };
        Ok(self.read(key, "a number of 0 or more", weight)?.unwrap_or(default * times))
    }
}
