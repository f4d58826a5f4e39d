//! A classifier: affine layers with `ReLU` between them, then softmax cross-entropy.
//!
//! ```text
//! X₀ = X;   Xᵢ₊₁ = relu(Xᵢ·Wᵢ + bᵢ);   logits = X_last·W_last + b_last
//! ```
use crate::activation::{activate, activate_backward};
use crate::loss::{cross_entropy, cross_entropy_backward};
use crate::parameters::{Map, MapKind, Weights};
use crate::see::Walk;
use shape::{Activation, Objective};
use tensor::Scalar;

/// A multilayer perceptron (MLP) that classifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// Number of features of the input and of each layer between, then of classes; at least two entries.
    pub sizes: Vec<usize>,
}

impl Classifier {
    /// Canonical name and shape `[rows, cols]` of every parameter, in program order.
    pub fn shapes(&self) -> Vec<(String, [usize; 2])> {
        self.layers().iter().flat_map(Map::shapes).collect()
    }

    /// `X[B, first size]` → logits `[B, last size]`.
    ///
    /// # Panics
    /// If there is no layer, a weight is missing, or a length does not fit.
    #[must_use]
    pub fn logits<S: Scalar>(&self, w: &Weights<S>, x: &[S]) -> Vec<S> {
        self.forward(x, &mut Walk::unseen(w, None)).1
    }

    /// `X[B, first size]`, `labels[B]` → their addend of the mean loss (nats), and its gradients. Shows the
    /// values. `mean_over`: number of labels that the loss is a mean over, see [`cross_entropy`].
    ///
    /// # Panics
    /// As [`logits`](Self::logits), and as [`cross_entropy`].
    pub fn gradients_recorded<S: Scalar>(
        &self,
        x: &[S],
        labels: &[u32],
        mean_over: usize,
        walk: &mut Walk<S>,
    ) -> (S, Weights<S>) {
        let (inputs, logits) = self.forward(x, walk);
        let classes = *self.sizes.last().expect("a layer");
        let plain = Objective::default();
        let loss = cross_entropy(&logits, labels, classes, mean_over, &plain);
        let mut dy = cross_entropy_backward(&logits, labels, classes, mean_over, &plain);
        let mut g = Weights::new();
        for (i, layer) in self.layers().iter().enumerate().rev() {
            let x = gated(i, &inputs[i]);
            if i == 0 {
                walk.show(format_args!("gradient of {}.out", layer.name), &dy);
                layer.backward(walk.w, &x, &dy, &mut g); // the gradient of the input is not needed
                break;
            }
            dy = layer.backward_recorded(walk, &x, &dy, &mut g);
            dy = activate_backward(&inputs[i], &dy, Activation::Relu);
        }
        (loss, g)
    }

    /// Returns the input of each layer, before its `ReLU`, and the logits.
    pub(crate) fn forward<S: Scalar>(&self, x: &[S], walk: &mut Walk<S>) -> (Vec<Vec<S>>, Vec<S>) {
        assert!(self.sizes.len() > 1, "a classifier needs at least two sizes, not {:?}", self.sizes);
        let (mut inputs, mut x) = (Vec::new(), x.to_vec());
        for (i, layer) in self.layers().iter().enumerate() {
            let y = layer.forward_recorded(walk, &gated(i, &x));
            inputs.push(x);
            x = y;
        }
        (inputs, x)
    }

    fn layers(&self) -> Vec<Map> {
        let layer = |(i, size): (usize, &[usize])| {
            let name = format!("layers.{i}");
            Map { name, shape: [size[0], size[1]], bias: true, does: MapKind::Affine }
        };
        self.sizes.windows(2).enumerate().map(layer).collect()
    }
}

