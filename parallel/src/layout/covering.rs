//! A few layouts that together contain every pair of strategies that can be combined: pairs, not products.
//!
//! Source: Cohen et al., "The AETG system", §3, IEEE Transactions on Software Engineering 23(7), 1997.
use super::grammar::{Grammar, sized};
use super::{Layout, grammar_of_all};
use comm::Axis;
use kernels::Heads;
use layers::Shape;
use std::collections::BTreeSet;

/// Returns layouts of at most `max_ranks` ranks that together contain every pair of strategies, of all lists,
/// that can be combined.
#[must_use]
pub fn covering(max_ranks: usize) -> Vec<Layout> {
    let fits = |layout: &Layout| {
        let n = layout.ranks();
        let shape = Shape { heads: Heads::new(n, n, 2), hidden: n, ..Shape::LLAMA };
        layout.conflict(shape).is_none() && layout.pipeline().fits(&shape.into(), layout.rests()).is_ok()
    };
    of(grammar_of_all(), max_ranks, &fits)
}

/// Greedy: each layout begins with a pair that no layout has yet, and adds the strategy that contributes most
/// other such pairs.
pub(super) fn of(list: Grammar, max_ranks: usize, fits: &dyn Fn(&Layout) -> bool) -> Vec<Layout> {
    let layout = |all: &[usize]| {
        let layout = joint(list, all)?;
        let has = list.taken(&layout);
        (layout.ranks() <= max_ranks && all.iter().all(|i| has.contains(i)) && fits(&layout))
            .then_some(layout)
    };
    let n = list.0.len();
    let mut open: Vec<[usize; 2]> = (0..n).flat_map(|i| (i..n).map(move |j| [i, j])).collect();
    open.retain(|pair| layout(pair).is_some());
    let mut found = Vec::new();
    while let Some(&first) = open.first() {
        let mut all = first.to_vec();
        loop {
            let met = |all: &[usize]| {
                let has = layout(all).map_or_else(Vec::new, |layout| list.taken(&layout));
                open.iter().filter(|pair| pair.iter().all(|i| has.contains(i))).count()
            };
            let more = (0..n).map(|i| [&all[..], &[i]].concat()).max_by_key(|more| met(more));
            match more.filter(|more| met(more) > met(&all)) {
                Some(more) => all = more,
                None => break,
            }
        }
        let layout = layout(&all).expect("a pair that can meet, and what goes with it");
        let has = list.taken(&layout);
        open.retain(|pair| !pair.iter().all(|i| has.contains(i)));
        found.push(layout);
    }
    found
}

/// Returns the layout of these strategies, with two ranks along each of their axes.
fn joint(list: Grammar, all: &[usize]) -> Option<Layout> {
    let of = |axis: &Axis| all.iter().any(|&i| list.0[i].axis == Some(*axis));
    let sizes: Vec<_> = list.axes().into_iter().filter(of).map(|axis| (axis, 2)).collect();
    let named: BTreeSet<_> = all.iter().filter(|i| list.0[**i].is_named()).collect();
    named.into_iter().try_fold(sized(&sizes).ok()?, |layout, &i| list.with(layout, &list.0[i].method()).ok())
}
