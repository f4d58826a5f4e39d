//! One pass through the whole model: embedding, blocks, norm, head and loss, forward and backward.
//!
//! ```text
//! X₀ = dropout(√n·embedding[ids] + positions[place]);   Xᵢ₊₁ = blockᵢ(Xᵢ);
//! logits[B,V] = z or c·tanh(z/c), z = norm(X)·W_head
//! ```
//! If tied, `W_head = embeddingᵀ`, and the gradients of both uses add up; the row of padding has the head's
//! alone. Positions are added if they are learned; √n and the cap c are there if the model has them.
use crate::block::BlockSaved;
use crate::dropout::{Pass, dropout_at};
use crate::linear::{add, linear, linear_backward, transpose};
use crate::loss::{
    cross_entropy, cross_entropy_backward, embed, embed_backward, mean_square_backward, mean_squared_error,
};
use crate::mask::Tokens;
use crate::model::Model;
use crate::parameters::Weights;
use crate::router::Router;
use crate::see::{See, Walk};
use shape::Positions;
use tensor::{Dropout, Scalar};

/// A sequence of tokens, and a target for each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// Token ids that the model reads.
    pub ids: Vec<u32>,
    /// Target id after each token, or [`IGNORED`](tensor::IGNORED); one per token.
    pub targets: Vec<u32>,
    /// Rows of features that the model reads, in place of ids.
    pub x: Vec<f32>,
    /// Target rows, in place of target ids.
    pub y: Vec<f32>,
}

/// Rows of all sequences, in any dtype.
pub(crate) fn features<S: Scalar>(sequences: &[Sequence], of: fn(&Sequence) -> &Vec<f32>) -> Vec<S> {
    sequences.iter().flat_map(of).map(|&x| S::from_f64(f64::from(x))).collect()
}

/// Tensors that the forward saves for the backward.
struct Tape<S> {
    ids: Vec<u32>,
    tokens: Tokens,
    blocks: Vec<BlockSaved<S>>,
    x: Vec<S>,      // after the last block
    normed: Vec<S>, // norm(X)
    head: Vec<S>,   // W_head[D,V]
    logits: Vec<S>,
}

impl Model {
    /// Computes logits `[B,V]` of the tokens of all sequences, one sequence after the other. Targets are not
    /// read, and nothing is dropped. `see` receives the activations.
    ///
    /// # Panics
    /// If a weight is missing or of another shape, an id lies outside the vocabulary, or a sequence is longer
    /// than the learned positions.
    pub fn logits_recorded<S: Scalar>(
        &self,
        w: &Weights<S>,
        sequences: &[Sequence],
        see: &mut See<S>,
    ) -> Vec<S> {
        self.forward(sequences, &mut Walk::new(w, None, see)).logits
    }

    /// Computes this microbatch's addend of the mean loss (nats), with the losses that experts add, and its
    /// gradient for every parameter; shows the values. `mean_over`: number of targets that the loss is a mean
    /// over, see [`cross_entropy`].
    pub(crate) fn gradients_recorded<S: Scalar>(
        &self,
        microbatch: &[Sequence],
        mean_over: usize,
        walk: &mut Walk<S>,
    ) -> (S, Weights<S>) {
        walk.pass = walk.pass.map(|pass| Pass { mean_over, ..pass });
        let tape = self.forward(microbatch, walk);
        let pooled = self.experts.map_or(S::ZERO, |experts| Router(experts).pooled(walk));
        let added = tape.blocks.iter().fold(pooled, |sum, block| sum + block.loss());
        if self.bare {
            let (n, y) = (mean_over * self.width, features(microbatch, |s| &s.y));
            let loss = mean_squared_error(&tape.x, &y, n);
            let mut g = Weights::new();
            self.back(&tape, mean_square_backward(&tape.x, &y, n), &mut g, walk);
            return (loss + added, g);
        }
        assert!(microbatch.iter().all(|s| s.ids.len() == s.targets.len()), "each id needs one target");
        let targets: Vec<u32> = microbatch.iter().flat_map(|s| s.targets.iter().copied()).collect();
        let (v, objective) = (self.vocabulary, &self.loss);
        let loss = cross_entropy(&tape.logits, &targets, v, mean_over, objective);
        let mut d_logits = cross_entropy_backward(&tape.logits, &targets, v, mean_over, objective);
        if let Some(c) = self.logit_cap {
            d_logits.iter_mut().zip(&tape.logits).for_each(|(d, &z)| *d = *d * slope(z, c));
        }
        (loss + added, self.backward(&tape, &d_logits, walk))
    }

