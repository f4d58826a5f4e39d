//! Where a program that is not equal parts from the oracle: the run again under the same key, everything looked at. What
//! is named is the first tensor in program order, forward activations and their gradients too, so that the cause comes
//! before its echoes.
use super::timeline::{Expected, Moment, expected};
use super::{Difference, Look, Subject, program};
use crate::{Layout, Result};
use comm::{Trace, World};
use layers::strategy::{About, Key as Named};
use std::collections::BTreeMap;
use std::sync::OnceLock;
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
    let (trace, truth) = (Trace::new(), OnceLock::new());
    let ranks = world.traced(&trace, "prove").run(|device: Cpu<F61>, mesh| {
        let run = program(subject, layout, &device, &mesh, Look::Everything)?;
        let truth = truth.get_or_init(|| expected(subject, run.start));
        let judge = |moment: Moment<F61>| Judged::of(moment, truth);
        Ok::<_, parallel::Error>(run.timeline.into_iter().map(judge).collect::<Vec<_>>())
    })?;
    Ok(first(&ranks, &layout.strategies()))
}

/// What a rank's share of a tensor came to.
struct Judged {
    name: String,
    differ: usize,
    of: usize,
    touched: Vec<String>, // by calls, where it differs
}

impl Judged {
    fn of(moment: Moment<F61>, truth: &Expected) -> Self {
        let Moment { name, elements, touched } = moment;
        let empty = BTreeMap::new();
        let wanted = truth.get(&name).unwrap_or(&empty);
        let bad: Vec<_> = elements.iter().filter(|(place, x)| wanted.get(place) != Some(x)).collect();
        let calls =
            touched.into_iter().filter(|(sequences, _)| bad.iter().any(|((s, ..), _)| sequences.contains(s)));
        let touched = calls.map(|(_, call)| call).collect();
        Self { differ: bad.len(), of: elements.len(), touched, name }
    }
}

/// The first tensor that differs on any rank, in the order of the rank that saw most.
fn first(ranks: &[Vec<Judged>], strategies: &[&'static About]) -> Option<Difference> {
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
                hint: hint(name, &judged.touched, strategies),
            });
        }
        after = Some(name.clone());
    }
    None
}

/// What the layout's strategies say of such a tensor: one along the axis of the last collective that touched it before
/// others, one that is named by a word before that of the axis.
pub(super) fn hint(name: &str, touched: &[String], strategies: &[&'static About]) -> Option<String> {
    let axis_of = |about: &About| about.key.axis().name();
    let near = |about: &About| {
        touched.last().is_some_and(|call| call.contains(&format!(" over {}", axis_of(about))))
    };
    let word = |about: &About| matches!(about.key, Named::Beside(..));
    let mut all = strategies.to_vec();
    all.sort_by_key(|about| (!near(about), !word(about)));
    let about = all.first()?;
    let (_, says) = about.hints.iter().find(|(part, _)| name.contains(part))?;
    Some(format!("{}: {says}", about.name))
}
