//! One training step: sums the gradients of all microbatches, updates the weights (`update.rs`), and moves
//! the routers' biases towards the experts that few tokens chose.
//!
//! ```text
//! g = Σ over microbatches of dloss;   loss = mean over all targets of all microbatches that are not IGNORED
//! bₑ ← bₑ + γ·sign(mean of n − nₑ)    nₑ: how often all tokens of the step chose expert e
//! ```
//! Source: Wang et al., "Auxiliary-loss-free load balancing", arXiv:2408.15664; DeepSeek-AI, DeepSeek-V3,
//! §2.1.2, arXiv:2412.19437.
use crate::design::Design;
use crate::dropout::Pass;
use crate::linear::add;
use crate::parameters::{Weights, trained};
use crate::pass::Sequence;
use crate::see::{Chosen, Walk};
use crate::sparse::Sparsity;
use crate::update::{Updates, zeros};
use shape::OptimizerKind;
use std::fmt::Arguments;
use tensor::Scalar;

/// A model in training: its weights and the state of its optimizer.
#[derive(Clone, Debug)]
pub struct Trainer<S> {
    pub(crate) model: Design,
    updates: Updates<S>,
    pub(crate) seed: u64,
}

/// Results of a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<S> {
    /// Addend of the mean loss (nats) of each microbatch, before the step.
    pub losses: Vec<S>,
    /// Σ g² over all parameters, before clipping.
    pub norm2: S,
    /// Gradients of all trained parameters, before clipping.
    pub gradients: Weights<S>,
}

