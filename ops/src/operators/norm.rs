//! Norms of whole rows, for this rank's tokens.
use crate::handles::weight::WholeWeight;
use crate::tensors::sum_of;
use crate::{Result, Stream, wide_along};
use kernels::Kernels;
use tensor::Tensor;

/// RMSNorm: Y = X·r·gain, and r = 1/rms(X). With a bias, LayerNorm: Y = (X − mean)·r·gain + bias, and (mean,
/// r).
#[must_use]
pub fn norm<D: Kernels>(
    x: &Stream<D>,
    gain: &Tensor<D>,
    bias: Option<&Tensor<D>>,
    eps: f64,
) -> (Stream<D>, Tensor<D::Wide>) {
    let share = x.share();
    let fits = bias.into_iter().chain([gain]).all(|row| row.shape() == [1, share.cols()]);
    assert!(fits, "one gain and one bias for each feature");
    let device = share.device();
    let mut y = share.along(share.cols());
    let mut stats = wide_along(share, 1 + usize::from(bias.is_some()));
    let (to, statistics, from) = (y.view_mut(), stats.view_mut(), share.view());
    match bias {
        None => device.rms_norm(to, statistics, from, gain.view(), eps),
        Some(bias) => device.layer_norm(to, statistics, from, gain.view(), bias.view(), eps),
    }
    (x.with(y), stats)
}

/// Returns dX of [`norm`], plus the gradient of the residual path (`skip`), in one pass that also adds to
/// dgain and dbias.
///
/// # Errors
/// If a collective fails.
pub fn norm_backward<D: Kernels>(
    gain: &mut WholeWeight<D>,
    bias: Option<&mut WholeWeight<D>>,
    (x, stats): (&Stream<D>, &Tensor<D::Wide>),
    dy: &Stream<D>,
    skip: Option<&Stream<D>>,
) -> Result<Stream<D>> {
    let share = x.share();
    let value = gain.whole()?;
    let mut dx = share.along(share.cols());
    let (to, from, stats, value) = (dx.view_mut(), share.view(), stats.view(), value.view());
    let dy = dy.share().view();
    let skip = skip.map(|skip| skip.share().view());
    gain.param().accumulate(|device, dgain, write| {
        let dgain = sum_of(device, dgain, write);
        let Some(bias) = bias else {
            return device.rms_norm_backward(to, dgain, from, stats, value, dy, skip);
        };
        bias.param().accumulate(|_, dbias, write| {
            let sums = [dgain, sum_of(device, dbias, write)];
            device.layer_norm_backward(to, sums, from, stats, value, dy, skip);
        });
    });
    Ok(x.with(dx))
}
