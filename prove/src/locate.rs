//! Locates a difference: runs the program again under the same key, with everything compared. Reports the
//! first tensor in program order, including forward activations and their gradients, so that the cause comes
//! before its effects.
use crate::program::program;
use crate::subject::START;
use crate::timeline::{ElementPlace, Expected, TimelineEntry, expected};
use crate::{Difference, Subject, world};
use comm::{CallRecord, Trace, World};
use layers::StrategyInfo;
use parallel::{BuildContext, Network, Result, Scheme, session};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tensor::{Cpu, F61, Key};

/// Locates the first difference between a layout's program and the oracle, under the first of these keys that
/// shows one. Forward activations and their gradients are compared, too. `None` if nothing differs.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn locate<'a>(
    subject: &Subject,
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    keys: &[Key],
) -> Result<Option<Difference>> {
    let scheme = scheme.into();
    if scheme.pipeline().schedule.updates_each() {
        return Ok(None); // a step has many updates, so records of it have no single place
    }
    for &key in keys {
        if let Some(difference) = locate_in(world(scheme.layout, &Network::default())?, subject, scheme, key)?
        {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// Returns the first difference under one key, in a world of the layout's ranks that may be on trial
/// (`World::on_trial`); `None` if everything is equal.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn locate_in<'a>(
    world: World,
    subject: &Subject,
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    key: Key,
) -> Result<Option<Difference>> {
    let scheme = scheme.into();
    let _key = key.enter();
    scheme.fits(&subject.model)?;
    let truth = expected(subject, subject.start()?);
    let world = world.traced(&Trace::new(), "prove");
    let ranks = session::run((scheme, &world), &START, |at: BuildContext<Cpu<F61>>| {
        let mut judged = BTreeMap::new();
        let mut see = |moment| judged.extend([Judged::of(moment, &truth)]);
        let built = program(subject, &at, (&mut |_, _| (), Some(&mut see)), &|_| ())?;
        Ok((judged, built))
    })?;
    let (ranks, built): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    Ok(first(&ranks, &truth, &scheme.strategies(), &built.concat()))
}

/// Comparison of a rank's local part of a tensor.
struct Judged {
    differ: usize,
    of: usize,
    partial: bool,                 // has addends, which are not compared
    lacks: BTreeSet<ElementPlace>, // elements of the oracle's that the rank lacks
    touched: Vec<CallRecord>,      // in the first part that differs
}

impl Judged {
    fn of(moment: TimelineEntry<F61>, truth: &Expected) -> (String, Self) {
        let TimelineEntry { name, elements, touched } = moment;
        let (partial, elements) = (elements.is_none(), elements.unwrap_or_default());
        let is_bad = |(place, x): &&(ElementPlace, F61)| truth.wanted(&name, place) != Some(*x);
        let bad: Vec<_> = elements.iter().filter(is_bad).map(|(place, _)| *place).collect();
        let within = |tokens: &[(usize, Range<usize>)]| {
            let here =
                |(s, p, _): &ElementPlace| tokens.iter().any(|(of, range)| of == s && range.contains(p));
            tokens.is_empty() || bad.iter().any(here)
        };
        let first = touched.into_iter().find(|(tokens, _)| within(tokens));
        let touched = first.map(|(_, calls)| calls).unwrap_or_default();
        let mut lacks: BTreeSet<_> =
            truth.tensor(&name).into_iter().flat_map(|all| all.keys().copied()).collect();
        for (place, _) in &elements {
            lacks.remove(place);
        }
        (name, Self { differ: bad.len(), of: elements.len(), partial, lacks, touched })
    }
}

/// Ends of the names of activations. Programs do not record all that the oracle does, such as a router's.
const ACTIVATION: [&str; 2] = [".in", ".out"];

/// Returns the first tensor, in the order of the oracle's program, that differs on a rank that has it, or of
/// which some element is on no rank.
fn first(
    ranks: &[BTreeMap<String, Judged>],
    truth: &Expected,
    strategies: &[&'static StrategyInfo],
    built: &[(String, &'static str)],
) -> Option<Difference> {
    let unknown = ranks.iter().flat_map(BTreeMap::keys).filter(|name| !truth.order.contains(name));
    let mut after = None;
    for name in truth.order.iter().chain(unknown) {
        let seen: Vec<_> =
            ranks.iter().enumerate().filter_map(|(r, rank)| Some((r, rank.get(name)?))).collect();
        let differing: Vec<_> = seen.iter().filter(|(_, judged)| judged.differ > 0).collect();
        if let Some((rank, Judged { differ, of, touched, .. })) = differing.first() {
            return Some(Difference {
                ranks: differing.iter().map(|(rank, _)| *rank).collect(),
                after,
                collectives: touched.clone(),
                hint: hint(name, touched, strategies, built),
                ..Difference::of(name.clone(), *rank, *differ, *of)
            });
        }
        if seen.is_empty() && ACTIVATION.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        if let Some(tensor) = truth.tensor(name).filter(|_| !seen.iter().any(|(_, judged)| judged.partial)) {
            let lacks =
                tensor.keys().filter(|place| seen.iter().all(|(_, judged)| judged.lacks.contains(place)));
            let lacks = lacks.count();
            if lacks > 0 {
                let of_none = Difference::of(format!("{name} (no rank has it)"), 0, lacks, tensor.len());
                return Some(Difference { after, hint: hint(name, &[], strategies, built), ..of_none });
            }
        }
        after = if seen.is_empty() { after } else { Some(name.clone()) };
    }
    None
}

/// Returns the hint of the layout's strategies for a tensor. Preferred, in this order: the strategy that
/// built the tensor's layer; a strategy along the axis of the last collective that touched the tensor; one
/// with a hint for such tensors over one with a hint for all; one that layouts name by a word over one that
/// they name by an axis.
pub(super) fn hint(
    name: &str,
    touched: &[CallRecord],
    strategies: &[&'static StrategyInfo],
    built: &[(String, &'static str)],
) -> Option<String> {
    let is_of =
        |layer: &str| name.split(' ').any(|word| word == layer || word.starts_with(&format!("{layer}.")));
    let maker = built.iter().filter(|(layer, _)| is_of(layer)).max_by_key(|(layer, _)| layer.len());
    let last = touched.last().map(|call| call.over.axes).unwrap_or_default();
    let near = |about: &StrategyInfo| about.axis.is_some_and(|axis| last.contains(axis));
    let word = |about: &StrategyInfo| about.is_named();
    let says = |about: &'static StrategyInfo| {
        Some((about, about.hints.iter().find(|(part, _)| name.contains(part))?))
    };
    let mut hints: Vec<_> = strategies.iter().copied().filter_map(says).collect();
    hints.sort_by_key(|(about, (part, _))| {
        (maker.is_none_or(|(_, by)| *by != about.name), !near(about), part.is_empty(), !word(about))
    });
    let (about, (_, says)) = hints.first()?;
    Some(format!("{}: {says}", about.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{StepRecords, moments};
    use comm::Axis;
    use layers::{Builder, Choice, NumberArgument};
    use ops::{
        Activations, ColumnWeight, Pieces, RandomValues, Section, Split, columns_gradient, filled, matmul,
    };
    use parallel::{Layout, Report};
    use tensor::{Category, Scalar};

    /// Reports a gradient at the padding of a vocabulary of 5 over two ranks. Kills: a padding gradient
    /// noticed in the norm only, where the hint is about replicas; a difference reported for padding whose
    /// gradient is 0.
    #[test]
    fn a_gradient_of_padding_is_told_as_one() {
        let _key = Key(1).enter();
        let (layout, sections) = ("tp=2,sp".parse::<Layout>().unwrap(), [Section::new(5, Pieces::Padded)]);
        let reported = |wrong: bool| {
            let ranks = layout.world().unwrap().run(|device: Cpu<F61>, mesh| {
                let at = Builder::new(&device, &mesh, &RandomValues { seed: 0 });
                let mut head = ColumnWeight::new(&at, Axis::Tp, "head", 2, &sections)?;
                let ones = |rows, cols| filled(&device, Category::Buffers, [rows, cols], F61::ONE);
                // X·W has no gradient in the padding; a dY cut from the whole has six real columns.
                let dy = if wrong {
                    Split::cut(&ones(1, 6), mesh.group(Axis::Tp))?
                } else {
                    matmul(&ones(1, 2), &head.columns()?)?
                };
                columns_gradient(&mut head, &ones(1, 2), &dy)?;
                let report =
                    Report { loss: ones(1, 1), norm2: Some(ones(1, 1)), scale: None, skipped: false };
                let seen = Activations::default();
                let displayed =
                    StepRecords { prefix: "step 0: ".into(), seen, report: Some(&report), calls: 0 };
                let mut all = Vec::new();
                moments(displayed, [head.param()].into_iter().collect(), &mesh, &mut |moment| {
                    all.push(moment);
                });
                Ok::<_, ops::Error>(all)
            });
            let ranks = ranks.unwrap();
            let mut truth = Expected::default();
            for moment in ranks.iter().flatten().filter(|moment| !moment.name.contains("padding")) {
                truth.add(&moment.name, moment.elements.clone().unwrap());
                if moment.name == "step 0: gradient of head" {
                    truth.add_padding("step 0: ", "head");
                }
            }
            let judge =
                |moments: Vec<_>| moments.into_iter().map(|moment| Judged::of(moment, &truth)).collect();
            let judged: Vec<BTreeMap<_, _>> = ranks.into_iter().map(judge).collect();
            first(&judged, &truth, &layout.strategies(), &[])
        };
        assert_eq!(reported(false), None);
        let d = reported(true).unwrap();
        assert_eq!(
            (d.name.as_str(), d.rank, d.differ, d.of),
            ("step 0: padding of head's gradient", 1, 2, 2),
            "{d}"
        );
        assert!(d.hint.as_deref().unwrap().contains("no gradient, and not counted"), "{d}");
    }

    static NEW: StrategyInfo = StrategyInfo {
        name: "new",
        axis: Some(Axis::Tp),
        choice: Choice::Layers,
        word: "new",
        takes: NumberArgument::Nothing,
        tries: layers::Tries::Always(&[]),
        needs: None,
        shares: |_, _| vec![],
        alone: false,
        paper: "",
        chapter: None,
        hints: &[("bias", "its bias"), ("", "its layer")],
    };

    /// Kills: a hint of another strategy than the one that built the layer, a hint of a strategy along
    /// another axis than that of the call, a layer taken for another whose name has the same beginning.
    #[test]
    fn who_built_the_layer_is_asked_first() {
        let layout: Layout = "tp=2,sp,dp=2".parse().unwrap();
        let all: Vec<&'static StrategyInfo> = layout.strategies().into_iter().chain([&NEW]).collect();
        let built = [("blocks.1.mlp.down".to_string(), "new")];
        let says = |name: &str, axis: Axis| {
            let call = CallRecord {
                op: comm::Op::AllReduce,
                over: comm::Ranks { axes: axis.into(), some: Some([2, 3].into()) },
                shape: [1, 1],
                bytes: 8,
                label: None,
                message: None,
                at: std::panic::Location::caller(),
                words: String::new(),
            };
            hint(name, &[call], &all, &built).unwrap()
        };
        assert_eq!(says("texts: blocks.1.mlp.down.out", Axis::Dp), "new: its layer");
        assert_eq!(says("step 0: gradient of blocks.1.mlp.down.bias", Axis::Dp), "new: its bias");
        assert!(says("step 0: gradient of blocks.11.mlp.down", Axis::Dp).starts_with("data parallelism: "));
        assert!(says("step 0: gradient of norm", Axis::Tp).starts_with("sequence parallelism: "));
        assert_eq!(hint("loss", &[], &[], &built), None);
    }
}
