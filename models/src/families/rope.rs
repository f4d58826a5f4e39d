//! Rotary frequencies: `rope_theta` with `rope_scaling` (version 4 of `transformers`) or `rope_parameters`
//! (version 5). If a file has both, version 5 uses `rope_scaling` instead of `rope_parameters`, and does not
//! read the latter's base. Here both must agree.
use crate::config::{ConfigKeys, KeyValue};
use kernels::Heads;
use layers::Positions;
use parallel::Result;
use serde_json::{Value, json};
use tensor::quoted::displayed;
use tensor::{PairFactors, Rope, Scaling};

/// Key of the part of each head that is rotated, its first features.
const PART: &str = "partial_rotary_factor";
const TYPES: &str = r#""default" or "linear" or "dynamic" or "llama3" or "yarn" or "longrope", or left out"#;
/// Key of the positions of the original context, in an object or beside it.
pub(super) const ORIGINAL: &str = "original_max_position_embeddings";
/// Key of the base in blocks with a window, and the keys of both kinds of blocks in `rope_parameters`.
const LOCAL: &str = "rope_local_base_freq";
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
/// Keys of `YaRN`. `attn_factor`, which some published models have, is ignored, as by `transformers`.
const YARN: [&str; 9] = [
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "attn_factor",
];

/// Returns the keys of the rotated part that are read, and those that are fixed, for families that have such
/// a part and others.
pub(super) fn partial(has: bool) -> [&'static str; 2] {
    if has { [PART, ""] } else { ["", "partial_rotary_factor=1"] }
}

/// Facts of a family, and sizes of a model, on which its frequencies depend.
#[derive(Clone, Copy)]
pub(super) struct RopeRules {
    /// Value of `max_position_embeddings`.
    pub(super) positions: usize,
    /// Base of a file that has none.
    pub(super) base: f64,
    /// True if heads may be rotated in part.
    pub(super) has_parts: bool,
    /// Pairs of features that are rotated.
    pub(super) pairs: usize,
}

/// Contents of one of the two objects.
struct RopeObject {
    base: Option<f64>,
    scaling: Scaling,
}

