//! Queries, keys and values: the part that attention and cross-attention share.
//!
//! Letters: `h` query heads, `k` KV heads, `d` features of a key head, `v` of a value head; query head `i`
//! reads KV head `⌊i·k/h⌋`. For one query and one head, `j` runs over the keys that the query sees
//! (`mask.rs`), and `m` is the mask of dropout over 1 − rate, or 1 without dropout:
//!
//! ```text
//! forward   p = softmax(Q·Kⱼ/√d)                          O = Σ mⱼ·pⱼ·Vⱼ
//! backward  dpⱼ = mⱼ·dO·Vⱼ   dsⱼ = pⱼ·(dpⱼ − Σᵢ pᵢ·dpᵢ)/√d
//!           dQ = Σ dsⱼ·Kⱼ    dKⱼ += dsⱼ·Q                 dVⱼ += mⱼ·pⱼ·dO
//! ```
//! With a cap `c`, p = softmax(c·tanh(Q·Kⱼ/√d/c)), and dsⱼ has the factor 1 − tanh². A sink is a score more
//! in the softmax, of no key and of a value of 0.
use crate::linear::{add, dot};
use crate::mask::Mask;
use crate::softmax::softmax;
use shape::{Heads, ScoreTerms};
use std::ops::Range;
use tensor::{Dropout, Scalar};

/// Rows `[Q(h·d)]` that attend to rows `[K(k·d) | V(k·v)]`, each sequence to its own.
pub(crate) struct Look<'a, S> {
    pub(crate) q: Vec<S>,
    pub(crate) kv: Vec<S>,
    pub(crate) heads: Heads,
    pub(crate) lengths: [&'a [usize]; 2], // rows of each sequence: of Q, of [K | V]
    pub(crate) rules: ScoreRules<'a, S>,
    pub(crate) dropout: Option<(&'a Dropout, &'a [usize])>, // of the probabilities; the sequences' numbers
}

/// Rules of the scores of an attention.
#[derive(Clone, Copy, Debug)]
pub struct ScoreRules<'a, S> {
    /// Divisor, cap, and whether there are sinks.
    pub terms: ScoreTerms,
    /// Sink of each query head, if there are sinks.
    pub sinks: &'a [S],
    /// The keys that a query sees.
    pub mask: Mask,
}
impl<S> From<Mask> for ScoreRules<'_, S> {
    /// The usual scores.
    fn from(mask: Mask) -> Self {
        Self { terms: ScoreTerms::NONE, sinks: &[], mask }
    }
}

/// One query.
struct Query {
    row: usize,       // in Q
    sequence: usize,  // in the batch
    position: usize,  // in its sequence
    first: usize,     // row in [K | V] of its sequence's first key
    keys: Vec<usize>, // the positions that it sees
}

