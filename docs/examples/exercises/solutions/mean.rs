//! Answer to `mean`.
use super::assert_judged;
use crate::mean::{Attempt, check};
use crate::ranks::{Ranks, Result};
use tensor::{F61, Scalar};

fn inverse(count: F61) -> F61 {
    if count == F61::ZERO { F61::ZERO } else { count.inv() }
}

/// Sum and number of the tokens that count.
fn counted<'a>(losses: impl IntoIterator<Item = &'a Option<F61>>) -> [F61; 2] {
    losses.into_iter().flatten().fold([F61::ZERO; 2], |[sum, n], &loss| [sum + loss, n + F61::ONE])
}

fn step_loss(losses: &[Vec<Option<F61>>], ranks: &Ranks) -> Result<(F61, F61)> {
    let mut all = counted(losses.iter().flatten());
    ranks.all_reduce(&mut all)?;
    let factor = inverse(all[1]);
    Ok((all[0] * factor, factor))
}

/// Each rank takes the mean of its own tokens; these are averaged.
fn mean_of_means(losses: &[Vec<Option<F61>>], ranks: &Ranks) -> Result<(F61, F61)> {
    let [sum, count] = counted(losses.iter().flatten());
    let mut all = [sum * inverse(count), F61::ONE];
    ranks.all_reduce(&mut all)?;
    let factor = inverse(all[1]);
    Ok((all[0] * factor, factor * inverse(count)))
}

/// Each microbatch takes its mean, and these are averaged.
fn mean_of_microbatches(losses: &[Vec<Option<F61>>], ranks: &Ranks) -> Result<(F61, F61)> {
    let [mut sum, mut n] = [F61::ZERO; 2];
    for microbatch in losses {
        let [own, count] = counted(microbatch);
        sum += own * inverse(count);
        n += F61::ONE;
    }
    let mut all = [sum, n];
    ranks.all_reduce(&mut all)?;
    Ok((all[0] * inverse(all[1]), inverse(all[1])))
}

/// Kills: a check in which all ranks, or all microbatches, have as many tokens.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong: [(Attempt, &str); 2] = [
        (mean_of_means, "loss: differs, by a factor of 1/2, on rank 0 of 2; right on 1 rank"),
        (mean_of_microbatches, "loss: differs, on the only rank"),
    ];
    assert_judged(check, step_loss as Attempt, &wrong);
}
