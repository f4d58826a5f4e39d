//! Training on stale weights, as pipelines without a flush do: each microbatch is an update, and reads
//! weights from before the updates that are still under way.
//!
//! ```text
//! w_r ← w_r − lr·∇_r f(w_0(v_0), .., w_{K−1}(v_{K−1}))      w_r(v): weights of stage r after v updates
//! stashed     v_r = max(0, n − (K − 1 − r))                 n: microbatches since the pipeline was empty
//! vertical    v_r = max(0, n − (K − 1))
//! ```
//! Source: Harlap et al., "`PipeDream`", §3.3, arXiv:1806.03377.
use crate::design::Design;
use crate::dropout::Pass;
use crate::parameters::Weights;
use crate::pass::Sequence;
use crate::see::Walk;
use crate::sparse::Sparsity;
use crate::train::Step;
use crate::update::Updates;
use shape::OptimizerKind;
use std::fmt::Arguments;
use tensor::Scalar;

/// Age of the weights that microbatches read on each stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staleness {
    /// Number of the model's blocks on each stage; the first stage has the embedding, the last the head.
    pub stages: Vec<usize>,
    /// True if a microbatch reads the same version on all stages.
    pub vertical: bool,
}

impl Staleness {
    /// Stage of a weight, by its name.
    fn stage(&self, name: &str) -> usize {
        let mut parts = name.split('.');
        let part = parts.next().filter(|part| ["blocks", "layers"].contains(part)).and(parts.next());
        let block = part.and_then(|part| part.parse::<usize>().ok());
        let at_end = !["embedding", "positions"].iter().any(|start| name.starts_with(start));
        let Some(block) = block else { return if at_end { self.stages.len() - 1 } else { 0 } };
        let ends = self.stages.iter().scan(0, |end, n| {
            *end += n;
            Some(*end)
        });
        ends.take_while(|end| *end <= block).count()
    }
    /// Number of updates that a weight's version is behind in a full pipeline.
    fn age(&self, name: &str) -> usize {
        let before = if self.vertical { 0 } else { self.stage(name) };
        self.stages.len() - 1 - before
    }
}

/// A model in training on stale weights.
#[derive(Clone, Debug)]
pub struct StaleTrainer<S> {
    model: Design,
    updates: Updates<S>,
    staleness: Staleness,
    versions: Vec<Weights<S>>, // before each update since the pipeline was empty
    seed: u64,
    steps: usize,
}

impl<S: Scalar> StaleTrainer<S> {
    /// Starts training from these weights, with an empty pipeline.
    ///
    /// # Panics
    /// If the weights are not those of [`Design::shapes`].
    #[must_use]
    pub fn new(
        model: impl Into<Design>,
        optimizer: OptimizerKind,
        staleness: Staleness,
        weights: Weights<S>,
    ) -> Self {
        let model = model.into();
        let updates = Updates::new(model.shapes(), optimizer, None, weights).of_blocks(model.blocks());
        Self { model, updates, staleness, versions: Vec::new(), seed: 0, steps: 0 }
    }

    /// Sets the seed, 0 by default, of dropout and of the routers' noise.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Makes layers sparse, by the current weights.
    #[must_use]
    pub fn sparse(mut self, sparsity: &Sparsity) -> Self {
        self.updates.sparsify(sparsity);
        self
    }

    /// Returns the current weights.
    pub fn weights(&self) -> &Weights<S> {
        self.updates.weights()
    }

    /// Replaces the weights, with an empty pipeline.
    ///
    /// # Panics
    /// If the weights are not those of the model.
    pub fn replace(&mut self, weights: Weights<S>) {
        self.drain();
        self.updates.replace(weights);
    }

    /// Empties the pipeline: the next microbatch reads the current weights.
    pub fn drain(&mut self) {
        self.versions.clear();
    }

