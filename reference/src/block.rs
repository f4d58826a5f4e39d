//! One transformer block: two residual branches, each with a norm before it.
//!
//! ```text
//! X₁ = X  + dropout(post_norm1(attention(rotary(head_norm(norm1(X)·W_qkv + b)))·W_out + b))
//! X₂ = X₁ + dropout(post_norm2(feed_forward(norm2(X₁))))       or experts(…) in its place
//! ```
//! The first product may be several (`latent.rs`). Norms, biases, `head_norm`, `rotary` and dropout are there
//! if the model has them. The backward runs in the opposite order; at each branch dX is the sum of the
//! residual's gradient and the branch's.
//!
//! Source: Radford et al., GPT-2, 2019, §2.3; Touvron et al., Llama, arXiv:2302.13971, §2.2.
use crate::attention::{attention, attention_gradients};
use crate::dropout::{Pass, dropout, dropout_at};
use crate::experts::MixtureSaved;
use crate::feed_forward::FeedForwardSaved;
use crate::head_norm::{head_norm, head_norm_backward};
use crate::latent::LatentsSaved;
use crate::linear::add;
use crate::look::ScoreRules;
use crate::mask::Tokens;
use crate::model::{BlockMaps, Model, SecondBranch};
use crate::parameters::Weights;
use crate::rotary::rotary;
use crate::see::Walk;
use shape::Rates;
use tensor::{Dropout, Scalar};

/// Tensors that a block's forward saves for its backward, in the order in which they are computed.
pub struct BlockSaved<S> {
    x: Vec<S>,         // X
    norm1: Vec<S>,     // norm1(X)
    projected: Vec<S>, // rows [Q | K | V], the output of the projection
    latents: Option<LatentsSaved<S>>,
    qkv: Vec<S>, // the same rows, normed and rotated
    o: Vec<S>,   // output of attention
    out: Vec<S>, // the same times W_out
    x1: Vec<S>,  // X₁
    fed: SecondBranchSaved<S>,
    fed_out: Vec<S>, // output of the second branch
}

/// Tensors that the second branch saves for its backward.
enum SecondBranchSaved<S> {
    Dense(FeedForwardSaved<S>),
    Experts(Box<MixtureSaved<S>>),
}

impl<S: Scalar> BlockSaved<S> {
    /// Returns the loss that the block's experts add to the microbatch's; 0 without experts.
    pub fn loss(&self) -> S {
        if let SecondBranchSaved::Experts(saved) = &self.fed { saved.loss() } else { S::ZERO }
    }
}

impl Model {
    /// Runs block `i`: `X[B,D]` → `X₂[B,D]`, and the tensors that the backward needs. Shows the activations.
    /// The weights have at least this block's parameters.
    pub fn block<S: Scalar>(
        &self,
        i: usize,
        x: Vec<S>,
        tokens: &Tokens,
        walk: &mut Walk<S>,
    ) -> (Vec<S>, BlockSaved<S>) {
        let w = walk.w;
        let (maps, [scores, attended, fed]) = (self.maps(i), self.drops(i, walk.pass));
        let norm1 = maps.norm1.forward_recorded(walk, &x);
        let (projected, latents) = maps.qkv.forward(walk, &norm1);
        let mut qkv = projected.clone();
        if let Some([(q, _), (k, _)]) = &maps.head_gains {
            head_norm(&mut qkv, self.heads, &w[q], &w[k], self.eps);
        }
        if let Some(rope) = &self.rope(i) {
            rotary(&mut qkv, self.heads, &tokens.positions(), rope, false);
        }
        let rules = self.rules(i, &maps, w);
        let o = attention(&qkv, self.heads, rules, tokens, scores.as_ref());
        let out = maps.out.forward_recorded(walk, &o);
        let added = maps.post_norm1.forward_recorded(walk, &out);
        let added = self.dropped(added, tokens, attended.as_ref());
        walk.show(format_args!("blocks.{i}.attention.added"), &added);
        let mut x1 = x.clone();
        add(&mut x1, added);
        let norm2 = maps.norm2.forward_recorded(walk, &x1);
        let (fed_out, fed_saved) = match &maps.fed {
            SecondBranch::Dense(layer) => {
                let (y, saved) = layer.forward(walk, norm2);
                (y, SecondBranchSaved::Dense(saved))
            }
            SecondBranch::Experts(layer) => {
                let (y, saved) = layer.forward(norm2, &tokens.lengths, walk);
                (y, SecondBranchSaved::Experts(saved.into()))
            }
        };
        let added = maps.post_norm2.forward_recorded(walk, &fed_out);
        let added = self.dropped(added, tokens, fed.as_ref());
        walk.show(format_args!("blocks.{i}.mlp.added"), &added);
        let mut x2 = x1.clone();
        add(&mut x2, added);
        (x2, BlockSaved { x, norm1, projected, latents, qkv, o, out, x1, fed: fed_saved, fed_out })
    }