impl ConfigKeys<'_> {
    /// Returns the frequencies of a model.
    fn rope(&self, rules: RopeRules) -> Result<Rope> {
        let top = self.positive("rope_theta")?;
        let new = self.rope_of("rope_parameters", top, rules)?;
        let old = self.rope_of("rope_scaling", top, rules)?;
        let base = |said: &RopeObject| said.base.or(top).unwrap_or(rules.base);
        if let (Some(new), Some(old)) = (&new, &old) {
            if new.scaling != old.scaling {
                let seen = &self.map["rope_scaling"];
                return Err(self.wrong("rope_scaling", seen, "as rope_parameters is, or left out"));
            }
            if let Some(seen) = new.base.filter(|seen| *seen != base(old)) {
                let wanted = format!("{}, because transformers uses rope_scaling instead", base(old));
                return Err(self.wrong("rope_parameters.rope_theta", &json!(seen), &wanted));
            }
        }
        let said = old.or(new).unwrap_or(RopeObject { base: None, scaling: Scaling::None });
        Ok(Rope { base: base(&said), scaling: said.scaling })
    }
    /// Returns the frequencies of a model, and those of its blocks with a window, which are the same if no
    /// `local` base is given as the default of theirs.
    pub(super) fn ropes(&self, rules: RopeRules, local: Option<f64>) -> Result<[Rope; 2]> {
        let Some(local) = local else { return Ok([self.rope(rules)?; 2]) };
        let both = self.read("rope_parameters", "an object in braces", |value| value.as_object().cloned())?;
        let both = both.unwrap_or_default();
        let own_keys = ConfigKeys { map: &both, origin: self.origin, within: "rope_parameters." };
        own_keys.check_against(&[], |key| KINDS.contains(&key))?;
        let local_base = self.positive(LOCAL)?.map(|base| json!(base));
        let top = |key: &str| self.map.get(key).cloned();
        let mut ropes = Vec::new();
        for (kind, base, given) in [
            (
                KINDS[0],
                rules.base,
                [("rope_theta", top("rope_theta")), ("rope_scaling", top("rope_scaling"))],
            ),
            (KINDS[1], local, [("rope_theta", local_base), ("rope_scaling", None)]),
        ] {
            let given = given.into_iter().chain([("rope_parameters", both.get(kind).cloned())]);
            let map = given.filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
            let keys =
                ConfigKeys { map: &map, origin: self.origin, within: &format!("{}{kind}: ", self.within) };
            ropes.push(keys.rope(RopeRules { base, ..rules })?);
        }
        Ok([ropes[0], ropes[1]])
    }
    /// Reads the object under a key, if it is there and not empty. Its base must equal the top-level
    /// `rope_theta`, if both are given.
    fn rope_of(&self, key: &str, top: Option<f64>, rules: RopeRules) -> Result<Option<RopeObject>> {
        let Some(value) = self.given(key).filter(|value| **value != json!({})) else { return Ok(None) };
        let Value::Object(map) = value else {
            return Err(self.wrong(key, value, "an object in braces"));
        };
        let inner = ConfigKeys { map, origin: self.origin, within: &format!("{key}.") };
        let original = self.given(ORIGINAL).map(|_| self.size(ORIGINAL, None)).transpose()?;
        let scaling = inner.scaling(rules, original)?;
        let base = inner.positive("rope_theta")?;
        if let (Some(base), Some(top)) = (base, top)
            && base.to_bits() != top.to_bits()
        {
            return Err(inner.wrong("rope_theta", &json!(base), &format!("{top}, as rope_theta is")));
        }
        Ok(Some(RopeObject { base, scaling }))
    }
    /// Returns the scaling that an object describes, beside which the file may have the positions of the
    /// original context. Keys of another scaling are refused.
    fn scaling(&self, rules: RopeRules, original: Option<usize>) -> Result<Scaling> {
        let [part, fixed] = partial(rules.has_parts);
        let [new, old] = ["rope_type", "type"].map(|key| self.given(key));
        if let (Some(new), Some(old)) = (new, old)
            && new != old
        {
            return Err(self.wrong(
                "type",
                old,
                &format!("{}, as rope_type is", displayed(&new.to_string())),
            ));
        }
        let kind = new.or(old).map_or(Some("default"), Value::as_str);
        let names: &[&str] = match kind {
            Some("default") => &[],
            Some("linear" | "dynamic") => &["factor"],
            Some("llama3") => &["factor", "low_freq_factor", "high_freq_factor", ORIGINAL],
            Some("yarn") => &YARN,
            Some("longrope") => &["short_factor", "long_factor", "factor", "attention_factor", ORIGINAL],
            _ => {
                let key = if new.is_some() { "rope_type" } else { "type" };
                return Err(self.wrong(key, &self.map[key], TYPES));
            }
        };
        self.check_against(&[fixed], |key| {
            matches!(key, "rope_theta" | "rope_type" | "type") || names.contains(&key) || key == part
        })?;
        let positions = rules.positions;
        let original = match original {
            Some(original) => original,
            None if names.contains(&ORIGINAL) => self.size(ORIGINAL, Some(positions))?,
            None => positions,
        } as f64;
        Ok(match kind {
            Some("linear") => Scaling::Linear { factor: self.needed("factor")? },
            Some("dynamic") => Scaling::Dynamic { factor: self.needed("factor")?, original, reach: original },
            Some("llama3") => self.llama3(original)?,
            Some("yarn") => self.yarn(original)?,
            Some("longrope") => self.long(original, rules)?,
            _ => Scaling::None,
        })
    }
    fn long(&self, original: f64, rules: RopeRules) -> Result<Scaling> {
        let wanted = format!("{} numbers above 0, one for each rotated pair of features", rules.pairs);
        let list = |key: &str| -> Result<PairFactors> {
            let numbers = |value: &Value| {
                let list = value.as_array().filter(|list| list.len() == rules.pairs)?;
                let above = |value: &Value| value.as_f64().filter(|x| *x > 0.0);
                list.iter().map(above).collect::<Option<Vec<_>>>()
            };
            let read = self.read(key, &wanted, numbers)?.ok_or_else(|| self.missing(key, &wanted));
            Ok(read?.into())
        };
        if original < 2.0 {
            return Err(self.wrong(ORIGINAL, &json!(original as u64), "2 or more"));
        }
        let positions = rules.positions as f64;
        let factor = self.positive("factor")?.unwrap_or(positions / original);
        let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
        Ok(Scaling::Long {
            short: list("short_factor")?,
            long: list("long_factor")?,
            original,
            magnitude: self.positive("attention_factor")?.unwrap_or(usual),
            reach: positions,
        })
    }
    /// Returns the rotated features of a head of `dim`: a part of them, which the file or an object may give.
    pub(super) fn rotated(&self, dim: usize) -> Result<usize> {
        let mut seen: Option<f64> = None;
        for object in ["rope_scaling", "rope_parameters", ""] {
            let within = if object.is_empty() { String::new() } else { format!("{object}.") };
            let map = if object.is_empty() {
                Some(self.map)
            } else {
                self.map.get(object).and_then(Value::as_object)
            };
            let Some(map) = map else { continue };
            let inner = ConfigKeys { map, origin: self.origin, within: &within };
            let wanted =
                seen.map_or("a number above 0 and at most 1".into(), |seen| format!("{seen}, as everywhere"));
            let part = inner.read(PART, &wanted, |value| {
                let fits = |part: &f64| *part > 0.0 && *part <= 1.0 && seen.is_none_or(|seen| seen == *part);
                value.as_f64().filter(fits)
            })?;
            seen = part.or(seen);
        }
        let Some(part) = seen else { return Ok(dim) };
        let rotated = (dim as f64 * part) as usize;
        if rotated == 0 || rotated < dim && rotated % 2 == 1 {
            let wanted = format!("a number that rotates an even number of the {dim} features of a head");
            return Err(self.wrong(PART, &json!(part), &wanted));
        }
        Ok(rotated)
    }
    fn llama3(&self, original: f64) -> Result<Scaling> {
        let (factor, low) = (self.needed("factor")?, self.needed("low_freq_factor")?);
        let high = self.needed("high_freq_factor")?;
        if high <= low {
            let wanted = format!("more than the low_freq_factor of {low}");
            return Err(self.wrong("high_freq_factor", &json!(high), &wanted));
        }
        Ok(Scaling::Llama3 { factor, low, high, original })
    }
    fn yarn(&self, original: f64) -> Result<Scaling> {
        let factor = self.needed("factor")?;
        let fast = self.positive("beta_fast")?.unwrap_or(32.0);
        let slow = self.positive("beta_slow")?.unwrap_or(1.0);
        let scale = |of: f64| if factor <= 1.0 { 1.0 } else { 0.1 * of * factor.ln() + 1.0 };
        let [over, under] = [self.positive("mscale")?, self.positive("mscale_all_dim")?];
        let usual = over.zip(under).map_or_else(|| scale(1.0), |(over, under)| scale(over) / scale(under));
        let magnitude = self.positive("attention_factor")?.unwrap_or(usual);
        Ok(Scaling::Yarn { factor, original, fast, slow, magnitude, truncate: self.flag("truncate", true)? })
    }
}

