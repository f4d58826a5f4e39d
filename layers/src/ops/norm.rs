//! RMSNorm on whole rows; SwiGLU on split features.
use super::{Split, sum_of};
use crate::Result;
use crate::weight::WholeWeight;
use kernels::Kernels;
use tensor::Tensor;

/// Y = X · r · gain and r = 1/rms(X).
#[must_use]
pub fn rms_norm<D: Kernels>(x: &Tensor<D>, gain: &Tensor<D>, eps: f64) -> (Tensor<D>, Tensor<D>) {
    assert_eq!(gain.shape(), [1, x.cols()], "one gain for each feature");
    let (mut y, mut r) = (x.beside(x.rows(), x.cols()), x.beside(x.rows(), 1));
    x.device().rms_norm(y.view_mut(), r.view_mut(), x.view(), gain.view(), eps);
    (y, r)
}

/// dX, plus the gradient that went around (`skip`), in one pass that also makes dgain.
///
/// # Errors
/// If ranks do not meet.
pub fn rms_norm_backward<D: Kernels>(
    gain: &mut WholeWeight<D>,
    x: &Tensor<D>,
    r: &Tensor<D>,
    dy: &Tensor<D>,
    skip: Option<&Tensor<D>>,
) -> Result<Tensor<D>> {
    let (mut dx, value) = (x.beside(x.rows(), x.cols()), gain.whole()?);
    gain.param().accumulate(|device, dgain, write| {
        let dgain = sum_of(device, dgain, write);
        let skip = skip.map(Tensor::view);
        device.rms_norm_backward(dx.view_mut(), dgain, x.view(), r.view(), value.view(), dy.view(), skip);
    });
    Ok(dx)
}

/// `[gate | up]` to gate · sigmoid(gate) · up.
#[must_use]
pub fn swiglu<D: Kernels>(gate_up: &Split<D>) -> Split<D> {
    let x = gate_up.share();
    let n = x.cols() / 2;
    let mut h = x.beside(x.rows(), n);
    x.device().swiglu(h.view_mut(), x.view().take_cols(0, n), x.view().take_cols(n, n));
    Split::new(h, gate_up.axis())
}

/// The gradient of [`swiglu`].
#[must_use]
pub fn swiglu_backward<D: Kernels>(gate_up: &Split<D>, dh: &Split<D>) -> Split<D> {
    let (x, dh) = (gate_up.share(), dh.share());
    let n = dh.cols();
    let mut d = x.beside(x.rows(), x.cols());
    let (dgate, dup) = d.view_mut().split_cols(n);
    x.device().swiglu_backward(dgate, dup, x.view().take_cols(0, n), x.view().take_cols(n, n), dh.view());
    Split::new(d, gate_up.axis())
}
