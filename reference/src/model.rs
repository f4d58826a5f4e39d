//! The whole model: embedding, blocks, norm, head, loss; and the way back.
//!
//! ```text
//! X₀ = embedding[ids];   Xᵢ₊₁ = blockᵢ(Xᵢ);   logits[B,V] = norm(X)·W_head
//! ```
//! Tied: `W_head = embeddingᵀ`, and the gradients of both uses add up.
use crate::attention::Heads;
use crate::block::BlockSaved;
use crate::linear::{add, linear, linear_backward, transpose};
use crate::loss::{cross_entropy, cross_entropy_backward, embed, embed_backward};
use crate::norm::{rms_norm, rms_norm_backward};
use std::collections::BTreeMap;
use tensor::Scalar;

/// A model of the Llama family: all that its parameters do not say.
#[derive(Clone, Debug)]
pub struct Model {
    /// Features of a token between blocks, `D`.
    pub width: usize,
    /// Transformer blocks.
    pub blocks: usize,
    /// The heads of each block's attention.
    pub heads: Heads,
    /// Hidden features of each block's feed-forward layer, `F`.
    pub hidden: usize,
    /// Token ids, `V`.
    pub vocabulary: usize,
    /// Base of the rotary angles.
    pub rope: f64,
    /// What the norms add to the mean square.
    pub eps: f64,
    /// Whether the head is the embedding transposed.
    pub tied: bool,
}

/// Numbers by canonical parameter name, row-major in the shape of [`Model::shapes`]: weights, or their gradients.
pub type Weights<S> = BTreeMap<String, Vec<S>>;

/// A sequence of tokens, and for each the token that the model should give.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// What the model reads.
    pub ids: Vec<u32>,
    /// What it should say after each of them; as many as ids.
    pub targets: Vec<u32>,
}

/// What the backward needs of the forward.
struct Tape<S> {
    ids: Vec<u32>,
    lengths: Vec<usize>,
    blocks: Vec<BlockSaved<S>>,
    x: Vec<S>,      // after the last block
    normed: Vec<S>, // norm(X)
    head: Vec<S>,   // W_head[D,V]
    logits: Vec<S>,
}

impl Model {
    /// Canonical name and shape `[rows, cols]` of every parameter, in program order.
    pub fn shapes(&self) -> Vec<(String, [usize; 2])> {
        let (d, [qkv, out, gate_up, down]) = (self.width, self.block_shapes());
        let mut shapes = vec![("embedding".to_owned(), [self.vocabulary, d])];
        for i in 0..self.blocks {
            shapes.extend([
                (part(i, "norm1"), [1, d]),
                (part(i, "attention.qkv"), qkv),
                (part(i, "attention.out"), out),
                (part(i, "norm2"), [1, d]),
                (part(i, "mlp.gate_up"), gate_up),
                (part(i, "mlp.down"), down),
            ]);
        }
        shapes.push(("norm".to_owned(), [1, d]));
        if !self.tied {
            shapes.push(("head".to_owned(), [d, self.vocabulary]));
        }
        shapes
    }

    /// Logits `[B,V]` of the tokens of all sequences, one sequence after the other; targets are not looked at.
    ///
    /// # Panics
    /// If a weight is missing or of another shape, or an id lies outside the vocabulary.
    #[must_use]
    pub fn logits<S: Scalar>(&self, w: &Weights<S>, sequences: &[Sequence]) -> Vec<S> {
        self.forward(w, sequences).logits
    }

    /// This microbatch's share of the mean loss (nats), and the gradient of that share for every parameter.
    /// `tokens`: how many the loss is a mean over, see [`cross_entropy`].
    ///
    /// # Panics
    /// As [`logits`](Self::logits), and if a sequence has not as many targets as ids.
    #[must_use]
    pub fn gradients<S: Scalar>(
        &self,
        w: &Weights<S>,
        microbatch: &[Sequence],
        tokens: usize,
    ) -> (S, Weights<S>) {
        assert!(microbatch.iter().all(|s| s.ids.len() == s.targets.len()), "one target for each id");
        let targets: Vec<u32> = microbatch.iter().flat_map(|s| s.targets.iter().copied()).collect();
        let tape = self.forward(w, microbatch);
        let loss = cross_entropy(&tape.logits, &targets, self.vocabulary, tokens);
        let d_logits = cross_entropy_backward(&tape.logits, &targets, self.vocabulary, tokens);
        (loss, self.backward(w, &tape, &d_logits))
    }

