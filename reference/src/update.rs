//! Updates of weights from gradients: clipping by the global norm, then the optimizer's rule.
//! Letters: `g` gradients, `c` clipping factor, `η` learning rate, `t` step, counted from 1.
//! ```text
//! c = min(1, limit/√(Σ g²)),  g' = c·g
//! SGD     w ← w − η·g'
//! AdamW   m ← β₁·m + (1 − β₁)·g',   v ← β₂·v + (1 − β₂)·g'²
//!         w ← w − η·λ·w − η · m/(1 − β₁ᵗ) · 1/(√(v/(1 − β₂ᵗ)) + ε)
//! 8-bit   as AdamW; then m and v are rounded to codes, in units of their block of a row
//! Lion    w ← w − η·λ·w − η · sign(β₁·m + (1 − β₁)·g'),   m ← β₂·m + (1 − β₂)·g'
//! ```
//! λ applies to matrices only (of more than one row), not to biases and gains.
//!
//! Source: Kingma, Ba, arXiv:1412.6980; Loshchilov, Hutter, 1711.05101; Chen et al., 2302.06675; Dettmers et
//! al., 2110.02861; clipping: Pascanu et al., 1211.5063.
mod blocks;
mod muon;

use crate::linear::{add, dot};
use crate::parameters::{Shapes, Weights, trained};
use crate::sparse::{Masks, Sparsity};
use blocks::CodedRows;
use shape::{OptimizerInfo, OptimizerKind, Shape, StateInfo};
use std::collections::BTreeMap;
use tensor::{CodeKind, Scalar};

const MOMENTS: &[StateInfo] = &[StateInfo::like_value("m"), StateInfo::like_value("v")];
const MOMENTUM: &[StateInfo] = &[StateInfo::like_value("m")];

/// Gradient descent.
pub const SGD: OptimizerKind =
    OptimizerKind::usual(&OptimizerInfo { name: "sgd", title: "SGD", ..OptimizerInfo::BARE });
/// `AdamW`; its constants are β₁, β₂, ε and the decay.
pub const ADAMW: OptimizerKind = OptimizerKind::usual(&OptimizerInfo {
    name: "adamw",
    title: "AdamW",
    states: |_| MOMENTS,
    ..OptimizerInfo::BARE
});
/// Muon; its constants are the rate of matrices as a factor, μ, 1 for the scale by root mean squares, how
/// ranks get whole matrices, and those of `AdamW`.
pub const MUON: OptimizerKind = {
    const MUON: &OptimizerInfo = &OptimizerInfo {
        name: "muon",
        title: "Muon",
        states: |_| MOMENTS,
        matrices: Some(MOMENTUM),
        ..OptimizerInfo::BARE
    };
    OptimizerKind::usual(MUON)
};
/// Lion; its constants are β₁, β₂ and the decay.
pub const LION: OptimizerKind = OptimizerKind::usual(&OptimizerInfo {
    name: "lion",
    title: "Lion",
    states: |_| MOMENTUM,
    ..OptimizerInfo::BARE
});

/// Weights in training, and the state of their optimizer.
#[derive(Clone, Debug)]
pub struct Updates<S> {
    shapes: Shapes, // of the trained parameters
    optimizer: OptimizerKind,
    clip: Option<f64>,
    weights: Weights<S>,
    states: BTreeMap<String, Vec<Vec<S>>>, // of each parameter, in the optimizer's order
    steps: usize,                          // done
    masks: Masks,                          // of sparse layers
    model: Option<Shape>,                  // of the blocks, if there are some
}

impl<S: Scalar> Updates<S> {
    /// Starts from these weights. `shapes`: name and `[rows, cols]` of each; `clip`: the limit of the global
    /// norm, if there is one.
    ///
    /// # Panics
    /// If the weights are not of these shapes.
    #[must_use]
    pub fn new(
        shapes: Vec<(String, [usize; 2])>,
        optimizer: OptimizerKind,
        clip: Option<f64>,
        weights: Weights<S>,
    ) -> Self {
        assert_eq!(sizes(&weights), sizes(&zeros::<S>(&shapes)), "the weights are not those of the model");
        let shapes = trained(shapes);
        let state = |(name, shape): &(String, [usize; 2])| {
            let like = |of: &StateInfo| vec![S::ZERO; of.like.shape(*shape).iter().product()];
            (name.clone(), optimizer.states().of(name, *shape).iter().map(like).collect())
        };
        let states = shapes.iter().map(state).collect();
        Self { shapes, optimizer, clip, weights, states, steps: 0, masks: Masks::new(), model: None }
    }