    /// Runs the backward of block `i`: `dX₂[B,D]` → `dX[B,D]`, and the gradients of the block's parameters.
    /// Shows the gradients of activations. `tokens` and the pass are those of the forward.
    pub fn block_backward<S: Scalar>(
        &self,
        i: usize,
        (saved, mut dx): (&BlockSaved<S>, Vec<S>),
        tokens: &Tokens,
        walk: &mut Walk<S>,
    ) -> (Vec<S>, Weights<S>) {
        let w = walk.w;
        let (maps, [scores, attended, fed], mut g) = (self.maps(i), self.drops(i, walk.pass), Weights::new());
        let d_branch = self.dropped(dx.clone(), tokens, fed.as_ref());
        let d_branch = maps.post_norm2.backward(w, &saved.fed_out, &d_branch, &mut g);
        maps.post_norm2.show_gradient(walk, &d_branch);
        let dn = match (&maps.fed, &saved.fed) {
            (SecondBranch::Dense(layer), SecondBranchSaved::Dense(saved)) => {
                layer.backward(walk, (saved, &d_branch), &mut g)
            }
            (SecondBranch::Experts(layer), SecondBranchSaved::Experts(saved)) => {
                layer.backward((saved, &d_branch), walk, &mut g)
            }
            _ => panic!("the saved tensors are those of another kind of block than block {i}"),
        };
        add(&mut dx, maps.norm2.backward(walk.w, &saved.x1, &dn, &mut g)); // dX₁
        maps.norm2.show_gradient(walk, &dx);
        let d_branch = self.dropped(dx.clone(), tokens, attended.as_ref());
        let d_branch = maps.post_norm1.backward(w, &saved.out, &d_branch, &mut g);
        maps.post_norm1.show_gradient(walk, &d_branch);
        let d_o = maps.out.backward_recorded(walk, &saved.o, &d_branch, &mut g);
        let heads = self.heads;
        let rules = self.rules(i, &maps, w);
        let [mut d_qkv, dsinks] =
            attention_gradients(&saved.qkv, &d_o, heads, rules, tokens, scores.as_ref());
        g.extend(maps.sinks.clone().map(|name| (name, dsinks)));
        if let Some(rope) = &self.rope(i) {
            rotary(&mut d_qkv, heads, &tokens.positions(), rope, true);
        }
        if let Some([(q, _), (k, _)]) = &maps.head_gains {
            let gains = head_norm_backward(&saved.projected, &mut d_qkv, heads, &w[q], &w[k], self.eps);
            g.extend([(q.clone(), gains.0), (k.clone(), gains.1)]);
        }
        let dn = maps.qkv.backward(walk, (&saved.norm1, saved.latents.as_ref()), &d_qkv, &mut g);
        add(&mut dx, maps.norm1.backward(walk.w, &saved.x, &dn, &mut g));
        maps.norm1.show_gradient(walk, &dx);
        (dx, g)
    }

