//! What training adds to the loss so that experts get as many tokens each, and logits stay small.
//!
//! Letters: `B` tokens of the microbatch, `Bₛ` of a sequence, `E` experts, `k` chosen, `N` the tokens that the loss is a mean
//! over; `nₑ` how many tokens chose expert `e`, before any is dropped: a count, which has no gradient; `P̂` a token's scores,
//! divided by their sum where they are sigmoids.
//!
//! ```text
//! microbatch   α·E/(k·B)·Σₑ nₑ·Σₜ P̂[t,e] / N
//! sequence     β·Σₛ E/(k·Bₛ)·Σₑ nₛₑ·Σ_{t in s} P̂[t,e] / N
//! z            λ·Σₜ lseₜ² / N,   lse = ln Σₑ exp(l)
//! ```
//! Source: Fedus et al., Switch, §2.2, arXiv:2101.03961; DeepSeek-AI, DeepSeek-V3, §2.1.2, arXiv:2412.19437 (by sequence);
//! Zoph et al., ST-MoE, §3, arXiv:2202.08906 (z).
use crate::experts::{Experts, Scoring};
use crate::linear::{add, dot};
use crate::loss::share;
use crate::router::Routing;
use crate::softmax::{log_sum_exp, softmax};
use tensor::Scalar;

/// What training adds to the loss: the weights of the addends, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// `α`, of the balance of a microbatch.
    pub microbatch: f64,
    /// `β`, of the balance of each sequence.
    pub sequence: f64,
    /// `λ`, of the squared log-sum-exp.
    pub z: f64,
}

impl Experts {
    /// The addends of the loss; sequences of these lengths lie one after the other. What is switched off is left out, not
    /// multiplied by 0.
    pub(crate) fn auxiliary<S: Scalar>(
        &self,
        routing: &Routing<S>,
        lengths: &[usize],
        mean_over: usize,
    ) -> S {
        let (slopes, mut loss) = (self.slopes::<S>(routing, lengths, mean_over), S::ZERO);
        if let Some(slopes) = slopes {
            for (p, slopes) in routing.p.chunks(self.count).zip(slopes.chunks(self.count)) {
                loss += dot(p, slopes) * self.part(p);
            }
        }
        if self.balance.z != 0.0 {
            let squares = routing.logits.chunks(self.count).map(log_sum_exp).map(|lse| lse * lse);
            loss +=
                squares.fold(S::ZERO, |sum, lse| sum + lse) * S::from_f64(self.balance.z) * share(mean_over);
        }
        loss
    }

    /// Its derivatives: by P, and by the logits themselves.
    pub(crate) fn auxiliary_backward<S: Scalar>(
        &self,
        routing: &Routing<S>,
        lengths: &[usize],
        mean_over: usize,
    ) -> [Vec<S>; 2] {
        let [mut dp, mut dl] = [(); 2].map(|()| vec![S::ZERO; routing.p.len()]);
        if let Some(slopes) = self.slopes::<S>(routing, lengths, mean_over) {
            let rows = routing.p.chunks(self.count).zip(slopes.chunks(self.count));
            for (dp, (p, slopes)) in dp.chunks_mut(self.count).zip(rows) {
                let part = self.part(p);
                let mean = if self.scoring == Scoring::Sigmoid { dot(p, slopes) * part } else { S::ZERO };
                add(dp, slopes.iter().map(|&slope| (slope - mean) * part));
            }
        }
        if self.balance.z != 0.0 {
            let twice = S::from_usize(2) * S::from_f64(self.balance.z) * share(mean_over);
            for (dl, l) in dl.chunks_mut(self.count).zip(routing.logits.chunks(self.count)) {
                add(dl, softmax(l).into_iter().map(|p| twice * log_sum_exp(l) * p));
            }
        }
        [dp, dl]
    }

    /// By how much the balances grow with each `P̂[t,e]`; none where there are none.
    fn slopes<S: Scalar>(&self, routing: &Routing<S>, lengths: &[usize], mean_over: usize) -> Option<Vec<S>> {
        let (all, mut slopes) = (routing.chosen.len(), None);
        assert_eq!(lengths.iter().sum::<usize>(), all, "a sequence for every token");
        for (weight, lengths) in [(self.balance.microbatch, &[all][..]), (self.balance.sequence, lengths)] {
            let mut end = 0;
            for &n in lengths {
                end += n;
                if weight == 0.0 || n == 0 {
                    continue;
                }
                let (slopes, mut counts) =
                    (slopes.get_or_insert_with(|| vec![S::ZERO; all * self.count]), vec![0; self.count]);
                routing.chosen[end - n..end].iter().flatten().for_each(|&e| counts[e] += 1);
                let each = S::from_usize(self.count) * S::from_usize(self.chosen * n).inv();
                let weight = S::from_f64(weight) * each * share(mean_over);
                for row in slopes.chunks_mut(self.count).take(end).skip(end - n) {
                    add(row, counts.iter().map(|&n| weight * S::from_usize(n)));
                }
            }
        }
        slopes
    }

    /// What a token's P are multiplied by to be `P̂`.
    fn part<S: Scalar>(&self, p: &[S]) -> S {
        match self.scoring {
            Scoring::Softmax => S::ONE,
            Scoring::Sigmoid => p.iter().fold(S::ZERO, |sum, &p| sum + p).inv(),
        }
    }
}

#[cfg(test)]
mod tests;