    /// Sets the shape of the model whose blocks these weights have.
    pub(crate) fn of_blocks(mut self, model: Option<Shape>) -> Self {
        self.model = model;
        self
    }

    /// Makes layers sparse, by their current weights.
    pub(crate) fn sparsify(&mut self, sparsity: &Sparsity) {
        self.masks = sparsity.masks(&self.shapes, &self.weights);
        let weights = std::mem::take(&mut self.weights);
        self.weights = self.masked(weights);
    }

    /// Returns weights or gradients with zeros where sparse layers have none.
    pub(crate) fn masked(&self, mut all: Weights<S>) -> Weights<S> {
        for (name, mask) in &self.masks {
            let weights = all.get_mut(name).expect("a layer of the model");
            weights.iter_mut().zip(mask).filter(|(_, may)| !**may).for_each(|(w, _)| *w = S::ZERO);
        }
        all
    }

    /// Returns the current weights.
    pub fn weights(&self) -> &Weights<S> {
        &self.weights
    }

    /// Returns the number of steps done.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Replaces the weights; those that sparse layers do not have are 0. The optimizer's state stays.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn replace(&mut self, weights: Weights<S>) {
        assert_eq!(sizes(&weights), sizes(&self.weights), "the weights are not those of the model");
        self.weights = self.masked(weights);
    }

    /// Adds to a parameter that is not trained.
    pub(crate) fn shift(&mut self, name: &str, by: impl IntoIterator<Item = S>) {
        add(self.weights.get_mut(name).expect("a weight of the model"), by);
    }

    /// Does one step with learning rate `lr`; returns Σ g² over all trained parameters, before clipping.
    ///
    /// # Panics
    /// If a gradient is missing.
    pub fn apply(&mut self, gradients: &Weights<S>, lr: f64) -> S {
        let given = |(name, [rows, cols]): &(String, [usize; 2])| {
            gradients.get(name).is_some_and(|g| g.len() == rows * cols)
        };
        let complete = gradients.len() == self.shapes.len() && self.shapes.iter().all(given);
        assert!(complete, "every trained weight needs a gradient");
        let norm2 = gradients.values().fold(S::ZERO, |sum, g| sum + dot(g, g));
        let c = self.clip.map_or(S::ONE, |limit| S::clip_factor(norm2, limit));
        self.steps += 1;
        for (name, shape) in &self.shapes {
            let clipped: Vec<S> = gradients[name].iter().map(|&g| c * g).collect();
            let states = self.states.get_mut(name).expect("there since `new`");
            let mut states: Vec<_> = states.iter_mut().map(|state| &mut state[..]).collect();
            let w = of(&mut self.weights, name);
            if let (Some(model), [m]) = (&self.model, &mut states[..])
                && self.optimizer.name() == "muon"
            {
                let [factor, momentum, by_rms, _, _, _, _, decay] = self.optimizer.constants();
                let lr = S::from_f64(lr * factor);
                let matrices = muon::matrices(model, name, *shape);
                let decay = lr * S::from_f64(decay);
                muon::update(w, m, &clipped, (&matrices, shape[1]), [momentum, by_rms], (lr, decay));
                if let Some(mask) = self.masks.get(name) {
                    w.iter_mut().zip(mask).filter(|(_, may)| !**may).for_each(|(w, _)| *w = S::ZERO);
                }
                continue;
            }
            update(self.optimizer, w, &clipped, &mut states, S::from_f64(lr), self.steps, *shape);
        }
        norm2
    }
}

