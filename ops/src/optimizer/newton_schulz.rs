//! The nearest orthogonal matrix, by iterations of Newton and Schulz.
//!
//! ```text
//! X = U/max(‖U‖, ε),  then n times  A = X·Xᵀ,  X = a·X + (b·A + c·A²)·X      of X[R,C] with R ≤ C
//!                                   A = Xᵀ·X,  X = a·X + X·(b·A + c·A²)      with C < R
//! ```
//! The singular values of X come close to 1. Both lines are the same polynomial; each takes the smaller A.
//!
//! Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
//! kellerjordan.github.io/posts/muon; the coefficients and ε are those of `torch.optim.Muon`.
use crate::filled;
use crate::tensors::product;
use kernels::{Kernels, Write};
use tensor::{Category, Scalar, Tensor, ViewMut};

const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const ITERATIONS: usize = 5;
const LEAST_NORM: f64 = 1e-7;

/// Replaces a matrix by the nearest orthogonal one, times `scale`.
pub(super) fn orthogonalise<D: Kernels>(device: &D, mut x: ViewMut<D>, scale: f64) {
    let [rows, cols] = [x.rows(), x.cols()];
    let [a, b, c] = COEFFICIENTS;
    let small = rows.min(cols);
    let is_wide = rows <= cols;
    let buffer = |rows, cols| Tensor::empty(device, Category::Buffers, rows, cols);
    let [mut factor, mut norm2] = [(); 2].map(|()| filled(device, Category::Buffers, [1, 1], D::Elem::ZERO));
    device.add_norm2(norm2.view_mut(), x.read());
    // 1/max(‖U‖, ε) = min(1, ε/‖U‖)/ε
    device.clip_factor(factor.view_mut(), norm2.view(), LEAST_NORM);
    let mut other = buffer(rows, cols);
    device.scale(other.view_mut(), x.read(), factor.view(), 1.0 / LEAST_NORM);
    device.fill(factor.view_mut(), D::Elem::ONE);
    let [mut gram, mut part, mut by] = [(); 3].map(|()| buffer(small, small));
    for _ in 0..ITERATIONS {
        device.copy(x.again(), other.view());
        let (left, right) = if is_wide { (x.read(), x.read().t()) } else { (x.read().t(), x.read()) };
        product(device, gram.view_mut(), left, right, Write::Set);
        device.scale(part.view_mut(), gram.view(), factor.view(), c);
        device.scale(by.view_mut(), gram.view(), factor.view(), b);
        product(device, by.view_mut(), part.view(), gram.view(), Write::Add);
        device.scale(other.view_mut(), x.read(), factor.view(), a);
        let (left, right) = if is_wide { (by.view(), x.read()) } else { (x.read(), by.view()) };
        product(device, other.view_mut(), left, right, Write::Add);
    }
    device.scale(x, other.view(), factor.view(), scale);
}
