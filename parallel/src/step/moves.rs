//! Order in which a rank begins and ends its actions. A receive begins at its place among the actions, or one
//! cell earlier if the next cell needs it, and ends when a cell needs it. A send ends when its channel is
//! needed again, or when gradients are complete.
//!
//! ```text
//! steps   receive activation 1, F1, send activation 1, receive activation 2, F2, ...
//! moves   ... begin to receive 2, F1, end the send of 0, begin that of 1, end to receive 2, ...
//! ```
use super::cell::{Action, PassKind, Payload, Plan};
use super::check::checked;
use super::lowered::lowered;
use super::schedule::Schedule;
use std::rc::Rc;

/// Beginning or end of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionPhase {
    /// Begins: allocates memory for a receive, runs a chunk, starts a send, waits for gradients, or changes
    /// weights.
    Begin(Action),
    /// Ends: a receive has arrived, a send is complete, or a microbatch is released.
    End(Action),
}

/// Moves of a rank in steps that follow each other, from an empty pipeline until it is empty again.
/// Microbatches are counted over these steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMoves {
    /// Moves of steps 0, 1, ..; those of the last one are those of each later step, with other microbatches.
    pub steps: Vec<Rc<[ActionPhase]>>,
    /// Moves that empty the pipeline after steps 0, 1, ..
    pub ends: Vec<Rc<[ActionPhase]>>,
}

impl StepMoves {
    /// Returns the moves of a rank in training steps of this plan. The whole table is checked first.
    ///
    /// # Errors
    /// One sentence on what is wrong with the table.
    pub fn new(schedule: &dyn Schedule, plan: &Plan, rank: usize) -> Result<Self, String> {
        let more = schedule.carries(plan).div_ceil(plan.microbatches);
        if more == 0 {
            let list = moves(schedule, plan, rank, true)?;
            return Ok(Self { steps: vec![list.into()], ends: vec![Rc::default()] });
        }
        schedule.fits(plan)?;
        let of = |steps: usize| {
            let plan = Plan { microbatches: steps * plan.microbatches, ..*plan };
            checked(schedule, &plan).map(|(_, mut rows)| rows.swap_remove(rank))
        };
        let (row, mut turns, mut from) = (of(more + 3)?, Turns::default(), 0);
        let (mut steps, mut ends) = (Vec::new(), Vec::new());
        for step in 0..more + 2 {
            let later = (step + 1) * plan.microbatches;
            let end = row.iter().position(|action| enters(action) >= Some(later)).unwrap_or(row.len());
            steps.push(turns.take(&row[from..end]).into());
            let whole = of(step + 1)?;
            assert!(whole.starts_with(&row[..end]), "the beginning of a table depends on its end");
            ends.push(turns.clone().end(&whole[end..]).into());
            from = end;
        }
        Ok(Self { steps, ends })
    }
}

/// The microbatch that enters this rank with an action, if any.
fn enters(action: &Action) -> Option<usize> {
    match action {
        Action::Run { cell, .. } => cell.act.does(PassKind::F).then_some(cell.of.microbatch as usize),
        Action::Receive(Payload::Activation, of, _) => Some(of.microbatch as usize),
        _ => None,
    }
}

/// Returns the moves of a rank in a training step that begins and ends with an empty pipeline, or in its
/// forwards alone if not `learns`. The whole table is checked first.
///
/// # Errors
/// One sentence on what is wrong with the table.
pub fn moves(
    schedule: &dyn Schedule,
    plan: &Plan,
    rank: usize,
    learns: bool,
) -> Result<Vec<ActionPhase>, String> {
    if learns {
        schedule.fits(plan)?;
    }
    let (_, learning) = checked(schedule, plan)?;
    let rows = if learns { learning } else { lowered(schedule, plan, false)? };
    Ok(Turns::default().end(&rows[rank]))
}

/// Returns the moves of every rank in a training step of a table that is known to be right.
///
/// # Errors
/// If ranks wait for each other.
pub fn moves_of_all(schedule: &dyn Schedule, plan: &Plan) -> Result<Vec<Vec<ActionPhase>>, String> {
    schedule.fits(plan)?;
    Ok(lowered(schedule, plan, true)?.iter().map(|row| Turns::default().end(row)).collect())
}

/// Actions that a rank has begun and not ended.
#[derive(Clone, Default)]
struct Turns {
    sent: Vec<Action>,
    coming: Vec<Action>,
}

