//! Training on stale weights, as pipelines without a flush do: each microbatch is an update, and reads
//! weights from before the updates that are still under way.
//!
//! ```text
//! w_r ← w_r − lr·∇_r f(w_0(v_0), .., w_{K−1}(v_{K−1}))      w_r(v): weights of stage r after v updates
//! stashed     v_r = max(0, n − (K − 1 − r))                 n: microbatches since the pipeline was empty
//! vertical    v_r = max(0, n − (K − 1))
//! ```
//! Source: Harlap et al., "`PipeDream`", §3.3, arXiv:1806.03377.
use crate::dropout::Pass;
use crate::parameters::Weights;
use crate::pass::Sequence;
use crate::see::Walk;
use crate::train::{Step, Trainer};
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
    trainer: Trainer<S>,
    staleness: Staleness,
    versions: Vec<Weights<S>>, // before each update since the pipeline was empty
    steps: usize,
}

impl<S: Scalar> StaleTrainer<S> {
    /// Goes on with this trainer, with an empty pipeline; a clip limits the gradient of each microbatch.
    #[must_use]
    pub fn new(trainer: Trainer<S>, staleness: Staleness) -> Self {
        Self { trainer, staleness, versions: Vec::new(), steps: 0 }
    }

    /// Returns the current weights.
    pub fn weights(&self) -> &Weights<S> {
        self.trainer.weights()
    }

    /// Replaces the weights, with an empty pipeline.
    ///
    /// # Panics
    /// If the weights are not those of the model.
    pub fn replace(&mut self, weights: Weights<S>) {
        self.drain();
        self.trainer.replace(weights);
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
            self.versions.push(self.weights().clone());
            let newest = self.versions.len() - 1;
            let version = |name: &String| newest.saturating_sub(self.staleness.age(name));
            let read = |(name, _): (&String, _)| (name.clone(), self.versions[version(name)][name].clone());
            let weights: Weights<S> = self.weights().iter().map(read).collect();
            let mean_over = microbatch.iter().map(|sequence| self.trainer.model.counted(sequence)).sum();
            let tokens = microbatch.iter().map(|sequence| self.trainer.model.tokens(sequence)).sum();
            let pass = Pass { seed: self.trainer.seed, step: self.steps, first_sequence, mean_over, tokens };
            let mut see = |name: Arguments, x: &[S]| see(m, name, x);
            let mut walk = Walk::new(&weights, Some(pass), &mut see);
            let (loss, gradients) = self.trainer.model.gradients_recorded(microbatch, mean_over, &mut walk);
            let chosen = walk.chosen;
            losses.push(loss * S::from_usize(microbatches.len()).inv());
            last = Some(self.trainer.update(gradients, chosen, lr));
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
            let mut stale = StaleTrainer::new(Trainer::new(model, SGD, None, before.clone()), staleness);
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