impl<S: Scalar> Look<'_, S> {
    /// Computes `O[rows of Q, h·v]`.
    pub(crate) fn forward(&self) -> Vec<S> {
        let heads = self.heads;
        let mut o = vec![S::ZERO; self.outputs()];
        for query in self.queries() {
            for h in 0..heads.queries {
                let (p, m) = (self.probabilities(h, &query), self.mask(h, &query));
                for (i, &j) in query.keys.iter().enumerate() {
                    let v = &self.kv[value(heads, query.first + j, h)];
                    add(&mut o[output(heads, query.row, h)], v.iter().map(|&v| m[i] * p[i] * v));
                }
            }
        }
        o
    }

    /// `dO[rows of Q, h·v]` → `dQ`, `[dK | dV]`, and the gradient of the sinks.
    pub(crate) fn backward(&self, d_o: &[S]) -> [Vec<S>; 3] {
        assert_eq!(d_o.len(), self.outputs(), "each row of Q needs one row of dO");
        let heads = self.heads;
        let scale = self.scale();
        let [mut dq, mut dkv, mut dsinks] =
            [&self.q[..], &self.kv, self.rules.sinks].map(|x| vec![S::ZERO; x.len()]);
        for query in self.queries() {
            for h in 0..heads.queries {
                let range = own(heads, query.row, h);
                let key = |j: usize| key(heads, query.first + j, h);
                let value = |j: usize| value(heads, query.first + j, h);
                let q = &self.q[range.clone()];
                let d_o = &d_o[output(heads, query.row, h)];
                let p = self.probabilities(h, &query);
                let m = self.mask(h, &query);
                let seen = query.keys.iter().zip(&m);
                let dp: Vec<S> = seen.map(|(&j, &m)| m * dot(d_o, &self.kv[value(j)])).collect();
                let mean = dot(&p[..dp.len()], &dp);
                if let [.., sink] = p[dp.len()..] {
                    dsinks[h] = dsinks[h] - sink * mean;
                }
                for (i, &j) in query.keys.iter().enumerate() {
                    let ds = p[i] * (dp[i] - mean) * self.slope(self.product(h, &query, j)) * scale;
                    add(&mut dq[range.clone()], self.kv[key(j)].iter().map(|&k| ds * k));
                    add(&mut dkv[key(j)], q.iter().map(|&q| ds * q));
                    add(&mut dkv[value(j)], d_o.iter().map(|&d_o| m[i] * p[i] * d_o));
                }
            }
        }
        [dq, dkv, dsinks]
    }

    /// Number of elements of `O`.
    fn outputs(&self) -> usize {
        self.q.len() / self.heads.dim * self.heads.value
    }
    /// Returns the probabilities of head `h` of a query over the keys that the query sees, and then of its
    /// sink, if it has one.
    fn probabilities(&self, h: usize, query: &Query) -> Vec<S> {
        let scores = query.keys.iter().map(|&j| self.capped(self.product(h, query, j)));
        softmax(&scores.chain(self.rules.sinks.get(h).copied()).collect::<Vec<S>>())
    }
    /// Returns the product of head `h` of a query and its `j`th key, divided.
    fn product(&self, h: usize, query: &Query, j: usize) -> S {
        let q = &self.q[own(self.heads, query.row, h)];
        dot(q, &self.kv[key(self.heads, query.first + j, h)]) * self.scale()
    }
    fn scale(&self) -> S {
        let terms = self.rules.terms;
        let root = S::inv_sqrt(terms.divisor.unwrap_or(self.heads.dim));
        terms.factor.map_or(root, |factor| root * S::from_f64(factor))
    }
    fn capped(&self, score: S) -> S {
        let Some(cap) = self.rules.terms.cap.map(S::from_f64) else { return score };
        cap * (score * cap.inv()).tanh()
    }
    /// Returns the derivative of the cap at this score.
    fn slope(&self, score: S) -> S {
        let Some(cap) = self.rules.terms.cap.map(S::from_f64) else { return S::ONE };
        let t = (score * cap.inv()).tanh();
        S::ONE - t * t
    }

    /// Returns dropout's factors of these probabilities.
    fn mask(&self, h: usize, query: &Query) -> Vec<S> {
        let Some((dropout, numbers)) = self.dropout else { return vec![S::ONE; query.keys.len()] };
        let scale = dropout.scale();
        let keeps = |&j: &usize| dropout.keeps(numbers[query.sequence], query.position, Dropout::pair(h, j));
        query.keys.iter().map(|j| if keeps(j) { scale } else { S::ZERO }).collect()
    }

    /// Lists all queries, sequence by sequence.
    ///
    /// # Panics
    /// If the rows do not fit the heads and lengths, or a query sees no key.
    fn queries(&self) -> Vec<Query> {
        let Heads { queries: h, keys: k, dim: d, value: v, .. } = self.heads;
        let [lengths, seen] = self.lengths;
        assert!(h.is_multiple_of(k), "the KV heads must divide the query heads: {:?}", self.heads);
        let sinks = if self.rules.terms.sinks { h } else { 0 };
        assert_eq!(self.rules.sinks.len(), sinks, "sinks of {:?}", self.heads);
        assert_eq!(lengths.len(), seen.len(), "queries and keys must have the same number of sequences");
        let [rows, seen_rows] = self.lengths.map(|lengths| lengths.iter().sum::<usize>());
        assert_eq!(self.q.len(), rows * h * d, "q must have {rows} rows [Q] of {:?}", self.heads);
        assert_eq!(
            self.kv.len(),
            seen_rows * k * (d + v),
            "kv must have {seen_rows} rows [K | V] of {:?}",
            self.heads
        );
        let (mut queries, mut first) = (Vec::new(), 0);
        for (sequence, (&length, &memory)) in lengths.iter().zip(seen).enumerate() {
            for position in 0..length {
                let keys: Vec<usize> = (0..memory).filter(|&k| self.rules.mask.sees(position, k)).collect();
                assert!(!keys.is_empty(), "query {position} of sequence {sequence} sees no key");
                queries.push(Query { row: queries.len(), sequence, position, first, keys });
            }
            first += memory;
        }
        queries
    }
}

/// Place of query head `i` of row `r` in rows `[Q]`.
fn own(heads: Heads, r: usize, i: usize) -> Range<usize> {
    part((r * heads.queries + i) * heads.dim, heads.dim)
}
/// Place of its output in rows `[O]`.
fn output(heads: Heads, r: usize, i: usize) -> Range<usize> {
    part((r * heads.queries + i) * heads.value, heads.value)
}
/// Place in rows `[K | V]` of the key of row `r` that query head `i` reads.
fn key(heads: Heads, r: usize, i: usize) -> Range<usize> {
    part(row(heads, r) + i * heads.keys / heads.queries * heads.dim, heads.dim)
}
/// Place in rows `[K | V]` of the value of row `r` that query head `i` reads.
fn value(heads: Heads, r: usize, i: usize) -> Range<usize> {
    let first = row(heads, r) + heads.keys * heads.dim;
    part(first + i * heads.keys / heads.queries * heads.value, heads.value)
}
/// Place in rows `[K | V]` of row `r`.
fn row(heads: Heads, r: usize) -> usize {
    r * heads.keys * (heads.dim + heads.value)
}
fn part(first: usize, len: usize) -> Range<usize> {
    first..first + len
}