    fn forward<S: Scalar>(&self, w: &Weights<S>, sequences: &[Sequence]) -> Tape<S> {
        let ids: Vec<u32> = sequences.iter().flat_map(|s| s.ids.iter().copied()).collect();
        let lengths: Vec<usize> = sequences.iter().map(|s| s.ids.len()).collect();
        let (mut x, mut blocks) = (embed(&w["embedding"], &ids, self.width), Vec::new());
        for i in 0..self.blocks {
            let (y, saved) = self.block(w, i, x, &lengths);
            x = y;
            blocks.push(saved);
        }
        let normed = rms_norm(&x, &w["norm"], self.eps);
        let (d, v) = (self.width, self.vocabulary);
        let head = if self.tied { transpose(&w["embedding"], [v, d]) } else { w["head"].clone() };
        let logits = linear(&normed, &head, [d, v]);
        Tape { ids, lengths, blocks, x, normed, head, logits }
    }

    fn backward<S: Scalar>(&self, w: &Weights<S>, tape: &Tape<S>, d_logits: &[S]) -> Weights<S> {
        let (mut g, d, v) = (Weights::new(), self.width, self.vocabulary);
        let (dn, d_head) = linear_backward(&tape.normed, &tape.head, d_logits, [d, v]);
        let (mut dx, d_norm) = rms_norm_backward(&tape.x, &w["norm"], &dn, self.eps);
        g.insert("norm".to_owned(), d_norm);
        for (i, saved) in tape.blocks.iter().enumerate().rev() {
            dx = self.block_backward(w, i, saved, dx, &tape.lengths, &mut g);
        }
        let mut d_embedding = embed_backward(&dx, &tape.ids, d, v);
        if self.tied {
            add(&mut d_embedding, transpose(&d_head, [d, v]));
        } else {
            g.insert("head".to_owned(), d_head);
        }
        g.insert("embedding".to_owned(), d_embedding);
        g
    }
}

