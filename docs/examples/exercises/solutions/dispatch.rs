//! Answer to `dispatch`.
use super::assert_judged;
use crate::dispatch::{Attempt, check};
use crate::ranks::Result;
use tensor::{F61, Scalar};

fn order(experts: &[usize], all: usize, ranks: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    let mut order: Vec<usize> = (0..experts.len()).collect();
    order.sort_by_key(|&at| experts[at]); // stable
    let mut counts = vec![0; ranks];
    for expert in experts {
        counts[expert / (all / ranks)] += 1;
    }
    Ok((counts, order))
}

fn combine(rows: &[F61], order: &[usize], gates: &[F61], [choices, width]: [usize; 2]) -> Result<Vec<F61>> {
    let mut y = vec![F61::ZERO; order.len() / choices * width];
    for (row, &at) in rows.chunks(width).zip(order) {
        let token = &mut y[at / choices * width..][..width];
        token.iter_mut().zip(row).for_each(|(y, &x)| *y += gates[at] * x);
    }
    Ok(y)
}

/// Takes place `s` of what came back for position `s` of the list.
fn not_inverted(rows: &[F61], _: &[usize], gates: &[F61], sizes: [usize; 2]) -> Result<Vec<F61>> {
    combine(rows, &(0..gates.len()).collect::<Vec<_>>(), gates, sizes)
}

/// Gates in the order of the rows, though they are in that of the list.
fn gates_as_sent(rows: &[F61], order: &[usize], gates: &[F61], sizes: [usize; 2]) -> Result<Vec<F61>> {
    let mut moved = gates.to_vec();
    order.iter().enumerate().for_each(|(place, &at)| moved[at] = gates[place]);
    combine(rows, order, &moved, sizes)
}

/// Cuts the list evenly, whatever the experts are.
fn even_counts(experts: &[usize], all: usize, ranks: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    Ok((crate::check::parts(experts.len(), ranks), order(experts, all, ranks)?.1))
}

/// Kills: a check whose tokens are sorted already, whose gates are alike, or whose ranks get as many rows.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong = [
        (
            Attempt { order, combine: not_inverted },
            "Y: 55 of 55 elements differ, the first at 0, on the only rank",
        ),
        (
            Attempt { order, combine: gates_as_sent },
            "Y: 55 of 55 elements differ, the first at 0, on the only rank",
        ),
        (
            Attempt { order: even_counts, combine },
            "counts: 2 of 2 elements differ, the first at 0, on rank 0 of 2; right on 1 rank",
        ),
    ];
    assert_judged(check, Attempt { order, combine }, &wrong);
}
