//! Exercise `vocabulary`: cross-entropy of logits that are cut by the vocabulary, without gathering them.
//!
//! ```text
//! m = stab over V of z         all-reduce by stab, B elements
//! l = Σ_V exp(z − m)         ┐
//! t = z of the target        ┘ one all-reduce, 2·B elements
//! loss = m + ln l − t          none
//! dz = exp(z − lse) − 1[target]  none
//! ```
//! In the field `exp(a − b)` is `F61::exp_sub(a, b)`, `m + ln l` is `F61::lse(m, l)`, and the stabiliser
//! `max` is `F61::stab(a, b)`, whose neutral element is `F61::NEG_INF`; the chapter "Why a field proves" has
//! the reasons. Chapter: vocabulary and loss.
use crate::check::{Compared, Verdict, drawn, judge};
use crate::ranks::{Ranks, Result, unsolved};
use comm::Op;
use shape::Objective;
use tensor::{F61, Scalar};

/// One rank's part of the logits.
pub struct LogitShard {
    /// `Z[B,width]`: as wide on every rank. Columns behind the rank's own are padding.
    pub logits: Vec<F61>,
    /// Columns with padding.
    pub width: usize,
    /// Columns that are ids of the vocabulary: `width`, fewer, or none.
    pub own: usize,
    /// Id of the first column.
    pub first: usize,
}

/// Returns the loss of each token, on every rank, and `dZ[B,width]`, in which padding is zero.
///
/// # Errors
/// If a call to other ranks fails.
pub fn cross_entropy(shard: &LogitShard, targets: &[usize], ranks: &Ranks) -> Result<(Vec<F61>, Vec<F61>)> {
    unsolved((shard, targets, ranks)) // your code takes this line's place
}

/// Function to write.
pub type Attempt = fn(&LogitShard, &[usize], &Ranks) -> Result<(Vec<F61>, Vec<F61>)>;

/// Cuts 13 ids, so that on 4 ranks the last has one id, and on 8 ranks one has none.
pub fn check(attempt: Attempt) -> Verdict {
    const V: usize = 13;
    const TARGETS: [usize; 4] = [0, 12, 4, 3];
    let z = &drawn(1, TARGETS.len() * V);
    let plain = &Objective::default();
    judge(
        |_, _| vec![(Op::AllReduce, 3 * TARGETS.len())],
        |ranks| {
            let width = V.div_ceil(ranks.size());
            let first = (ranks.rank() * width).min(V);
            let own = width.min(V - first);
            let padded = |row: &[F61], padding| {
                let mut own = row[first..][..own].to_vec();
                own.resize(width, padding);
                own
            };
            let junk = F61::from_usize(5);
            let logits = z.chunks(V).flat_map(|row| padded(row, junk)).collect();
            let (loss, dz) = attempt(&LogitShard { logits, width, own, first }, &TARGETS, ranks)?;
            let rows = || z.chunks(V).zip(TARGETS.map(|id| [id as u32]));
            let right = rows().map(|(row, id)| reference::cross_entropy(row, &id, V, 1, plain)).collect();
            let gradient = |(row, id): (&[F61], [u32; 1])| {
                padded(&reference::cross_entropy_backward(row, &id, V, 1, plain), F61::ZERO)
            };
            let right_dz = rows().flat_map(gradient).collect();
            Ok(vec![Compared::new("loss", loss, right), Compared::new("dZ", dz, right_dz)])
        },
    )
}
