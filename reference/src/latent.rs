//! Queries, keys and values of a block's heads: one product of the residual stream, or products of latents.
//!
//! ```text
//! one product   [Q | K | V] = X·W_qkv + b
//! latents       Q = X·W_q, or norm(X·W_q_a)·W_q_b
//!               [C | R] = X·W_kv_a,   K_h, V_h = norm(C)·W_kv_b,h,   a key of head h is [K_h | R]
//! ```
//! Source: DeepSeek-AI, "DeepSeek-V2", §2.1, arXiv:2405.04434.
use crate::linear::add;
use crate::parameters::{Map, Shapes, Weights};
use crate::see::Walk;
use shape::Heads;
use tensor::Scalar;

/// The maps from `X` to rows `[Q | K | V]`.
pub(crate) enum Projection {
    Fused(Map),
    Latents(Box<Latents>),
}

/// Maps by latents.
pub(crate) struct Latents {
    pub(crate) heads: Heads,
    pub(crate) queries: Vec<Map>, // one after the other
    pub(crate) down: Map,         // to [C | R]
    pub(crate) norm: Map,
    pub(crate) up: Map, // to [K_h | V_h] of head after head
}

/// Inputs that maps by latents save: those of the maps of queries, `C`, and its norm.
pub(crate) struct LatentsSaved<S> {
    queries: Vec<Vec<S>>,
    latent: Vec<S>,
    normed: Vec<S>,
}

impl Projection {
    pub(crate) fn shapes(&self) -> Shapes {
        match self {
            Self::Fused(map) => map.shapes(),
            Self::Latents(of) => {
                of.queries.iter().chain([&of.down, &of.norm, &of.up]).flat_map(Map::shapes).collect()
            }
        }
    }
    /// Computes the rows `[Q | K | V]`, and shows what the maps take and give.
    pub(crate) fn forward<S: Scalar>(
        &self,
        walk: &mut Walk<S>,
        x: &[S],
    ) -> (Vec<S>, Option<LatentsSaved<S>>) {
        match self {
            Self::Fused(map) => (map.forward_recorded(walk, x), None),
            Self::Latents(of) => {
                let (y, saved) = of.forward(walk, x);
                (y, Some(saved))
            }
        }
    }
    /// Computes `dX`; puts the gradients of the parameters into `g`.
    pub(crate) fn backward<S: Scalar>(
        &self,
        walk: &mut Walk<S>,
        (x, saved): (&[S], Option<&LatentsSaved<S>>),
        d: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        match (self, saved) {
            (Self::Latents(of), Some(saved)) => of.backward(walk, (x, saved), d, g),
            (Self::Fused(map), None) => map.backward_recorded(walk, x, d, g),
            _ => panic!("the saved tensors are those of another kind of projection"),
        }
    }
}

impl Latents {
    fn forward<S: Scalar>(&self, walk: &mut Walk<S>, x: &[S]) -> (Vec<S>, LatentsSaved<S>) {
        let mut q = x.to_vec();
        let mut queries = Vec::new();
        for map in &self.queries {
            let y = map.forward_recorded(walk, &q);
            queries.push(q);
            q = y;
        }
        let down = self.down.forward_recorded(walk, x);
        let width = self.up.shape[0];
        let rows = || down.chunks(self.down.shape[1]);
        let latent: Vec<S> = rows().flat_map(|row| row[..width].to_vec()).collect();
        let normed = self.norm.forward_recorded(walk, &latent);
        let up = self.up.forward_recorded(walk, &normed);
        let Heads { queries: n, dim, value, plain, .. } = self.heads;
        let mut y = Vec::new();
        for ((q, row), up) in q.chunks(n * dim).zip(rows()).zip(up.chunks(n * (plain + value))) {
            y.extend(q);
            for head in up.chunks(plain + value) {
                y.extend(&head[..plain]);
                y.extend(&row[width..]);
            }
            y.extend(up.chunks(plain + value).flat_map(|head| &head[plain..]));
        }
        (y, LatentsSaved { queries, latent, normed })
    }
    fn backward<S: Scalar>(
        &self,
        walk: &mut Walk<S>,
        (x, saved): (&[S], &LatentsSaved<S>),
        d: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let Heads { queries: n, dim, value, plain, .. } = self.heads;
        let [mut dq, mut d_up] = [Vec::new(), Vec::new()];
        let mut d_shared = Vec::new();
        for row in d.chunks(self.heads.row()) {
            dq.extend(&row[..n * dim]);
            let (keys, values) = row[n * dim..].split_at(n * dim);
            let mut shared = vec![S::ZERO; dim - plain];
            for (key, value) in keys.chunks(dim).zip(values.chunks(value)) {
                d_up.extend(key[..plain].iter().chain(value));
                add(&mut shared, key[plain..].iter().copied());
            }
            d_shared.push(shared);
        }
        let d_normed = self.up.backward_recorded(walk, &saved.normed, &d_up, g);
        let d_latent = self.norm.backward(walk.w, &saved.latent, &d_normed, g);
        self.norm.show_gradient(walk, &d_latent);
        let rows = d_latent.chunks(self.up.shape[0]).zip(&d_shared);
        let d_down: Vec<S> = rows.flat_map(|(latent, shared)| [latent, shared].concat()).collect();
        let mut dx = self.down.backward_recorded(walk, x, &d_down, g);
        for (map, x) in self.queries.iter().zip(&saved.queries).rev() {
            dq = map.backward_recorded(walk, x, &dq, g);
        }
        add(&mut dx, dq);
        dx
    }
}