impl<S: Scalar> Trainer<S> {
    /// Starts training from these weights. `clip`: the limit of the global norm, if there is one.
    ///
    /// # Panics
    /// If the weights are not those of [`Design::shapes`].
    #[must_use]
    pub fn new(
        model: impl Into<Design>,
        optimizer: OptimizerKind,
        clip: Option<f64>,
        weights: Weights<S>,
    ) -> Self {
        let model = model.into();
        let updates = Updates::new(model.shapes(), optimizer, clip, weights).of_blocks(model.blocks());
        Self { model, updates, seed: 0 }
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

    /// Replaces the weights; the optimizer's state stays.
    ///
    /// # Panics
    /// If the weights are not those of the model.
    pub fn replace(&mut self, weights: Weights<S>) {
        self.updates.replace(weights);
    }

    /// Does one training step with learning rate `lr`. The loss is a mean over the targets of all
    /// microbatches that are not [`IGNORED`](tensor::IGNORED). Sequences are numbered across microbatches.
    ///
    /// # Panics
    /// As [`Model::logits_recorded`](crate::Model::logits_recorded), and if a sequence does not have one
    /// target for each id.
    pub fn step(&mut self, microbatches: &[Vec<Sequence>], lr: f64) -> Step<S> {
        self.step_recorded(microbatches, lr, &mut |_, _, _| {})
    }

    /// Does one training step, and shows the values of each microbatch ([`See`](crate::See)) with the
    /// microbatch's number.
    ///
    /// # Panics
    /// As [`step`](Self::step).
    pub fn step_recorded(
        &mut self,
        microbatches: &[Vec<Sequence>],
        lr: f64,
        see: &mut dyn FnMut(usize, Arguments, &[S]),
    ) -> Step<S> {
        let mean_over = microbatches.iter().flatten().map(|sequence| self.model.counted(sequence)).sum();
        let tokens = microbatches.iter().flatten().map(|sequence| self.model.tokens(sequence)).sum();
        let seed = self.seed;
        let mut pass = Pass { seed, step: self.updates.steps(), first_sequence: 0, mean_over, tokens };
        let (mut losses, mut gradients) = (Vec::new(), zeros(&trained(self.model.shapes())));
        let mut chosen = Chosen::new();
        for (m, microbatch) in microbatches.iter().enumerate() {
            let mut see = |name: Arguments, x: &[S]| see(m, name, x);
            let walk = Walk::new(self.updates.weights(), Some(pass), &mut see);
            let mut walk = Walk { chosen, ..walk };
            let (loss, g) = self.model.gradients_recorded(microbatch, mean_over, &mut walk);
            losses.push(loss);
            chosen = walk.chosen;
            for (name, g) in g {
                add(gradients.get_mut(&name).expect("a gradient of a parameter"), g);
            }
            pass.first_sequence += microbatch.len();
        }
        let (norm2, gradients) = self.update(gradients, chosen, lr);
        Step { losses, norm2, gradients }
    }

    /// Updates the weights and the routers' biases. Returns Σ g² and the gradients, both before clipping.
    pub(crate) fn update(&mut self, gradients: Weights<S>, chosen: Chosen, lr: f64) -> (S, Weights<S>) {
        let gradients = self.updates.masked(gradients);
        let norm2 = self.updates.apply(&gradients, lr);
        let rate = S::from_f64(self.model.bias_rate());
        for (name, counts) in chosen {
            let total: usize = counts.iter().sum();
            let up = |n: &usize| rate * S::from_f64(f64::from(total.cmp(&(n * counts.len())) as i8));
            self.updates.shift(&name, counts.iter().map(up));
        }
        (norm2, gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{
        assert_close, deepseek, everything, kinds, mixtral, moved, ragged, random_weights, small,
        under_two_keys,
    };
    use crate::{ADAMW, Degree, SGD};
    use tensor::{F61, IGNORED};

    const ADAM: OptimizerKind = ADAMW.with(&[0.5, 0.75, 0.5, 0.25]);

    /// Two microbatches of unequal token counts.
    fn microbatches() -> Vec<Vec<Sequence>> {
        let sequence = |ids: &[u32]| Sequence {
            ids: ids.to_vec(),
            targets: ids.iter().map(|i| 6 - i).collect(),
            ..Sequence::default()
        };
        vec![vec![sequence(&[1, 4, 1]), sequence(&[6])], vec![sequence(&[3, 3, 0, 5, 2])]]
    }

    /// Kills: clipping forgotten, clipped gradients reported, a mean over one microbatch, moments of another
    /// parameter, weight decay of a norm's gain.
    #[test]
    fn adamw_steps_equal_the_formula_in_std_floats() {
        let (model, batches, lr, limit) = (small(false), microbatches(), 0.2, 0.1);
        let mut w: Weights<f64> = random_weights(&model, 1);
        let mut trainer = Trainer::new(model, ADAM, Some(limit), w.clone());
        let (mut m, mut v) = (zeros::<f64>(&model.shapes()), zeros::<f64>(&model.shapes()));
        for t in 1..4 {
            let (first, mut g) = model.gradients(&w, &batches[0], 9);
            let (second, other) = model.gradients(&w, &batches[1], 9);
            let mut norm2 = 0.0;
            for (name, g) in &mut g {
                for (g, other) in g.iter_mut().zip(&other[name]) {
                    *g += other;
                    norm2 += g.powi(2);
                }
            }
            let c = limit / norm2.sqrt();
            assert!(c < 0.9, "a clip that clips");
            for (name, w) in &mut w {
                let decay = if name.contains("norm") { 0.0 } else { 0.25 };
                for (i, w) in w.iter_mut().enumerate() {
                    let (m, v) = (&mut m.get_mut(name).unwrap()[i], &mut v.get_mut(name).unwrap()[i]);
                    *m = 0.5 * *m + 0.5 * c * g[name][i];
                    *v = 0.75 * *v + 0.25 * (c * g[name][i]).powi(2);
                    let (m, v) = (*m / (1.0 - 0.5f64.powi(t)), *v / (1.0 - 0.75f64.powi(t)));
                    *w -= lr * decay * *w + lr * m / (v.sqrt() + 0.5);
                }
            }
            let step = trainer.step(&batches, lr);
            assert_close(&step.losses, &[first, second], 1e-14);
            assert_close(&[step.norm2], &[norm2], 1e-13);
            for (name, w) in &w {
                assert_close(&step.gradients[name], &g[name], 1e-14);
                assert_close(&trainer.weights()[name], w, 1e-13);
            }
        }
    }

    /// Kills: clipping without a limit, another learning rate than the given one.
    #[test]
    fn sgd_without_clipping_subtracts_the_gradients() {
        let (model, batches) = (small(true), microbatches());
        let before: Weights<f64> = random_weights(&model, 2);
        let mut trainer = Trainer::new(model, SGD, None, before.clone());
        let step = trainer.step(&batches, 0.5);
        for (name, w) in trainer.weights() {
            let wanted: Vec<f64> =
                before[name].iter().zip(&step.gradients[name]).map(|(w, g)| w - 0.5 * g).collect();
            assert_close(w, &wanted, 1e-15);
        }
    }

    /// Kills: a dependence of any state on the split into microbatches, over three steps.
    #[test]
    fn steps_in_microbatches_equal_steps_in_one_exactly() {
        under_two_keys(|| {
            for (optimizer, clip) in [(ADAM, Some(0.1)), (ADAM, None), (SGD, Some(2.0))] {
                for model in [small(true), everything()] {
                    let w: Weights<F61> = random_weights(&model, 3);
                    let mut cut = Trainer::new(model, optimizer, clip, w.clone()).seeded(4);
                    let mut whole = cut.clone();
                    for _ in 0..3 {
                        let a = cut.step(&microbatches(), 1.0);
                        let b = whole.step(&[microbatches().concat()], 1.0);
                        assert_eq!(a.losses[0] + a.losses[1], b.losses[0]);
                        assert_eq!((a.norm2, a.gradients), (b.norm2, b.gradients));
                    }
                    assert_eq!(cut.weights(), whole.weights());
                    assert_ne!(cut.weights(), &w);
                }
            }
        });
    }

    /// Kills: a router bias with a gradient, a part in the norm or weight decay; a balance loss that is in
    /// the gradients and not in the loss.
    #[test]
    fn the_bias_of_a_router_stays_as_it_is() {
        under_two_keys(|| {
            let before = random_weights::<F61>(&deepseek(), 9);
            let mut trainer = Trainer::new(deepseek(), ADAM, None, before.clone()).seeded(2);
            let step = trainer.step(&[ragged()], 0.5);
            assert!(step.gradients.keys().eq(moved(&before)));
            assert_eq!(step.norm2, step.gradients.values().flatten().fold(F61::ZERO, |sum, &g| sum + g * g));
            for (name, w) in trainer.weights() {
                assert_eq!(*w == before[name], name == "blocks.1.mlp.router.bias", "{name}");
            }
            let pass = Pass { seed: 2, ..Pass::default() };
            let (loss, _) = deepseek().gradients_with(&before, &ragged(), 6, &pass);
            assert_eq!(step.losses, [loss]);
        });
    }

    /// Checks three steps of two microbatches. Kills: choices of one microbatch, choices of the previous
    /// step, a wrong sign, a bias moved by the difference of counts, a bias that choices ignore, a bias that
    /// moves where all experts are chosen equally often.
    #[test]
    fn the_bias_of_a_router_moves_towards_experts_that_few_tokens_chose() {
        under_two_keys(|| {
            let mut model = deepseek();
            let experts = model.shape.experts.as_mut().expect("a DeepSeek");
            (experts.bias, experts.balance) = (Some(0.25), shape::Balance::default());
            let (of, name) = (*experts, "blocks.1.mlp.router.bias");
            let mut trainer = Trainer::new(model, ADAM, None, random_weights::<F61>(&model, 9));
            for step in 0..3 {
                let (bias, mut counts, mut tokens) = (trainer.weights()[name].clone(), vec![0; of.count], 0);
                let batch = [ragged(), ragged()[..2].to_vec()];
                trainer.step_recorded(&batch, 0.5, &mut |_, name, x| {
                    if name.to_string() == "blocks.1.mlp.router.out" {
                        for logits in x.chunks(of.count) {
                            let s: Vec<F61> =
                                logits.iter().zip(&bias).map(|(l, &b)| l.sigmoid() + b).collect();
                            crate::router::Router(of).choose(0, &s).into_iter().for_each(|e| counts[e] += 1);
                            tokens += 1;
                        }
                    }
                });
                assert_eq!(tokens, 12);
                let rate = F61::from_f64(0.25);
                let moved = |(&b, &n): (&F61, &i32)| match 6 - n {
                    1.. => b + rate,
                    0 => b,
                    _ => b - rate,
                };
                let wanted: Vec<F61> = bias.iter().zip(&counts).map(moved).collect();
                assert_eq!(trainer.weights()[name], wanted, "step {step}: {counts:?}");
            }
        });
    }

    /// Checks that, if all experts have the same number of copies, a balance loss of weight α is α for each
    /// token of the microbatch in each block. Kills: a balance loss of one block, a balance loss of the step
    /// instead of its microbatches, a mean over all tokens instead of the counted ones.
    #[test]
    fn balances_are_those_of_each_block_and_microbatch() {
        under_two_keys(|| {
            let batch = [ragged()[..2].to_vec(), ragged()]; // 4 and 8 tokens, of which 3 and 6 count
            let losses = |microbatch: f64| {
                let mut model = mixtral();
                let experts = model.shape.experts.as_mut().expect("a Mixtral");
                (experts.count, experts.forced, experts.balance.microbatch) = (4, true, microbatch);
                let w = random_weights::<F61>(&model, 3);
                Trainer::new(model, SGD, None, w).step(&batch, 0.5).losses
            };
            for ((some, none), tokens) in losses(0.5).into_iter().zip(losses(0.0)).zip([4, 8]) {
                assert_eq!(some - none, F61::from_usize(tokens) * F61::from_usize(9).inv());
            }
        });
    }

    /// Kills: code that branches on a value, which degrees lack; values beyond the range of their bound.
    #[test]
    fn steps_on_degrees_bound_the_proof() {
        for (kind, model) in kinds() {
            let mut trainer = Trainer::new(model, ADAM, Some(1.0), random_weights::<Degree>(&model, 4));
            let _ = Degree::take_tally();
            let step = trainer.step(&[ragged()], 0.1);
            let tally = Degree::take_tally();
            let small = |d: &Degree| d.degree() < 4096.0;
            assert!(step.losses.iter().chain([&step.norm2]).all(|d| d.degree() > 1.0 && small(d)), "{kind}");
            assert!(trainer.weights().values().flatten().all(|w| w.degree() > 0.0 && small(w)), "{kind}");
            let (count, _, largest) = tally.opaque[crate::Function::Exp as usize];
            assert!(count > 0.0 && tally.inverted > 0.0 && largest < 65536.0, "{kind}: {tally:?}");
        }
    }

    /// Kills: a seed that is not passed on, steps counted from 1, sequences numbered by microbatch, a mean
    /// that includes ignored targets.
    #[test]
    fn steps_equal_their_passes_exactly() {
        under_two_keys(|| {
            let (model, batch) = (everything(), [ragged(), ragged()[..2].to_vec()]);
            let mut w: Weights<F61> = random_weights(&model, 7);
            let mut trainer = Trainer::new(model, SGD, None, w.clone()).seeded(9);
            for step in 0..2 {
                let pass = |first_sequence| Pass { seed: 9, step, first_sequence, ..Pass::default() };
                let (first, mut g) = model.gradients_with(&w, &batch[0], 9, &pass(0));
                let (second, other) = model.gradients_with(&w, &batch[1], 9, &pass(3));
                for (name, g) in &mut g {
                    add(g, other[name].iter().copied());
                }
                let seen = trainer.step(&batch, 0.5);
                assert_eq!((seen.losses, &seen.gradients), (vec![first, second], &g), "step {step}");
                for (name, g) in g {
                    let w = w.get_mut(&name).unwrap();
                    add(w, g.into_iter().map(|g| -(F61::from_f64(0.5) * g)));
                }
                assert_eq!(trainer.weights(), &w);
            }
        });
    }

    /// Kills: 1/0 in a step whose targets are all ignored.
    #[test]
    fn a_step_without_targets_changes_nothing() {
        under_two_keys(|| {
            let (model, mut batch) = (everything(), ragged());
            for sequence in &mut batch {
                sequence.targets.fill(IGNORED);
            }
            let w: Weights<F61> = random_weights(&model, 8);
            let mut trainer = Trainer::new(model, SGD, None, w.clone());
            let step = trainer.step(&[batch], 1.0);
            assert_eq!((step.losses, step.norm2, trainer.weights()), (vec![F61::ZERO], F61::ZERO, &w));
        });
    }

    /// Checks that training continues from the new weights.
    #[test]
    fn replaced_weights_are_trained_on() {
        let [start, other] = [5, 6].map(|seed| random_weights::<f64>(&small(false), seed));
        let mut trainer = Trainer::new(small(false), ADAM, None, start);
        trainer.step(&microbatches(), 0.1);
        trainer.replace(other.clone());
        assert_eq!(trainer.weights(), &other);
        let fresh = Trainer::new(small(false), ADAM, None, other).step(&microbatches(), 0.1);
        assert_eq!(trainer.step(&microbatches(), 0.1).losses, fresh.losses);
    }

    #[test]
    #[should_panic(expected = "the weights are not those of the model")]
    fn weights_of_another_model_panic() {
        let _ = Trainer::new(small(false), SGD, None, random_weights::<f64>(&small(true), 5));
    }
}