/// Updates one parameter of this shape in step `t`.
fn update<S: Scalar>(
    of: OptimizerKind,
    w: &mut [S],
    g: &[S],
    states: &mut [&mut [S]],
    lr: S,
    t: usize,
    shape: [usize; 2],
) {
    let rule = if of.name() == "muon" { ADAMW.with(&of.constants::<8>()[4..]) } else { of };
    let decay_of = |decay: f64| if shape[0] > 1 { lr * S::from_f64(decay) } else { S::ZERO };
    match (rule.name(), states) {
        ("sgd", []) => add(w, g.iter().map(|&g| -(lr * g))),
        ("lion", [m]) => {
            let [beta1, beta2, decay] = rule.constants();
            let ([beta1, beta2], decay) = ([beta1, beta2].map(S::from_f64), decay_of(decay));
            for (i, w) in w.iter_mut().enumerate() {
                *w = *w - decay * *w - lr * (beta1 * m[i] + (S::ONE - beta1) * g[i]).sign();
                m[i] = beta2 * m[i] + (S::ONE - beta2) * g[i];
            }
        }
        ("adamw", [m, v]) => {
            let [beta1, beta2, eps, decay] = rule.constants();
            let [beta1, beta2] = [beta1, beta2].map(S::from_f64);
            let [correct1, correct2] = [beta1, beta2].map(|beta| (S::ONE - beta.pow(t)).inv());
            let decay = decay_of(decay);
            for (i, w) in w.iter_mut().enumerate() {
                m[i] = beta1 * m[i] + (S::ONE - beta1) * g[i];
                v[i] = beta2 * v[i] + (S::ONE - beta2) * g[i] * g[i];
                *w = *w - decay * *w - lr * m[i] * correct1 * S::adam_scale(v[i] * correct2, eps);
            }
        }
        ("adamw-8bit", [m_codes, m_units, v_codes, v_units]) => {
            let [constants @ .., block] = rule.constants::<5>();
            let blocks = CodedRows { columns: shape[1], block: block as usize };
            let mut m = blocks.read((m_codes, m_units), w.len(), CodeKind::Signed);
            let mut v = blocks.read((v_codes, v_units), w.len(), CodeKind::Unsigned);
            update(ADAMW.with(&constants), w, g, &mut [&mut m, &mut v], lr, t, shape);
            blocks.write((m_codes, m_units), &m, CodeKind::Signed);
            blocks.write((v_codes, v_units), &v, CodeKind::Unsigned);
        }
        (name, _) => panic!("the oracle has no optimizer {name} with such state"),
    }
}

/// The elements of a parameter.
fn of<'a, S>(all: &'a mut Weights<S>, name: &str) -> &'a mut [S] {
    all.get_mut(name).expect("there since `new`")
}

/// Returns zeros in the shape of every parameter.
pub(crate) fn zeros<S: Scalar>(shapes: &[(String, [usize; 2])]) -> Weights<S> {
    shapes.iter().map(|(name, [rows, cols])| (name.clone(), vec![S::ZERO; rows * cols])).collect()
}

