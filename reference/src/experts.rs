//! A layer of experts (mixture of experts): each token goes through a few of many feed-forwards.
//!
//! Letters: `B` tokens of the microbatch, `D` features, `E` experts of `F` hidden features; gates `g` and
//! choices come from `router.rs`; `FFN(x) = activation(x·W_up [+ b_up])·W_down [+ b_down]`.
//! ```text
//! l[B,E] = X·W_router [+ b]
//! Y[t]   = Σ over experts e that took t of g[t,e]·FFNₑ(X[t])   +   [sigmoid(X[t]·w)·] FFN_shared(X[t])
//! dg     = ⟨dY[t], FFNₑ(X[t])⟩, 0 where e has dropped t
//! ```
//! The other gradients are those of the parts. One matrix holds those of all experts, `W_down` transposed:
//! rows `e·D..(e+1)·D` are expert e's. Capacity and balance count the whole microbatch, on whichever rank its
//! tokens are. No gradient reaches the bias of the choice: `train.rs` moves the bias after each step.
//!
//! Source: Shazeer et al., arXiv:1701.06538; Fedus et al., Switch, arXiv:2101.03961 (capacity); Zhou et al.,
//! arXiv:2202.09368 (experts that choose).
use crate::bias::{add_bias, bias_gradient};
use crate::dropout::Pass;
use crate::feed_forward::{FeedForwardSaved, Pair, activate_rows, activate_rows_backward, first};
use crate::linear::{add, dot, linear, linear_backward, transpose};
use crate::mask::Tokens;
use crate::parameters::{Map, MapKind, Weights};
use crate::router::{Router, Routing};
use crate::see::Walk;
use shape::{Experts, FeedForward, SharedExpert};
use tensor::{Noise, Scalar};

/// A named layer of experts.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Prefix of the parameters' names.
    pub name: String,
    /// Features of a token, `D`.
    pub width: usize,
    /// Kind of each expert.
    pub kind: FeedForward,
    /// The experts.
    pub experts: Experts,
}

/// Tensors that the forward saves for the backward.
pub struct MixtureSaved<S> {
    x: Vec<S>,
    lengths: Vec<usize>,
    mean_over: Option<usize>,
    routing: Routing<S>,
    taken: Vec<Taken<S>>,                                  // by expert
    shared: Option<(Vec<S>, FeedForwardSaved<S>, Vec<S>)>, // gate's logits, tensors saved, output
    loss: S,
}

/// Tokens and activations of one expert.
struct Taken<S> {
    copies: Vec<(usize, usize)>, // (t, j): token t chose the expert as its j-th
    x: Vec<S>,
    up: Vec<S>,
    h: Vec<S>,
    y: Vec<S>,
}

impl<S: Scalar> MixtureSaved<S> {
    /// Returns the loss that this layer adds to the microbatch's; 0 outside training.
    pub fn loss(&self) -> S {
        self.loss
    }
}

impl Mixture {
    /// Name and shape `[rows, cols]` of every parameter, in program order.
    #[must_use]
    pub fn shapes(&self) -> Vec<(String, [usize; 2])> {
        let ([router, gate], Experts { count, hidden, bias, shared, .. }) = (self.maps(), &self.experts);
        let (first, columns) = first(self.kind, *hidden);
        let part = |part: &str, shape| (format!("{}.{part}", self.name), shape);
        let mut shapes = router.shapes();
        shapes.extend(bias.map(|_| part("router.bias", [1, *count])));
        shapes.push(part(&format!("experts.{first}"), [count * self.width, columns]));
        shapes.push(part("experts.down", [count * self.width, *hidden]));
        if self.experts.biases {
            shapes.push(part("router.logit_bias", [1, *count]));
            shapes.push(part(&format!("experts.{first}.bias"), [*count, columns]));
            shapes.push(part("experts.down.bias", [*count, self.width]));
        }
        shapes.extend(self.shared().iter().flat_map(Pair::shapes));
        shapes.extend(shared.filter(|shared| shared.gated).iter().flat_map(|_| gate.shapes()));
        shapes
    }

    /// Returns the loss that balances all blocks together, after all blocks have run; 0 outside training.
    pub fn pooled<S: Scalar>(&self, walk: &Walk<S>) -> S {
        Router(self.experts).pooled(walk)
    }

