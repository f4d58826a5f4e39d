//! `PipeDream`'s partitioner: cuts a row of measured parts into stages, and replicates each stage over ranks,
//! so that the slowest stage or message takes as little time as possible.
//!
//! ```text
//! T(i → j, m) = max(Σ T_l, Σ W_l) ÷ m      parts i to j on m ranks; T_l: forward and backward of part l
//! W_l         = 4 (m − 1) ÷ m · w_l ÷ B    sum of the gradients of w_l bytes of weights over these ranks
//! C_i         = activation bytes ÷ B       message from part i to the next; its gradient takes as long
//! A(j, m)     = min(T(1 → j, m), min over i < j, m' < m of max(A(i, m − m'), 2 C_i, T(i + 1 → j, m')))
//! ```
//!
//! More ranks can be slower, since `W_l` grows with them: the result uses as many as are best.
//!
//! Source: Harlap et al., "`PipeDream`", §3.2, arXiv:1806.03377; Narayanan et al., SOSP 2019, §3.1.
use parallel::pipeline::one_f_one_b::OneForwardOneBackward;
use parallel::step::simulate::{StepTimes, simulate};
use parallel::step::{Cell, PassKind, Payload, Plan};
use parallel::{Error, Result};
use serde::Serialize;
use std::ops::Range;

/// Costs of a part of a model for one microbatch. The first part has the embedding, the last one the head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PartCost {
    /// Seconds of its forward.
    pub forward: f64,
    /// Seconds of its backward.
    pub backward: f64,
    /// Bytes of the activation that it passes to the next part.
    pub activation_bytes: usize,
    /// Bytes of its weights.
    pub weight_bytes: usize,
}

impl PartCost {
    /// Seconds of its forward and its backward.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.forward + self.backward
    }
}

/// Costs of the parts of a model, and the bandwidth between ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelProfile {
    /// Parts in the order of the model, at least one.
    pub parts: Vec<PartCost>,
    /// Bytes per second of a message between two ranks.
    pub bandwidth: f64,
}

/// A stage of a partition: consecutive parts, replicated over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplicatedStage {
    /// Indices of its parts.
    pub parts: Range<usize>,
    /// Number of its ranks, each with a part of every microbatch.
    pub ranks: usize,
    /// Seconds for each microbatch.
    pub seconds: f64,
}

/// Stages of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Partition {
    /// Stages in the order of the model.
    pub stages: Vec<ReplicatedStage>,
    /// Seconds for each microbatch of the slowest stage, or of the slowest message and its gradient.
    pub bottleneck: f64,
}

/// The best value for the first parts on a number of ranks; first part and ranks of their last stage.
type Best<K> = Option<(K, usize, usize)>;