impl Turns {
    /// Returns the moves of the next actions of a rank.
    fn take(&mut self, steps: &[Action]) -> Vec<ActionPhase> {
        let Self { sent, coming } = self;
        let mut moves = Vec::new();
        for (at, &step) in steps.iter().enumerate() {
            match step {
                Action::Run { cell, done, .. } => {
                    let came = coming.iter().position(|receive| receive.is_for(cell));
                    moves.extend(came.map(|at| ActionPhase::End(coming.remove(at))));
                    let rest = &steps[at + 1..];
                    let next = rest.iter().find_map(|step| {
                        if let Action::Run { cell, .. } = step { Some(*cell) } else { None }
                    });
                    let before_next = rest.iter().take_while(|step| !matches!(step, Action::Run { .. }));
                    let early = before_next.copied().find(|step| next.is_some_and(|next| step.is_for(next)));
                    moves.extend(early.map(ActionPhase::Begin));
                    coming.extend(early);
                    moves.push(ActionPhase::Begin(step));
                    moves.extend(done.then_some(ActionPhase::End(step)));
                }
                Action::Receive(..) if coming.contains(&step) => {}
                Action::Receive(..) => {
                    moves.push(ActionPhase::Begin(step));
                    coming.push(step);
                }
                Action::Send(what, _, to) => {
                    let same = |step: &Action| matches!(step, Action::Send(of, _, rank) if (*of, *rank) == (what, to));
                    let before = sent.iter().position(same);
                    moves.extend(before.map(|at| ActionPhase::End(sent.remove(at))));
                    moves.push(ActionPhase::Begin(step));
                    sent.push(step);
                }
                Action::Complete => {
                    moves.extend(sent.drain(..).map(ActionPhase::End));
                    moves.push(ActionPhase::Begin(step));
                }
                Action::Update => moves.push(ActionPhase::Begin(step)),
            }
        }
        moves
    }
    /// Returns the moves of the last actions of a rank.
    fn end(mut self, steps: &[Action]) -> Vec<ActionPhase> {
        let mut moves = self.take(steps);
        moves.extend(self.sent.into_iter().map(ActionPhase::End));
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{gpipe::GPipe, zb_h2::ZbH2};

    /// By hand. Kills: a receive that begins behind the cell it should come beside, a cell too early or
    /// twice, or ends before it is needed; a send that is never ended, ended before the way is needed, or by
    /// another's message; a microbatch that is not put away.
    #[test]
    fn receives_begin_early_and_sends_end_late() {
        let word = |at: &ActionPhase| match at {
            ActionPhase::Begin(step @ (Action::Run { .. } | Action::Complete | Action::Update)) => {
                step.to_string()
            }
            ActionPhase::Begin(step) => format!("begin to {step}"),
            ActionPhase::End(step) => format!("end to {step}"),
        };
        let of = |schedule: &dyn Schedule, microbatches, rank: usize| {
            let rows = lowered(schedule, &Plan::whole(2, microbatches), true).unwrap();
            Turns::default().end(&rows[rank]).iter().map(word).collect::<Vec<_>>()
        };
        let first = [
            "run 0F0",
            "begin to send activation of 0 to rank 1 for chunk 1",
            "begin to receive gradient of 0 from rank 1 for chunk 0",
            "run 0F1",
            "end to send activation of 0 to rank 1 for chunk 1",
            "begin to send activation of 1 to rank 1 for chunk 1",
            "end to receive gradient of 0 from rank 1 for chunk 0",
            "begin to receive gradient of 1 from rank 1 for chunk 0",
            "run 0B0",
            "end to run 0B0",
            "end to receive gradient of 1 from rank 1 for chunk 0",
            "run 0B1",
            "end to run 0B1",
            "end to send activation of 1 to rank 1 for chunk 1",
            "complete",
            "update",
        ];
        assert_eq!(of(&GPipe, 2, 0), first);
        let last = of(&GPipe, 2, 1);
        assert_eq!(
            last[..3],
            [
                "begin to receive activation of 0 from rank 0 for chunk 1",
                "end to receive activation of 0 from rank 0 for chunk 1",
                "begin to receive activation of 1 from rank 0 for chunk 1"
            ]
        );
        let last = of(&ZbH2, 4, 1);
        let at = |word: &str| last.iter().position(|other| other == word).unwrap();
        let before = [
            "end to send gradient of 0 to rank 0 for chunk 0", // for the way is needed
            "begin to send gradient of 1 to rank 0 for chunk 0",
            "end to receive activation of 2 from rank 0 for chunk 1",
            "run 1F2",
            "begin to receive activation of 3 from rank 0 for chunk 1", // it is needed three cells later
            "run 1I2",
            "end to send gradient of 1 to rank 0 for chunk 0",
            "begin to send gradient of 2 to rank 0 for chunk 0",
            "run 1W0",
            "end to run 1W0",
            "end to receive activation of 3 from rank 0 for chunk 1",
            "run 1F3",
        ];
        let from = at(before[0]);
        assert_eq!(last[from..from + before.len()], before);
    }
}