    /// Computes `Y[B,D]` from `X[B,D]` of sequences of these lengths, and the tensors that the backward
    /// needs. Shows the values of the router and the shared expert. If there is a pass, the layer trains and
    /// adds to the loss.
    ///
    /// # Panics
    /// If `X` does not have one row for each token, or a weight is missing or of another shape.
    pub fn forward<S: Scalar>(
        &self,
        x: Vec<S>,
        lengths: &[usize],
        walk: &mut Walk<S>,
    ) -> (Vec<S>, MixtureSaved<S>) {
        assert_eq!(x.len(), lengths.iter().sum::<usize>() * self.width, "each token needs one row of X");
        let (w, [router, gate], experts) = (walk.w, self.maps(), Router(self.experts));
        let mut y = vec![S::ZERO; x.len()];
        let mut logits = router.forward_recorded(walk, &x);
        if experts.biases {
            add_bias(&mut logits, &w[&self.part("router.logit_bias")]);
        }
        let routing = experts.route(
            logits,
            experts.bias.map(|_| &w[&self.part("router.bias")]),
            self.noise(walk.pass, lengths),
        );
        if walk.pass.is_some() && experts.bias.is_some() {
            let none = || vec![0; experts.count];
            let counts = walk.chosen.entry(self.part("router.bias")).or_insert_with(none);
            routing.chosen.iter().flatten().for_each(|&e| counts[e] += 1);
        }
        if walk.pass.is_some() && experts.balance.pooled != 0.0 {
            experts.pool(&routing, &mut walk.pool);
        }
        let taken = experts.taken(&routing.chosen).into_iter().enumerate();
        let taken: Vec<_> = taken.map(|(e, copies)| self.expert(e, &x, copies, w)).collect();
        for Taken { copies, y: of, .. } in &taken {
            for (&(t, j), of) in copies.iter().zip(of.chunks(self.width)) {
                add(self.row(&mut y, t), of.iter().map(|&y| routing.gates[t][j] * y));
            }
        }
        let shared = self.shared().map(|shared| {
            let (of, saved) = shared.forward(walk, x.clone());
            let logits = if self.gated() { gate.forward_recorded(walk, &x) } else { Vec::new() };
            for (t, of) in of.chunks(self.width).enumerate() {
                let gate = logits.get(t).map_or(S::ONE, |l| l.sigmoid());
                add(self.row(&mut y, t), of.iter().map(|&y| gate * y));
            }
            (logits, saved, of)
        });
        let lengths = lengths.to_vec();
        let mean_over = walk.pass.map(|pass| pass.mean_over);
        let loss = mean_over.map_or(S::ZERO, |n| experts.auxiliary(&routing, &lengths, n));
        (y, MixtureSaved { x, lengths, mean_over, routing, taken, shared, loss })
    }

    /// Computes `dX[B,D]` from `dY[B,D]`, with the gradient of the added loss. Puts the gradients of the
    /// parameters into `g`, except for the router's bias, which has none.
    pub fn backward<S: Scalar>(
        &self,
        (saved, dy): (&MixtureSaved<S>, &[S]),
        walk: &mut Walk<S>,
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let ([router, _], experts, routing) = (self.maps(), Router(self.experts), &saved.routing);
        let mut dx = vec![S::ZERO; saved.x.len()];
        let mut dg: Vec<_> = routing.gates.iter().map(|gates| vec![S::ZERO; gates.len()]).collect();
        let [mut first, mut down] = [Vec::new(), Vec::new()];
        let [mut first_biases, mut down_biases] = [Vec::new(), Vec::new()];
        for (e, taken) in saved.taken.iter().enumerate() {
            let mut d_own = Vec::new();
            for (&(t, j), y) in taken.copies.iter().zip(taken.y.chunks(self.width)) {
                let dy = &dy[t * self.width..][..self.width];
                dg[t][j] = dot(dy, y);
                d_own.extend(dy.iter().map(|&dy| routing.gates[t][j] * dy));
            }
            let (d, [of_first, of_down, of_first_bias]) = self.expert_backward(e, taken, &d_own, walk.w);
            first.extend(of_first);
            down.extend(of_down);
            first_biases.extend(of_first_bias);
            down_biases.extend(bias_gradient(&d_own, self.width));
            for (&(t, _), d) in taken.copies.iter().zip(d.chunks(self.width)) {
                add(self.row(&mut dx, t), d.iter().copied());
            }
        }
        if self.experts.biases {
            let biases = [(self.first().0, first_biases), (self.part("experts.down"), down_biases)];
            g.extend(biases.map(|(name, values)| (format!("{name}.bias"), values)));
        }
        g.extend([(self.first().0, first), (self.part("experts.down"), down)]);
        add(&mut dx, self.shared_backward((saved, dy), walk, g));
        let mut dp = experts.gates_backward(routing, &dg);
        let pooled = walk.pass.map_or_else(Vec::new, |pass| experts.pooled_slopes(&walk.pool, pass));
        let aux = saved.mean_over.map(|n| experts.auxiliary_backward(routing, &saved.lengths, n, &pooled));
        let [of_p, of_l] = aux.unwrap_or_default();
        add(&mut dp, of_p);
        let mut dl = experts.scores_backward(routing, &dp);
        add(&mut dl, of_l);
        if self.experts.biases {
            g.insert(self.part("router.logit_bias"), bias_gradient(&dl, self.experts.count));
        }
        add(&mut dx, router.backward_recorded(walk, &saved.x, &dl, g));
        dx
    }

