//! Answer to `ring`.
use super::assert_judged;
use crate::ranks::{Ranks, Result};
use crate::ring::{Attempt, Queries, check, meet};
use tensor::{F61, Scalar};

fn ring_backward(queries: &Queries, mut block: Vec<F61>, ranks: &Ranks) -> Result<[Vec<F61>; 2]> {
    let mut dq = vec![F61::ZERO; queries.q.len()];
    let mut gradient = vec![F61::ZERO; block.len()];
    for _ in 0..ranks.size() {
        meet(queries, &block, &mut dq, &mut gradient);
        let mut passed = ranks.pass(&[block, gradient].concat())?;
        gradient = passed.split_off(passed.len() / 2);
        block = passed;
    }
    Ok([dq, gradient])
}

/// The block travels, its gradient stays.
fn gradient_stays(queries: &Queries, mut block: Vec<F61>, ranks: &Ranks) -> Result<[Vec<F61>; 2]> {
    let mut dq = vec![F61::ZERO; queries.q.len()];
    let mut gradient = vec![F61::ZERO; block.len()];
    for _ in 0..ranks.size() {
        meet(queries, &block, &mut dq, &mut gradient);
        block = ranks.pass(&block)?;
    }
    Ok([dq, gradient])
}

/// Stops a hop early: the block with its gradient is on the rank before its home.
fn one_hop_short(queries: &Queries, mut block: Vec<F61>, ranks: &Ranks) -> Result<[Vec<F61>; 2]> {
    let mut dq = vec![F61::ZERO; queries.q.len()];
    let mut gradient = vec![F61::ZERO; block.len()];
    for hop in 0..ranks.size() {
        if hop > 0 {
            let mut passed = ranks.pass(&[block, gradient].concat())?;
            gradient = passed.split_off(passed.len() / 2);
            block = passed;
        }
        meet(queries, &block, &mut dq, &mut gradient);
    }
    Ok([dq, gradient])
}

/// Meets the block of the first hop in every hop.
fn first_block(queries: &Queries, block: Vec<F61>, ranks: &Ranks) -> Result<[Vec<F61>; 2]> {
    let mut dq = vec![F61::ZERO; queries.q.len()];
    let mut gradient = vec![F61::ZERO; block.len()];
    for _ in 0..ranks.size() {
        meet(queries, &block, &mut dq, &mut gradient);
        gradient = ranks.pass(&gradient)?;
    }
    Ok([dq, gradient])
}

/// Kills: a check that looks at the queries alone, and one that takes another rank's gradient.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong: [(Attempt, &str); 3] = [
        (
            gradient_stays,
            "the gradient of the block: 12 of 12 elements differ, the first at 0, on rank 0 of 2; right on 1 rank",
        ),
        (
            one_hop_short,
            "the gradient of the block is that of rank 1's: 12 of 12 elements differ, the first at 0, on rank 0 of 2; right on 1 rank",
        ),
        (first_block, "dQ: 6 of 6 elements differ, the first at 0, on rank 0 of 2; right on 1 rank"),
    ];
    assert_judged(check, ring_backward as Attempt, &wrong);
}