    fn forward<S: Scalar>(&self, sequences: &[Sequence], walk: &mut Walk<S>) -> Tape<S> {
        let (w, pass) = (walk.w, walk.pass);
        let ids: Vec<u32> = sequences.iter().flat_map(|s| s.ids.iter().copied()).collect();
        let first = pass.map_or(0, |pass| pass.first_sequence);
        let lengths: Vec<usize> = sequences.iter().map(|s| self.tokens(s)).collect();
        let tokens = Tokens { lengths, numbers: (first..first + sequences.len()).collect() };
        let (d, v) = (self.width, self.vocabulary);
        let mut x = if self.bare { features(sequences, |s| &s.x) } else { embed(&w["embedding"], &ids, d) };
        if !self.bare {
            self.stretch(&mut x);
        }
        if let Some(places) = self.places(&tokens) {
            add(&mut x, embed(&w["positions"], &places, d));
        }
        let mut blocks = Vec::new();
        if !self.bare {
            x = self.dropped(x, &tokens, self.embedding_drop(pass).as_ref());
            walk.show(format_args!("embedding.out"), &x);
        }
        for i in 0..self.blocks {
            let (y, saved) = self.block(i, x, &tokens, walk);
            x = y;
            blocks.push(saved);
        }
        if self.bare {
            let logits = x.clone();
            return Tape { ids, tokens, blocks, x, normed: Vec::new(), head: Vec::new(), logits };
        }
        let normed = self.normed("norm".to_owned()).forward_recorded(walk, &x);
        let head = if self.tied { transpose(&w["embedding"], [v, d]) } else { w["head"].clone() };
        let mut logits = linear(&normed, &head, [d, v]);
        if let Some(c) = self.logit_cap {
            logits = logits.into_iter().map(|z| capped(z, c)).collect();
        }
        walk.show(format_args!("head.in"), &normed);
        walk.show(format_args!("head.out"), &logits);
        Tape { ids, tokens, blocks, x, normed, head, logits }
    }

    fn backward<S: Scalar>(&self, tape: &Tape<S>, d_logits: &[S], walk: &mut Walk<S>) -> Weights<S> {
        let (mut g, d, v) = (Weights::new(), self.width, self.vocabulary);
        let (dn, d_head) = linear_backward(&tape.normed, &tape.head, d_logits, [d, v]);
        walk.show(format_args!("gradient of head.out"), d_logits);
        walk.show(format_args!("gradient of head.in"), &dn);
        let mut dx = self.normed("norm".to_owned()).backward(walk.w, &tape.x, &dn, &mut g);
        walk.show(format_args!("gradient of norm.in"), &dx);
        dx = self.back(tape, dx, &mut g, walk);
        dx = self.dropped(dx, &tape.tokens, self.embedding_drop(walk.pass).as_ref());
        let mut d_rows = dx.clone();
        self.stretch(&mut d_rows);
        let mut d_embedding = embed_backward(&d_rows, &tape.ids, [v, d], self.padding);
        if self.tied {
            add(&mut d_embedding, transpose(&d_head, [d, v]));
        } else {
            g.insert("head".to_owned(), d_head);
        }
        g.insert("embedding".to_owned(), d_embedding);
        if let (Positions::Learned(n), Some(places)) = (self.positions, self.places(&tape.tokens)) {
            g.insert("positions".to_owned(), embed_backward(&dx, &places, [n, d], None));
        }
        g
    }

    /// Runs the backward of all blocks: dY → dX.
    fn back<S: Scalar>(
        &self,
        tape: &Tape<S>,
        mut dx: Vec<S>,
        g: &mut Weights<S>,
        walk: &mut Walk<S>,
    ) -> Vec<S> {
        for (i, saved) in tape.blocks.iter().enumerate().rev() {
            let (through, of_block) = self.block_backward(i, (saved, dx), &tape.tokens, walk);
            dx = through;
            g.extend(of_block);
        }
        dx
    }

    /// Multiplies rows of the embedding by their root, if the model has one.
    fn stretch<S: Scalar>(&self, x: &mut [S]) {
        if let Some(n) = self.embedding_root {
            let root = S::from_usize(n) * S::inv_sqrt(n);
            for x in x {
                *x = *x * root;
            }
        }
    }

    /// Number of tokens of a sequence.
    pub(crate) fn tokens(&self, sequence: &Sequence) -> usize {
        if self.bare { sequence.x.len() / self.width } else { sequence.ids.len() }
    }

    /// Returns each token's row of the table of positions, if there is such a table.
    fn places(&self, tokens: &Tokens) -> Option<Vec<u32>> {
        let Positions::Learned(n) = self.positions else { return None };
        if self.bare {
            return None;
        }
        let longest = tokens.lengths.iter().max().copied().unwrap_or(0);
        assert!(longest <= n, "a sequence has {longest} tokens, the model {n} learned positions");
        Some(tokens.positions().into_iter().map(|position| position as u32).collect())
    }

    fn embedding_drop(&self, pass: Option<Pass>) -> Option<Dropout> {
        dropout_at(pass, self.dropout.embedding, "embedding")
    }
}

/// Returns c·tanh(z/c).
fn capped<S: Scalar>(z: S, c: f64) -> S {
    let c = S::from_f64(c);
    c * (z * c.inv()).tanh()
}
/// Returns the slope of the cap at a capped logit.
fn slope<S: Scalar>(capped: S, c: f64) -> S {
    let tanh = capped * S::from_f64(c).inv();
    S::ONE - tanh * tanh
}

#[cfg(test)]
mod tests;
