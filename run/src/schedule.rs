//! Schedules of pipelines: the memory of each rank in a step, and stages with as many ranks as they need.
pub mod partition;

use crate::device::DeviceName;
use crate::in_device;
use layers::Design;
use ops::ADAMW;
use parallel::dtype::DtypeName;
use parallel::pipeline::table::Table;
use parallel::price::MoveCosts;
use parallel::step::Plan;
use parallel::{Batch, Layout, Pipeline, Result, Scheme, Sequence};

/// Returns the peak bytes of each rank in training with `AdamW`, one sequence of `seq` tokens a microbatch. A
/// table from a file has its own number of microbatches.
///
/// # Errors
/// If the schedule does not fit the model.
pub fn peaks(
    (design, seq): (&Design, usize),
    pipeline: Pipeline,
    plan: &Plan,
    table: Option<&'static Table>,
    (device, number): (DeviceName, DtypeName),
) -> Result<Vec<usize>> {
    let layout: Layout =
        if plan.ranks == 1 { Layout::UNSPLIT } else { format!("pp={}", plan.ranks).parse()? };
    let layout = table.map_or(Ok(layout), |table| layout.scheduled(table))?;
    // enough microbatches to have every kind of cell
    let few = plan.microbatches.min((2 * plan.ranks + 1).max(3));
    let few = table.map_or(few, |_| plan.microbatches);
    let batch = Batch::new(vec![Sequence::new(vec![0; seq], vec![0; seq]); few], few)?;
    let optimizer = (ADAMW, pipeline.clip(Some(1.0)));
    in_device!((device, number), D => {
        let scheme = Scheme::<D> { schedule: Some(pipeline), ..(&layout).into() };
        scheme.fits(design)?;
        let costs = |rank| MoveCosts::new((scheme, rank), design, optimizer, &batch, (None, || ()));
        (0..plan.ranks).map(|rank| costs(rank)?.peak(pipeline.schedule, plan)).collect()
    })
}
