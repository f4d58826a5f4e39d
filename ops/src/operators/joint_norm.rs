//! RMSNorm of all queries of a token together, and of all its keys. A rank has some of the heads, so the sum
//! of squares is a sum over ranks: two numbers of a token.
//!
//! ```text
//! forward   r = 1/√(Σ_t Σ X_t²/n + ε)    Y_t = X_t·r·g_t                       all-reduce, 2·B numbers
//! backward  s = Σ_t Σ dY_t·Y_t           dX_t = dY_t·r·g_t − X_t·r²·s/n        all-reduce, 2·B numbers
//! ```
//! Where several ranks have a copy of a KV head, its owner, one of them, adds its squares and subtracts the
//! second term of dX. Each has an addend of the head's dY, and their sum is what s wants.
use super::experts::set_dots;
use super::heads::{InverseRms, copy_values};
use crate::handles::weight::ColumnWeight;
use crate::tensors::sum_of;
use crate::{Partial, Result, Split, wide_along};
use comm::Group;
use kernels::{Heads, Kernels};
use std::ops::Range;
use tensor::{Device, Scalar, Tensor, View, ViewMut};

/// Queries or keys on a rank.
struct NormedPart {
    columns: Range<usize>, // in [Q | K | V]
    all: usize,            // columns of all ranks
    owned: bool,
}

/// Returns the queries and the keys of a rank with these of all heads.
fn parts<D: Kernels>([mine, whole]: [Heads; 2], group: &Group<D::Place>) -> [NormedPart; 2] {
    let copies = group.size().div_ceil(whole.keys);
    [
        NormedPart { columns: mine.q(), all: whole.q().len(), owned: true },
        NormedPart { columns: mine.k(), all: whole.k().len(), owned: group.rank().is_multiple_of(copies) },
    ]
}

impl NormedPart {
    fn of<'a, D: Kernels>(&self, t: &'a Tensor<D>) -> View<'a, D> {
        t.view().take_cols(self.columns.start, self.columns.len())
    }
    fn of_mut<'a, D: Kernels>(&self, t: &'a mut Tensor<D>) -> ViewMut<'a, D> {
        t.view_mut().take_cols(self.columns.start, self.columns.len())
    }
}

/// Normalises the queries and the keys in `[Q | K | V]`, of this rank's heads and all heads.
///
/// # Errors
/// If ranks do not meet.
pub fn norm_jointly<D: Kernels>(
    qkv: &Split<D>,
    heads: [Heads; 2],
    gains: [&ColumnWeight<D>; 2],
    eps: f64,
    group: &Group<D::Place>,
) -> Result<(Split<D>, InverseRms<D>)> {
    let device = qkv.device();
    let x = qkv.share();
    let parts = parts::<D>(heads, group);
    let mut sums = wide_along(x, 2);
    device.wide().fill(sums.view_mut(), <D::Wide as Device>::Elem::ZERO);
    for (i, part) in parts.iter().enumerate().filter(|(_, part)| part.owned) {
        set_dots(device, sums.view_mut().take_cols(i, 1), [part.of(x); 2]);
    }
    let mut r = Partial::sum(sums, qkv.axis()).all_reduce(group)?;
    let mut y = x.along(x.cols());
    for (i, (part, gain)) in parts.iter().zip(gains).enumerate() {
        device.wide().inverse_rms(r.view_mut().take_cols(i, 1), part.all, eps);
        let r = r.view().take_cols(i, 1);
        device.norm_part(part.of_mut(&mut y), part.of(x), r, gain.columns()?.whole().view(), None, part.all);
    }
    copy_values(&mut y, x, heads[0]);
    Ok((Split::new(y, qkv.axis()), InverseRms(r)))
}

/// The gradient of [`norm_jointly`]. Adds to the gains' gradients.
///
/// # Errors
/// If ranks do not meet.
pub fn norm_jointly_backward<D: Kernels>(
    (qkv, InverseRms(r)): (&Split<D>, &InverseRms<D>),
    heads: [Heads; 2],
    gains: [&mut ColumnWeight<D>; 2],
    dy: &Split<D>,
    group: &Group<D::Place>,
) -> Result<Split<D>> {
    let device = qkv.device();
    let [x, dy] = [qkv, dy].map(Split::share);
    let parts = parts::<D>(heads, group);
    let [mut y, mut dx] = [0, 1].map(|_| x.along(x.cols()));
    let [mut s, mut stats] = [0, 1].map(|_| wide_along(x, 2));
    for (i, (part, gain)) in parts.iter().zip(&gains).enumerate() {
        let r = r.view().take_cols(i, 1);
        device.norm_part(part.of_mut(&mut y), part.of(x), r, gain.columns()?.whole().view(), None, part.all);
        set_dots(device, s.view_mut().take_cols(i, 1), [part.of(&y), part.of(dy)]);
    }
    let s = Partial::sum(s, qkv.axis()).all_reduce(group)?;
    for (i, (part, gain)) in parts.iter().zip(gains).enumerate() {
        let value = gain.columns()?;
        let value = value.whole().view();
        for (j, from) in [r, &s].into_iter().enumerate() {
            device.wide().copy(stats.view_mut().take_cols(j, 1), from.view().take_cols(i, 1));
        }
        let rest = part.owned.then(|| part.of(x));
        device.norm_part(part.of_mut(&mut dx), part.of(dy), stats.view(), value, rest, part.all);
        gain.param().accumulate(|device, dgain, write| {
            // its dX, of a norm of this rank's columns alone, is not used
            let dgain = sum_of(device, dgain, write);
            let r = r.view().take_cols(i, 1);
            device.rms_norm_backward(part.of_mut(&mut y), dgain, part.of(x), r, value, part.of(dy), None);
        });
    }
    copy_values(&mut dx, dy, heads[0]);
    Ok(Split::new(dx, qkv.axis()))
}
