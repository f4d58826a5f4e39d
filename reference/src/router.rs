//! Router: the experts of each token, and the gates that weigh their outputs.
//!
//! Letters: `B` tokens, `E` experts, `k` of them chosen; `l` the router's logits, `b` the bias of the choice.
//!
//! ```text
//! P[B,E] = softmax(l) over all E, or sigmoid(l)
//! s[B,E] = l where P is a softmax, P + b where it is a sigmoid, + noise: what chooses, and nothing else
//! groups   the best groups stay: by their highest s, or the sum of their two highest where P is a sigmoid
//! chosen   the k experts of the highest s in the groups that stayed, the lower index of two alike
//! gⱼ     = scale·P[chosenⱼ], or scale·P[chosenⱼ] / Σᵢ P[chosenᵢ]
//!          where experts choose: each takes its C tokens of highest P[t,e], in order, the lower of two alike
//! dP     = scale·dg, or scale·(dgⱼ − Σᵢ dgᵢ·pᵢ/Σ) / Σ;  a choice has no gradient
//! ```
//! Source: Shazeer et al., arXiv:1701.06538; Jiang et al., arXiv:2401.04088 (softmax); DeepSeek-AI, V3,
//! §2.1.2, arXiv:2412.19437 (sigmoid, bias, groups); Zhou et al., arXiv:2202.09368 (experts that choose).
use crate::linear::{add, dot};
use crate::softmax::softmax;
use shape::{Experts, Groups, Scoring};
use std::cmp::Ordering;
use std::ops::Deref;
use tensor::Scalar;

/// Experts and gates of a microbatch's tokens.
pub(crate) struct Routing<S> {
    pub(crate) logits: Vec<S>,          // l[B,E]
    pub(crate) p: Vec<S>,               // P[B,E]
    pub(crate) chosen: Vec<Vec<usize>>, // of each token
    pub(crate) gates: Vec<Vec<S>>,      // of each chosen expert
}

/// Router of these experts.
#[derive(Clone, Copy)]
pub(crate) struct Router(pub(crate) Experts);

impl Deref for Router {
    type Target = Experts;
    fn deref(&self) -> &Experts {
        &self.0
    }
}

impl Router {
    /// Routes tokens by `l[B,E]`, `b[E]` if the choice has a bias, and noise `[B,E]` if there is any.
    pub(crate) fn route<S: Scalar>(
        &self,
        logits: Vec<S>,
        bias: Option<&Vec<S>>,
        noise: Option<Vec<S>>,
    ) -> Routing<S> {
        let p: Vec<S> = match self.scoring {
            Scoring::Softmax => logits.chunks(self.count).flat_map(softmax).collect(),
            Scoring::Sigmoid => logits.iter().map(|l| l.sigmoid()).collect(),
        };
        let mut s = logits.clone();
        if self.scoring == Scoring::Sigmoid {
            s.clone_from(&p);
            s.chunks_mut(self.count).for_each(|s| add(s, bias.into_iter().flatten().copied()));
        }
        add(&mut s, noise.into_iter().flatten());
        let chosen: Vec<_> = if self.by_experts {
            self.choose_tokens(&p)
        } else {
            s.chunks(self.count).enumerate().map(|(t, s)| self.choose(t, s)).collect()
        };
        let gates =
            chosen.iter().zip(p.chunks(self.count)).map(|(chosen, p)| self.gates(chosen, p)).collect();
        Routing { logits, p, chosen, gates }
    }

    /// Chooses the experts of token `t` of the microbatch from its scores.
    ///
    /// # Panics
    /// If there are fewer experts than a token chooses.
    pub(crate) fn choose<S: Scalar>(&self, t: usize, s: &[S]) -> Vec<usize> {
        if self.forced {
            return (0..self.chosen).map(|j| (t * self.chosen + j) % self.count).collect();
        }
        let mut open: Vec<usize> = (0..self.count).collect();
        if let Some(Groups { count, chosen }) = self.groups {
            let members = |i: usize| i * self.count / count..(i + 1) * self.count / count;
            let score = |i| {
                let best = highest(&s[members(i)], 2);
                let first = s[members(i)][best[0]];
                match (self.scoring, best.get(1)) {
                    (Scoring::Sigmoid, Some(&second)) => first + s[members(i)][second],
                    _ => first,
                }
            };
            let mut best = highest(&(0..count).map(score).collect::<Vec<S>>(), chosen);
            best.sort_unstable();
            open = best.into_iter().flat_map(members).collect();
        }
        let best = highest(&open.iter().map(|&e| s[e]).collect::<Vec<S>>(), self.chosen);
        assert_eq!(
            best.len(),
            self.chosen,
            "{} experts are open, but a token chooses {}",
            open.len(),
            self.chosen
        );
        best.into_iter().map(|at| open[at]).collect()
    }

