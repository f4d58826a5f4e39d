//! Parts of a vocabulary-parallel cross-entropy, and the embedding.
use super::matrices::{In, Out};
use super::simd::{stab, sum};
use crate::{LossTerms, MeanOver, RowShard};
use tensor::{IGNORED, Scalar};

#[inline(always)]
pub(super) fn row_stab<S: Scalar>(mut m: Out<S::Wide>, logits: In<S>) {
    for i in 0..logits.rows() {
        m.row(i)[0] = stab(logits.row(i));
    }
}

/// Per row: (Σ exp(x − m), the target's x, and Σ x if there is a third column).
#[inline(always)]
pub(super) fn row_sums<S: Scalar>(
    mut sums: Out<S::Wide>,
    logits: In<S>,
    m: In<S::Wide>,
    targets: &[u32],
    slice: RowShard,
) {
    for i in 0..logits.rows() {
        let (x, m) = (logits.row(i), m.row(i)[0]);
        let total = sum([x], |[x]| S::Wide::exp_sub(x, m));
        let target = slice.local(targets[i]).map_or(S::Wide::ZERO, |j| x[j].widen());
        sums.row(i)[..2].copy_from_slice(&[total, target]);
    }
    if sums.cols() > 2 {
        for i in 0..logits.rows() {
            sums.row(i)[2] = sum([logits.row(i)], |[x]| x);
        }
    }
}

/// Derived constants of a loss.
struct Constants<S> {
    /// 1/n; 0 if no target counts, in which case it is not used.
    share: S,
    /// 1 − ε.
    own: S,
    /// ε/V.
    every: S,
    /// λ.
    z: S,
}

impl<S: Scalar> Constants<S> {
    fn of(terms: &LossTerms) -> Self {
        let smoothing = S::from_f64(terms.smoothing);
        Self {
            share: terms.mean_over.share(),
            own: S::ONE - smoothing,
            every: smoothing * MeanOver::of(terms.vocabulary).share::<S>(),
            z: S::from_f64(terms.z),
        }
    }
}

#[inline(always)]
pub(super) fn cross_entropy<S: Scalar>(
    mut loss: Out<S>,
    mut m: Out<S>,
    sums: In<S>,
    targets: &[u32],
    terms: &LossTerms,
) {
    let Constants { share, own, every, z } = Constants::of(terms);
    let mut total = S::ZERO;
    for i in 0..sums.rows() {
        let (sums, m) = (sums.row(i), &mut m.row(i)[0]);
        *m = S::lse(*m, sums[0]);
        if targets[i] == IGNORED {
            continue;
        }
        total += *m - own * sums[1] + z * *m * *m;
        if terms.smoothing != 0.0 {
            total = total - every * sums[2];
        }
    }
    loss.row(0)[0] = total * share;
}

#[inline(always)]
pub(super) fn cross_entropy_backward<S: Scalar>(
    mut logits: Out<S>,
    lse: In<S::Wide>,
    targets: &[u32],
    slice: RowShard,
    terms: &LossTerms,
) {
    let Constants { share, own, every, z } = Constants::<S::Wide>::of(terms);
    let [own, every] = [own, every].map(|weight| weight * share);
    let z = S::Wide::from_usize(2) * z;
    let inv = terms.cap.map(|cap| S::Wide::from_f64(cap).inv());
    for i in 0..logits.rows() {
        let (x, lse) = (logits.row(i), lse.row(i)[0]);
        if targets[i] == IGNORED {
            x.fill(S::ZERO);
            continue;
        }
        let whole = share * (S::Wide::ONE + z * lse);
        let target = slice.local(targets[i]).map(|j| (j, x[j].widen()));
        let other = |x: S::Wide| S::Wide::exp_sub(x, lse) * whole - every;
        let slope = |x: S::Wide| inv.map_or(S::Wide::ONE, |inv| S::Wide::ONE - x * inv * (x * inv));
        for x in x.iter_mut() {
            let z = x.widen();
            *x = S::narrow(other(z) * slope(z));
        }
        if let Some((j, z)) = target {
            x[j] = S::narrow((other(z) - own) * slope(z));
        }
    }
}

#[inline(always)]
pub(super) fn mean_square<S: Scalar>(mut loss: Out<S::Wide>, mut x: Out<S>, y: In<S>, over: MeanOver) {
    let share = over.share::<S::Wide>();
    let mut total = S::Wide::ZERO;
    let twice = S::Wide::from_usize(2) * share;
    for i in 0..y.rows() {
        let (x, y) = (x.row(i), y.row(i));
        total += sum([&*x, y], |[x, y]| (x - y) * (x - y));
        for (x, &y) in x.iter_mut().zip(y) {
            *x = S::narrow((x.widen() - y.widen()) * twice);
        }
    }
    loss.row(0)[0] = total * share;
}

#[inline(always)]
pub(super) fn embed<S: Scalar>(mut y: Out<S>, table: In<S>, ids: &[u32], slice: RowShard) {
    for (i, &id) in ids.iter().enumerate() {
        match slice.local(id) {
            Some(j) => y.row(i).copy_from_slice(table.row(j)),
            None => y.row(i).fill(S::ZERO),
        }
    }
}

#[inline(always)]
pub(super) fn embed_backward<S: Scalar>(mut dtable: Out<S::Wide>, dy: In<S>, ids: &[u32], slice: RowShard) {
    for (i, &id) in ids.iter().enumerate() {
        if let Some(j) = slice.local(id) {
            for (d, &g) in dtable.row(j).iter_mut().zip(dy.row(i)) {
                *d += g.widen();
            }
        }
    }
}
