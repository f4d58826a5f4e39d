//! Operations on one rank's matrices, from which the operations on distributed matrices are made.
use kernels::{Kernels, Write};
use tensor::{Category, Device, Scalar, Tensor, View, ViewMut};

/// C (+)= A·B.
pub fn product<D: Kernels>(device: &D, c: ViewMut<D>, a: View<D>, b: View<D>, write: Write) {
    count_product(device, [c.rows(), c.cols()], &a, &b);
    device.gemm(c, a, b, write);
}

/// Checks that C = A·B has this shape, and counts its FLOPs.
pub(super) fn count_product<D: Kernels>(device: &D, c: [usize; 2], a: &View<D>, b: &View<D>) {
    let [a, b] = [[a.rows(), a.cols()], [b.rows(), b.cols()]];
    assert!([a[0], b[1]] == c && a[1] == b[0], "a product {a:?} · {b:?} does not have shape {c:?}");
    device.meter().work(&[2, c[0], c[1], a[1]]);
}

/// Returns a gradient to add to: zeroed first if it is to be set.
pub fn sum_of<'a, D: Kernels>(
    device: &D,
    mut gradient: ViewMut<'a, D::Wide>,
    write: Write,
) -> ViewMut<'a, D::Wide> {
    if write == Write::Set {
        device.wide().fill(gradient.again(), <D::Wide as Device>::Elem::ZERO);
    }
    gradient
}

/// Creates an activation in the wide dtype, with the rows and the room of `x`.
#[must_use]
pub fn wide_along<D: Kernels>(x: &Tensor<D>, cols: usize) -> Tensor<D::Wide> {
    Tensor::with_room(x.device().wide(), Category::Activations, x.rooms(), cols)
}

/// Creates a matrix filled with one value.
#[must_use]
pub fn filled<D: Kernels>(
    device: &D,
    category: Category,
    [rows, cols]: [usize; 2],
    value: D::Elem,
) -> Tensor<D> {
    let mut t = Tensor::empty(device, category, rows, cols);
    device.fill(t.view_mut(), value);
    t
}

/// `A + B`, in A's memory if no one else holds it.
#[must_use]
pub fn plus<D: Kernels>(mut a: Tensor<D>, b: &Tensor<D>) -> Tensor<D> {
    assert_eq!(a.shape(), b.shape(), "a sum of matrices of different shapes");
    a.device().clone().add(a.view_mut(), b.view());
    a
}
