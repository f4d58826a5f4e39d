//! One training step: gradients of all microbatches summed, clipped by their global norm, weights changed.
//!
//! Letters: `g` the sum of the microbatches' gradients, `c` the factor of clipping, `η` the learning rate, `t` the
//! step, counted from 1.
//!
//! ```text
//! c = min(1, limit/√(Σ g²)),  g' = c·g
//! SGD     w ← w − η·g'
//! AdamW   m ← β₁·m + (1 − β₁)·g',   v ← β₂·v + (1 − β₂)·g'²
//!         w ← w − η·λ·w − η · m/(1 − β₁ᵗ) · 1/(√(v/(1 − β₂ᵗ)) + ε)
//! ```
//! λ applies to matrices only, parameters of more than one row: not to the gains of norms.
//!
//! Source: Kingma, Ba, Adam, arXiv:1412.6980; Loshchilov, Hutter, arXiv:1711.05101; clipping: Pascanu et al.,
//! arXiv:1211.5063.
use crate::linear::{add, dot};
use crate::model::{Model, Sequence, Weights};
use tensor::Scalar;

/// How gradients change weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Plain gradient descent: no momentum, no decay.
    Sgd,
    /// Adam with decoupled weight decay, as in `PyTorch`.
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Weight decay λ, of matrices only.
        decay: f64,
    },
}

/// A model in training: its weights and the state of its optimizer.
#[derive(Clone, Debug)]
pub struct Trainer<S> {
    model: Model,
    optimizer: Optimizer,
    clip: Option<f64>,
    weights: Weights<S>,
    first: Weights<S>,  // moments m
    second: Weights<S>, // moments v
    steps: usize,       // done
}

/// What a step saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<S> {
    /// Each microbatch's addend of the mean loss (nats), before the step.
    pub losses: Vec<S>,
    /// Σ g² over all parameters, before clipping.
    pub norm2: S,
    /// The gradients, before clipping.
    pub gradients: Weights<S>,
}

impl<S: Scalar> Trainer<S> {
    /// Training from these weights; `clip`: the limit of the global norm, if there is one.
    ///
    /// # Panics
    /// If the weights are not those of [`Model::shapes`].
    #[must_use]
    pub fn new(model: Model, optimizer: Optimizer, clip: Option<f64>, weights: Weights<S>) -> Self {
        let zero = zeros(&model);
        let sizes = |w: &Weights<S>| w.iter().map(|(name, w)| (name.clone(), w.len())).collect::<Vec<_>>();
        assert_eq!(sizes(&weights), sizes(&zero), "the weights are those of the model");
        Self { model, optimizer, clip, weights, first: zero.clone(), second: zero, steps: 0 }
    }

    /// The weights as they are now.
    pub fn weights(&self) -> &Weights<S> {
        &self.weights
    }

    /// Goes on from other weights; the optimizer's state stays.
    ///
    /// # Panics
    /// If they are not those of the model.
    pub fn replace(&mut self, weights: Weights<S>) {
        let sizes = |w: &Weights<S>| w.iter().map(|(name, w)| (name.clone(), w.len())).collect::<Vec<_>>();
        assert_eq!(sizes(&weights), sizes(&self.weights), "the weights are those of the model");
        self.weights = weights;
    }

    /// One step with learning rate `lr`: the loss is a mean over the tokens of all microbatches.
    ///
    /// # Panics
    /// As [`Model::gradients`].
    pub fn step(&mut self, microbatches: &[Vec<Sequence>], lr: f64) -> Step<S> {
        let tokens = microbatches.iter().flatten().map(|sequence| sequence.ids.len()).sum();
        let (mut losses, mut gradients) = (Vec::new(), zeros(&self.model));
        for microbatch in microbatches {
            let (loss, g) = self.model.gradients(&self.weights, microbatch, tokens);
            losses.push(loss);
            gradients.values_mut().zip(g.into_values()).for_each(|(sum, g)| add(sum, g));
        }
        let norm2 = gradients.values().fold(S::ZERO, |sum, g| sum + dot(g, g));
        let c = self.clip.map_or(S::ONE, |limit| S::clip_factor(norm2, limit));
        self.update(&gradients, c, S::from_f64(lr));
        Step { losses, norm2, gradients }
    }

