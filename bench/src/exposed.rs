//! Exposed communication time of a training step: the extra time of a step over slow links, beside the price
//! of the links.
//!
//! ```text
//! exposed = step over the links − step without        ratio = exposed ÷ priced
//! priced  = Σ over all calls of a step along linked axes of  steps·α + bytes/β
//! ```
//!
//! The price is that of calls in sequence without computation: at ratio 1 a step hides nothing. Steps over
//! the links and without them take turns, and the best of each counts.
use super::model::{seconds, traffic};
use super::scale::Scale;
use crate::pass::BenchPass;
use algorithms::Link;
use comm::{Axes, Traffic};
use parallel::dtype::RunDevice;
use parallel::{Layout, Network, Result};
use serde::Serialize;
use std::time::Duration;

/// Exposed communication time of a training step, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exposed {
    /// A step over the links.
    pub linked_ms: f64,
    /// A step without the links.
    pub unlinked_ms: f64,
    /// Difference of the two.
    pub exposed_ms: f64,
    /// Time of the links for all calls of a step in sequence, on the rank with the largest.
    pub priced_ms: f64,
    /// Exposed fraction of the price: 1 is all of it.
    pub ratio: f64,
}

/// Measures in `turns` turns; `None` over a network without links.
pub(super) fn of<D: RunDevice>(
    layout: &Layout,
    network: &Network,
    (turns, scale): (usize, &Scale),
    watch: &dyn Fn(&str),
) -> Result<Option<Exposed>> {
    if network.links.is_empty() {
        return Ok(None);
    }
    let two = linked_and_not(network);
    let mut best = [f64::INFINITY; 2];
    for turn in 1..=turns {
        for ((best, network), what) in best.iter_mut().zip(&two).zip(["over the links", "without"]) {
            watch(&format!("training steps {what}, turn {turn} of {turns}"));
            *best = best.min(seconds::<D>(network, BenchPass::Step, layout, scale)?);
        }
    }
    let [linked, unlinked] = best;
    let priced = priced(layout, network, scale)?.as_secs_f64();
    Ok(Some(Exposed {
        linked_ms: linked * 1e3,
        unlinked_ms: unlinked * 1e3,
        exposed_ms: (linked - unlinked) * 1e3,
        priced_ms: priced * 1e3,
        ratio: (linked - unlinked) / priced,
    }))
}

/// Networks of the two kinds of step. Neither has a trace, which would cost time.
fn linked_and_not(network: &Network) -> [Network; 2] {
    let linked = network.untraced();
    [linked.clone(), Network { links: Vec::new(), ..linked }]
}

/// Time of the links for all calls of a step that use them, in sequence.
fn priced(layout: &Layout, network: &Network, scale: &Scale) -> Result<Duration> {
    let mut most = Duration::ZERO;
    for rank in 0..layout.ranks() {
        let time = |(axes, op, traffic): (Axes, _, Traffic)| {
            let ranks = Axes::iter(axes).map(|axis| layout.size(axis)).product();
            link(network, axes).map(|link| traffic.time(&link, op, ranks))
        };
        most = most.max(traffic(layout, rank, scale)?.iter().filter_map(time).sum());
    }
    Ok(most)
}

/// Link between ranks that differ along these axes: the slowest of the axes' links, if there are any.
fn link(network: &Network, axes: Axes) -> Option<Link> {
    network.links.iter().filter(|(axis, _)| axes.contains(*axis)).map(|(_, link)| *link).reduce(Link::slower)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Axis;
    use tensor::Cpu;

    /// Kills: a price of one axis alone, calls that pay no latency, links that are ignored, a measurement of
    /// a network without links.
    #[test]
    fn the_price_is_that_of_the_calls_over_the_links() {
        let (layout, scale): (Layout, _) = ("dp=2,tp=2".parse().unwrap(), Scale::TINY);
        let over = |links: &[(Axis, &str)]| Network {
            links: links.iter().map(|(axis, link)| (*axis, link.parse().unwrap())).collect(),
            ..Network::default()
        };
        let price = |links: &[_]| priced(&layout, &over(links), &scale).unwrap();
        let calls = |axis: Axis| -> (usize, usize) {
            let traffic = traffic(&layout, 0, &scale).unwrap();
            let own = traffic.iter().filter(|(axes, ..)| *axes == Axes::from(axis));
            own.fold((0, 0), |(calls, bytes), (.., t)| (calls + t.calls, bytes + t.bytes))
        };
        let (calls, bytes) = calls(Axis::Dp);
        assert_eq!(calls, 5, "head, two blocks, embedding, loss");
        let dp = price(&[(Axis::Dp, "1s,1kB/s")]);
        assert_eq!(dp, Duration::from_secs(2 * calls as u64) + Duration::from_millis(bytes as u64));
        let both = price(&[(Axis::Dp, "1s,1kB/s"), (Axis::Tp, "1s,1kB/s")]);
        assert!(both > dp + Duration::from_secs(8), "{both:?}");
        assert_eq!(price(&[]), Duration::ZERO);
        assert_eq!(of::<Cpu<f32>>(&layout, &over(&[]), (2, &scale), &|_| ()).unwrap(), None);
    }

    /// A lower bound: a sum over such a link takes at least 10 ms, and a step waits for one. Kills: a link
    /// that neither step has, or both, a trace that costs time, a ratio upside down, turns that are skipped.
    #[test]
    fn a_step_of_nothing_shows_the_latency_of_its_last_calls() {
        let links = vec![(Axis::Dp, "5ms,1GB/s".parse().unwrap())];
        let network = Network { links, ..Network::default() };
        let [linked, unlinked] = linked_and_not(&network.clone().profiling(1));
        assert_eq!((linked.links, unlinked.links), (network.links.clone(), Vec::new()));
        assert!(linked.trace.is_none() && unlinked.trace.is_none());
        let (layout, traffic) = ("dp=2".parse().unwrap(), std::cell::RefCell::new(Vec::new()));
        let watch = |what: &str| traffic.borrow_mut().push(what.to_string());
        let of = of::<Cpu<f32>>(&layout, &network, (2, &Scale::TINY), &watch).unwrap().unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(of.linked_ms >= 10.0 && near(of.exposed_ms, of.linked_ms - of.unlinked_ms), "{of:?}");
        assert!(near(of.ratio * of.priced_ms, of.exposed_ms), "{of:?}");
        let traffic = traffic.take();
        assert_eq!(
            (traffic.len(), &*traffic[0], &*traffic[3]),
            (4, "training steps over the links, turn 1 of 2", "training steps without, turn 2 of 2")
        );
    }
}
