//! Elementwise functions: each rank applies them to its own part.
use crate::{Split, Stream};
use kernels::{Activation, Kernels};
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

/// Maps `[gate | up]` to gate · sigmoid(gate) · up.
#[must_use]
pub fn swiglu<D: Kernels>(gate_up: &Split<D>) -> Split<D> {
    let x = gate_up.share();
    let n = x.cols() / 2;
    let mut h = x.along(n);
    x.device().swiglu(h.view_mut(), x.view().take_cols(0, n), x.view().take_cols(n, n));
    Split::new(h, gate_up.axis())
}

/// The gradient of [`swiglu`].
#[must_use]
pub fn swiglu_backward<D: Kernels>(gate_up: &Split<D>, dh: &Split<D>) -> Split<D> {
    let [x, dh] = [gate_up, dh].map(Split::share);
    let n = dh.cols();
    let mut d = x.along(x.cols());
    let (dgate, dup) = d.view_mut().split_cols(n);
    x.device().swiglu_backward(dgate, dup, x.view().take_cols(0, n), x.view().take_cols(n, n), dh.view());
    Split::new(d, gate_up.axis())
}
