//! A router of experts: which experts a token is handed to, and how much each counts.
use super::{In, Out};
use crate::indexed::entries;
use crate::{RouterTerms, Segment};
use std::cmp::Ordering;
use tensor::{Noise, Scalar};

/// The experts with the highest scores, equal ones by number; of the best groups, where there are groups.
#[inline(always)]
pub(super) fn choose<S: Scalar>(
    chosen: &mut [u32],
    logits: In<S::Wide>,
    bias: Option<In<S>>,
    noise: Option<(Noise, &[u32], usize)>,
    router: &RouterTerms,
) {
    let (mut scores, mut order) = (Vec::new(), Vec::new());
    let mut noise = noise.map(|(noise, tokens, first)| (noise, places(tokens).skip(first)));
    for (i, chosen) in chosen.chunks_exact_mut(router.chosen).enumerate() {
        scores.clear();
        scores.extend(logits.row(i).iter().map(|&x| if router.sigmoid { x.sigmoid() } else { x }));
        if let Some(bias) = &bias {
            scores.iter_mut().zip(bias.row(0)).for_each(|(s, &b)| *s += b.widen());
        }
        if let Some((noise, places)) = &mut noise {
            let (sequence, position) = places.next().expect("a token for every row");
            (0..).zip(&mut scores).for_each(|(e, s)| *s += noise.of(sequence, position, e));
        }
        order.clear();
        order.extend(0..scores.len() as u32);
        if let Some([groups, best]) = router.groups {
            let each = scores.len() / groups;
            let group = |i: usize| {
                let mut own = scores[i * each..][..each].to_vec();
                own.sort_by(|a, b| b.order(*a));
                if router.sigmoid {
                    own[..each.min(2)].iter().fold(S::Wide::ZERO, |sum, &s| sum + s)
                } else {
                    own[0]
                }
            };
            let of_groups: Vec<S::Wide> = (0..groups).map(group).collect();
            let mut ranked: Vec<usize> = (0..groups).collect();
            ranked.sort_by(|&a, &b| before(&of_groups, a, b));
            order.retain(|&e| ranked[..best].contains(&(e as usize / each)));
        }
        order.sort_unstable_by(|&a, &b| before(&scores, a as usize, b as usize));
        chosen.copy_from_slice(&order[..router.chosen]);
    }
}

/// The sequence of each token, and its position there.
#[inline(always)]
fn places(tokens: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    entries::<Segment>(tokens).flat_map(|t| (0..t.len).map(move |i| (t.sequence, t.position + i)))
}

/// The higher score first, then the lower number.
#[inline(always)]
fn before<S: Scalar>(scores: &[S], a: usize, b: usize) -> Ordering {
    scores[b].order(scores[a]).then(a.cmp(&b))
}

/// A row of logits with its log-sum-exp.
struct Row<'a, S> {
    logits: &'a [S],
    lse: S,
    sigmoid: bool,
}

impl<S: Scalar> Row<'_, S> {
    #[inline(always)]
    fn softmax(&self, e: usize) -> S {
        S::exp_sub(self.logits[e], self.lse)
    }
    /// P, what an expert's gate is made of.
    #[inline(always)]
    fn score(&self, e: usize) -> S {
        if self.sigmoid { self.logits[e].sigmoid() } else { self.softmax(e) }
    }
    /// 1/Σ P of these experts.
    #[inline(always)]
    fn share(&self, of: impl Iterator<Item = usize>) -> S {
        of.map(|e| self.score(e)).fold(S::ZERO, |sum, p| sum + p).inv()
    }
}

/// The gates of the chosen experts, and each row's log-sum-exp.
#[inline(always)]
pub(super) fn gates<S: Scalar>(
    mut gates: Out<S>,
    mut lse: Out<S>,
    logits: In<S>,
    chosen: &[u32],
    router: &RouterTerms,
) {
    let scale = S::from_f64(router.scale);
    for (i, chosen) in chosen.chunks_exact(router.chosen).enumerate() {
        let x = logits.row(i);
        let m = x.iter().fold(S::NEG_INF, |m, &x| S::stab(m, x));
        let of_row = S::lse(m, x.iter().fold(S::ZERO, |sum, &x| sum + S::exp_sub(x, m)));
        lse.row(i)[0] = of_row;
        let row = Row { logits: x, lse: of_row, sigmoid: router.sigmoid };
        let factor =
            if router.normalize { scale * row.share(chosen.iter().map(|&e| e as usize)) } else { scale };
        for (gate, &e) in gates.row(i).iter_mut().zip(chosen) {
            *gate = factor * row.score(e as usize);
        }
    }
}

/// What each row of so many, the first of these tokens' rows, belongs to: the number of its sequence among them.
#[inline(always)]
fn sequences(tokens: &[u32], first: usize, rows: usize) -> impl Iterator<Item = usize> {
    let of = entries::<Segment>(tokens).enumerate().flat_map(|(i, t)| std::iter::repeat_n(i, t.len));
    of.skip(first).take(rows)
}

/// Σ over rows of Σ over experts of weight · P̂, and λ·lse².
#[inline(always)]
pub(super) fn loss<S: Scalar>(
    mut loss: Out<S>,
    logits: In<S>,
    lse: In<S>,
    (weights, tokens, first): (In<S>, &[u32], usize),
    z: In<S>,
    sigmoid: bool,
) {
    let mut total = S::ZERO;
    for (i, sequence) in sequences(tokens, first, logits.rows()).enumerate() {
        let row = Row { logits: logits.row(i), lse: lse.row(i)[0], sigmoid };
        let all = 0..logits.cols();
        let weighed = all.clone().zip(weights.row(sequence));
        let weighed = weighed.map(|(e, &w)| w * row.score(e)).fold(S::ZERO, |sum, x| sum + x);
        total += if sigmoid { weighed * row.share(all) } else { weighed };
        total += z.row(0)[0] * row.lse * row.lse;
    }
    loss.row(0)[0] = total;
}

