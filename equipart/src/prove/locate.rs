//! Where a program that is not equal parts from the oracle: the run again under the same key, everything looked at. What
//! is named is the first tensor in program order, forward activations and their gradients too, so that the cause comes
//! before its echoes.
use super::timeline::{Expected, Moment, Place, expected};
use super::{Difference, Look, Subject, program};
use crate::{Layout, Result};
use comm::{Trace, World};
use layers::strategy::{About, Key as Named};
use std::collections::BTreeMap;
use tensor::{Cpu, F61, Key};

/// The first difference of a layout's program under a key; none if everything is equal. The world is that of the layout;
/// what its ranks do is traced.
pub(super) fn locate(
    subject: &Subject,
    layout: &Layout,
    key: Key,
    world: World,
) -> Result<Option<Difference>> {
    let _key = key.enter();
    let (trace, truth) = (Trace::new(), expected(subject, subject.start()?));
    let ranks = world.traced(&trace, "prove").run(|device: Cpu<F61>, mesh| {
        let mut judged = Vec::new();
        let look = Look::Everything(&mut |moment| judged.push(Judged::of(moment, &truth)));
        let built = program(subject, layout, &device, &mesh, look, &|_| ())?;
        Ok::<_, parallel::Error>((judged, built))
    })?;
    let (ranks, built): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    Ok(first(&ranks, &layout.strategies(), &built[0]))
}

/// What a rank's share of a tensor came to.
struct Judged {
    name: String,
    differ: usize,
    of: usize,
    touched: Vec<String>, // by calls, in the first part that differs
}

impl Judged {
    fn of(moment: Moment<F61>, truth: &Expected) -> Self {
        let Moment { name, elements, touched } = moment;
        let empty = BTreeMap::new();
        let wanted = truth.get(&name).unwrap_or(&empty);
        let bad: Vec<_> = elements.iter().filter(|(place, x)| wanted.get(place) != Some(x)).collect();
        let within = |tokens: &[(usize, std::ops::Range<usize>)]| {
            let here = |(s, p, _): Place| tokens.iter().any(|(of, range)| *of == s && range.contains(&p));
            tokens.is_empty() || bad.iter().any(|(place, _)| here(*place))
        };
        let first = touched.into_iter().find(|(tokens, _)| within(tokens));
        let touched = first.map(|(_, calls)| calls).unwrap_or_default();
        Self { differ: bad.len(), of: elements.len(), touched, name }
    }
}

/// The first tensor that differs on any rank, in the order of the rank that saw most.
fn first(
    ranks: &[Vec<Judged>],
    strategies: &[&'static About],
    built: &[(String, &'static str)],
) -> Option<Difference> {
    let order = ranks.iter().max_by_key(|rank| rank.len())?;
    let mut after = None;
    for Judged { name, .. } in order {
        let here =
            |rank: &Vec<Judged>| rank.iter().position(|judged| judged.name == *name && judged.differ > 0);
        let differing: Vec<_> =
            ranks.iter().enumerate().filter_map(|(r, rank)| here(rank).map(|at| (r, &rank[at]))).collect();
        if let Some((rank, judged)) = differing.first() {
            return Some(Difference {
                name: name.clone(),
                rank: *rank,
                differ: judged.differ,
                of: judged.of,
                ranks: differing.iter().map(|(rank, _)| *rank).collect(),
                after,
                collectives: judged.touched.clone(),
                hint: hint(name, &judged.touched, strategies, built),
            });
        }
        after = Some(name.clone());
    }
    None
}

/// What the layout's strategies say of such a tensor. First asked is who built the layer that it is of; then one along
/// the axis of the last collective that touched it; and who is named by a word before whoever is named by an axis.
pub(super) fn hint(
    name: &str,
    touched: &[String],
    strategies: &[&'static About],
    built: &[(String, &'static str)],
) -> Option<String> {
    let is_of =
        |layer: &str| name.split(' ').any(|word| word == layer || word.starts_with(&format!("{layer}.")));
    let maker = built.iter().filter(|(layer, _)| is_of(layer)).max_by_key(|(layer, _)| layer.len());
    let near = |about: &About| {
        let over = format!(" over {}", about.key.axis().name());
        touched.last().is_some_and(|call| call.contains(&over))
    };
    let word = |about: &About| matches!(about.key, Named::Beside(..));
    let mut all = strategies.to_vec();
    all.sort_by_key(|about| (maker.is_none_or(|(_, by)| *by != about.name), !near(about), !word(about)));
    let about = all.first()?;
    let (_, says) = about.hints.iter().find(|(part, _)| name.contains(part))?;
    Some(format!("{}: {says}", about.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Axis;

    static NEW: About = About {
        name: "new",
        key: Named::Beside("new", Axis::Tp),
        splits: "",
        shares: |_| vec![],
        paper: "",
        chapter: None,
        hints: &[("bias", "its bias"), ("", "its layer")],
    };

    /// Kills: a hint of another strategy than that which built the layer; of one along another axis than the call's; a
    /// layer that is taken for another whose name begins alike.
    #[test]
    fn who_built_the_layer_is_asked_first() {
        let all: Vec<&'static About> = layers::strategies::all().into_iter().chain([&NEW]).collect();
        let built = [("blocks.1.mlp.down".to_string(), "new")];
        let says = |name: &str, call: &str| hint(name, &[call.to_string()], &all, &built).unwrap();
        let over_dp = "all_reduce(sum) over dp of 1x1 f61";
        assert_eq!(says("texts: blocks.1.mlp.down.out", over_dp), "new: its layer");
        assert_eq!(says("step 0: gradient of blocks.1.mlp.down.bias", over_dp), "new: its bias");
        assert!(says("step 0: gradient of blocks.11.mlp.down", over_dp).starts_with("data parallelism: "));
        let over_tp = "all_gather over tp[2..4] of 1x1 f61";
        assert!(says("step 0: gradient of norm", over_tp).starts_with("sequence regions: "));
        assert_eq!(hint("loss", &[], &[], &built), None);
    }
}
