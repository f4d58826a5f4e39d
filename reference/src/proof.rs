//! What the proofs of this crate share: random directions, and the judgement that a backward is a derivative.
//!
//! For a forward `Y = f(X)` run on duals and any `dY`, the gradient `dX` is right exactly when
//! ⟨dY, Ẏ⟩ = ⟨dX, Ẋ⟩ for every direction `Ẋ`. A random direction over the field of 2^61 − 1 lets a wrong `dX`
//! pass with probability 2^-61 or so: no tolerance, no step width.
use crate::{Heads, Model, Weights};
use tensor::{Dual, F61, Key, Scalar, mix};

/// Runs a proof under two keys: two independent readings of every opaque function.
pub(crate) fn under_two_keys(proof: impl Fn()) {
    for key in [Key(0x0e_9a_17), Key(0x0e_9a_17).next()] {
        let _held = key.enter();
        proof();
    }
}

/// `n` random numbers; another `seed`, other numbers.
pub(crate) fn draw<S: Scalar>(seed: u64, n: usize) -> Vec<S> {
    (0..n as u64).map(|i| S::sample(mix(mix(seed) ^ i), 1.0)).collect()
}

/// A model in which no two dimensions are equal that could be confused, with grouped heads of an odd dimension.
pub(crate) fn small(tied: bool) -> Model {
    let heads = Heads { queries: 2, keys: 1, dim: 3 };
    Model { width: 4, blocks: 2, heads, hidden: 5, vocabulary: 7, rope: 100.0, eps: 0.01, tied }
}

/// Random numbers for every parameter, norm gains included.
pub(crate) fn random_weights<S: Scalar>(model: &Model, seed: u64) -> Weights<S> {
    let numbered = model.shapes().into_iter().zip(1000 * seed..);
    numbered.map(|((name, [rows, cols]), seed)| (name, draw(seed, rows * cols))).collect()
}

/// The values of duals: what a backward is run on.
pub(crate) fn values(x: &[Dual<F61>]) -> Vec<F61> {
    x.iter().map(|x| x.value).collect()
}

/// The tangents of duals: the direction in which they move.
fn tangents(x: &[Dual<F61>]) -> Vec<F61> {
    x.iter().map(|x| x.tangent).collect()
}

/// ⟨a, b⟩.
pub(crate) fn inner(a: &[F61], b: &[F61]) -> F61 {
    assert_eq!(a.len(), b.len(), "an inner product of different lengths");
    a.iter().zip(b).fold(F61::ZERO, |sum, (&a, &b)| sum + a * b)
}

/// Asserts ⟨dY, Ẏ⟩ = Σ ⟨dX, Ẋ⟩ over the pairs `(X, dX)`, and that there is something to compare.
pub(crate) fn assert_derivative(dy: &[F61], y: &[Dual<F61>], inputs: &[(&[Dual<F61>], &[F61])]) {
    let forward = inner(dy, &tangents(y));
    let backward = inputs.iter().fold(F61::ZERO, |sum, (x, dx)| sum + inner(dx, &tangents(x)));
    assert_ne!(forward, F61::ZERO, "nothing moved");
    assert_eq!(forward, backward, "the backward is not the derivative of its forward");
}

/// Asserts that two rows of floats agree within `tolerance`, absolute.
pub(crate) fn assert_close(seen: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(seen.len(), wanted.len(), "{seen:?} is not as long as {wanted:?}");
    for (i, (s, w)) in seen.iter().zip(wanted).enumerate() {
        assert!((s - w).abs() <= tolerance, "element {i}: {s}, wanted {w}");
    }
}
