//! Methods of attention over shared tokens, side by side: traffic of a step along their axis, and the links
//! over which each is the cheapest.
//!
//! ```text
//! time over a link = n·α + bytes/β,   in bytes: n·(α·β) + bytes      n: latencies that follow each other
//! ```
//! So which one is cheapest depends on `α·β` alone. Compute that hides traffic is left out.
use super::cost::Cost;
use crate::event::Observer;
use algorithms::Link;
use comm::{Axes, Axis, Op, Traffic};
use layers::Choice;
use ops::TokenShards;
use parallel::{Layout, Result, strategies};
use std::cmp::Ordering;
use std::time::Duration;
use tensor::readable;

/// One method of attention under a layout.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Method {
    /// The layout.
    pub layout: String,
    /// Latencies that follow each other in a step.
    pub latencies: usize,
    /// Bytes that the busiest rank sends in a step.
    pub bytes: usize,
    /// Largest peak of a rank.
    pub peak_bytes: usize,
    /// Range of latency times bandwidth, in bytes, in which it is the cheapest: from, and to if it ends.
    pub cheapest: Option<(usize, Option<usize>)>,
}

/// Returns all methods that fit a layout whose ranks share tokens; `cost` prices a rank.
pub(super) fn all(
    layout: &Layout,
    fits: impl Fn(&Layout) -> bool,
    cost: impl Fn(&Layout, usize) -> Result<Cost>,
) -> Result<Vec<Method>> {
    let axis = TokenShards::CONTEXT;
    if layout.size(axis) == 1 {
        return Ok(Vec::new());
    }
    // Ranks along the other axes have the same traffic: one along each is enough.
    let is_first = |rank: &usize| {
        let coordinates = layout.ghost(*rank).map(|mesh| mesh.coordinates());
        coordinates.is_ok_and(|all| all.iter().all(|(other, at)| *other == axis || *at == 0))
    };
    let ranks: Vec<usize> = (0..layout.ranks()).filter(is_first).collect();
    let listed = strategies::all().iter().filter(|about| about.choice == Choice::Core);
    let others = listed.filter_map(|about| layout.with_instead(about).ok()).filter(fits);
    let mut layouts = vec![*layout];
    layouts.extend(others.filter(|other| other != layout));
    let mut methods =
        layouts.iter().map(|layout| method(layout, axis, &ranks, &cost)).collect::<Result<Vec<_>>>()?;
    let costs: Vec<_> = methods.iter().map(|method| (method.latencies, method.bytes)).collect();
    for (i, method) in methods.iter_mut().enumerate() {
        method.cheapest = cheapest(&costs, i);
    }
    Ok(methods)
}

fn method(
    layout: &Layout,
    axis: Axis,
    ranks: &[usize],
    cost: impl Fn(&Layout, usize) -> Result<Cost>,
) -> Result<Method> {
    let waits = Link::new(Duration::from_secs(1), f64::MAX).expect("a link");
    let core = layout.strategies().into_iter().find(|about| about.choice == Choice::Core);
    let block = core.and_then(|core| layout.number(core)); // ranks that exchange heads
    let [mut latencies, mut bytes, mut peak_bytes] = [0; 3];
    for rank in ranks {
        let Cost { peaks, traffic, .. } = cost(layout, *rank)?;
        // sums of gradients and of the loss are the same under all methods
        let calls = traffic.iter().filter(|(axes, op, _)| *axes == Axes::from(axis) && *op != Op::AllReduce);
        let calls: Vec<(Op, Traffic)> = calls.map(|(_, op, traffic)| (op, traffic)).collect();
        let time = |(op, traffic): &(Op, Traffic)| {
            let group =
                if *op == Op::AllToAll { block.unwrap_or(layout.size(axis)) } else { layout.size(axis) };
            traffic.time(&waits, *op, group).as_secs()
        };
        latencies = latencies.max(calls.iter().map(time).sum::<u64>() as usize);
        bytes = bytes.max(calls.iter().map(|(_, traffic)| traffic.bytes).sum());
        peak_bytes = peak_bytes.max(peaks.total);
    }
    Ok(Method { layout: layout.to_string(), latencies, bytes, peak_bytes, cheapest: None })
}

/// Returns the range of `α·β` in which method `i` has the least `latencies·αβ + bytes`; of equal ones, the
/// first has it.
fn cheapest(costs: &[(usize, usize)], i: usize) -> Option<(usize, Option<usize>)> {
    let ((latencies, bytes), mut from, mut to) = (costs[i], 0, usize::MAX);
    for (j, &(other, more)) in costs.iter().enumerate().filter(|(j, _)| *j != i) {
        let equal = || more.abs_diff(bytes) / latencies.abs_diff(other);
        match latencies.cmp(&other) {
            Ordering::Equal if more < bytes || more == bytes && j < i => return None,
            Ordering::Greater if more <= bytes => return None,
            Ordering::Greater => to = to.min(equal()),
            Ordering::Less if more < bytes => from = from.max(equal()),
            _ => {}
        }
    }
    (from < to).then_some((from, (to < usize::MAX).then_some(to)))
}

/// Tells the methods as a table for people, if there are any.
pub(super) fn tell(methods: &[Method], observer: &Observer) -> Result<()> {
    if methods.is_empty() {
        return Ok(());
    }
    let over = |method: &Method| match method.cheapest {
        None => "no link".to_string(),
        Some((0, None)) => "all links".into(),
        Some((0, Some(to))) => format!("below {}", readable(to as u128)),
        Some((from, None)) => format!("from {}", readable(from as u128)),
        Some((from, Some(to))) => format!("{} to {}", readable(from as u128), readable(to as u128)),
    };
    let row = |method: &Method| {
        let [bytes, peak] = [method.bytes, method.peak_bytes].map(|n| readable(n as u128));
        vec![method.layout.clone(), method.latencies.to_string(), bytes, peak, over(method)]
    };
    observer.say("\nAttention over shared tokens, on the busiest rank in a step. A method is cheapest over links whose latency \
         times\nbandwidth is in its range (5 us and 50 GB/s make 250 kB); a ring also hides its messages behind \
         compute:\n")?;
    observer.table(&["layout", "latencies", "sends", "peak", "cheapest"], methods.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::cheapest;

    /// Kills: a method that is worse in both and still the cheapest somewhere, a range that is open on the
    /// wrong side, equal methods of which both or none is the cheapest.
    #[test]
    fn each_link_has_one_cheapest_method() {
        // few bytes in many calls; many bytes in few; between the two; worse than it; as good as the first
        let costs = [(90, 1000), (10, 9000), (50, 2000), (50, 2500), (90, 1000)];
        let of = |i| cheapest(&costs, i);
        assert_eq!([of(0), of(2), of(1)], [Some((0, Some(25))), Some((25, Some(175))), Some((175, None))]);
        assert_eq!([of(3), of(4)], [None, None]);
        for x in [0, 10, 24, 26, 100, 174, 176, 1000] {
            let cost = |&(latencies, bytes): &(usize, usize)| latencies * x + bytes;
            let is_in = |i: &usize| of(*i).is_some_and(|(from, to)| from <= x && to.is_none_or(|to| x < to));
            let [best] = (0..5).filter(is_in).collect::<Vec<_>>()[..] else { panic!("at {x}") };
            assert_eq!(cost(&costs[best]), costs.iter().map(cost).min().unwrap(), "at {x}");
        }
    }
}
