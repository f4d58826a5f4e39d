//! A layout in detail, for reports: its ranks, its schedule, and the memory of each rank by category.
use crate::mesh;
use crate::pipeline::{Timeline, svg};
use comm::Axis;
use parallel::dtype::DtypeName;
use parallel::step::simulate::CellTimes;
use parallel::{Error, Layout, Result};
use run::compare::{Comparison, LayoutRow};
use run::device::DeviceName;
use run::event::Observer;
use run::price::{PriceRow, PriceRun};
use tensor::readable;

/// The most ranks that are priced one by one.
const EACH: usize = 32;
/// The most cells of a schedule's picture.
const CELLS: usize = 4000;

/// Tells an observer the details of a priced step's layout.
///
/// # Errors
/// If the layout does not fit, or the observer fails.
pub fn tell(run: &PriceRun, observer: &Observer) -> Result<()> {
    let layout = &run.layout;
    let rows = run.prices_of_each(EACH)?;
    let held = |rank| {
        let known = rows.iter().find(|row: &&PriceRow| row.price.rank == rank);
        known.map_or_else(String::new, |row| readable(row.price.peak_bytes["total"] as u128))
    };
    ranks((layout, "priced"), held, observer)?;
    schedule(layout, run.settings.microbatches, observer)?;
    let each = if layout.ranks() > EACH { "each kind of rank" } else { "each rank" };
    let words =
        format!("Priced peak memory of {each} in a training step, by category, each at its own time:");
    observer.say(&words)?;
    observer.table_of(&rows)
}

/// Tells an observer a layout without a model: its ranks and its schedule.
///
/// # Errors
/// If the observer fails.
pub fn layout(layout: &Layout, observer: &Observer) -> Result<()> {
    if let Some(svg) = mesh::draw(layout, |_| String::new()) {
        let title = "Ranks of the layout, each with its place along the axes.";
        observer.picture(title, &svg)?;
    }
    schedule(layout, layout.usual_microbatches(), observer)
}

/// Tells an observer the ranks of a layout, with the peak of each.
fn ranks((layout, how): (&Layout, &str), held: impl Fn(usize) -> String, observer: &Observer) -> Result<()> {
    let Some(svg) = mesh::draw(layout, held) else { return Ok(()) };
    let title = format!("Ranks of the layout, each with its place along the axes and its {how} peak.");
    observer.picture(&title, &svg)
}

/// Tells an observer the details of each layout of a comparison, with the measured peaks of its ranks.
///
/// # Errors
/// If the observer fails.
pub fn compared(
    of: &Comparison,
    (device, number): (DeviceName, DtypeName),
    rows: &[LayoutRow],
    observer: &Observer,
) -> Result<()> {
    let mut layouts: Vec<Layout> = Vec::new();
    for layout in rows.iter().filter_map(|row| row.layout.parse().ok()) {
        if layout != Layout::UNSPLIT && !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    for layout in layouts {
        let Some(row) = rows.iter().rfind(|row| row.layout == layout.to_string()) else { continue };
        observer.say("")?;
        observer.say(&row.name)?;
        let peak = |rank: usize| row.peak_bytes.total.get(rank).map_or(0, |bytes| *bytes as u128);
        ranks((&layout, "measured"), |rank| readable(peak(rank)), observer)?;
        if of.learns {
            let run = of.step(&layout, (device, number))?;
            schedule(&layout, run.settings.microbatches, observer)?;
            observer.say("Priced peak memory of a training step, by category, each at its own time:")?;
            observer.table_of(&run.prices_of_each(EACH)?)?;
        }
    }
    Ok(())
}

/// Tells an observer the schedule of a step, if it is a pipeline with few cells.
fn schedule(layout: &Layout, microbatches: usize, observer: &Observer) -> Result<()> {
    let stages = layout.size(Axis::Pp);
    let pipeline = layout.pipeline();
    let plan = pipeline.plan(stages, microbatches);
    if stages > 1 && 3 * plan.all_chunks() * plan.slices * plan.microbatches <= CELLS {
        let times = CellTimes::new(1.0, 1.0, 1.0);
        let timeline = Timeline::of(pipeline.schedule, plan, &times, [usize::MAX; 2]).map_err(Error::new)?;
        let title = "Schedule of a step, with forwards, input and weight halves of backwards of equal time.";
        observer.picture(title, &svg::draw(&timeline))?;
    }
    Ok(())
}