    /// Returns the rules of block `i`'s scores.
    fn rules<'a, S: Scalar>(&self, i: usize, maps: &BlockMaps, w: &'a Weights<S>) -> ScoreRules<'a, S> {
        let sinks = maps.sinks.as_ref().map_or(&[][..], |name| &w[name]);
        ScoreRules { terms: self.scores, sinks, mask: self.mask(i) }
    }

    /// Returns the dropouts of attention's probabilities, of attention's branch and of the feed-forward's
    /// branch, if there are any.
    fn drops(&self, i: usize, pass: Option<Pass>) -> [Option<Dropout>; 3] {
        let Rates { attention, residual, .. } = self.dropout;
        let sites = [("attention.scores", attention), ("attention", residual), ("mlp", residual)];
        sites.map(|(site, rate)| dropout_at(pass, rate, &format!("blocks.{i}.{site}")))
    }

    /// Applies dropout to `X[B,D]`, if there is any.
    pub(crate) fn dropped<S: Scalar>(&self, mut x: Vec<S>, tokens: &Tokens, d: Option<&Dropout>) -> Vec<S> {
        if let Some(d) = d {
            dropout(&mut x, self.width, tokens, d);
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{draw, everything, random_weights, under_two_keys};
    use crate::{Mask, add_bias, gated, layer_norm, linear};
    use tensor::F61;

    /// Kills: parts in another order, such as dropout before the bias or rotary before the head norm; dropout
    /// at another site, at a site of another block, with another rate or after the sum; a norm after its
    /// branch.
    #[test]
    fn a_block_with_everything_equals_its_parts_in_order_exactly() {
        under_two_keys(|| {
            let (model, i, pass) = (everything(), 1, Pass { seed: 3, step: 4, ..Pass::default() });
            let (w, x) = (random_weights::<F61>(&model, 1), draw::<F61>(2, 5 * 4));
            let tokens = Tokens { lengths: vec![4, 1], numbers: vec![6, 2] };
            let of = |part: &str| &w[&format!("blocks.1.{part}")];
            let norm = |x: &[F61], part: &str| layer_norm(x, of(part), of(&format!("{part}.bias")), 0.01);
            let affine = |x: &[F61], part: &str, shape| {
                let mut y = linear(x, of(part), shape);
                add_bias(&mut y, of(&format!("{part}.bias")));
                y
            };
            let drop = |mut x: Vec<F61>, site| {
                dropout(&mut x, 4, &tokens, &Dropout::new(0.5, 3, 4, site));
                x
            };
            let plus = |x: &[F61], y: &[F61]| x.iter().zip(y).map(|(&x, &y)| x + y).collect::<Vec<F61>>();
            let mut qkv = affine(&norm(&x, "norm1"), "attention.qkv", [4, 12]);
            head_norm(&mut qkv, model.heads, of("attention.q_norm"), of("attention.k_norm"), 0.01);
            rotary(&mut qkv, model.heads, &[0, 1, 2, 3, 0], &100.0.into(), false);
            let (mask, d) = (Mask::Window { size: 2, sinks: 1 }, "blocks.1.attention.scores");
            let o = attention(&qkv, model.heads, mask, &tokens, Some(&Dropout::new(0.375, 3, 4, d)));
            let x1 = plus(&x, &drop(affine(&o, "attention.out", [6, 4]), "blocks.1.attention"));
            let h = gated(&affine(&norm(&x1, "norm2"), "mlp.gate_up", [4, 10]), 5, shape::Gate::Silu);
            let wanted = plus(&x1, &drop(affine(&h, "mlp.down", [5, 4]), "blocks.1.mlp"));
            assert_eq!(model.block(i, x, &tokens, &mut Walk::unseen(&w, Some(pass))).0, wanted);
        });
    }
}