    fn update(&mut self, gradients: &Weights<S>, c: S, lr: S) {
        self.steps += 1;
        for (name, [rows, _]) in self.model.shapes() {
            let clipped: Vec<S> = gradients[&name].iter().map(|&g| c * g).collect();
            let [w, m, v] = [&mut self.weights, &mut self.first, &mut self.second]
                .map(|all| all.get_mut(&name).expect("held since `new`").as_mut_slice());
            self.optimizer.update(w, &clipped, [m, v], lr, self.steps, rows > 1);
        }
    }
}

impl Optimizer {
    /// One parameter's step number `t`; `decays`: whether λ applies to it.
    fn update<S: Scalar>(self, w: &mut [S], g: &[S], [m, v]: [&mut [S]; 2], lr: S, t: usize, decays: bool) {
        match self {
            Optimizer::Sgd => add(w, g.iter().map(|&g| -(lr * g))),
            Optimizer::AdamW { beta1, beta2, eps, decay } => {
                let [beta1, beta2] = [beta1, beta2].map(S::from_f64);
                let [correct1, correct2] = [beta1, beta2].map(|beta| (S::ONE - beta.pow(t)).inv());
                let decay = if decays { lr * S::from_f64(decay) } else { S::ZERO };
                for (i, w) in w.iter_mut().enumerate() {
                    m[i] = beta1 * m[i] + (S::ONE - beta1) * g[i];
                    v[i] = beta2 * v[i] + (S::ONE - beta2) * g[i] * g[i];
                    let scale = S::adam_scale(v[i] * correct2, eps);
                    *w = *w - decay * *w - lr * m[i] * correct1 * scale;
                }
            }
        }
    }
}

