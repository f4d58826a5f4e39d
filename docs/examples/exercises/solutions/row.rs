//! Answer to `row`.
use super::assert_judged;
use crate::check::{product, transposed};
use crate::ranks::{Ranks, Result};
use crate::row::{Attempt, RowShard, check};
use tensor::F61;

fn add_bias(y: &mut [F61], bias: &[F61]) {
    for row in y.chunks_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(y, &b)| *y += b);
    }
}

fn forward(shard: &RowShard, x_t: &[F61], ranks: &Ranks) -> Result<Vec<F61>> {
    let mut y = product(x_t, &shard.weight, shard.sizes);
    ranks.all_reduce(&mut y)?;
    add_bias(&mut y, &shard.bias);
    Ok(y)
}

fn backward(shard: &RowShard, x_t: &[F61], dy: &[F61], _: &Ranks) -> Result<[Vec<F61>; 3]> {
    let [i, o] = shard.sizes;
    let dx = product(dy, &transposed(&shard.weight, o), [o, i]);
    let dw = product(&transposed(x_t, i), dy, [dy.len() / o, o]);
    let ones = vec![F61::new(1); dy.len() / o];
    Ok([dx, dw, product(&ones, dy, [dy.len() / o, o])])
}

/// Each rank adds the bias to its addend.
fn bias_before_the_sum(shard: &RowShard, x_t: &[F61], ranks: &Ranks) -> Result<Vec<F61>> {
    let mut y = product(x_t, &shard.weight, shard.sizes);
    add_bias(&mut y, &shard.bias);
    ranks.all_reduce(&mut y)?;
    Ok(y)
}

/// The bias' gradient is summed over ranks that all have it already.
fn bias_gradient_summed(shard: &RowShard, x_t: &[F61], dy: &[F61], ranks: &Ranks) -> Result<[Vec<F61>; 3]> {
    let [dx, dw, mut db] = backward(shard, x_t, dy, ranks)?;
    ranks.all_reduce(&mut db)?;
    Ok([dx, dw, db])
}

/// Kills: a check without a bias, or without its gradient.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong = [
        (
            Attempt { forward: bias_before_the_sum, backward },
            "Y: 15 of 15 elements differ, the first at 0, on rank 0 of 2; right on 1 rank",
        ),
        (
            Attempt { forward, backward: bias_gradient_summed },
            "db: 5 of 5 elements differ, the first at 0, by a factor of 2, on rank 0 of 2; right on 1 rank",
        ),
    ];
    assert_judged(check, Attempt { forward, backward }, &wrong);
}
