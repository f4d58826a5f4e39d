//! A measured step: a row for each rank from left to right, coloured by what it does, hatched while it waits.
use crate::picture::{HATCH, INK, MUTED, Picture, WAITS, round_numbers, shade};
use comm::{Event, TimeUse, TraceRun};
use std::time::Duration;
use tensor::KernelKind;

/// Sizes, in user units.
const LEFT: f64 = 76.0;
const WIDE: usize = 1100;
const ROW: f64 = 30.0;
const BOX: f64 = 22.0;
const TOP: f64 = 60.0;
/// The most ranks of a picture.
const MOST: usize = 64;
/// The most numbers of the axis.
const NUMBERS: f64 = 10.0;

/// Uses of a rank's time, in the order of the legend: words and colour.
const USES: [(&str, f64); 4] =
    [("products and attention", 0.6), ("other kernels", 0.42), ("between kernels", 0.15), ("calls", 0.04)];
/// Index of calls, and of waits, which come after all others.
const CALLS: usize = 3;
const WAIT: usize = 4;

fn use_of(what: &TimeUse) -> Option<usize> {
    Some(match what {
        TimeUse::Kernel { kind: KernelKind::Product | KernelKind::Attention, .. } => 0,
        TimeUse::Kernel { .. } => 1,
        TimeUse::Compute | TimeUse::Layer { .. } => 2,
        TimeUse::Call(_) => CALLS,
        TimeUse::Wait => WAIT,
        TimeUse::Span(_) | TimeUse::Start(_) => return None,
    })
}

/// The last step that every rank has, from its first beginning to its last end.
fn step(run: &TraceRun) -> Option<(&str, [Duration; 2])> {
    let steps = |events: &'_ [Event]| -> Vec<_> {
        let name = |event: &Event| match &event.what {
            TimeUse::Span(name) if name.starts_with(parallel::STEP) => Some(name.clone()),
            _ => None,
        };
        events.iter().filter_map(|event| Some((name(event)?, event.from, event.to))).collect()
    };
    let all: Vec<Vec<(String, Duration, Duration)>> = run.ranks.iter().map(|events| steps(events)).collect();
    let name = all.first()?.last()?.0.clone();
    let last = |steps: &Vec<(String, Duration, Duration)>| {
        steps.iter().rev().find(|(of, ..)| *of == name).map(|(_, from, to)| (*from, *to))
    };
    let ends: Vec<_> = all.iter().map(last).collect::<Option<_>>()?;
    let known = run.ranks[0].iter().find_map(|event| match &event.what {
        TimeUse::Span(of) if *of == name => Some(&**of),
        _ => None,
    });
    Some((known?, [ends.iter().map(|(from, _)| *from).min()?, ends.iter().map(|(_, to)| *to).max()?]))
}

/// Returns the picture of a run's last step as the text of an SVG file; nothing if it has no step, or more
/// ranks than a picture has.
#[must_use]
pub fn draw(run: &TraceRun) -> Option<String> {
    let (name, [from, to]) = step(run)?;
    let ranks = run.ranks.len();
    let span = to.saturating_sub(from).as_secs_f64();
    if ranks > MOST || span <= 0.0 {
        return None;
    }
    let bottom = TOP + ranks as f64 * ROW;
    let right = LEFT + WIDE as f64;
    let mut picture = Picture::new([right + 24.0, bottom + 70.0], &format!("{name} of {}", run.name), &[]);
    picture.add(HATCH);
    for (rank, events) in run.ranks.iter().enumerate() {
        let y = TOP + rank as f64 * ROW;
        picture.text([LEFT - 16.0, y + BOX / 2.0 + 4.0], "end", INK, &format!("rank {rank}"));
        for (of, columns) in stretches(events, from, span) {
            let fill = USES.get(of).map_or(WAITS.into(), |(_, hue)| shade(*hue, 0.62));
            picture.rect([LEFT + columns.start as f64, y, columns.len() as f64, BOX], &fill);
        }
    }
    for ms in round_numbers([0.0, 1e3 * span], 1e3 * span / NUMBERS) {
        picture.upright(LEFT + ms / (1e3 * span) * WIDE as f64, [TOP, bottom], &ms.to_string());
    }
    picture.text([right, bottom + 32.0], "end", MUTED, "ms");
    let mut x = LEFT;
    for (words, hue) in USES {
        x = picture.key([x, bottom + 42.0], &shade(hue, 0.62), "", words);
    }
    picture.key([x, bottom + 42.0], WAITS, "", "waits for others");
    Some(picture.file())
}

/// Columns of the picture in which a rank does the same: what the innermost event at their middle does.
fn stretches(events: &[Event], from: Duration, span: f64) -> Vec<(usize, std::ops::Range<usize>)> {
    let mut columns = vec![None; WIDE];
    let column = |time: Duration| (time.saturating_sub(from).as_secs_f64() / span * WIDE as f64 - 0.5).ceil();
    for event in events.iter().filter(|event| event.to > from) {
        let Some(of) = use_of(&event.what) else { continue };
        let ends = [event.from, event.to].map(|time| column(time).clamp(0.0, WIDE as f64) as usize);
        columns[ends[0]..ends[1]].fill(Some(of));
    }
    let mut stretches: Vec<(usize, std::ops::Range<usize>)> = Vec::new();
    for (at, of) in columns.into_iter().enumerate().filter_map(|(at, of)| Some((at, of?))) {
        match stretches.last_mut() {
            Some((last, columns)) if *last == of && columns.end == at => columns.end = at + 1,
            _ => stretches.push((of, at..at + 1)),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: TimeUse, from: u64, to: u64) -> Event {
        Event { what, from: Duration::from_millis(from), to: Duration::from_millis(to) }
    }

    /// Kills: another step, an outer event that hides an inner one, a rank without its waits, a step that not
    /// every rank has.
    #[test]
    fn the_last_step_of_all_ranks_is_drawn() {
        let span = |n: usize, from, to| event(TimeUse::Span(format!("step {n}")), from, to);
        let rank = vec![
            span(1, 0, 100),
            event(TimeUse::Compute, 0, 100),
            span(2, 100, 211),
            event(TimeUse::Compute, 100, 211),
            event(TimeUse::Wait, 110, 210),
        ];
        let run = TraceRun { name: "training under dp=2".into(), ranks: vec![rank.clone(), rank] };
        let (name, ends) = step(&run).unwrap();
        assert_eq!((name, ends.map(|end| end.as_millis())), ("step 2", [100, 211]));
        let parts = stretches(&run.ranks[0], ends[0], 0.11);
        assert_eq!(parts, [(2, 0..100), (WAIT, 100..1100)]);
        let svg = draw(&run).unwrap();
        assert!(svg.contains("step 2 of training under dp=2") && svg.matches(WAITS).count() == 3, "{svg}");
        let short = TraceRun { ranks: vec![run.ranks[0].clone(), vec![span(1, 0, 100)]], ..run };
        assert!(draw(&short).is_none());
    }
}
