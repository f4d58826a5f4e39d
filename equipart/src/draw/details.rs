//! A layout in detail, for reports: its ranks, its schedule, and the memory of each rank by category.
use super::mesh;
use super::pipeline::{Timeline, svg};
use comm::{Axis, readable};
use parallel::step::simulate::CellTimes;
use parallel::{Error, Result};
use run::event::{Observer, RunEvent, say, tell_table};
use run::price::{PriceRow, PriceRun};

/// The most ranks that are priced one by one.
const EACH: usize = 32;
/// The most cells of a schedule's picture.
const CELLS: usize = 4000;

/// Tells an observer the details of a priced step's layout.
///
/// # Errors
/// If the layout does not fit, or the observer fails.
pub fn tell(run: &PriceRun, observer: &Observer) -> Result<()> {
    let (layout, rows) = (&run.layout, run.prices_of_each(EACH)?);
    let held = |rank| {
        let known = rows.iter().find(|row: &&PriceRow| row.price.rank == rank);
        known.map_or_else(String::new, |row| readable(row.price.peak_bytes["total"] as u128))
    };
    if let Some(svg) = mesh::draw(layout, held) {
        let title = "Ranks of the layout, each with its place along the axes and its priced peak.";
        observer(&RunEvent::Picture { title, svg: &svg })?;
    }
    let (stages, pipeline) = (layout.size(Axis::Pp), layout.pipeline());
    let plan = pipeline.plan(stages, run.settings.microbatches);
    if stages > 1 && 3 * plan.all_chunks() * plan.slices * plan.microbatches <= CELLS {
        let times = CellTimes::new(1.0, 1.0, 1.0);
        let timeline = Timeline::of(pipeline.schedule, plan, &times, [usize::MAX; 2]).map_err(Error::new)?;
        let title = "Schedule of a step, with forwards, input and weight halves of backwards of equal time.";
        observer(&RunEvent::Picture { title, svg: &svg::draw(&timeline) })?;
    }
    let each = if layout.ranks() > EACH { "each kind of rank" } else { "each rank" };
    say(
        &format!("\nPriced peak memory of {each} in a training step, by category, each at its own time:"),
        observer,
    )?;
    tell_table(&rows, observer)
}