/// The gradient of logits: of the gates', and of the router's loss where there is one.
#[inline(always)]
pub(super) fn backward<S: Scalar>(
    mut dlogits: Out<S>,
    logits: In<S::Wide>,
    lse: In<S::Wide>,
    (dgates, chosen): (In<S::Wide>, &[u32]),
    balance: Option<(In<S::Wide>, &[u32], usize, In<S::Wide>)>,
    router: &RouterTerms,
) {
    let (zero, scale, experts) = (S::Wide::ZERO, S::Wide::from_f64(router.scale), logits.cols());
    let mut dp = vec![zero; experts];
    let mut of = balance.as_ref().map(|(_, tokens, first, _)| sequences(tokens, *first, logits.rows()));
    for (i, chosen) in chosen.chunks_exact(router.chosen).enumerate() {
        let row = Row { logits: logits.row(i), lse: lse.row(i)[0], sigmoid: router.sigmoid };
        dp.fill(zero);
        gates_gradient(&mut dp, &row, (dgates.row(i), chosen), scale, router.normalize);
        let mut z = zero;
        if let (Some((weights, _, _, of_z)), Some(of)) = (&balance, &mut of) {
            let weights = weights.row(of.next().expect("a sequence for every row"));
            z = S::Wide::from_usize(2) * of_z.row(0)[0] * row.lse;
            let share = if router.sigmoid { row.share(0..experts) } else { S::Wide::ONE };
            let mean = weights.iter().enumerate().fold(zero, |sum, (e, &w)| sum + w * row.score(e)) * share;
            for (dp, &w) in dp.iter_mut().zip(weights) {
                *dp += if router.sigmoid { share * (w - mean) } else { w };
            }
        }
        let around = dp.iter().enumerate().fold(zero, |sum, (e, &dp)| sum + dp * row.score(e));
        for (e, d) in dlogits.row(i).iter_mut().enumerate() {
            let p = row.score(e);
            let through = if router.sigmoid { dp[e] * p * (S::Wide::ONE - p) } else { p * (dp[e] - around) };
            *d = S::narrow(through + z * row.softmax(e));
        }
    }
}

/// Adds what the gates give to the gradient of P.
#[inline(always)]
fn gates_gradient<S: Scalar>(
    dp: &mut [S],
    row: &Row<S>,
    (dgates, chosen): (&[S], &[u32]),
    scale: S,
    normalize: bool,
) {
    let experts = || chosen.iter().map(|&e| e as usize);
    let (factor, mean) = if normalize {
        let share = row.share(experts());
        let weighed = dgates.iter().zip(experts()).fold(S::ZERO, |sum, (&dg, e)| sum + dg * row.score(e));
        (scale * share, weighed * share)
    } else {
        (scale, S::ZERO)
    };
    for (&dg, e) in dgates.iter().zip(experts()) {
        dp[e] += factor * (dg - mean);
    }
}

/// Every row of y times its factor.
#[inline(always)]
pub(super) fn scale_rows<S: Scalar>(mut y: Out<S>, by: In<S::Wide>) {
    for i in 0..by.rows() {
        let by = by.row(i)[0];
        for y in y.row(i) {
            *y = S::narrow(y.widen() * by);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::proof::{draw, filled, index, read};
    use crate::{Kernels, RouterNoise, RouterTerms, Segment};
    use tensor::{Cpu, F61, Host, Index, Key, Noise, Scalar};

    /// The best of five for rows 2 to 6 of seven tokens, some in the middle of their sequence. Kills: noise by row or by place
    /// in the slice, of another row, expert or sequence, one that a row without it has, one added to the logits of sigmoids.
    #[test]
    fn noise_is_that_of_a_tokens_sequence_and_position() {
        let _held = Key(1).enter();
        let part = |row, len, position, sequence| Segment { row, len, position, sequence };
        let tokens = index([part(0, 3, 4, 7), part(3, 4, 0, 2)]);
        let places = [(7, 6), (2, 0), (2, 1), (2, 2), (2, 3)];
        let (logits, bias, noise) =
            (draw::<F61>(1, 5, 5), filled(1, 5, F61::ONE), Noise::new(0.5, 1, 2, "here"));
        for sigmoid in [false, true] {
            let terms = RouterTerms { chosen: 1, sigmoid, normalize: false, scale: 1.0, groups: None };
            let best = |noise| {
                let (mut chosen, mut list) = (Index::empty(&Host::default(), 5), Vec::new());
                Cpu::<F61>::default().choose(&mut chosen, logits.view(), Some(bias.view()), noise, &terms);
                assert!(chosen.read_into(&mut list));
                list
            };
            let wanted = |noisy: bool| -> Vec<u32> {
                let score = |(row, e): (usize, usize)| {
                    let (l, (sequence, position)) = (read(&logits)[row * 5 + e], places[row]);
                    let more = if noisy { noise.of(sequence, position, e as u64) } else { F61::ZERO };
                    (if sigmoid { l.sigmoid() } else { l }) + F61::ONE + more
                };
                let of_row = |row| (0..5).max_by_key(|&e| score((row, e)).canonical());
                (0..5).map(|row| of_row(row).expect("five") as u32).collect()
            };
            assert_eq!(best(Some(RouterNoise { noise, tokens: &tokens, first: 2 })), wanted(true));
            assert_eq!(best(None), wanted(false));
            assert_ne!(wanted(true), wanted(false));
        }
    }
}
