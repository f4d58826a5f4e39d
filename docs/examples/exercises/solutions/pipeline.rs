//! Answer to `pipeline`.
use super::assert_judged;
use crate::pipeline::Cell::{Backward, Forward};
use crate::pipeline::{Attempt, Cell, check};
use crate::ranks::Result;

/// Runs `ahead` forwards, then a forward and a backward by turns, then the backwards that are left.
fn cells(ahead: usize, m: usize) -> Vec<Cell> {
    let turns = (ahead..m).flat_map(|f| [Forward(f), Backward(f - ahead)]);
    (0..ahead).map(Forward).chain(turns).chain((m - ahead..m).map(Backward)).collect()
}

fn row(rank: usize, ranks: usize, m: usize) -> Result<Vec<Cell>> {
    Ok(cells((ranks - 1 - rank).min(m), m))
}

/// All forwards first: as fast, but every microbatch is held.
fn gpipe(_: usize, _: usize, m: usize) -> Result<Vec<Cell>> {
    Ok(cells(m, m))
}

/// Backwards as soon as a forward has run, on every rank.
fn without_warm_up(_: usize, _: usize, m: usize) -> Result<Vec<Cell>> {
    Ok(cells(0, m))
}

/// One forward more than there are ranks behind.
fn one_ahead(rank: usize, ranks: usize, m: usize) -> Result<Vec<Cell>> {
    Ok(cells((ranks - rank).min(m), m))
}

/// A turn that runs its backward first.
fn backward_first(_: usize, _: usize, m: usize) -> Result<Vec<Cell>> {
    Ok((0..m).flat_map(|m| [Backward(m), Forward(m)]).collect())
}

/// Kills: a check that looks at the time alone, at the memory alone, or not at the order.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong: [(Attempt, &str); 4] = [
        (gpipe, "rank 0 holds 2 microbatches at once, and 1F1B holds 1, with 1 rank and 2 microbatches"),
        (without_warm_up, "a step takes 8 ticks, and 1F1B takes 6, with 2 ranks and 2 microbatches"),
        (one_ahead, "rank 0 holds 2 microbatches at once, and 1F1B holds 1, with 1 rank and 2 microbatches"),
        (backward_first, "hangs: rank 0 at Backward(0), with 1 rank and 1 microbatch"),
    ];
    assert_judged(check, row as Attempt, &wrong);
}
