//! Plan of a run's steps beside the measured events: the simulator places the cells, with the average time of
//! each kind of cell in that step. A step's plan begins with its first cell.
use comm::{Axis, Event, TimeUse, TraceRun};
use parallel::Layout;
use parallel::step::simulate::{CellTimes, simulate};
use parallel::step::{Cell, PassKind, Plan};
use std::time::Duration;

/// A cell of a plan: name, start, end.
type Planned = (String, Duration, Duration);

/// Returns the plan of each rank; `None` if the run is not a pipeline. Steps that did not end have no plan.
pub(super) fn plans(run: &TraceRun) -> Option<Vec<Vec<Planned>>> {
    let layout: Layout = run.name.rsplit_once(" under ")?.1.parse().ok()?;
    let pipeline = layout.pipeline();
    let ranks = layout.size(Axis::Pp);
    if ranks == 1 {
        return None;
    }
    let stage = |rank| Some(layout.ghost(rank).ok()?.group(Axis::Pp).rank());
    let stages = (0..run.ranks.len()).map(stage).collect::<Option<Vec<_>>>()?;
    let steps: Vec<Vec<Vec<&Event>>> = run.ranks.iter().map(|events| steps(events)).collect();
    let mut plans = vec![Vec::new(); stages.len()];
    let mut free = Duration::ZERO;
    for step in 0..steps.iter().map(Vec::len).min()? {
        let cells: Vec<&[&Event]> = steps.iter().map(|steps| &steps[step][..]).collect();
        let forwards = cells[0].iter().filter(|cell| name(cell).starts_with(PassKind::F.name)).count();
        let one = pipeline.plan(ranks, 1);
        let plan = pipeline.plan(ranks, (forwards / (one.chunks * one.slices)).max(1));
        let Some((times, begun)) =
            measured(&plan, &cells, |rank| pipeline.schedule.row(stages[rank], &plan).collect())
        else {
            continue;
        };
        let begun = free.max(begun);
        let mut end = Duration::ZERO;
        let mut see = |stage, cell: Cell, from, to| {
            let instant = |time| begun + Duration::from_nanos(time as u64);
            end = end.max(instant(to));
            for (_, plans) in stages.iter().zip(&mut plans).filter(|(of, _)| **of == stage) {
                plans.push((cell.within(&plan).to_string(), instant(from), instant(to)));
            }
        };
        simulate(pipeline.schedule, &plan, &times, &mut see).ok()?;
        free = end;
    }
    Some(plans)
}

/// Average times of the cells in nanoseconds, and the start of the first; `None` if ranks ran other cells
/// than those of their rows.
fn measured(
    plan: &Plan,
    cells: &[&[&Event]],
    row: impl Fn(usize) -> Vec<Cell>,
) -> Option<(CellTimes, Duration)> {
    let mut took = Vec::new();
    for (rank, cells) in cells.iter().enumerate() {
        let row = row(rank);
        let same = |(cell, event): (&Cell, &&Event)| cell.within(plan).to_string() == name(event);
        if row.len() != cells.len() || !row.iter().zip(*cells).all(same) {
            return None;
        }
        took.extend(row.iter().zip(*cells).map(|(cell, event)| (cell.act, event.took().as_nanos() as f64)));
    }
    let begun = cells.iter().filter_map(|cells| Some(cells.first()?.from)).min()?;
    Some((CellTimes::measured(plan, took), begun))
}

fn name(event: &Event) -> &str {
    if let TimeUse::Span(name) = &event.what { name } else { "" }
}

/// Cells of each step.
fn steps(events: &[Event]) -> Vec<Vec<&Event>> {
    let spans: Vec<_> = events.iter().filter(|event| matches!(event.what, TimeUse::Span(_))).collect();
    let cell = |event: &&Event| PassKind::ALL[..4].iter().any(|act| name(event).starts_with(act.name));
    let steps = spans.split(|event| name(event).starts_with(parallel::STEP)).skip(1);
    steps.map(|step| step.iter().copied().filter(cell).collect()).collect()
}