/// Returns the positions of a model whose file states this number: more, if its frequencies are scaled
/// dynamically.
pub(super) fn reached(rope: Rope, stated: usize) -> usize {
    if let Scaling::Dynamic { factor, .. } = rope.scaling {
        (stated as f64 * factor) as usize
    } else {
        stated
    }
}
/// Returns the `max_position_embeddings` of a model with this number of positions.
pub(super) fn stated(positions: Positions, reached: usize) -> usize {
    if let Positions::Rotary(Rope { scaling: Scaling::Dynamic { original, .. }, .. }) = positions {
        original as usize
    } else {
        reached
    }
}

/// Returns the keys from which both versions of `transformers` read these frequencies, the rotated part of
/// heads, and the frequencies of blocks with a window if they have a key of their own.
pub(super) fn keys(rope: Rope, local: Option<Rope>, partial: Option<Heads>) -> Vec<KeyValue> {
    let with_base = |rope: Rope| {
        let mut parameters = scaling(rope);
        parameters["rope_theta"] = json!(rope.base);
        parameters
    };
    let mut parameters = with_base(rope);
    let mut keys = vec![("rope_theta", json!(rope.base))];
    if let Some(Heads { rotated, dim, .. }) = partial {
        let part = rotated as f64 / dim as f64;
        let part = if (dim as f64 * part) as usize == rotated { part } else { part.next_up() };
        parameters[PART] = json!(part);
        keys.push((PART, json!(part)));
    }
    if let Some(local) = local {
        keys.push((LOCAL, json!(local.base)));
        parameters = json!({ (KINDS[0]): parameters, (KINDS[1]): with_base(local) });
    }
    keys.push(("rope_parameters", parameters));
    if rope.scaling != Scaling::None {
        keys.push(("rope_scaling", scaling(rope)));
    }
    keys
}

/// Returns the object of a scaling.
fn scaling(rope: Rope) -> Value {
    match rope.scaling {
        Scaling::None => json!({ "rope_type": "default" }),
        Scaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        Scaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original as u64,
        }),
        Scaling::Yarn { factor, original, fast, slow, magnitude, truncate } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
            "beta_fast": fast,
            "beta_slow": slow,
            "attention_factor": magnitude,
            "truncate": truncate,
        }),
        Scaling::Long { short, long, original, magnitude, .. } => json!({
            "rope_type": "longrope",
            "short_factor": &*short,
            "long_factor": &*long,
            "original_max_position_embeddings": original as u64,
            "attention_factor": magnitude,
        }),
        Scaling::Dynamic { factor, .. } => json!({ "rope_type": "dynamic", "factor": factor }),
    }
}
