//! Versions of weights that cells read, and that a rank holds.
//!
//! ```text
//! rank 0 of 3    F0@0 F1@0 F2@0  B0@0 U0  F3@1 B1@0 U1  F4@2 ..      holds 0; 0 1; 0 1 2; 1 2 3; ..
//! ```
//!
//! An update makes the next version. Versions before the one that the microbatch after the updated one reads
//! are then dropped: microbatches enter in order, so none reads them again.
use crate::step::cell::{Cell, PassKind, Plan, Task};
use crate::step::schedule::Schedule;

impl Plan {
    /// Returns the oldest version of its weights that a chunk still needs after the update of a microbatch.
    pub(crate) fn oldest(&self, schedule: &dyn Schedule, updated: Task) -> usize {
        let next = Task { microbatch: updated.microbatch + 1, ..updated };
        schedule.version(Cell { act: PassKind::F, of: next }, self)
    }
}

/// Checks that every cell reads a version that is there, a backward that of its forward, and that an update
/// has the gradient of one microbatch. Returns the most versions that each rank holds.
///
/// # Errors
/// One sentence on the first cell that is wrong.
pub(super) fn held(schedule: &dyn Schedule, plan: &Plan, rows: &[Vec<Cell>]) -> Result<Vec<usize>, String> {
    if schedule.updates_each() && plan.chunks * plan.slices > 1 {
        let Plan { chunks, slices, .. } = plan;
        return Err(format!(
            "it updates weights after each microbatch, with {chunks} chunks on a rank and {slices} slices of a \
             sequence; wanted one of each"
        ));
    }
    rows.iter().map(|row| held_by(schedule, plan, row)).collect()
}

fn held_by(schedule: &dyn Schedule, plan: &Plan, row: &[Cell]) -> Result<usize, String> {
    let (mut latest, mut oldest, mut most, mut added) = (0, 0, 1, Vec::new());
    for cell in row {
        let read = schedule.version(*cell, plan);
        let microbatch = cell.of.microbatch as usize;
        if cell.act.does(PassKind::U) {
            if microbatch != latest {
                return Err(format!("{cell} is update {latest} of its chunk; wanted microbatches in order"));
            }
            if added != [microbatch] {
                return Err(format!(
                    "{cell} has gradients of microbatches {added:?}; wanted one microbatch in an update"
                ));
            }
            added.clear();
            latest += 1;
            oldest = plan.oldest(schedule, cell.of).min(latest);
            most = most.max(latest - oldest + 1);
            continue;
        }
        if !(oldest..=latest).contains(&read) {
            return Err(format!(
                "{cell} reads version {read} of its weights, but versions {oldest} to {latest} are there"
            ));
        }
        let forward = Cell { act: PassKind::F, ..*cell };
        let wanted = schedule.version(forward, plan);
        if read != wanted {
            return Err(format!("{cell} reads version {read} of its weights, but {forward} reads {wanted}"));
        }
        added.extend(cell.act.adds().then_some(microbatch));
    }
    Ok(most)
}
