//! Norms of whole rows, for the tokens at hand.
use super::{Stream, sum_of, wide_beside};
use crate::Result;
use crate::param::weight::WholeWeight;
use kernels::Kernels;
use tensor::Tensor;

/// Y = X · r · gain and r = 1/rms(X).
#[must_use]
pub fn rms_norm<D: Kernels>(x: &Stream<D>, gain: &Tensor<D>, eps: f64) -> (Stream<D>, Tensor<D::Wide>) {
    let share = x.share();
    assert_eq!(gain.shape(), [1, share.cols()], "one gain for each feature");
    let (mut y, mut r) = (share.beside(share.rows(), share.cols()), wide_beside(share, share.rows(), 1));
    share.device().rms_norm(y.view_mut(), r.view_mut(), share.view(), gain.view(), eps);
    (x.with(y), r)
}

/// dX, plus the gradient that went around (`skip`), in one pass that also makes dgain.
///
/// # Errors
/// If ranks do not meet.
pub fn rms_norm_backward<D: Kernels>(
    gain: &mut WholeWeight<D>,
    x: &Stream<D>,
    r: &Tensor<D::Wide>,
    dy: &Stream<D>,
    skip: Option<&Stream<D>>,
) -> Result<Stream<D>> {
    let (share, value) = (x.share(), gain.whole()?);
    let (mut dx, dy) = (share.beside(share.rows(), share.cols()), dy.share().view());
    let skip = skip.map(|s| s.share().view());
    gain.param().accumulate(|device, dgain, write| {
        let dgain = sum_of(device, dgain, write);
        device.rms_norm_backward(dx.view_mut(), dgain, share.view(), r.view(), value.view(), dy, skip);
    });
    Ok(x.with(dx))
}

/// Y = (X − mean) · r · gain + bias; the statistics are (mean, r).
#[must_use]
pub fn layer_norm<D: Kernels>(
    x: &Stream<D>,
    [gain, bias]: [&Tensor<D>; 2],
    eps: f64,
) -> (Stream<D>, Tensor<D::Wide>) {
    let share = x.share();
    let fits = [gain, bias].iter().all(|row| row.shape() == [1, share.cols()]);
    assert!(fits, "one gain and one bias for each feature");
    let (mut y, mut stats) = (share.beside(share.rows(), share.cols()), wide_beside(share, share.rows(), 2));
    let device = share.device();
    device.layer_norm(y.view_mut(), stats.view_mut(), share.view(), gain.view(), bias.view(), eps);
    (x.with(y), stats)
}

/// dX, plus the gradient that went around (`skip`), in one pass that also makes dgain and dbias.
///
/// # Errors
/// If ranks do not meet.
pub fn layer_norm_backward<D: Kernels>(
    [gain, bias]: [&mut WholeWeight<D>; 2],
    x: &Stream<D>,
    stats: &Tensor<D::Wide>,
    dy: &Stream<D>,
    skip: Option<&Stream<D>>,
) -> Result<Stream<D>> {
    let (share, value) = (x.share(), gain.whole()?);
    let (mut dx, dy) = (share.beside(share.rows(), share.cols()), dy.share().view());
    let skip = skip.map(|s| s.share().view());
    gain.param().accumulate(|device, dgain, write| {
        bias.param().accumulate(|_, dbias, write_bias| {
            let sums = [sum_of(device, dgain, write), sum_of(device, dbias, write_bias)];
            device.layer_norm_backward(
                dx.view_mut(),
                sums,
                share.view(),
                stats.view(),
                value.view(),
                dy,
                skip,
            );
        });
    });
    Ok(x.with(dx))
}