    /// Does one step: an update with learning rate `lr` for each microbatch. The step's loss is the mean of
    /// theirs. `gradients` are those of the last microbatch, and `norm2` is theirs. Shows the values of each
    /// microbatch ([`See`](crate::See)) with its number.
    ///
    /// # Panics
    /// As [`Trainer::step`](crate::Trainer::step).
    pub fn step_recorded(
        &mut self,
        microbatches: &[Vec<Sequence>],
        lr: f64,
        see: &mut dyn FnMut(usize, Arguments, &[S]),
    ) -> Step<S> {
        let (mut losses, mut last, mut first_sequence) = (Vec::new(), None, 0);
        for (m, microbatch) in microbatches.iter().enumerate() {
            self.versions.push(self.updates.weights().clone());
            let newest = self.versions.len() - 1;
            let version = |name: &String| newest.saturating_sub(self.staleness.age(name));
            let read = |(name, _): (&String, _)| (name.clone(), self.versions[version(name)][name].clone());
            let weights: Weights<S> = self.updates.weights().iter().map(read).collect();
            let mean_over = microbatch.iter().map(|sequence| self.model.counted(sequence)).sum();
            let tokens = microbatch.iter().map(|sequence| self.model.tokens(sequence)).sum();
            let pass = Pass { seed: self.seed, step: self.steps, first_sequence, mean_over, tokens };
            let mut see = |name: Arguments, x: &[S]| see(m, name, x);
            let mut walk = Walk::new(&weights, Some(pass), &mut see);
            let (loss, gradients) = self.model.gradients_recorded(microbatch, mean_over, &mut walk);
            let chosen = walk.chosen;
            losses.push(loss * S::from_usize(microbatches.len()).inv());
            let gradients = self.updates.masked(gradients);
            let norm2 = self.updates.apply(&gradients, lr);
            let rate = S::from_f64(self.model.bias_rate());
            for (name, counts) in chosen {
                let total: usize = counts.iter().sum();
                let up = |n: &usize| rate * S::from_f64(f64::from(total.cmp(&(n * counts.len())) as i8));
                self.updates.shift(&name, counts.iter().map(up));
            }
            last = Some((norm2, gradients));
            first_sequence += microbatch.len();
        }
        self.steps += 1;
        let (norm2, gradients) = last.expect("a step has a microbatch");
        Step { losses, norm2, gradients }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SGD;
    use crate::proof::{random_weights, small, under_two_keys};
    use tensor::F61;

    /// By hand: two stages, four microbatches, plain descent. Kills: an update from weights of another age at
    /// the beginning or later, the same age on both stages where it differs or the reverse, versions that
    /// outlive a drain, a gradient applied to an old version.
    #[test]
    fn each_stage_reads_weights_of_its_age() {
        under_two_keys(ages);
    }
    fn ages() {
        let model = small(false);
        let ids = |m: u32| vec![Sequence { ids: vec![1, m], targets: vec![m, 2], ..Sequence::default() }];
        let (before, batches) = (random_weights::<F61>(&model, 1), [3, 4, 5, 6].map(ids));
        let blocks = model.shape.blocks;
        for (vertical, late) in [(false, 0), (true, 1)] {
            let staleness = Staleness { stages: vec![1, blocks - 1], vertical };
            let mut stale = StaleTrainer::new(model, SGD, staleness, before.clone());
            let mut versions = vec![before.clone()];
            let mut from = 0; // the version that the pipeline began with
            for half in batches.chunks(2) {
                stale.step_recorded(half, 0.5, &mut |_, _, _| {});
                for microbatch in half {
                    let n = versions.len() - 1 - from;
                    let old = |delay: usize| &versions[from + n.saturating_sub(delay)];
                    let is_first = |name: &str| name == "embedding" || name.starts_with("blocks.0.");
                    let read = |name: &String| if is_first(name) { old(1) } else { old(late) }[name].clone();
                    let weights = before.keys().map(|name| (name.clone(), read(name))).collect();
                    let (_, g) = model.gradients(&weights, microbatch, 2);
                    let mut next = versions[versions.len() - 1].clone();
                    for (name, w) in &mut next {
                        let half = F61::from_f64(0.5);
                        w.iter_mut().zip(&g[name]).for_each(|(w, g)| *w = *w - half * *g);
                    }
                    versions.push(next);
                }
                assert!(stale.weights() == versions.last().unwrap(), "vertical: {vertical}");
            }
            stale.drain();
            from = versions.len() - 1;
            stale.step_recorded(&batches[..1], 0.5, &mut |_, _, _| {});
            let (_, g) = model.gradients(&versions[from], &batches[0], 2);
            let wanted = versions[from]["head"][0] - F61::from_f64(0.5) * g["head"][0];
            assert_eq!(stale.weights()["head"][0], wanted);
        }
    }
}