    /// Lists for each token the experts that choose it, from `P[B,E]`.
    fn choose_tokens<S: Scalar>(&self, p: &[S]) -> Vec<Vec<usize>> {
        let mut chosen = vec![Vec::new(); p.len() / self.count];
        for e in 0..self.count {
            let of_expert: Vec<S> = p.chunks(self.count).map(|p| p[e]).collect();
            for t in highest(&of_expert, self.most(of_expert.len())) {
                chosen[t].push(e);
            }
        }
        chosen
    }

    fn gates<S: Scalar>(&self, chosen: &[usize], p: &[S]) -> Vec<S> {
        let p: Vec<S> = chosen.iter().map(|&e| p[e]).collect();
        let scale = self.scale_of(&p);
        p.into_iter().map(|p| p * scale).collect()
    }

    /// Returns the factor of the chosen P.
    fn scale_of<S: Scalar>(&self, p: &[S]) -> S {
        let sum = |p: &[S]| p.iter().fold(S::ZERO, |sum, &p| sum + p);
        S::from_f64(self.scale) * if self.normalize { sum(p).inv() } else { S::ONE }
    }

    /// Computes `dP[B,E]` from `dg` of each chosen expert.
    pub(crate) fn gates_backward<S: Scalar>(&self, routing: &Routing<S>, dg: &[Vec<S>]) -> Vec<S> {
        let mut dp = vec![S::ZERO; routing.p.len()];
        for (t, (chosen, dg)) in routing.chosen.iter().zip(dg).enumerate() {
            let index = |e: usize| t * self.count + e;
            let p: Vec<S> = chosen.iter().map(|&e| routing.p[index(e)]).collect();
            let sum = p.iter().fold(S::ZERO, |sum, &p| sum + p);
            let mean = if self.normalize { dot(&p, dg) * sum.inv() } else { S::ZERO };
            for (&e, &dg) in chosen.iter().zip(dg) {
                dp[index(e)] += self.scale_of(&p) * (dg - mean);
            }
        }
        dp
    }

    /// `dP[B,E]` → `dl[B,E]`.
    pub(crate) fn scores_backward<S: Scalar>(&self, routing: &Routing<S>, dp: &[S]) -> Vec<S> {
        let row = |(p, dp): (&[S], &[S])| -> Vec<S> {
            let mean = dot(p, dp);
            let slope = |(&p, &dp): (&S, &S)| match self.scoring {
                Scoring::Softmax => p * (dp - mean),
                Scoring::Sigmoid => dp * p * (S::ONE - p),
            };
            p.iter().zip(dp).map(slope).collect()
        };
        routing.p.chunks(self.count).zip(dp.chunks(self.count)).flat_map(row).collect()
    }

    /// Lists the copies `(t, j)` that each expert takes: token `t` chose the expert as its `j`-th. Copies are
    /// in the order of tokens, up to the expert's capacity.
    pub(crate) fn taken(&self, chosen: &[Vec<usize>]) -> Vec<Vec<(usize, usize)>> {
        let most = self.most(chosen.len());
        let mut taken = vec![Vec::new(); self.count];
        for (t, chosen) in chosen.iter().enumerate() {
            for (j, &e) in chosen.iter().enumerate() {
                if taken[e].len() < most {
                    taken[e].push((t, j));
                }
            }
        }
        taken
    }

    /// Returns the most tokens, of `tokens`, that an expert takes: its capacity.
    fn most(&self, tokens: usize) -> usize {
        let each = (self.chosen * tokens) as f64 / self.count as f64;
        self.capacity.map_or(usize::MAX, |capacity| (capacity * each).ceil() as usize)
    }
}

/// Returns the places of the `n` highest values, the highest first, the first of two equal ones; all places
/// if there are no more.
fn highest<S: Scalar>(x: &[S], n: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..x.len()).collect();
    let mut best = Vec::new();
    while best.len() < n && !left.is_empty() {
        let first = (1..left.len()).fold(0, |first, at| {
            if x[left[at]].order(x[left[first]]) == Ordering::Greater { at } else { first }
        });
        best.push(left.remove(first));
    }
    best
}

#[cfg(test)]
mod tests;