/// The canonical name of a part of block `i`.
pub(crate) fn part(i: usize, part: &str) -> String {
    format!("blocks.{i}.{part}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, random_weights, small, under_two_keys, values};
    use tensor::{Dual, F61};

    fn sequence(ids: &[u32], targets: &[u32]) -> Sequence {
        Sequence { ids: ids.to_vec(), targets: targets.to_vec() }
    }
    /// Three sequences of different lengths; tokens that come twice; targets that are no shifted ids.
    fn ragged() -> Vec<Sequence> {
        vec![sequence(&[1, 4, 1], &[4, 1, 0]), sequence(&[6], &[2]), sequence(&[3, 3, 0, 5], &[3, 6, 5, 5])]
    }

    /// Kills: a renamed, reordered, transposed or forgotten parameter.
    #[test]
    fn shapes_are_canonical_and_in_program_order() {
        let wanted = [
            ("embedding", [7, 4]),
            ("blocks.0.norm1", [1, 4]),
            ("blocks.0.attention.qkv", [4, 12]),
            ("blocks.0.attention.out", [6, 4]),
            ("blocks.0.norm2", [1, 4]),
            ("blocks.0.mlp.gate_up", [4, 10]),
            ("blocks.0.mlp.down", [5, 4]),
            ("blocks.1.norm1", [1, 4]),
            ("blocks.1.attention.qkv", [4, 12]),
            ("blocks.1.attention.out", [6, 4]),
            ("blocks.1.norm2", [1, 4]),
            ("blocks.1.mlp.gate_up", [4, 10]),
            ("blocks.1.mlp.down", [5, 4]),
            ("norm", [1, 4]),
            ("head", [4, 7]),
        ];
        let wanted = wanted.map(|(name, shape)| (name.to_owned(), shape));
        assert_eq!(small(false).shapes(), wanted);
        assert_eq!(small(true).shapes(), wanted[..14]);
    }

    /// Kills: any wrong, missing or doubled term of any gradient; a tied weight that forgets one of its uses.
    #[test]
    fn gradients_equal_the_derivative_of_the_loss_exactly() {
        under_two_keys(|| {
            for tied in [false, true] {
                let (model, batch) = (small(tied), ragged());
                let w: Weights<Dual<F61>> = random_weights(&model, 3);
                let w_values = w.iter().map(|(name, w)| (name.clone(), values(w))).collect();
                let (loss, g) = model.gradients(&w_values, &batch, 13);
                assert!(g.keys().eq(w.keys()), "a gradient for every parameter");
                let (dual_loss, _) = model.gradients(&w, &batch, 13);
                assert_eq!(loss, dual_loss.value);
                let inputs: Vec<_> = w.iter().map(|(name, w)| (w.as_slice(), g[name].as_slice())).collect();
                assert_derivative(&[F61::ONE], &[dual_loss], &inputs);
            }
        });
    }

    /// Kills: what the field cannot see, such as a rule that is wrong alike in duals and in the backward.
    #[test]
    fn gradients_equal_central_differences() {
        for tied in [false, true] {
            let (model, batch, h) = (small(tied), ragged(), 1e-5);
            let mut w: Weights<f64> = random_weights(&model, 4);
            w.values_mut().flatten().for_each(|w| *w *= 0.5); // less curved
            let (_, g) = model.gradients(&w, &batch, 8);
            for (name, g) in &g {
                for (at, &g) in g.iter().enumerate() {
                    let before = w[name][at];
                    let mut loss = |x| {
                        w.get_mut(name).unwrap()[at] = x;
                        cross_entropy(&model.logits(&w, &batch), &[4, 1, 0, 2, 3, 6, 5, 5], 7, 8)
                    };
                    let slope = (loss(before + h) - loss(before - h)) / (2.0 * h);
                    loss(before);
                    assert!((slope - g).abs() < 1e-8, "{name}[{at}]: {g}, slope {slope}");
                }
            }
        }
    }

    /// Kills: a token that sees the next, rotary positions that run on, sequences that see each other.
    #[test]
    fn logits_depend_on_earlier_tokens_of_the_same_sequence_only() {
        under_two_keys(|| {
            let (model, mut batch) = (small(false), ragged());
            let w: Weights<F61> = random_weights(&model, 5);
            let rows = |batch: &[Sequence]| -> Vec<Vec<F61>> {
                model.logits(&w, batch).chunks(7).map(<[F61]>::to_vec).collect()
            };
            let before = rows(&batch);
            let alone: Vec<_> = batch.iter().flat_map(|s| rows(std::slice::from_ref(s))).collect();
            assert_eq!(before, alone);
            batch[2].ids[1] = 2; // row 5 of 8
            batch[2].targets.clear(); // not looked at
            let after = rows(&batch);
            let changed: Vec<_> = (0..8).filter(|&r| before[r] != after[r]).collect();
            assert_eq!(changed, [5, 6, 7]);
        });
    }

    /// Kills: a mean over the microbatch instead of the step, a gradient that is not a sum over sequences.
    #[test]
    fn gradients_of_microbatches_sum_to_those_of_the_whole_exactly() {
        under_two_keys(|| {
            let (model, batch) = (small(true), ragged());
            let w: Weights<F61> = random_weights(&model, 6);
            let (whole, g) = model.gradients(&w, &batch, 8);
            let (first, mut sum) = model.gradients(&w, &batch[..1], 8);
            let (second, other) = model.gradients(&w, &batch[1..], 8);
            sum.values_mut().zip(other.into_values()).for_each(|(sum, g)| add(sum, g));
            assert_eq!((whole, g), (first + second, sum));
        });
    }

    /// Kills: a model that does not run without tokens, as a rank with an empty share of the batch must.
    #[test]
    fn no_token_no_gradient() {
        let model = small(false);
        let (loss, g) = model.gradients(&random_weights::<f64>(&model, 7), &[], 3);
        assert_close(&[loss], &[0.0], 0.0);
        assert_eq!(g.len(), model.shapes().len());
        for (name, shape) in model.shapes() {
            assert_close(&g[&name], &vec![0.0; shape[0] * shape[1]], 0.0);
        }
    }

    #[test]
    #[should_panic(expected = "one target for each id")]
    fn targets_that_do_not_fit_panic() {
        let model = small(false);
        let batch = [sequence(&[1, 2], &[3]), sequence(&[1], &[2, 3])];
        let _ = model.gradients(&random_weights::<f64>(&model, 8), &batch, 3);
    }
}
