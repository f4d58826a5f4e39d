//! RMSNorm of each head of queries and keys (qk-norm). Heads do not interact, so each rank normalises its
//! own.
use crate::handles::weight::WholeWeight;
use crate::tensors::sum_of;
use crate::{Result, Split, wide_along};
use kernels::{Heads, Kernels};
use tensor::{Tensor, View};

/// 1/rms of each head `[B, H+K]`, or of all queries and of all keys `[B,2]`.
pub struct InverseRms<D: Kernels>(pub(super) Tensor<D::Wide>);

/// Normalises every head of Q and K in `[Q | K | V]`.
#[must_use]
pub fn norm_heads<D: Kernels>(
    qkv: &Split<D>,
    heads: Heads,
    [q_gain, k_gain]: [&Tensor<D>; 2],
    eps: f64,
) -> (Split<D>, InverseRms<D>) {
    let (x, device, d) = (qkv.share(), qkv.device(), heads.dim);
    let turned = heads.queries + heads.keys;
    let mut y = x.along(x.cols());
    let mut r = wide_along(x, turned);
    for head in 0..turned {
        let gain = if head < heads.queries { q_gain } else { k_gain };
        let (y, r) = (y.view_mut().take_cols(head * d, d), r.view_mut().take_cols(head, 1));
        device.rms_norm(y, r, x.view().take_cols(head * d, d), gain.view(), eps);
    }
    copy_values(&mut y, x, heads);
    (Split::new(y, qkv.axis()), InverseRms(r))
}

/// The gradient of [`norm_heads`]. Adds to the gains' gradients: partial sums, as each rank has only its own
/// heads.
///
/// # Errors
/// If a collective fails.
pub fn norm_heads_backward<D: Kernels>(
    qkv: &Split<D>,
    heads: Heads,
    [q_gain, k_gain]: [&mut WholeWeight<D>; 2],
    InverseRms(r): &InverseRms<D>,
    dy: &Split<D>,
) -> Result<Split<D>> {
    let [x, dy] = [qkv, dy].map(Split::share);
    let d = heads.dim;
    let turned = heads.queries + heads.keys;
    let mut dx = x.along(x.cols());
    for (gain, range) in [(q_gain, 0..heads.queries), (k_gain, heads.queries..turned)] {
        let value = gain.whole()?;
        gain.param().accumulate(|device, dgain, write| {
            let mut dgain = sum_of(device, dgain, write);
            for head in range {
                let part = |t| part(t, head * d, d);
                let (to, r) = (dx.view_mut().take_cols(head * d, d), r.view().take_cols(head, 1));
                device.rms_norm_backward(to, dgain.again(), part(x), r, value.view(), part(dy), None);
            }
        });
    }
    copy_values(&mut dx, dy, heads);
    Ok(Split::new(dx, qkv.axis()))
}

/// Copies V, which no norm changes.
pub(super) fn copy_values<D: Kernels>(to: &mut Tensor<D>, from: &Tensor<D>, heads: Heads) {
    let v = heads.v();
    from.device().copy(to.view_mut().take_cols(v.start, v.len()), from.view().take_cols(v.start, v.len()));
}

fn part<D: Kernels>(t: &Tensor<D>, from: usize, len: usize) -> View<'_, D> {
    t.view().take_cols(from, len)
}
