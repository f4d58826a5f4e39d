//! Answer to `state`.
use super::assert_judged;
use crate::check::{part, parts};
use crate::ranks::{Ranks, Result};
use crate::state::{Attempt, Rates, check};
use tensor::F61;

/// Updates this rank's part from the part of a gradient, and gathers the weights.
fn update(weights: &mut [F61], part_of: &[F61], m: &mut [F61], rates: Rates, ranks: &Ranks) -> Result<()> {
    let mine = part(weights.len(), ranks.rank(), ranks.size());
    for ((w, m), &g) in weights[mine.clone()].iter_mut().zip(m).zip(part_of) {
        *m = rates.decay * *m + g;
        *w = *w - rates.rate * *m;
    }
    let all = ranks.all_gather(&weights[mine], &parts(weights.len(), ranks.size()))?;
    weights.copy_from_slice(&all);
    Ok(())
}

fn step(weights: &mut [F61], gradient: &[F61], m: &mut [F61], rates: Rates, ranks: &Ranks) -> Result<()> {
    let sum = ranks.reduce_scatter(gradient, &parts(weights.len(), ranks.size()))?;
    update(weights, &sum, m, rates, ranks)
}

/// Takes the rank's own gradient for the sum.
fn own_gradient(w: &mut [F61], gradient: &[F61], m: &mut [F61], rates: Rates, ranks: &Ranks) -> Result<()> {
    let mine = part(w.len(), ranks.rank(), ranks.size());
    update(w, &gradient[mine], m, rates, ranks)
}

/// Sums all of the gradient on every rank, then uses a part of it.
fn all_reduced(w: &mut [F61], gradient: &[F61], m: &mut [F61], rates: Rates, ranks: &Ranks) -> Result<()> {
    let mut sum = gradient.to_vec();
    ranks.all_reduce(&mut sum)?;
    own_gradient(w, &sum, m, rates, ranks)
}

/// Never gathers: each rank goes on with weights of which a part is old.
fn ungathered(w: &mut [F61], gradient: &[F61], m: &mut [F61], rates: Rates, ranks: &Ranks) -> Result<()> {
    let sum = ranks.reduce_scatter(gradient, &parts(w.len(), ranks.size()))?;
    let mine = part(w.len(), ranks.rank(), ranks.size());
    for ((w, m), &g) in w[mine].iter_mut().zip(m).zip(&sum) {
        *m = rates.decay * *m + g;
        *w = *w - rates.rate * *m;
    }
    Ok(())
}

/// Kills: a check in which ranks have the same gradient, and one that takes an all-reduce for a reduce-
/// scatter.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong: [(Attempt, &str); 3] = [
        (
            own_gradient,
            "weights after 2 steps: 11 of 11 elements differ, the first at 0, on rank 0 of 2; right on 1 rank",
        ),
        (
            all_reduced,
            "all values are right, but all_reduce is given 22 elements and needs 0, on rank 0 of 2; right on 1 rank",
        ),
        (
            ungathered,
            "weights after 2 steps: 6 of 11 elements differ, the first at 5, on rank 0 of 2; right on 1 rank",
        ),
    ];
    assert_judged(check, step as Attempt, &wrong);
}
