//! Steps of a trace, and the event of each of their nanoseconds.
use super::{LayerTime, Totals, WorkKind};
use comm::{Event, TimeUse};
use std::collections::{BTreeMap, BTreeSet};
use tensor::Direction;

/// The profiled steps, each with all events within it, in trace order.
pub(super) fn steps(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    let step = |(at, event): (usize, &Event)| {
        let TimeUse::Span(name) = &event.what else { return None };
        let inside = |other: &&Event| other.from >= event.from && other.to <= event.to;
        let step = &events[at..at + events[at..].iter().take_while(inside).count()];
        let reported = step.iter().any(|event| matches!(event.what, TimeUse::Kernel { .. }));
        (name.starts_with(parallel::STEP) && reported).then_some(step)
    };
    events.iter().enumerate().filter_map(step)
}

/// Owner of a time: the innermost layer, or, outside of layers, a part of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeOwner<'a> {
    name: &'a str,
    pass: Option<Direction>,
}

/// An event that has not ended yet.
struct Open<'a> {
    event: &'a Event,
    owner: TimeOwner<'a>,
    own: Totals, // its own so far, without the events within it
}

/// Reports the owner, the kind and the own time of every event of a step. Time of a layer or of a part of the
/// step outside of kernels and calls is `Other`.
pub(super) fn spent<'a>(step: &'a [Event], mut tell: impl FnMut(TimeOwner<'a>, WorkKind, Totals)) {
    let mut open: Vec<Open> = Vec::new();
    for event in step {
        while let Some(done) = open.pop_if(|last| last.event.to < event.to) {
            tell(done.owner, kind(&done.event.what), done.own);
        }
        let counts = !matches!(event.what, TimeUse::Compute | TimeUse::Start(_));
        let time = event.took();
        let mut totals = Totals { time, calls: usize::from(counts), ..Totals::default() };
        if let TimeUse::Kernel { flops, .. } = event.what
            && flops > 0
        {
            (totals.flops, totals.computing) = (flops, time);
        }
        let owner = match (&event.what, open.last_mut()) {
            (TimeUse::Layer { name, pass }, _) => TimeOwner { name, pass: Some(*pass) },
            (TimeUse::Span(name), _) => TimeOwner { name, pass: None },
            (_, within) => within.expect("a step contains all").owner,
        };
        // so owners are reported in the order of their beginnings
        tell(owner, WorkKind::Other, Totals::default());
        if let Some(within) = open.last_mut() {
            within.own.time -= time;
        }
        open.push(Open { event, owner, own: totals });
    }
    while let Some(done) = open.pop() {
        tell(done.owner, kind(&done.event.what), done.own);
    }
}

fn kind(what: &TimeUse) -> WorkKind {
    match what {
        TimeUse::Kernel { kind, .. } => WorkKind::On(*kind),
        TimeUse::Call(_) | TimeUse::Start(_) => WorkKind::Collective,
        TimeUse::Wait => WorkKind::Wait,
        TimeUse::Layer { .. } | TimeUse::Span(_) | TimeUse::Compute => WorkKind::Other,
    }
}

/// Sums of layers, by name without numbers.
#[derive(Default)]
pub(super) struct Layers<'a> {
    rows: Vec<(LayerTime, BTreeSet<&'a str>)>,
    at: BTreeMap<(&'a str, Option<Direction>), usize>, // index of a layer's row
}

impl<'a> Layers<'a> {
    pub(super) fn add(&mut self, TimeOwner { name, pass }: TimeOwner<'a>, sum: &Totals) {
        let rows = &mut self.rows;
        let index = *self.at.entry((name, pass)).or_insert_with(|| {
            let name = folded(name);
            rows.iter().position(|(row, _)| (&row.name, row.pass) == (&name, pass)).unwrap_or_else(|| {
                rows.push((LayerTime { name, layers: 0, pass, sum: Totals::default() }, BTreeSet::new()));
                rows.len() - 1
            })
        });
        let (row, names) = &mut rows[index];
        names.insert(name);
        row.layers = if pass.is_some() { names.len() } else { 0 };
        row.sum.add(sum);
    }
    /// Returns the layers in forward order, each with its backward, then the parts of a step.
    pub(super) fn in_order(self) -> Vec<LayerTime> {
        let rows: Vec<_> = self.rows.into_iter().map(|(row, _)| row).collect();
        let first = |name: &str| rows.iter().position(|row| row.name == name);
        let mut ordered = rows.clone();
        ordered.sort_by_key(|row| (row.pass.is_none(), first(&row.name), row.pass));
        ordered
    }
}

/// Replaces each number in the name that stands alone by a star.
fn folded(name: &str) -> String {
    let star = |part: &str| {
        let word = part.trim_end_matches(['.', ' ']);
        let number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        if number { part.replace(word, "*") } else { part.to_string() }
    };
    name.split_inclusive(['.', ' ']).map(star).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: `norm1` and `norm2` in one row, a number that is kept.
    #[test]
    fn numbers_that_stand_alone_are_stars() {
        let names = ["blocks.12.norm1", "layers.0", "step 7", "optimizer", "head"];
        let expected = ["blocks.*.norm1", "layers.*", "step *", "optimizer", "head"];
        assert_eq!(names.map(folded), expected);
    }
}
