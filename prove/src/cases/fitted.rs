//! Shape that fits a scheme, near to the wished one. Only the scheme's strategies decide what fits, so this
//! holds for any of them.
use comm::Axis;
use kernels::Heads;
use layers::{Balance, Biases, Choice, Experts, Groups, OptimizerKind, Shape, SharedExpert};
use parallel::{Layout, Scheme};
use std::iter::once;
use tensor::{Cpu, F61};

/// Largest number of heads, hidden features, features, ids or blocks of a fitted shape.
const MOST: usize = 16;

/// Returns a fitting shape with as few changes as can be found; `None` if no small shape fits. The shape gets
/// experts if ranks divide experts. If slices of sequences run alone, its experts lose the features that need
/// whole microbatches.
pub fn fitted(wish: Shape, scheme: &Scheme<Cpu<F61>>) -> Option<Shape> {
    let sizes: [fn(&mut Shape) -> Option<&mut usize>; 7] = [
        |s| Some(&mut s.hidden),
        |s| Some(&mut s.width),
        |s| Some(&mut s.vocabulary),
        |s| Some(&mut s.blocks),
        |s| s.experts.as_mut().map(|experts| &mut experts.count),
        |s| s.experts.as_mut().map(|experts| &mut experts.hidden),
        |s| s.experts.as_mut()?.shared.as_mut().map(|shared| &mut shared.hidden),
    ];
    let may_be = |of: &Heads| wish.latent.is_none() || of.keys == of.queries;
    let others = heads(wish.heads).filter(may_be).map(|heads| Shape { heads, ..wish });
    let mut shape = nearest(wish, scheme, others);
    let split = |axis| scheme.layout.size(axis) > 1;
    if shape.experts.is_none() && (split(Axis::Ep) || split(Axis::Etp)) {
        let bias = Biases { mlp: false, ..shape.bias };
        // A single gate that is normalised by itself gets no gradient.
        let few = Experts { normalize: false, ..Experts::MIXTRAL };
        let of = |hidden| (2..=MOST).map(move |count| Experts { count, hidden, ..few });
        let with = (2..=MOST).flat_map(of).map(|of| Shape { experts: Some(of), bias, ..shape });
        shape = nearest(shape, scheme, with);
    }
    let alone = |of: Experts| {
        let balance = Balance { z: of.balance.z, ..Balance::default() };
        Experts { capacity: None, forced: false, by_experts: false, balance, ..of }
    };
    shape = nearest(shape, scheme, once(Shape { experts: shape.experts.map(alone), ..shape }));
    let untied = Shape { tied: false, ..shape };
    let both = Shape { experts: untied.experts.map(alone), ..untied };
    shape = nearest(shape, scheme, [untied, both].into_iter());
    for size in sizes {
        let mut from = shape;
        let Some(&mut wished) = size(&mut from) else { continue };
        let with = |n: usize| {
            let mut other = shape;
            if let Some(size) = size(&mut other) {
                *size = n;
            }
            Shape { experts: other.experts.map(sound), ..other }
        };
        let mut sizes: Vec<usize> = (1..=MOST).collect();
        sizes.sort_by_key(|n| n.abs_diff(wished));
        shape = nearest(shape, scheme, sizes.into_iter().map(with));
    }
    scheme.fits(shape).is_ok().then_some(shape)
}

/// Returns the shape with more features, so that ranks which divide it cut no row inside a block of the
/// optimizer's state.
pub(super) fn in_blocks(shape: Shape, optimizer: OptimizerKind, layout: &Layout) -> Shape {
    let n = optimizer.states().grain();
    let cuts_width = layout.strategies().iter().any(|about| about.choice == Choice::Features);
    let width = if cuts_width { shape.width * n } else { shape.width };
    let shared = |of: SharedExpert| SharedExpert { hidden: of.hidden * n, ..of };
    let experts = |of: Experts| Experts { hidden: of.hidden * n, shared: of.shared.map(shared), ..of };
    let times = if shape.scores.sinks { n } else { 1 }; // a rank has as many sinks as query heads
    let heads = Heads { queries: shape.heads.queries * times, ..shape.heads.widened(n) };
    Shape { heads, width, hidden: shape.hidden * n, experts: shape.experts.map(experts), ..shape }
}

/// Returns valid experts: groups divide them evenly, and no more are chosen than there are to choose from.
pub(super) fn sound(of: Experts) -> Experts {
    let Some(Groups { count, chosen }) = of.groups else {
        return Experts { chosen: of.chosen.min(of.count), ..of };
    };
    let groups = Groups { count, chosen: chosen.min(count) };
    let total = of.count.next_multiple_of(count);
    Experts { count: total, chosen: of.chosen.min(total / count * groups.chosen), groups: Some(groups), ..of }
}

/// Returns the first of the shapes with the fewest misfits; the given one if none has fewer.
fn nearest(shape: Shape, scheme: &Scheme<Cpu<F61>>, others: impl Iterator<Item = Shape>) -> Shape {
    let misfits = scheme.misfits(shape);
    if misfits == 0 {
        return shape;
    }
    let best = others.map(|other| (scheme.misfits(other), other)).min_by_key(|(misfits, _)| *misfits);
    best.filter(|(fewest, _)| *fewest < misfits).map_or(shape, |(_, other)| other)
}

/// Returns all heads with KV heads that divide the query heads, nearest first.
fn heads(wish: Heads) -> impl Iterator<Item = Heads> {
    let heads = move |queries: usize| {
        let keys = (1..=queries).filter(move |keys| queries.is_multiple_of(*keys));
        keys.map(move |keys| Heads { queries, keys, ..wish })
    };
    let mut found: Vec<_> = (1..=MOST).flat_map(heads).collect();
    found.sort_by_key(|heads| heads.queries.abs_diff(wish.queries) + heads.keys.abs_diff(wish.keys));
    found.into_iter()
}
