//! Actions of every rank, derived from the cells of a schedule.
use super::cell::{Action, Cell, PassKind, Plan};
use super::schedule::Schedule;
use super::simulate::{CellTimes, simulate};
use std::mem::replace;

/// Lowers a schedule to the actions of each rank in a training step, or in its forwards alone if not
/// `learns`. Passing data between two chunks of one rank sends nothing.
///
/// A cell takes one tick: the next tick of its rank in which everything that the cell needs is there. The
/// outputs of a tick's cells are sent after these cells, and received in the same tick: after the receiver's
/// own cell of the tick, or after its last cell before it. So messages of earlier ticks wait for nothing that
/// comes later, and no rank needs a buffer for its sends.
///
/// # Errors
/// If ranks wait for each other, or a rank waits for something that it does later.
pub fn lowered(schedule: &dyn Schedule, plan: &Plan, learns: bool) -> Result<Vec<Vec<Action>>, String> {
    let mut cells = Vec::new();
    let mut see = |rank, cell: Cell, tick: f64, _| {
        if learns || cell.act.does(PassKind::F) {
            cells.push((tick as usize, rank, cell));
        }
    };
    simulate(schedule, plan, &CellTimes::ticks(plan), &mut see)?;
    cells.sort_unstable_by_key(|(tick, rank, _)| (*tick, *rank));
    let mut rows = vec![Vec::new(); plan.ranks];
    for tick in cells.chunk_by(|one, other| one.0 == other.0) {
        let mut messages = Vec::new();
        for &(_, rank, cell) in tick {
            rows[rank].push(Action::Run { cell, last: false, done: false });
            let given = cell
                .gives(plan)
                .map(|(what, of)| (rank, what, of, schedule.rank_of(of.chunk as usize, plan)));
            messages.extend(given.filter(|(from, .., to)| from != to));
        }
        let sends = messages.iter().map(|&(from, what, of, to)| (from, Action::Send(what, of, to)));
        let receives = messages.iter().map(|&(from, what, of, to)| (to, Action::Receive(what, of, from)));
        for (rank, step) in sends.chain(receives) {
            rows[rank].push(step);
        }
    }
    let ends = [Action::Complete, Action::Update].into_iter().filter(|_| learns && !schedule.updates_each());
    for row in &mut rows {
        mark(row, plan, schedule.updates_each());
        row.extend(ends.clone());
    }
    Ok(rows)
}

/// Marks the cells of a row after which nothing is added to the gradients of their chunk before the next
/// update, or a microbatch is finished.
fn mark(row: &mut [Action], plan: &Plan, updates_each: bool) {
    let [mut ended, mut there] = [plan.all_chunks(), plan.microbatches].map(|count| vec![false; count]);
    for step in row.iter_mut().rev() {
        if let Action::Run { cell: Cell { act, of }, last, done } = step {
            *last = act.adds() && (updates_each || !replace(&mut ended[of.chunk as usize], true));
            *done = !replace(&mut there[of.microbatch as usize], true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{gpipe::GPipe, zb_h2::ZbH2};
    use crate::step::Task;

    const PLAN: Plan = Plan { ranks: 3, chunks: 1, slices: 1, microbatches: 2 };

    fn written(steps: &[Action]) -> String {
        let word = |step: &Action| match step {
            Action::Run { cell, last, done } => {
                format!("{cell}{}{}", if *last { " last" } else { "" }, if *done { " done" } else { "" })
            }
            Action::Receive(payload, of, from) => format!("{} {} from {from}", payload.name(), of.microbatch),
            Action::Send(payload, of, to) => {
                format!("{} {} for {} to {to}", payload.name(), of.microbatch, of.chunk)
            }
            end => end.to_string(),
        };
        steps.iter().map(word).collect::<Vec<_>>().join("; ")
    }

    /// The table of the middle stage, lowered by hand. Kills: a send to oneself or into nowhere, a gradient
    /// sent forth, a chunk that is complete too early, a microbatch that is put away while it is needed.
    #[test]
    fn a_stage_receives_what_it_needs_and_sends_what_it_gives() {
        let middle = "activation 0 from 0; 1F0; activation 0 for 2 to 2; activation 1 from 0; 1F1; activation 1 for 2 to 2; \
                      gradient 0 from 2; 1B0 done; gradient 0 for 0 to 0; gradient 1 from 2; 1B1 last done; gradient 1 for 0 to 0; \
                      complete; update";
        let rows = lowered(&GPipe, &PLAN, true).unwrap();
        assert_eq!(written(&rows[1]), middle);
        let last = "activation 0 from 1; 2F0; activation 1 from 1; 2F1; 2B0 done; gradient 0 for 1 to 1; \
                    2B1 last done; gradient 1 for 1 to 1; complete; update";
        assert_eq!(written(&rows[2]), last);
        let forwards = written(&lowered(&GPipe, &PLAN, false).unwrap()[0]);
        assert_eq!(forwards, "0F0 done; activation 0 for 1 to 1; 0F1 done; activation 1 for 1 to 1");
    }

    /// ZB-H2 on two ranks: the first is three forwards ahead, and its fourth comes while the other still has
    /// three cells before the one that needs it. Kills: a receive that stands where its message is needed and
    /// not where it is sent, behind which two sends would wait for each other; one that stands before its
    /// receiver's cell of that tick.
    #[test]
    fn a_message_is_received_in_the_tick_in_which_it_is_sent() {
        let rows = lowered(&ZbH2, &Plan::whole(2, 4), true).unwrap();
        let last = "activation 0 from 0; 1F0; activation 1 from 0; 1I0; gradient 0 for 0 to 0; activation 2 from 0; 1F1; 1I1; \
                    gradient 1 for 0 to 0; 1F2; activation 3 from 0; 1I2; gradient 2 for 0 to 0; 1W0 done; 1F3; 1I3; \
                    gradient 3 for 0 to 0; 1W1 done; 1W2 done; 1W3 last done; complete; update";
        assert_eq!(written(&rows[1]), last);
    }

    /// Two chunks on one rank, and halves of a backward. Kills: sums that nobody waits for; a hand-over on
    /// one rank that is sent, a weight half that waits for a message, gradients that are complete with the
    /// input half.
    #[test]
    fn what_stays_on_a_rank_is_not_sent() {
        struct Folded;
        impl Schedule for Folded {
            fn about(&self) -> &'static layers::StrategyInfo {
                GPipe.about()
            }
            fn rank_of(&self, _: usize, _: &Plan) -> usize {
                0
            }
            fn row(&self, _: usize, _: &Plan) -> Box<dyn Iterator<Item = Cell>> {
                let cell = |(act, chunk)| Cell { act, of: Task::new(chunk, 0) };
                let cells = [
                    (PassKind::F, 0),
                    (PassKind::F, 1),
                    (PassKind::I, 1),
                    (PassKind::I, 0),
                    (PassKind::W, 1),
                    (PassKind::W, 0),
                ];
                Box::new(cells.map(cell).into_iter())
            }
        }
        let plan = Plan { ranks: 1, chunks: 2, slices: 1, microbatches: 1 };
        assert_eq!(
            written(&lowered(&Folded, &plan, true).unwrap()[0]),
            "0F0; 1F0; 1I0; 0I0; 1W0 last; 0W0 last done; complete; update"
        );
    }
}