    /// Runs expert `e` on its tokens.
    fn expert<S: Scalar>(&self, e: usize, x: &[S], copies: Vec<(usize, usize)>, w: &Weights<S>) -> Taken<S> {
        let ([first, down], f) = (self.matrices(e, w), self.experts.hidden);
        let x: Vec<S> =
            copies.iter().flat_map(|(t, _)| &x[t * self.width..][..self.width]).copied().collect();
        let (name, columns) = self.first();
        let bias = |name: String, columns: usize| &w[&format!("{name}.bias")][e * columns..][..columns];
        let mut up = linear(&x, first, [self.width, columns]);
        if self.experts.biases {
            add_bias(&mut up, bias(name, columns));
        }
        let h = activate_rows(self.kind, &up, f);
        let mut y = linear(&h, &transpose(down, [self.width, f]), [f, self.width]);
        if self.experts.biases {
            add_bias(&mut y, bias(self.part("experts.down"), self.width));
        }
        Taken { copies, x, up, h, y }
    }

    /// Returns the noise `[B,E]` that a pass adds to the scores that choose, if there is any.
    fn noise<S: Scalar>(&self, pass: Option<Pass>, lengths: &[usize]) -> Option<Vec<S>> {
        let pass = pass?;
        let std = self.experts.noise;
        let noise = Noise::new(std, pass.seed, pass.step, &self.part("router"));
        let numbers = (pass.first_sequence..).take(lengths.len()).collect();
        let draws = |(s, p)| (0..self.experts.count).map(move |e| noise.of(s, p, e as u64));
        let rows = Tokens { lengths: lengths.to_vec(), numbers }.rows();
        (std != 0.0).then(|| rows.into_iter().flat_map(draws).collect())
    }

    /// Computes dX of an expert's tokens from their dY, and the gradients of the expert's two matrices and of
    /// its first bias.
    fn expert_backward<S: Scalar>(
        &self,
        e: usize,
        taken: &Taken<S>,
        dy: &[S],
        w: &Weights<S>,
    ) -> (Vec<S>, [Vec<S>; 3]) {
        let ([first, down], f) = (self.matrices(e, w), self.experts.hidden);
        let (dh, d_down) = linear_backward(&taken.h, &transpose(down, [self.width, f]), dy, [f, self.width]);
        let d_up = activate_rows_backward(self.kind, &taken.up, &dh, f);
        let columns = self.first().1;
        let (dx, d_first) = linear_backward(&taken.x, first, &d_up, [self.width, columns]);
        (dx, [d_first, transpose(&d_down, [f, self.width]), bias_gradient(&d_up, columns)])
    }

    fn shared_backward<S: Scalar>(
        &self,
        (saved, dy): (&MixtureSaved<S>, &[S]),
        walk: &mut Walk<S>,
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let (Some(shared), Some((logits, of, y))) = (self.shared(), &saved.shared) else { return Vec::new() };
        if !self.gated() {
            return shared.backward(walk, (of, dy), g);
        }
        let [_, gate] = self.maps();
        let (mut d_own, mut dl) = (Vec::new(), Vec::new());
        for ((dy, y), l) in dy.chunks(self.width).zip(y.chunks(self.width)).zip(logits) {
            let s = l.sigmoid();
            d_own.extend(dy.iter().map(|&dy| s * dy));
            dl.push(dot(dy, y) * s * (S::ONE - s));
        }
        let mut dx = gate.backward_recorded(walk, &saved.x, &dl, g);
        add(&mut dx, shared.backward(walk, (of, &d_own), g));
        dx
    }

    /// Returns the router, and the gate of the shared expert.
    fn maps(&self) -> [Map; 2] {
        [("router", self.experts.count), ("shared.gate", 1)].map(|(part, columns)| {
            let shape = [self.width, columns];
            Map { name: self.part(part), shape, bias: false, does: MapKind::Affine }
        })
    }
    fn shared(&self) -> Option<Pair> {
        let sizes = |shared: SharedExpert| [self.width, shared.hidden];
        let name = self.part("shared");
        self.experts.shared.map(|shared| Pair::new(&name, self.kind, sizes(shared), false))
    }
    fn gated(&self) -> bool {
        self.experts.shared.is_some_and(|shared| shared.gated)
    }
    /// Returns the name of the experts' first matrices, and the columns of each.
    fn first(&self) -> (String, usize) {
        let (first, columns) = first(self.kind, self.experts.hidden);
        (self.part(&format!("experts.{first}")), columns)
    }
    /// Returns expert `e`'s matrices: `W_up[D, F or 2F]`, and `W_down` transposed, `[D,F]`.
    fn matrices<'a, S>(&self, e: usize, w: &'a Weights<S>) -> [&'a [S]; 2] {
        let (first, columns) = self.first();
        let block = |name: &str, columns: usize| &w[name][e * self.width * columns..][..self.width * columns];
        [block(&first, columns), block(&self.part("experts.down"), self.experts.hidden)]
    }
    fn part(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }
    fn row<'a, S>(&self, x: &'a mut [S], t: usize) -> &'a mut [S] {
        &mut x[t * self.width..][..self.width]
    }
}

#[cfg(test)]
mod tests;
