//! Exercise `pipeline`: one rank's row of the 1F1B schedule.
//!
//! ```text
//! ranks 3, microbatches 4        rank 0   F0 F1 F2 ·  ·  B0 F3 B1 ·  B2 ·  B3
//!                                rank 1   ·  F0 F1 ·  B0 F2 B1 F3 B2 ·  B3 ·
//!                                rank 2   ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 ·  ·
//! ```
//! If a forward and a backward take one tick each, a step takes `2·(M + K − 1)` ticks, so each rank waits for
//! `2·(K − 1)` of them: the bubble. Rank `r` holds at most `K − r` microbatches at once.
//! Chapter: schedules.
use crate::check::Verdict;
use crate::ranks::{Result, Stop, unsolved};
use std::collections::BTreeMap;
use tensor::quoted::counted;

/// One cell of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// The forward of a microbatch.
    Forward(usize),
    /// Its backward.
    Backward(usize),
}

/// Returns the cells of one rank in order, without waits.
///
/// # Errors
/// None.
pub fn row(rank: usize, ranks: usize, microbatches: usize) -> Result<Vec<Cell>> {
    unsolved((rank, ranks, microbatches)) // your code takes this line's place
}

/// Function to write.
pub type Attempt = fn(usize, usize, usize) -> Result<Vec<Cell>>;

/// Plays the schedules of 1 to 6 ranks and 1 to 8 microbatches, one tick a cell.
pub fn check(attempt: Attempt) -> Verdict {
    for (k, m) in (1..=6).flat_map(|k| (1..=8).map(move |m| (k, m))) {
        let under = format!("with {} and {}", counted(k, "rank"), counted(m, "microbatch"));
        let rows: Vec<Vec<Cell>> = match (0..k).map(|rank| attempt(rank, k, m)).collect() {
            Ok(rows) => rows,
            Err(Stop::Unsolved) => return Verdict::Unsolved,
            Err(Stop::Comm(error)) => return Verdict::Wrong(error.to_string()),
        };
        let wanted = 2 * (m + k - 1);
        let why = match ticks(&rows, m) {
            Err(why) => why,
            Ok(ticks) if ticks != wanted => format!("a step takes {ticks} ticks, and 1F1B takes {wanted}"),
            Ok(_) => {
                match (0..k).map(|rank| (rank, most_held(&rows[rank]), m.min(k - rank))).find(|s| s.1 > s.2) {
                    None => continue,
                    Some((rank, held, wanted)) => {
                        format!("rank {rank} holds {held} microbatches at once, and 1F1B holds {wanted}")
                    }
                }
            }
        };
        return Verdict::Wrong(format!("{why}, {under}"));
    }
    Verdict::Solved
}

/// Plays all rows at once, and returns the ticks of a step; or says which cell is missing, or which ranks
/// wait for ever.
fn ticks(rows: &[Vec<Cell>], m: usize) -> std::result::Result<usize, String> {
    use Cell::{Backward, Forward};
    for (rank, row) in rows.iter().enumerate() {
        let mut once: Vec<Cell> = (0..m).flat_map(|m| [Forward(m), Backward(m)]).collect();
        let mut sorted = row.clone();
        once.sort();
        sorted.sort();
        if sorted != once {
            let all = format!("F0 to F{0} and B0 to B{0}", m - 1);
            return Err(format!("rank {rank} has {row:?}, which is not {all}, once each"));
        }
    }
    let (mut next, mut ended) = (vec![0; rows.len()], BTreeMap::new());
    for tick in 0.. {
        let ready = |rank: usize, cell: Cell| {
            let earlier = match cell {
                Forward(_) => rank.checked_sub(1).map(|before| (before, cell)),
                Backward(m) if rank + 1 == rows.len() => Some((rank, Forward(m))),
                Backward(_) => Some((rank + 1, cell)),
            };
            earlier.is_none_or(|earlier| ended.contains_key(&earlier))
        };
        let run: Vec<(usize, Cell)> = (0..rows.len())
            .filter_map(|rank| Some((rank, *rows[rank].get(next[rank])?)))
            .filter(|&(rank, cell)| ready(rank, cell))
            .collect();
        if run.is_empty() {
            let waits = (0..rows.len()).filter_map(|rank| Some((rank, rows[rank].get(next[rank])?)));
            let waits: Vec<_> = waits.map(|(rank, cell)| format!("rank {rank} at {cell:?}")).collect();
            return if waits.is_empty() { Ok(tick) } else { Err(format!("hangs: {}", waits.join(", "))) };
        }
        for (rank, cell) in run {
            next[rank] += 1;
            ended.insert((rank, cell), tick);
        }
    }
    unreachable!("a tick runs a cell, or ends")
}

/// Largest number of microbatches whose forward has run and whose backward has not.
fn most_held(row: &[Cell]) -> usize {
    let held = row.iter().scan(0usize, |held, cell| {
        *held = if matches!(cell, Cell::Forward(_)) { *held + 1 } else { held.saturating_sub(1) };
        Some(*held)
    });
    held.max().unwrap_or(0)
}