impl ModelProfile {
    /// Seconds of all parts on one rank.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.parts.iter().map(PartCost::seconds).sum()
    }
    /// Seconds that a stage of these parts takes for a microbatch on this number of ranks: `T`.
    #[must_use]
    pub fn stage(&self, parts: Range<usize>, ranks: usize) -> f64 {
        let parts = &self.parts[parts];
        let m = ranks as f64;
        let compute: f64 = parts.iter().map(PartCost::seconds).sum();
        let weights: usize = parts.iter().map(|part| part.weight_bytes).sum();
        let sync = 4.0 * (m - 1.0) * weights as f64 / m / self.bandwidth;
        compute.max(sync) / m
    }
    /// Seconds of the message of a microbatch that enters a part: `C`. The first part receives none.
    #[must_use]
    pub fn message(&self, part: usize) -> f64 {
        part.checked_sub(1).map_or(0.0, |i| self.parts[i].activation_bytes as f64 / self.bandwidth)
    }
    /// Returns the partition with the least bottleneck over at most `ranks` ranks, with at most `replicas`
    /// ranks a stage; of equal ones, one with the fewest stages, and of these with the fewest ranks. Both
    /// numbers must be at least 1.
    #[must_use]
    pub fn partition(&self, ranks: usize, replicas: usize) -> Partition {
        let parts = self.parts.len();
        let limits = [ranks, replicas];
        let costs = self.best(limits, |before: Option<f64>, cost| before.map_or(cost, |b| b.max(cost)));
        let bottleneck = costs[parts].iter().flatten().map(|best| best.0).fold(f64::INFINITY, f64::min);
        // A prefix that is faster than the bottleneck may need more stages, so they are counted afterwards.
        let counts = self.best(limits, |before: Option<usize>, cost| {
            if cost <= bottleneck { before.unwrap_or(0).saturating_add(1) } else { usize::MAX }
        });
        let count = |used: &usize| counts[parts][*used].map_or(usize::MAX, |best| best.0);
        let mut used = (1..=ranks).min_by_key(count).expect("one rank or more");
        let (mut to, mut stages) = (parts, Vec::new());
        while to > 0 {
            let (_, from, own) = counts[to][used].expect("a value came from this one");
            stages.push(ReplicatedStage { parts: from..to, ranks: own, seconds: self.stage(from..to, own) });
            (to, used) = (from, used - own);
        }
        stages.reverse();
        Partition { stages, bottleneck }
    }
    /// Fills the table of the recursion: by number of first parts, then by number of ranks, the least `key`.
    /// `key` takes the value of the stages before, if there are any, and the seconds of the last stage or of
    /// the messages into it.
    fn best<K: Copy + PartialOrd>(
        &self,
        [ranks, replicas]: [usize; 2],
        key: impl Fn(Option<K>, f64) -> K,
    ) -> Vec<Vec<Best<K>>> {
        let mut table: Vec<Vec<Best<K>>> = vec![vec![None; ranks + 1]; self.parts.len() + 1];
        for to in 1..=self.parts.len() {
            for (from, own) in (0..to).flat_map(|from| (1..=replicas.min(ranks)).map(move |own| (from, own)))
            {
                let cost = self.stage(from..to, own).max(2.0 * self.message(from));
                for all in if from == 0 { own..=own } else { own + 1..=ranks } {
                    let before = table[from][all - own].map(|best| best.0);
                    if before.is_none() && from > 0 {
                        continue; // too few parts for so many ranks
                    }
                    let value = key(before, cost);
                    if table[to][all].is_none_or(|best| value < best.0) {
                        table[to][all] = Some((value, from, own));
                    }
                }
            }
        }
        table
    }
}

impl Partition {
    /// Simulates a step of 1F1B on these stages. Returns its microbatches per second.
    ///
    /// # Errors
    /// If a rank of the schedule waits for ever.
    pub fn simulated(&self, profile: &ModelProfile, microbatches: usize) -> Result<f64> {
        let plan = Plan::whole(self.stages.len(), microbatches);
        let times = PartitionTimes(profile, &self.stages);
        let step = simulate(&OneForwardOneBackward, &plan, &times, &mut |_, _, _, _| ());
        Ok(microbatches as f64 / step.map_err(Error::new)?.makespan)
    }
}

/// Times of a simulated step in which the replicas of a stage are one rank, that many times as fast.
struct PartitionTimes<'a>(&'a ModelProfile, &'a [ReplicatedStage]);

impl StepTimes for PartitionTimes<'_> {
    fn cell(&self, rank: usize, _: usize, cell: Cell) -> f64 {
        let Self(profile, stages) = self;
        let stage = &stages[rank];
        let parts = &profile.parts[stage.parts.clone()];
        let forward: f64 = parts.iter().map(|part| part.forward).sum();
        let share = forward / parts.iter().map(PartCost::seconds).sum::<f64>();
        stage.seconds * if cell.act.number() == PassKind::F.number() { share } else { 1.0 - share }
    }
    fn message(&self, from: usize, to: usize, _: Payload, _: &Plan) -> Option<[f64; 2]> {
        Some([self.0.message(self.1[from.max(to)].parts.start), 0.0])
    }
}

#[cfg(test)]
mod tests;