/// Applies `ReLU` to the input of layer `i`, except for the first.
fn gated<S: Scalar>(i: usize, x: &[S]) -> Vec<S> {
    if i == 0 { x.to_vec() } else { activate(x, Activation::Relu) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use crate::{ADAMW, Updates};
    use tensor::{Dual, F61};

    fn classifier() -> Classifier {
        Classifier { sizes: vec![3, 4, 5, 2] }
    }
    fn weights<S: Scalar>(seed: u64) -> Weights<S> {
        let numbered = classifier().shapes().into_iter().zip(seed..);
        numbered.map(|((name, [rows, cols]), seed)| (name, draw(seed, rows * cols))).collect()
    }
    const LABELS: [u32; 4] = [1, 0, 0, 1];

    /// Kills: a renamed, reordered or transposed parameter.
    #[test]
    fn shapes_are_canonical_and_in_program_order() {
        let wanted = [
            ("layers.0", [3, 4]),
            ("layers.0.bias", [1, 4]),
            ("layers.1", [4, 5]),
            ("layers.1.bias", [1, 5]),
            ("layers.2", [5, 2]),
            ("layers.2.bias", [1, 2]),
        ];
        assert_eq!(classifier().shapes(), wanted.map(|(name, shape)| (name.to_owned(), shape)));
    }

    /// Kills: an activation before the first layer, an activation after the last layer, a bias added after
    /// the activation, a mean over the rows.
    #[test]
    fn logits_and_loss_equal_the_formula_in_std_floats() {
        let (w, x) = (weights::<f64>(1), draw::<f64>(2, 4 * 3));
        let (mut logits, mut loss) = (Vec::new(), 0.0);
        for (x, label) in x.chunks(3).zip(LABELS) {
            let mut y = x.to_vec();
            for i in 0..3 {
                let (m, bias) = (&w[&format!("layers.{i}")], &w[&format!("layers.{i}.bias")]);
                let n = bias.len();
                let inputs = y.iter().map(|y| if i == 0 { *y } else { y.max(0.0) }).collect::<Vec<f64>>();
                y = (0..n)
                    .map(|o| bias[o] + inputs.iter().enumerate().map(|(j, x)| x * m[j * n + o]).sum::<f64>())
                    .collect();
            }
            loss += ((y[0].exp() + y[1].exp()).ln() - y[label as usize]) / 7.0;
            logits.extend(y);
        }
        assert_close(&classifier().logits(&w, &x), &logits, 1e-13);
        assert_close(&[classifier().gradients(&w, &x, &LABELS, 7).0], &[loss], 1e-13);
    }

    /// Kills: an activation's gradient at the wrong layer, a missing one, one computed from the activation's
    /// output, `=` for `+=` anywhere.
    #[test]
    fn gradients_equal_the_derivative_of_the_loss_exactly() {
        under_two_keys(|| {
            let (w, x) = (weights::<Dual<F61>>(3), draw::<Dual<F61>>(4, 4 * 3));
            let x: Vec<_> = values(&x).into_iter().map(Dual::constant).collect();
            let w_values = w.iter().map(|(name, w)| (name.clone(), values(w))).collect();
            let (loss, g) = classifier().gradients(&w_values, &values(&x), &LABELS, 4);
            let (dual_loss, _) = classifier().gradients(&w, &x, &LABELS, 4);
            assert!(g.keys().eq(w.keys()), "a gradient for every parameter");
            assert_eq!(loss, dual_loss.value);
            let inputs: Vec<_> = w.iter().map(|(name, w)| (w.as_slice(), g[name].as_slice())).collect();
            assert_derivative(&[F61::ONE], &[dual_loss], &inputs);
        });
    }

    /// Kills: updates that support transformers only, a loss that steps along its gradient do not lower.
    #[test]
    fn updates_train_a_classifier() {
        let (x, adam) = (draw(5, 4 * 3), ADAMW.with(&[0.9, 0.99, 1e-8, 0.0]));
        let mut updates = Updates::<f64>::new(classifier().shapes(), adam, Some(1.0), weights(6));
        let mut losses = Vec::new();
        for _ in 0..100 {
            let (loss, g) = classifier().gradients(updates.weights(), &x, &LABELS, 4);
            let norm2 = updates.apply(&g, 0.02);
            assert_close(&[norm2], &[g.values().flatten().map(|g| g * g).sum()], 1e-12 * norm2);
            losses.push(loss);
        }
        assert_eq!(updates.steps(), 100);
        assert!(losses[99] < 0.2 * losses[0], "{} to {}", losses[0], losses[99]);
    }

    #[test]
    #[should_panic(expected = "at least two sizes")]
    fn no_layer_panics() {
        let _ = Classifier { sizes: vec![3] }.logits(&Weights::<f64>::new(), &[]);
    }
}
