//! Checks that all messages meet without buffers: although nothing stores a message, no rank waits for ever.
//!
//! A rank runs a cell, posts as one batch all sends and receives before its next cell, and continues when
//! each message of the batch has met its other side, which its peer has posted in a batch of its own. On a
//! channel, from one rank to another for activations or for gradients, the n-th send meets the n-th receive.
//! `torch.distributed.batch_isend_irecv` works like this if a transport copies a message only from one posted
//! side to the other.
//!
//! [Lowered](super::lowered) actions always pass. Assume that all cells of ticks before t have run, on all
//! ranks. After the last of them a rank posts the sends of that cell's tick, and receives of ticks before t.
//! Their other sides are all posted, too, after cells of ticks before t. So each rank with a cell in tick t
//! reaches it.
use crate::step::cell::{Action, Task};
use std::collections::{BTreeMap, VecDeque};

/// Runs all rows at once, each rank until it must wait.
///
/// # Errors
/// The first messages of a channel that do not match; if ranks wait for ever, the first of them and its last
/// posted message.
pub(crate) fn meet(rows: &[Vec<Action>]) -> Result<(), String> {
    let mut ways = BTreeMap::<_, [VecDeque<(Task, Action)>; 2]>::new(); // posted on this side only
    let (mut at, mut waits) = (vec![0; rows.len()], vec![0_usize; rows.len()]);
    let mut ready: Vec<_> = (0..rows.len()).collect();
    while let Some(rank) = ready.pop() {
        while let Some(step) = rows[rank].get(at[rank]) {
            let (way, side, of, peer) = match *step {
                Action::Send(what, of, to) => ((rank, to, what as usize), 0, of, to),
                Action::Receive(what, of, from) => ((from, rank, what as usize), 1, of, from),
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
                    return Err(format!("rank {rank} is to {step}, but rank {peer} is to {other}"));
                }
            }
        }
    }
    let stuck = (0..rows.len()).find(|&rank| waits[rank] > 0 || at[rank] < rows[rank].len());
    stuck.map_or(Ok(()), |rank| Err(format!("rank {rank} waits for ever to {}", rows[rank][at[rank] - 1])))
}
