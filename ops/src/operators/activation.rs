//! Elementwise functions: each rank applies them to its own part.
use crate::{Split, Stream};
use kernels::{Activation, Gate, Kernels};
use tensor::Tensor;

fn apply<D: Kernels>(x: &Tensor<D>, f: Activation) -> Tensor<D> {
    let mut h = x.along(x.cols());
    x.device().activate(h.view_mut(), x.view(), f);
    h
}

fn back<D: Kernels>(x: &Tensor<D>, dh: &Tensor<D>, f: Activation) -> Tensor<D> {
    assert_eq!(x.shape(), dh.shape(), "a gradient for every element");
    let mut dx = x.along(x.cols());
    x.device().activate_backward(dx.view_mut(), x.view(), dh.view(), f);
    dx
}

/// Applies f to this rank's features.
#[must_use]
pub fn activate<D: Kernels>(x: &Split<D>, f: Activation) -> Split<D> {
    Split::new(apply(x.share(), f), x.axis())
}

/// The gradient of [`activate`].
#[must_use]
pub fn activate_backward<D: Kernels>(x: &Split<D>, dh: &Split<D>, f: Activation) -> Split<D> {
    Split::new(back(x.share(), dh.share(), f), x.axis())
}

/// Applies f to this rank's tokens.
#[must_use]
pub fn activate_stream<D: Kernels>(x: &Stream<D>, f: Activation) -> Stream<D> {
    x.with(apply(x.share(), f))
}

/// The gradient of [`activate_stream`].
#[must_use]
pub fn activate_stream_backward<D: Kernels>(x: &Stream<D>, dh: &Stream<D>, f: Activation) -> Stream<D> {
    x.with(back(x.share(), dh.share(), f))
}

/// Maps `[gate | up]` to f(gate, up).
#[must_use]
pub fn gated<D: Kernels>(gate_up: &Split<D>, f: Gate) -> Split<D> {
    let x = gate_up.share();
    let n = x.cols() / 2;
    let mut h = x.along(n);
    x.device().gated(h.view_mut(), x.view().take_cols(0, n), x.view().take_cols(n, n), f);
    Split::new(h, gate_up.axis())
}

/// The gradient of [`gated`].
#[must_use]
pub fn gated_backward<D: Kernels>(gate_up: &Split<D>, dh: &Split<D>, f: Gate) -> Split<D> {
    let [x, dh] = [gate_up, dh].map(Split::share);
    let n = dh.cols();
    let mut d = x.along(x.cols());
    let (dgate, dup) = d.view_mut().split_cols(n);
    x.device().gated_backward(dgate, dup, x.view().take_cols(0, n), x.view().take_cols(n, n), dh.view(), f);
    Split::new(d, gate_up.axis())
}

/// Multiplies this rank's tokens by √n; its own backward.
#[must_use]
pub fn stretch<D: Kernels>(x: &Stream<D>, n: usize) -> Stream<D> {
    let mut y = x.share().along(x.cols());
    x.device().stretch(y.view_mut(), x.share().view(), n);
    x.with(y)
}

/// Caps this rank's features at c. The gradient is the loss's: [`kernels::LossTerms`] has the cap.
#[must_use]
pub fn cap<D: Kernels>(x: Split<D>, c: f64) -> Split<D> {
    let axis = x.axis();
    let mut y = x.into_share();
    y.device().clone().cap(y.view_mut(), c);
    Split::new(y, axis)
}
