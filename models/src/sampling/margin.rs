//! Margin: a lower bound on the change of logits after which another id could be drawn.
//!
//! Let every logit change, and let `s` be the largest change of a difference between two of them: the changes
//! lie in an interval of length `s`. So do the changes of the *sorted* logits (largest new against largest
//! old, second against second). So of the weights `e^(l/T)` by rank, the odds of the first `i` against the
//! next few change by a factor of at most `e^(s/T)`, and a share `x` moves by at most `s/T` on the scale
//! `logit(x) = ln x/(1−x)`. The draw is the same while
//!
//! 1. as many candidates are kept: those kept have a share of at least `top_p`, those but the last one less;
//! 2. `u` falls on the same rank: `T·|logit(u) − logit(border)|` at both borders of its interval;
//! 3. the same id has this rank: it stays between its two neighbours, by its distances to them.
//!
//! The margin is the least of these. To cover rounding of sums in f64, shares are taken to be that much
//! worse.
use super::Candidates;

impl Candidates<'_> {
    /// Returns the margin of the choice `at`, drawn by `u`.
    pub(super) fn margin(&self, at: usize, u: f64) -> f64 {
        let (last, k) = (self.kept - 1, self.sums.len());
        let mut margin = self.distance(at, at + 1);
        if at > 0 {
            let border = self.sums[at - 1] / self.sums[last];
            margin = margin.min(self.distance(at - 1, at)).min(self.room(border, u));
        }
        if at < last {
            margin = margin.min(self.room(u, self.sums[at] / self.sums[last]));
        }
        if last + 1 < k {
            margin = margin.min(self.room(self.p, self.sums[last] / self.sums[k - 1]));
        }
        if self.p < 1.0 && last > 0 {
            margin = margin.min(self.room(self.sums[last - 1] / self.sums[k - 1], self.p));
        }
        margin
    }
    /// Returns the distance between two candidates' logits; infinite if there is no second.
    fn distance(&self, before: usize, behind: usize) -> f64 {
        let logit = |at: usize| self.values.get(at).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
        logit(before) - logit(behind)
    }
    /// Returns the change that keeps the share `below` under the share `above`; both may be off by rounding.
    fn room(&self, below: f64, above: f64) -> f64 {
        let error = 4.0 * (self.sums.len() + 8) as f64 * f64::EPSILON;
        let logit = |share: f64| (share / (1.0 - share)).ln();
        let (below, above) = ((below + error).min(1.0), (above - error).max(0.0));
        if below < above { self.temperature * (logit(above) - logit(below)) } else { 0.0 }
    }
}
