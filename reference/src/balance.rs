//! Losses that balance tokens over experts, and keep logits small.
//!
//! Letters: `B` tokens of the microbatch, `Bₛ` of a sequence, `T` of the step, `E` experts, `k` chosen; `N`
//! tokens that the loss is a mean over; `nₑ` tokens that chose expert `e` before any is dropped, a count
//! without gradient; `P̂` a token's scores, divided by their sum if they are sigmoids.
//!
//! ```text
//! microbatch   α·E/(k·B)·Σₑ nₑ·Σₜ P̂[t,e] / N
//! sequence     β·Σₛ E/(k·Bₛ)·Σₑ nₛₑ·Σ_{t in s} P̂[t,e] / N
//! pooled       δ·E/k·Σₑ f̄ₑ·P̄ₑ · B/T     f̄, P̄: means of n and P̂ over the R = L·B rows of all L blocks
//! z            λ·Σₜ lseₜ² / N,   lse = ln Σₑ exp(l)
//! ```
//! Source: Fedus et al., Switch, §2.2, arXiv:2101.03961; DeepSeek-AI, DeepSeek-V3, §2.1.2, arXiv:2412.19437
//! (by sequence); Zoph et al., ST-MoE, §3, arXiv:2202.08906 (z); Hugging Face `transformers`,
//! `load_balancing_loss_func` (pooled).
use crate::dropout::Pass;
use crate::linear::{add, dot};
use crate::loss::share;
use crate::router::{Router, Routing};
use crate::see::{BalanceSums, Walk};
use crate::softmax::{log_sum_exp, softmax};
use shape::Scoring;
use tensor::Scalar;

impl Router {
    /// Adds a block's rows to the sums over all blocks.
    pub(crate) fn pool<S: Scalar>(&self, routing: &Routing<S>, pool: &mut BalanceSums<S>) {
        pool.blocks += 1;
        pool.rows += routing.chosen.len();
        pool.counts.resize(self.count, 0);
        pool.p.resize(self.count, S::ZERO);
        routing.chosen.iter().flatten().for_each(|&e| pool.counts[e] += 1);
        for p in routing.p.chunks(self.count) {
            let part = self.part(p);
            add(&mut pool.p, p.iter().map(|&p| p * part));
        }
    }

    /// Returns the derivatives of the pooled balance by each expert's P̂, in any row of any block.
    pub(crate) fn pooled_slopes<S: Scalar>(&self, pool: &BalanceSums<S>, pass: Pass) -> Vec<S> {
        let Pass { tokens, mean_over, .. } = pass;
        if self.balance.pooled == 0.0 || pool.rows == 0 || tokens == 0 || mean_over == 0 {
            return vec![S::ZERO; self.count];
        }
        let (mean, of_all) = (S::from_usize(pool.rows).inv(), S::from_usize(self.count));
        let weight = S::from_f64(self.balance.pooled) * of_all * S::from_usize(self.chosen).inv();
        let weight = weight * S::from_usize(pool.rows / pool.blocks) * S::from_usize(tokens).inv();
        pool.counts.iter().map(|&n| weight * (S::from_usize(n) * mean) * mean).collect()
    }

    /// Returns the pooled balance, after all blocks have run; 0 outside training.
    pub(crate) fn pooled<S: Scalar>(&self, walk: &Walk<S>) -> S {
        let slopes = walk.pass.map_or_else(Vec::new, |pass| self.pooled_slopes(&walk.pool, pass));
        walk.pool.p.iter().zip(slopes).fold(S::ZERO, |sum, (&p, slope)| sum + p * slope)
    }

    /// Returns the sum of the added losses. Sequences of these lengths lie one after the other. Terms with
    /// weight 0 are left out, not multiplied by 0.
    pub(crate) fn auxiliary<S: Scalar>(
        &self,
        routing: &Routing<S>,
        lengths: &[usize],
        mean_over: usize,
    ) -> S {
        let slopes = self.slopes::<S>(routing, lengths, mean_over);
        let mut loss = S::ZERO;
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

    /// Returns the derivatives of [`auxiliary`](Self::auxiliary) and of a balance with slopes `pooled`: by P,
    /// and by the logits.
    pub(crate) fn auxiliary_backward<S: Scalar>(
        &self,
        routing: &Routing<S>,
        lengths: &[usize],
        mean_over: usize,
        pooled: &[S],
    ) -> [Vec<S>; 2] {
        let [mut dp, mut dl] = [(); 2].map(|()| vec![S::ZERO; routing.p.len()]);
        let mut slopes = self.slopes::<S>(routing, lengths, mean_over);
        if self.balance.pooled != 0.0 {
            let slopes = slopes.get_or_insert_with(|| vec![S::ZERO; routing.p.len()]);
            slopes.chunks_mut(self.count).for_each(|row| add(row, pooled.iter().copied()));
        }
        if let Some(slopes) = slopes {
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

    /// Returns the derivatives of the balances by each `P̂[t,e]`, if there are any balances.
    fn slopes<S: Scalar>(&self, routing: &Routing<S>, lengths: &[usize], mean_over: usize) -> Option<Vec<S>> {
        let (len, mut slopes) = (routing.chosen.len(), None);
        assert_eq!(lengths.iter().sum::<usize>(), len, "the lengths must add up to all tokens");
        for (weight, lengths) in [(self.balance.microbatch, &[len][..]), (self.balance.sequence, lengths)] {
            let mut end = 0;
            for &n in lengths {
                end += n;
                if weight == 0.0 || n == 0 {
                    continue;
                }
                let slopes = slopes.get_or_insert_with(|| vec![S::ZERO; len * self.count]);
                let mut counts = vec![0; self.count];
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

    /// Returns the factor that turns a token's P into `P̂`.
    fn part<S: Scalar>(&self, p: &[S]) -> S {
        match self.scoring {
            Scoring::Softmax => S::ONE,
            Scoring::Sigmoid => p.iter().fold(S::ZERO, |sum, &p| sum + p).inv(),
        }
    }
}

#[cfg(test)]
mod tests;