/// Number of values of each parameter.
fn sizes<S>(w: &Weights<S>) -> Vec<(&str, usize)> {
    w.iter().map(|(name, w)| (name.as_str(), w.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, under_two_keys};
    use tensor::F61;

    const MATRIX: [usize; 2] = [2, 1];
    const ADAM: OptimizerKind = ADAMW.with(&[0.5, 0.75, 0.5, 0.25]);

    /// Kills: a wrong sign, a wrong factor, weight decay where there is none.
    #[test]
    fn sgd_equals_a_step_worked_out_by_hand() {
        let mut w = [1.0, -2.0];
        update(SGD, &mut w, &[0.5, 4.0], &mut [], 0.1, 1, MATRIX);
        assert_close(&w, &[0.95, -2.4], 1e-15);
    }

    /// Kills: a missing or wrong bias correction, ε inside the root, decay after the step, decay of an
    /// excluded parameter, moments that are not kept.
    #[test]
    fn adamw_equals_two_steps_worked_out_by_hand() {
        for (shape, first, second) in [(MATRIX, 0.79, 0.7505), ([1, 1], 0.84, 0.84)] {
            let (mut w, mut m, mut v) = ([1.0], [0.0], [0.0]);
            // m/(1 − 0.5) = 2, √(v/(1 − 0.75)) = 2: down by 0.2·2/2.5 = 0.16, and by 0.2·0.25·1 for decay
            update(ADAM, &mut w, &[2.0], &mut [&mut m, &mut v], 0.2, 1, shape);
            assert_close(&[w[0], m[0], v[0]], &[first, 1.0, 1.0], 1e-15);
            // m/(1 − 0.25) = −8/3, √(v/(1 − 0.5625)) = 4: up by 0.2·8/3/4.5, and down by 0.2·0.25·0.79
            update(ADAM, &mut w, &[-5.0], &mut [&mut m, &mut v], 0.2, 2, shape);
            assert_close(&[w[0], m[0], v[0]], &[second + 1.6 / 13.5, -2.0, 7.0], 1e-15);
        }
    }

    /// Kills: the sign of another moment, a decay of the kept momentum in the step's place, a step at 0.
    #[test]
    fn lion_equals_two_steps_worked_out_by_hand() {
        let (lion, mut w, mut m) = (LION.with(&[0.5, 0.75, 0.25]), [1.0, 1.0], [0.0, 0.0]);
        update(lion, &mut w, &[2.0, 0.0], &mut [&mut m], 0.2, 1, MATRIX);
        assert_close(&[w[0], w[1], m[0], m[1]], &[0.75, 0.95, 0.5, 0.0], 1e-15);
        // 0.5·0.5 − 0.5·0.4 is above 0: down by 0.2, and by 0.2·0.25·0.75
        update(lion, &mut w, &[-0.4, -8.0], &mut [&mut m], 0.2, 2, MATRIX);
        assert_close(&[w[0], w[1], m[0], m[1]], &[0.5125, 1.1025, 0.275, -2.0], 1e-15);
    }

    /// Kills: `βᵗ` or a bias correction rounded as a float. Under a constant gradient the corrected moments
    /// are `g` and `g²`.
    #[test]
    fn adamw_is_unbiased_exactly() {
        under_two_keys(|| {
            let adam = ADAMW.with(&[0.9, 0.999, 1e-8, 0.1]);
            let (start, g, lr) = (F61::sample(1, 1.0), F61::sample(2, 1.0), F61::sample(3, 1.0));
            let (mut w, mut m, mut v, mut wanted) = ([start], [F61::ZERO], [F61::ZERO], start);
            for t in 1..5 {
                update(adam, &mut w, &[g], &mut [&mut m, &mut v], lr, t, MATRIX);
                wanted = wanted - lr * F61::from_f64(0.1) * wanted - lr * g * F61::adam_scale(g * g, 1e-8);
                assert_eq!(w, [wanted], "step {t}");
            }
        });
    }

    fn two(a: f64, b: f64) -> Weights<f64> {
        [("a", vec![a, a]), ("b", vec![b])].map(|(name, w)| (name.to_owned(), w)).into()
    }
    fn updates(optimizer: OptimizerKind, clip: Option<f64>) -> Updates<f64> {
        let shapes = [("a", [2, 1]), ("b", [1, 1])].map(|(name, shape)| (name.to_owned(), shape));
        Updates::new(shapes.to_vec(), optimizer, clip, two(1.0, 2.0))
    }

    /// Kills: clipping by the norm of one parameter, clipped gradients in the reported norm, weight decay of
    /// a row.
    #[test]
    fn updates_clip_by_the_norm_of_all_parameters() {
        let mut sgd = updates(SGD, Some(2.5));
        assert_close(&[sgd.apply(&two(2.0, 17f64.sqrt()), 0.5)], &[25.0], 1e-14); // clips by a half
        let wanted = two(0.5, 2.0 - 0.25 * 17f64.sqrt());
        for (name, w) in &wanted {
            assert_close(&sgd.weights()[name], w, 1e-15);
        }
        let mut adam = updates(ADAM, None);
        assert_close(&[adam.apply(&two(0.0, 0.0), 0.5)], &[0.0], 0.0);
        assert_eq!((adam.weights(), adam.steps()), (&two(0.875, 2.0), 1));
    }

    /// Checks that training continues from other weights with the moments of the run.
    #[test]
    fn replaced_weights_keep_the_optimizers_state() {
        let mut run = updates(ADAM, None);
        run.apply(&two(2.0, -3.0), 0.1);
        let moments = run.states.clone();
        run.replace(two(5.0, 6.0));
        assert_eq!(run.weights(), &two(5.0, 6.0));
        assert_eq!((run.states, run.steps), (moments, 1));
    }

    #[test]
    #[should_panic(expected = "every trained weight needs a gradient")]
    fn a_missing_gradient_panics() {
        let mut gradients = two(1.0, 1.0);
        gradients.remove("b");
        updates(ADAM, None).apply(&gradients, 0.1);
    }
}
