//! Answer to `vocabulary`.
use super::assert_judged;
use crate::ranks::{Ranks, Result};
use crate::vocabulary::{Attempt, LogitShard, check};
use tensor::{F61, Scalar};

/// Computes the loss of these columns of the shard, with a stabiliser of all ranks or of this one.
fn loss(
    shard: &LogitShard,
    targets: &[usize],
    ranks: &Ranks,
    columns: usize,
    together: bool,
) -> Result<(Vec<F61>, Vec<F61>)> {
    let rows = || shard.logits.chunks(shard.width).map(|row| &row[..columns]);
    let stab = |row: &[F61]| row.iter().fold(F61::NEG_INF, |m, &z| F61::stab(m, z));
    let mut m: Vec<F61> = rows().map(stab).collect();
    if together {
        ranks.all_reduce_by(&mut m, F61::stab)?;
    }
    let own = |id: usize| id.checked_sub(shard.first).filter(|&at| at < shard.own);
    let sum = |(row, &m): (&[F61], &F61)| row.iter().fold(F61::ZERO, |sum, &z| sum + F61::exp_sub(z, m));
    let mut sums: Vec<F61> = rows().zip(&m).map(sum).collect();
    sums.extend(rows().zip(targets).map(|(row, &id)| own(id).map_or(F61::ZERO, |at| row[at])));
    ranks.all_reduce(&mut sums)?;
    let (l, target) = sums.split_at(targets.len());
    let lse: Vec<F61> = m.iter().zip(l).map(|(&m, &l)| F61::lse(m, l)).collect();
    let loss = lse.iter().zip(target).map(|(&lse, &z)| lse - z).collect();
    let mut dz = vec![F61::ZERO; shard.logits.len()];
    for (b, (d, row)) in dz.chunks_mut(shard.width).zip(rows()).enumerate() {
        d.iter_mut().zip(row).for_each(|(d, &z)| *d = F61::exp_sub(z, lse[b]));
        if let Some(at) = own(targets[b]) {
            d[at] += -F61::ONE;
        }
    }
    Ok((loss, dz))
}

fn cross_entropy(shard: &LogitShard, targets: &[usize], ranks: &Ranks) -> Result<(Vec<F61>, Vec<F61>)> {
    loss(shard, targets, ranks, shard.own, true)
}

/// Columns of padding are logits, too.
fn with_padding(shard: &LogitShard, targets: &[usize], ranks: &Ranks) -> Result<(Vec<F61>, Vec<F61>)> {
    loss(shard, targets, ranks, shard.width, true)
}

/// Sums of exponentials are added that were stabilised by different numbers.
fn own_stabiliser(shard: &LogitShard, targets: &[usize], ranks: &Ranks) -> Result<(Vec<F61>, Vec<F61>)> {
    loss(shard, targets, ranks, shard.own, false)
}

/// Kills: a check without padding, and one whose ranks may use stabilisers of their own.
#[test]
fn the_answer_is_right_and_wrong_ones_are_told_so() {
    let wrong: [(Attempt, &str); 2] = [
        (with_padding, "loss: 4 of 4 elements differ, the first at 0, on rank 0 of 2; right on 1 rank"),
        (own_stabiliser, "loss: 4 of 4 elements differ, the first at 0, on rank 0 of 2; right on 1 rank"),
    ];
    assert_judged(check, cross_entropy as Attempt, &wrong);
}
