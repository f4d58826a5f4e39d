//! In which order a rank begins and ends its steps: it begins to receive before it runs the cell that comes first, and ends a
//! send when it needs the way, or gradients are complete.
//!
//! ```text
//! steps   receive activation 1, F1, send activation 1, receive activation 2, F2, ...
//! moves   ... begin to receive 2, F1, end the send of 0, begin that of 1, end to receive 2, ...
//! ```
use super::{Plan, Step, check, forwards, lowered};
use crate::Schedule;

/// What is done about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// It begins: room for what comes, a chunk gone through, a message under way, gradients waited for, weights changed.
    Begin(Step),
    /// It ends: what was to come is there, a message has gone, a microbatch is put away.
    End(Step),
}

/// The moves of a rank in a step of training, or where nothing `learns`, in its forwards alone. The whole table is gone through
/// on paper first.
///
/// # Errors
/// One sentence on what is wrong with the table.
pub fn moves(schedule: &dyn Schedule, plan: &Plan, rank: usize, learns: bool) -> Result<Vec<Move>, String> {
    let needs = check(schedule, plan)?;
    let steps = if learns { lowered(schedule, plan, rank) } else { forwards(schedule, plan, rank) };
    Ok(in_turn(&steps, needs.under_way.max(1)))
}

/// These steps of a rank, which may have so many messages of a kind to another under way.
fn in_turn(steps: &[Step], under_way: usize) -> Vec<Move> {
    let (mut moves, mut sent, mut coming) = (Vec::new(), Vec::<Step>::new(), false);
    for (at, &step) in steps.iter().enumerate() {
        match step {
            Step::Run { done, .. } => {
                let mut before = steps[at + 1..].iter().take_while(|step| !matches!(step, Step::Run { .. }));
                let next = before.find(|step| matches!(step, Step::Receive(..)));
                coming = next.is_some();
                moves.extend(next.map(|next| Move::Begin(*next)));
                moves.push(Move::Begin(step));
                moves.extend(done.then_some(Move::End(step)));
            }
            Step::Receive(..) => {
                moves.extend((!std::mem::take(&mut coming)).then_some(Move::Begin(step)));
                moves.push(Move::End(step));
            }
            Step::Send(what, _, to) => {
                let same =
                    |step: &Step| matches!(step, Step::Send(of, _, rank) if (*of, *rank) == (what, to));
                if sent.iter().filter(|step| same(step)).count() >= under_way
                    && let Some(first) = sent.iter().position(same)
                {
                    moves.push(Move::End(sent.remove(first)));
                }
                moves.push(Move::Begin(step));
                sent.push(step);
            }
            Step::Complete => {
                moves.extend(sent.drain(..).map(Move::End));
                moves.push(Move::Begin(step));
            }
            Step::Update => moves.push(Move::Begin(step)),
        }
    }
    moves.extend(sent.into_iter().map(Move::End));
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::gpipe::GPipe;

    /// By hand. Kills: a receive that begins behind the cell it should come beside, or twice; a send that is never ended, ended
    /// before the way is needed, or by another's message; a microbatch that is not put away.
    #[test]
    fn receives_begin_early_and_sends_end_late() {
        let word = |at: &Move| match at {
            Move::Begin(step @ (Step::Run { .. } | Step::Complete | Step::Update)) => step.to_string(),
            Move::Begin(step) => format!("begin to {step}"),
            Move::End(step) => format!("end to {step}"),
        };
        let of = |rank, under_way| {
            let moves = in_turn(&lowered(&GPipe, &Plan::whole(2, 2), rank), under_way);
            moves.iter().map(word).collect::<Vec<_>>()
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
        assert_eq!(of(0, 1), first);
        let last = of(1, 2);
        assert_eq!(
            last[..3],
            [
                "begin to receive activation of 0 from rank 0 for chunk 1",
                "end to receive activation of 0 from rank 0 for chunk 1",
                "begin to receive activation of 1 from rank 0 for chunk 1"
            ]
        );
        let ends = last.iter().position(|word| word == "end to send gradient of 0 to rank 0 for chunk 0");
        assert_eq!(ends, Some(last.len() - 4), "two may be under way: {last:?}");
    }
}
