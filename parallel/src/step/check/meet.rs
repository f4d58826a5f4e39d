//! Whether all messages meet though nothing keeps one: with buffers for none, no rank waits for ever.
//!
//! A rank runs a cell, posts as one batch all that it sends and receives before its next cell, and goes on when each message of
//! the batch has met its other side, which its peer has posted in a batch of its own. On a way, from a rank to another for
//! activations or for gradients, the n-th that is sent meets the n-th that is received. It is what
//! `torch.distributed.batch_isend_irecv` does where a transport copies a message only from one posted side to the other.
//!
//! Of steps that are [lowered](super::lowered) this never fails. Say that all cells of ticks before t have run, of all ranks. What
//! a rank posts behind its last of them are the sends of that cell's tick and receives of ticks before t: all of their other sides
//! are posted, too, behind cells of ticks before t. So each rank with a cell in tick t comes to it.
use super::{Step, Unit};
use std::collections::{BTreeMap, VecDeque};

/// All rows at once, each rank as far as it can go.
///
/// # Errors
/// The first messages of a way that do not match; if ranks wait for ever, the first of them and what it has posted last.
pub(crate) fn meet(rows: &[Vec<Step>]) -> Result<(), String> {
    let mut ways = BTreeMap::<_, [VecDeque<(Unit, Step)>; 2]>::new(); // posted on this side, and not on the other
    let (mut at, mut waits) = (vec![0; rows.len()], vec![0_usize; rows.len()]);
    let mut ready: Vec<_> = (0..rows.len()).collect();
    while let Some(rank) = ready.pop() {
        while let Some(step) = rows[rank].get(at[rank]) {
            let (way, side, of, peer) = match *step {
                Step::Send(what, of, to) => ((rank, to, what as usize), 0, of, to),
                Step::Receive(what, of, from) => ((from, rank, what as usize), 1, of, from),
                _ if waits[rank] > 0 => break,
                _ => {
                    at[rank] += 1;
                    continue;
                }
            };
            at[rank] += 1;
            let sides = ways.entry(way).or_default();
            match sides[1 - side].pop_front() {
                None => {
                    sides[side].push_back((of, *step));
                    waits[rank] += 1;
                }
                Some((other, _)) if other == of => {
                    waits[peer] -= 1;
                    ready.push(peer);
                }
                Some((_, other)) => {
                    return Err(format!("rank {rank} is to {step}, and rank {peer} to {other}"));
                }
            }
        }
    }
    let stuck = (0..rows.len()).find(|&rank| waits[rank] > 0 || at[rank] < rows[rank].len());
    stuck.map_or(Ok(()), |rank| Err(format!("rank {rank} waits for ever to {}", rows[rank][at[rank] - 1])))
}