/// A zero for every number of every parameter.
fn zeros<S: Scalar>(model: &Model) -> Weights<S> {
    model.shapes().into_iter().map(|(name, [rows, cols])| (name, vec![S::ZERO; rows * cols])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, random_weights, small, under_two_keys};
    use tensor::{Degree, F61};

    const ADAM: Optimizer = Optimizer::AdamW { beta1: 0.5, beta2: 0.75, eps: 0.5, decay: 0.25 };

    /// Two microbatches of unequal token counts.
    fn microbatches() -> Vec<Vec<Sequence>> {
        let sequence =
            |ids: &[u32]| Sequence { ids: ids.to_vec(), targets: ids.iter().map(|i| 6 - i).collect() };
        vec![vec![sequence(&[1, 4, 1]), sequence(&[6])], vec![sequence(&[3, 3, 0, 5, 2])]]
    }

    /// Kills: a sign, a factor, weight decay where there is none.
    #[test]
    fn sgd_equals_a_step_worked_out_by_hand() {
        let mut w = [1.0, -2.0];
        Optimizer::Sgd.update(&mut w, &[0.5, 4.0], [&mut [], &mut []], 0.1, 1, true);
        assert_close(&w, &[0.95, -2.4], 1e-15);
    }

    /// Kills: a missing or wrong correction, ε inside the root, decay after the step or of what must not decay,
    /// moments that are not kept.
    #[test]
    fn adamw_equals_two_steps_worked_out_by_hand() {
        for (decays, first, second) in [(true, 0.79, 0.7505), (false, 0.84, 0.84)] {
            let (mut w, mut m, mut v) = ([1.0], [0.0], [0.0]);
            // m/(1 − 0.5) = 2, √(v/(1 − 0.75)) = 2: down by 0.2·2/2.5 = 0.16, and by 0.2·0.25·1 for decay
            ADAM.update(&mut w, &[2.0], [&mut m, &mut v], 0.2, 1, decays);
            assert_close(&[w[0], m[0], v[0]], &[first, 1.0, 1.0], 1e-15);
            // m/(1 − 0.25) = −8/3, √(v/(1 − 0.5625)) = 4: up by 0.2·8/3/4.5, and down by 0.2·0.25·0.79
            ADAM.update(&mut w, &[-5.0], [&mut m, &mut v], 0.2, 2, decays);
            assert_close(&[w[0], m[0], v[0]], &[second + 1.6 / 13.5, -2.0, 7.0], 1e-15);
        }
    }

    /// Kills: `βᵗ` or a correction rounded as a float: under a constant gradient, corrected moments are `g`, `g²`.
    #[test]
    fn adamw_is_unbiased_exactly() {
        under_two_keys(|| {
            let adam = Optimizer::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.1 };
            let (start, g, lr) = (F61::sample(1, 1.0), F61::sample(2, 1.0), F61::sample(3, 1.0));
            let (mut w, mut m, mut v, mut wanted) = ([start], [F61::ZERO], [F61::ZERO], start);
            for t in 1..5 {
                adam.update(&mut w, &[g], [&mut m, &mut v], lr, t, true);
                wanted = wanted - lr * F61::from_f64(0.1) * wanted - lr * g * F61::adam_scale(g * g, 1e-8);
                assert_eq!(w, [wanted], "step {t}");
            }
        });
    }

    /// Kills: clipping forgotten or applied to what is reported, a mean over one microbatch, moments of another
    /// parameter, a norm's gain that decays.
    #[test]
    fn adamw_steps_equal_the_formula_in_std_floats() {
        let (model, batches, lr, limit) = (small(false), microbatches(), 0.2, 0.1);
        let mut w: Weights<f64> = random_weights(&model, 1);
        let mut trainer = Trainer::new(model.clone(), ADAM, Some(limit), w.clone());
        let (mut m, mut v) = (zeros::<f64>(&model), zeros::<f64>(&model));
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

    /// Kills: clipping without a limit, a learning rate that is not the one given.
    #[test]
    fn sgd_without_clipping_subtracts_the_gradients() {
        let (model, batches) = (small(true), microbatches());
        let before: Weights<f64> = random_weights(&model, 2);
        let mut trainer = Trainer::new(model, Optimizer::Sgd, None, before.clone());
        let step = trainer.step(&batches, 0.5);
        for (name, w) in trainer.weights() {
            let wanted: Vec<f64> =
                before[name].iter().zip(&step.gradients[name]).map(|(w, g)| w - 0.5 * g).collect();
            assert_close(w, &wanted, 1e-15);
        }
    }

    /// Kills: anything that depends on how a step is cut into microbatches, in any state, over three steps.
    #[test]
    fn steps_in_microbatches_equal_steps_in_one_exactly() {
        under_two_keys(|| {
            for (optimizer, clip) in [(ADAM, Some(0.1)), (ADAM, None), (Optimizer::Sgd, Some(2.0))] {
                let w: Weights<F61> = random_weights(&small(true), 3);
                let mut cut = Trainer::new(small(true), optimizer, clip, w.clone());
                let mut whole = cut.clone();
                for _ in 0..3 {
                    let a = cut.step(&microbatches(), 1.0);
                    let b = whole.step(&[microbatches().concat()], 1.0);
                    assert_eq!(
                        (a.losses[0] + a.losses[1], a.norm2, a.gradients),
                        (b.losses[0], b.norm2, b.gradients)
                    );
                }
                assert_eq!(cut.weights(), whole.weights());
                assert_ne!(cut.weights(), &w);
            }
        });
    }

    /// Kills: a look at the value of a number, which degrees do not have.
    #[test]
    fn steps_on_degrees_bound_the_proof() {
        let model = small(false);
        let mut trainer = Trainer::new(model.clone(), ADAM, Some(1.0), random_weights::<Degree>(&model, 4));
        let _ = Degree::take_tally();
        let step = trainer.step(&microbatches(), 0.1);
        let tally = Degree::take_tally();
        assert!(step.losses.iter().chain([&step.norm2]).all(|d| d.degree() > 1.0 && d.degree() < 2048.0));
        assert!(trainer.weights().values().flatten().all(|w| w.degree() > 0.0 && w.degree() < 2048.0));
        let (count, _, largest) = tally.opaque[tensor::Function::Exp as usize];
        assert!(count > 0.0 && tally.inverted > 0.0 && largest < 65536.0, "{tally:?}");
    }

    /// Other weights are trained on, and the moments stay those of the run.
    #[test]
    fn replaced_weights_keep_the_optimizers_state() {
        let (start, other) =
            (random_weights::<f64>(&small(false), 5), random_weights::<f64>(&small(false), 6));
        let batch = [vec![Sequence { ids: vec![1, 2], targets: vec![2, 3] }]];
        let adamw = Optimizer::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, decay: 0.0 };
        let mut trainer = Trainer::new(small(false), adamw, None, start);
        trainer.step(&batch, 0.1);
        let moments = trainer.first.clone();
        trainer.replace(other.clone());
        assert_eq!((trainer.weights(), &trainer.first, trainer.steps), (&other, &moments, 1));
        let fresh = Trainer::new(small(false), adamw, None, other).step(&batch, 0.1);
        assert_eq!(trainer.step(&batch, 0.1).losses, fresh.losses);
    }

    #[test]
    #[should_panic(expected = "the weights are those of the model")]
    fn weights_of_another_model_panic() {
        let _ = Trainer::new(small(false), Optimizer::Sgd, None, random_weights::<f64>(&small(true), 5));
    }
}
