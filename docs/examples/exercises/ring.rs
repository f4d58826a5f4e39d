//! Exercise `ring`: the backward of attention whose keys and values travel around a ring.
//!
//! Each rank has the queries of its own tokens, and at first the keys and values of its own. In every hop
//! it adds to `dQ` and to the gradient of the block that it has, then passes block and gradient to the next
//! rank. After `n` hops each block is home again, with its gradient.
//!
//! ```text
//! n hops   [K | V | dK | dV] passed on     n·4·T·D elements a rank
//! ```
//! Chapter: context parallelism.
use crate::check::{Compared, Verdict, drawn, judge};
use crate::ranks::{Ranks, Result, unsolved};
use comm::Op;
use reference::{Mask, Tokens};
use shape::Heads;
use tensor::{F61, Scalar};

/// Features of the one head.
pub const D: usize = 2;

/// Queries of a rank's tokens, and what its forward kept.
pub struct Queries {
    /// `Q[T,D]`.
    pub q: Vec<F61>,
    /// `dO[T,D]`: the gradient of the output.
    pub d_o: Vec<F61>,
    /// `lse[T]`: ln Σ exp(score) of each query, over all keys.
    pub lse: Vec<F61>,
    /// `Δ[T]`: the dot product of `O` and `dO` of each query.
    pub delta: Vec<F61>,
}

/// Returns `dQ[T,D]` of this rank's queries, and `[dK[T,D] | dV[T,D]]` of its own block. `block` is
/// `[K[T,D] | V[T,D]]`. [`meet`] computes one hop, [`Ranks::pass`] passes elements on.
///
/// # Errors
/// If a call to other ranks fails.
pub fn ring_backward(queries: &Queries, block: Vec<F61>, ranks: &Ranks) -> Result<[Vec<F61>; 2]> {
    unsolved((queries, block, ranks)) // your code takes this line's place
}

/// Lets queries meet a block `[K | V]`: adds to `dq` and to the block's gradient `[dK | dV]`.
pub fn meet(queries: &Queries, block: &[F61], dq: &mut [F61], gradient: &mut [F61]) {
    let (k, v) = block.split_at(block.len() / 2);
    let (dk, dv) = gradient.split_at_mut(block.len() / 2);
    let scale = F61::inv_sqrt(D);
    for (i, j) in (0..dq.len() / D).flat_map(|i| (0..k.len() / D).map(move |j| (i, j))) {
        let (q, d_o) = (&queries.q[i * D..][..D], &queries.d_o[i * D..][..D]);
        let p = F61::exp_sub(dot(q, &k[j * D..]) * scale, queries.lse[i]);
        let ds = p * (dot(d_o, &v[j * D..]) - queries.delta[i]) * scale;
        for f in 0..D {
            dq[i * D + f] += ds * k[j * D + f];
            dk[j * D + f] += ds * q[f];
            dv[j * D + f] += p * d_o[f];
        }
    }
}

/// Dot product of the first `D` elements.
fn dot(a: &[F61], b: &[F61]) -> F61 {
    (0..D).fold(F61::ZERO, |sum, f| sum + a[f] * b[f])
}

/// Function to write.
pub type Attempt = fn(&Queries, Vec<F61>, &Ranks) -> Result<[Vec<F61>; 2]>;

/// Gives each rank 3 tokens of one sequence; every query sees every key.
pub fn check(attempt: Attempt) -> Verdict {
    const T: usize = 3;
    judge(
        |_, size| vec![(Op::Send, size * 4 * T * D)],
        |ranks| {
            let n = T * ranks.size();
            let (qkv, d_o) = (drawn(1, n * 3 * D), drawn(2, n * D));
            let heads = Heads::new(1, 1, D);
            let tokens = Tokens::new(&[n]);
            let o = reference::attention(&qkv, heads, Mask::All, &tokens, None);
            let right = reference::attention_backward(&qkv, &d_o, heads, Mask::All, &tokens, None);
            let take = |rows: &[F61], part: usize, rank: usize| -> Vec<F61> {
                rows.chunks(3 * D)
                    .skip(T * rank)
                    .take(T)
                    .flat_map(|row| &row[part * D..][..D])
                    .copied()
                    .collect()
            };
            let rank = ranks.rank();
            let queries = queries(&qkv, &o, &d_o, T * rank..T * (rank + 1));
            let block = [take(&qkv, 1, rank), take(&qkv, 2, rank)].concat();
            let [dq, gradient] = attempt(&queries, block, ranks)?;
            let gradient_of = |rank| [take(&right, 1, rank), take(&right, 2, rank)].concat();
            let others = (0..ranks.size()).filter(|&other| other != rank);
            let name = match others.into_iter().find(|&other| gradient == gradient_of(other)) {
                Some(other) => format!("the gradient of the block is that of rank {other}'s"),
                None => "the gradient of the block".into(),
            };
            Ok(vec![
                Compared::new("dQ", dq, take(&right, 0, rank)),
                Compared::new(name, gradient, gradient_of(rank)),
            ])
        },
    )
}

/// Returns the queries of these tokens, with what the forward over all keys kept.
fn queries(qkv: &[F61], o: &[F61], d_o: &[F61], tokens: std::ops::Range<usize>) -> Queries {
    let row = |i: usize| &qkv[i * 3 * D..][..3 * D];
    let scores = |i: usize| -> Vec<F61> {
        (0..qkv.len() / 3 / D).map(|j| dot(row(i), &row(j)[D..]) * F61::inv_sqrt(D)).collect()
    };
    let lse = |i: usize| {
        let scores = scores(i);
        let m = scores.iter().fold(F61::NEG_INF, |m, &score| F61::stab(m, score));
        F61::lse(m, scores.iter().fold(F61::ZERO, |sum, &score| sum + F61::exp_sub(score, m)))
    };
    Queries {
        q: tokens.clone().flat_map(|i| &row(i)[..D]).copied().collect(),
        d_o: d_o[tokens.start * D..tokens.end * D].to_vec(),
        lse: tokens.clone().map(lse).collect(),
        delta: tokens.map(|i| dot(&o[i * D..], &d_o[i * D..])).collect(),
    }
}
