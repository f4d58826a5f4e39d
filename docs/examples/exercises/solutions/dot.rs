//! Answer to `dot`.
use super::assert_judged;
use crate::check::Verdict;
use crate::dot::{Attempt, check};
use crate::ranks::{Ranks, Result};
use tensor::{F61, Scalar};

fn own(x_t: &[F61], y_t: &[F61]) -> F61 {
    x_t.iter().zip(y_t).fold(F61::ZERO, |sum, (&x, &y)| sum + x * y)
}

fn dot(x_t: &[F61], y_t: &[F61], ranks: &Ranks) -> Result<F61> {
    let mut sum = [own(x_t, y_t)];
    ranks.all_reduce(&mut sum)?;
    Ok(sum[0])
}

/// The products are never summed over ranks.
fn without_a_sum(x_t: &[F61], y_t: &[F61], _: &Ranks) -> Result<F61> {
    Ok(own(x_t, y_t))
}

/// Every product travels, although their sum would do.
fn sums_late(x_t: &[F61], y_t: &[F61], ranks: &Ranks) -> Result<F61> {
    let mut products: Vec<F61> = x_t.iter().zip(y_t).map(|(&x, &y)| x * y).collect();
    products.resize(7, F61::ZERO);
    ranks.all_reduce(&mut products)?;
    Ok(products.into_iter().fold(F61::ZERO, |sum, product| sum + product))
}

/// A rank without elements makes no call.
fn skips_a_call(x_t: &[F61], y_t: &[F61], ranks: &Ranks) -> Result<F61> {
    if x_t.is_empty() { Ok(F61::ZERO) } else { dot(x_t, y_t, ranks) }
}

/// Kills: a check that overlooks a missing sum, too much traffic, or a rank that makes no call.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong: [(Attempt, &str); 2] = [
        (without_a_sum, "x · y: differs, on rank 0 of 2; right on 1 rank"),
        (
            sums_late,
            "all values are right, but all_reduce is given 7 elements and needs 1, on rank 0 of 2; right on 1 rank",
        ),
    ];
    assert_judged(check, dot as Attempt, &wrong);
    let Verdict::Wrong(why) = check(skips_a_call) else { panic!("a call is missing") };
    let line = "has finished and will not enter all_reduce(sum) over dp of 1x1 f61 at docs/examples/exercises/solutions/dot.rs:";
    assert!(why.contains(line) && why.ends_with("; right on 1, 2, 3 and 4 ranks"), "{why}");
}
