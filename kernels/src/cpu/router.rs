//! Router of experts: the experts of a token, and the gate of each.
use super::matrices::{In, Out};
use crate::indexed::entries;
use crate::{RouterBalance, RouterNoise, RouterTerms, Segment};
use std::cmp::Ordering;
use tensor::{Cpu, Host, Scalar};

/// Chooses the experts with the highest scores, ties by lower index; with groups, only from the best groups.
#[inline(always)]
pub(super) fn choose<S: Scalar>(
    chosen: &mut [u32],
    logits: In<S::Wide>,
    bias: Option<In<S>>,
    noise: Option<RouterNoise<Host>>,
    router: &RouterTerms,
) {
    let mut scores = Vec::new();
    let mut order = Vec::new();
    let mut noise = noise.map(|at| (at.noise, places(at.tokens.words()).skip(at.first)));
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

/// Sequence and position of each token.
#[inline(always)]
fn places(tokens: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    entries::<Segment>(tokens).flat_map(|t| (0..t.len).map(move |i| (t.sequence, t.position + i)))
}

/// Orders by higher score, then by lower index.
#[inline(always)]
fn before<S: Scalar>(scores: &[S], a: usize, b: usize) -> Ordering {
    scores[b].order(scores[a]).then(a.cmp(&b))
}

/// P of a logit: the score that an expert's gate is made of.
#[inline(always)]
fn score<S: Scalar>(logit: S, lse: S, sigmoid: bool) -> S {
    if sigmoid { logit.sigmoid() } else { S::exp_sub(logit, lse) }
}

#[inline(always)]
fn sum<S: Scalar>(of: impl Iterator<Item = S>) -> S {
    of.fold(S::ZERO, |sum, x| sum + x)
}

/// Computes the gates of the chosen experts, and each row's log-sum-exp.
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
        let (x, gates) = (logits.row(i), gates.row(i));
        let m = x.iter().fold(S::NEG_INF, |m, &x| S::stab(m, x));
        let of_row = S::lse(m, sum(x.iter().map(|&x| S::exp_sub(x, m))));
        lse.row(i)[0] = of_row;
        gates.iter_mut().zip(chosen).for_each(|(p, &e)| *p = score(x[e as usize], of_row, router.sigmoid));
        let factor = if router.normalize { scale * sum(gates.iter().copied()).inv() } else { scale };
        for gate in gates {
            *gate = factor * *gate;
        }
    }
}

/// Returns the index of the sequence of each of `rows` rows.
#[inline(always)]
fn sequences<S: Scalar>(balance: &RouterBalance<Cpu<S>>, rows: usize) -> impl Iterator<Item = usize> {
    let segments = entries::<Segment>(balance.tokens.words()).enumerate();
    segments.flat_map(|(i, t)| std::iter::repeat_n(i, t.len)).skip(balance.first).take(rows)
}

/// loss = Σ over rows of Σ over experts of weight · P̂, and λ·lse².
#[inline(always)]
pub(super) fn loss<S: Scalar>(
    mut loss: Out<S>,
    logits: In<S>,
    lse: In<S>,
    balance: &RouterBalance<Cpu<S>>,
    sigmoid: bool,
) {
    let mut total = S::ZERO;
    for (i, sequence) in sequences(balance, logits.rows()).enumerate() {
        let lse = lse.row(i)[0];
        let p = logits.row(i).iter().map(|&x| score(x, lse, sigmoid));
        let weighed = p.zip(balance.weights.row(sequence));
        let (of_all, all) =
            weighed.fold((S::ZERO, S::ZERO), |(of_all, all), (p, &w)| (of_all + w * p, all + p));
        total += if sigmoid { of_all * all.inv() } else { of_all };
        total += balance.z.row(0)[0] * lse * lse;
    }
    loss.row(0)[0] = total;
}

/// Gradient of the logits: from the gates, and from the router's loss if there is one.
#[inline(always)]
pub(super) fn backward<S: Scalar>(
    mut dlogits: Out<S>,
    logits: In<S::Wide>,
    lse: In<S::Wide>,
    (dgates, chosen): (In<S::Wide>, &[u32]),
    balance: Option<&RouterBalance<Cpu<S::Wide>>>,
    router: &RouterTerms,
) {
    let zero = S::Wide::ZERO;
    let scale = S::Wide::from_f64(router.scale);
    let [mut p, mut dp] = [(); 2].map(|()| vec![zero; logits.cols()]);
    let mut balance = balance.map(|balance| (balance, sequences(balance, logits.rows())));
    for (i, chosen) in chosen.chunks_exact(router.chosen).enumerate() {
        let (logits, lse) = (logits.row(i), lse.row(i)[0]);
        p.iter_mut().zip(logits).for_each(|(p, &x)| *p = score(x, lse, router.sigmoid));
        dp.fill(zero);
        gates_gradient(&mut dp, &p, (dgates.row(i), chosen), scale, router.normalize);
        let mut z = None;
        if let Some((balance, of)) = &mut balance {
            let weights = balance.weights.row(of.next().expect("a sequence for every row"));
            z = Some(S::Wide::from_usize(2) * balance.z.row(0)[0] * lse);
            if router.sigmoid {
                let share = sum(p.iter().copied()).inv();
                let mean = sum(weights.iter().zip(&p).map(|(&w, &p)| w * p)) * share;
                dp.iter_mut().zip(weights).for_each(|(dp, &w)| *dp += share * (w - mean));
            } else {
                dp.iter_mut().zip(weights).for_each(|(dp, &w)| *dp += w);
            }
        }
        let around = if router.sigmoid { zero } else { sum(dp.iter().zip(&p).map(|(&dp, &p)| dp * p)) };
        for (e, d) in dlogits.row(i).iter_mut().enumerate() {
            let [p, dp] = [&p, &dp].map(|values| values[e]);
            let through = if router.sigmoid { dp * p * (S::Wide::ONE - p) } else { p * (dp - around) };
            let softmax = || if router.sigmoid { score(logits[e], lse, false) } else { p };
            *d = S::narrow(z.map_or(through, |z| through + z * softmax()));
        }
    }
}

/// Adds the gates' part to the gradient of P.
#[inline(always)]
fn gates_gradient<S: Scalar>(
    dp: &mut [S],
    p: &[S],
    (dgates, chosen): (&[S], &[u32]),
    scale: S,
    normalize: bool,
) {
    let pairs = || dgates.iter().zip(chosen.iter().map(|&e| e as usize));
    let share = normalize.then(|| sum(pairs().map(|(_, e)| p[e])).inv());
    for (&dg, e) in pairs() {
        // From differences: a part common to all gates gives exactly zero, as does the one gate of one
        // expert.
        let apart = || sum(pairs().map(|(&other, e)| p[e] * (dg - other)));
        dp[e] += scale * share.map_or(dg, |share| share * share * apart());
    }
}

/// Multiplies every row of y by its factor.
#[inline(always)]
pub(super) fn scale_rows<S: Scalar>(mut y: Out<S>, by: In<S::Wide>) {
    for i in 0..by.rows() {
        let by = by.row(i)[0];
        for y in y.row(i) {
            *y = S::narrow(y.widen() * by);
        }
    }
}
