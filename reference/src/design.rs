//! A model of any kind, as one type for the trainer.
use crate::classifier::Classifier;
use crate::model::Model;
use crate::parameters::{Shapes, Weights};
use crate::pass::{Sequence, features};
use crate::see::{See, Walk};
use shape::Shape;
use tensor::{IGNORED, Scalar};

/// A transformer or a classifier.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a run has one")]
pub enum Design {
    /// A transformer: ids to logits, or rows to rows.
    Transformer(Model),
    /// A classifier: rows of features to logits.
    Classifier(Classifier),
}

impl From<Model> for Design {
    fn from(model: Model) -> Self {
        Self::Transformer(model)
    }
}

impl Design {
    /// Canonical name and shape `[rows, cols]` of every parameter, in program order.
    pub fn shapes(&self) -> Shapes {
        match self {
            Self::Transformer(model) => model.shapes(),
            Self::Classifier(classifier) => classifier.shapes(),
        }
    }

    /// The shape of its blocks, if it has some.
    pub(crate) fn blocks(&self) -> Option<Shape> {
        if let Self::Transformer(model) = self { Some(model.shape) } else { None }
    }

    /// Computes a row for each token of all sequences: logits, or features.
    ///
    /// # Panics
    /// As [`Model::logits_recorded`].
    pub fn logits_recorded<S: Scalar>(
        &self,
        w: &Weights<S>,
        sequences: &[Sequence],
        see: &mut See<S>,
    ) -> Vec<S> {
        match self {
            Self::Transformer(model) => model.logits_recorded(w, sequences, see),
            Self::Classifier(classifier) => {
                let x: Vec<S> = features(sequences, |s| &s.x);
                classifier.forward(&x, &mut Walk::new(w, None, see)).1
            }
        }
    }

    /// Step by which the bias of a router rises or falls after each training step; 0 without such biases.
    pub(crate) fn bias_rate(&self) -> f64 {
        let Self::Transformer(model) = self else { return 0.0 };
        model.experts.and_then(|experts| experts.bias).unwrap_or(0.0)
    }

    /// Number of tokens of a sequence.
    pub fn tokens(&self, sequence: &Sequence) -> usize {
        match self {
            Self::Transformer(model) => model.tokens(sequence),
            Self::Classifier(classifier) => sequence.x.len() / classifier.sizes[0],
        }
    }

    /// Number of a sequence's tokens that the loss is a mean over.
    pub(crate) fn counted(&self, sequence: &Sequence) -> usize {
        if sequence.y.is_empty() {
            sequence.targets.iter().filter(|&&target| target != IGNORED).count()
        } else {
            self.tokens(sequence)
        }
    }

    /// Computes a microbatch's addend of the mean loss, and the addend's gradient for every parameter.
    pub(crate) fn gradients_recorded<S: Scalar>(
        &self,
        microbatch: &[Sequence],
        mean_over: usize,
        walk: &mut Walk<S>,
    ) -> (S, Weights<S>) {
        match self {
            Self::Transformer(model) => model.gradients_recorded(microbatch, mean_over, walk),
            Self::Classifier(classifier) => {
                let labels: Vec<u32> = microbatch.iter().flat_map(|s| s.targets.iter().copied()).collect();
                classifier.gradients_recorded(&features(microbatch, |s| &s.x), &labels, mean_over, walk)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::add;
    use crate::proof::{assert_derivative, draw, everything, small, under_two_keys, values};
    use crate::{Pass, SGD, Trainer, Updates, mean_squared_error};
    use shape::{Rates, Shape};
    use tensor::{Dual, F61};

    fn rows(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7 + salt * 5) % 13) as f32 * 0.25 - 1.0).collect()
    }
    /// Two microbatches of sequences of these lengths.
    fn rows_of(width: usize, lengths: [&[usize]; 2]) -> Vec<Vec<Sequence>> {
        let sequence = |&len: &usize| Sequence {
            x: rows(len * width, len),
            y: rows(len * width, len + 3),
            ..Sequence::default()
        };
        lengths.map(|lengths| lengths.iter().map(sequence).collect()).to_vec()
    }
    fn weights<S: Scalar>(design: &Design, seed: u64) -> Weights<S> {
        let numbered = design.shapes().into_iter().zip(seed..);
        numbered.map(|((name, [rows, cols]), seed)| (name, draw(seed, rows * cols))).collect()
    }
    fn seen<S: Scalar>(design: &Design, w: &Weights<S>, batch: &[Sequence]) -> (S, Weights<S>) {
        design.gradients_recorded(batch, 9, &mut Walk::unseen(w, Some(PASS)))
    }
    const PASS: Pass = Pass { seed: 1, step: 2, first_sequence: 3, mean_over: 0, tokens: 9 };

