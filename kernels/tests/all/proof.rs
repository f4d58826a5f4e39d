//! Helpers of this crate's tests: random matrices, and the judgement that a backward is a derivative.
//!
//! For a forward `Y = f(X)` run on duals and any `dY`, the gradient `dX` is right exactly when
//! ⟨dY, Ẏ⟩ = ⟨dX, Ẋ⟩ for every direction `Ẋ`: over the field, one random direction is enough.
use kernels::{Indexable, Indexed};
use tensor::{Category, Cpu, Dual, F61, Host, Index, Key, Real, Scalar, Tensor, mix};

pub(crate) type Matrix<S> = Tensor<Cpu<S>>;

/// Runs a test under two keys: two independent readings of every opaque function.
pub(crate) fn under_two_keys(proof: impl Fn()) {
    for key in [Key(0x6b_65_72), Key(0x6b_65_72).next()] {
        let _held = key.enter();
        proof();
    }
}

/// A matrix whose element `i` (row-major) is `f(i)`.
pub(crate) fn matrix<S: Scalar>(rows: usize, cols: usize, f: impl FnMut(usize) -> S) -> Matrix<S> {
    Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, f)
}

/// A matrix of one value.
pub(crate) fn filled<S: Scalar>(rows: usize, cols: usize, value: S) -> Matrix<S> {
    matrix(rows, cols, |_| value)
}

/// A random matrix; another seed, other numbers. In duals it has the field's values, and random tangents.
pub(crate) fn draw<S: Scalar>(seed: u64, rows: usize, cols: usize) -> Matrix<S> {
    matrix(rows, cols, |i| S::sample(mix(mix(seed) ^ i as u64), 1.0))
}

/// A list as kernels read it.
pub(crate) fn index<T: Indexable>(list: impl Into<Vec<T>>) -> Index<Host> {
    Indexed::from(list.into()).on(&Host::default()).clone()
}

pub(crate) fn read<S: Scalar>(x: &Matrix<S>) -> Vec<S> {
    x.read().expect("the host has values")
}

/// Returns `now` minus `before`.
pub(crate) fn less<S: Scalar>(now: &Matrix<S>, before: &Matrix<S>) -> Matrix<S> {
    let (new, old) = (read(now), read(before));
    matrix(now.rows(), now.cols(), |i| new[i] - old[i])
}

/// ⟨a, b⟩.
fn inner(a: &[F61], b: impl Iterator<Item = F61>) -> F61 {
    a.iter().zip(b).fold(F61::ZERO, |sum, (&a, b)| sum + a * b)
}

/// Asserts ⟨dY, Ẏ⟩ = Σ ⟨dX, Ẋ⟩ over the pairs `(X, dX)`, and that there is something to compare.
pub(crate) fn assert_derivative(
    dy: &Matrix<F61>,
    y: &Matrix<Dual<F61>>,
    inputs: &[(&Matrix<Dual<F61>>, &Matrix<F61>)],
) {
    let along = |d: &Matrix<F61>, x: &Matrix<Dual<F61>>| {
        assert_eq!(d.shape(), x.shape(), "a gradient has the shape of what it is of");
        inner(&read(d), read(x).into_iter().map(|x| x.tangent))
    };
    let forward = along(dy, y);
    let backward = inputs.iter().fold(F61::ZERO, |sum, (x, dx)| sum + along(dx, x));
    assert_ne!(forward, F61::ZERO, "nothing moved");
    assert_eq!(forward, backward, "the backward is not the derivative of its forward");
}

/// Asserts that f32 gives what f64 gives, within `tolerance` of 1 or of the value, whichever is larger.
pub(crate) fn assert_close(seen: &Matrix<f32>, wanted: &Matrix<f64>, tolerance: f64) {
    assert_eq!(seen.shape(), wanted.shape());
    for (i, (s, w)) in read(seen).iter().zip(read(wanted)).enumerate() {
        assert!((s.to_f64() - w).abs() <= tolerance * w.abs().max(1.0), "element {i}: {s}, wanted {w}");
    }
}