    /// Kills: a gradient of another loss than the mean squared error, positions or masks of one long
    /// sequence, a mean over tokens, a parameter that bare blocks lack.
    #[test]
    fn gradients_of_blocks_equal_the_derivative_exactly() {
        under_two_keys(|| {
            for model in [small(false), everything()] {
                let (width, design) = (model.width, Design::Transformer(Model { bare: true, ..model }));
                let batch = rows_of(width, [&[3, 1, 2], &[]]).remove(0);
                let w = weights::<Dual<F61>>(&design, 3);
                let still = w.iter().map(|(name, w)| (name.clone(), values(w))).collect();
                let (loss, g) = seen(&design, &still, &batch);
                assert!(g.keys().eq(w.keys()), "a gradient for every parameter");
                let (moved, _) = seen(&design, &w, &batch);
                assert_eq!(loss, moved.value);
                let inputs: Vec<_> = w.iter().map(|(name, w)| (w.as_slice(), g[name].as_slice())).collect();
                assert_derivative(&[F61::ONE], &[moved], &inputs);
                let plain = Design::Transformer(Model {
                    shape: Shape { dropout: Rates::default(), ..*model },
                    bare: true,
                });
                let y: Vec<F61> = features(&batch, |s| &s.y);
                let given = plain.logits_recorded(&still, &batch, &mut |_, _| {});
                let (loss, _) = seen(&plain, &still, &batch);
                assert_eq!(loss, mean_squared_error(&given, &y, 9 * width));
            }
        });
    }

    /// Kills: a mean of means, sequences counted as tokens, ids counted as tokens.
    #[test]
    fn steps_of_blocks_in_microbatches_equal_steps_in_one_exactly() {
        under_two_keys(|| {
            let design = Design::Transformer(Model { bare: true, ..everything() });
            let batch = rows_of(4, [&[3, 1], &[2]]);
            let mut cut = Trainer::<F61>::new(design.clone(), SGD, None, weights(&design, 5));
            let mut whole = cut.clone();
            for _ in 0..2 {
                let (a, b) = (cut.step(&batch, 0.5), whole.step(&[batch.concat()], 0.5));
                assert_eq!((a.losses[0] + a.losses[1], a.gradients), (b.losses[0], b.gradients));
            }
            assert_eq!(cut.weights(), whole.weights());
        });
    }

    /// Kills: features or labels of another example, an ignored label that counts.
    #[test]
    fn a_step_of_a_classifier_equals_its_gradients_exactly() {
        under_two_keys(|| {
            let classifier = Classifier { sizes: vec![3, 4, 2] };
            let design = Design::Classifier(classifier.clone());
            let labels: [&[u32]; 2] = [&[1, IGNORED, 0], &[1]];
            let example = |(i, &label): (usize, &u32)| Sequence {
                x: rows(3, i),
                targets: vec![label],
                ..Sequence::default()
            };
            let batch = labels.map(|labels| labels.iter().enumerate().map(example).collect::<Vec<_>>());
            let w: Weights<F61> = weights(&design, 7);
            let mut updates = Updates::new(classifier.shapes(), SGD, None, w.clone());
            let step = Trainer::new(design, SGD, None, w.clone()).step(&batch, 0.5);
            let (first, mut g) = classifier.gradients(&w, &features(&batch[0], |s| &s.x), labels[0], 3);
            let (second, other) = classifier.gradients(&w, &features(&batch[1], |s| &s.x), labels[1], 3);
            for (name, g) in &mut g {
                add(g, other[name].iter().copied());
            }
            assert_eq!((step.losses, &step.gradients), (vec![first, second], &g));
            assert_eq!(step.norm2, updates.apply(&g, 0.5));
        });
    }
}
