//! Not launched yet.
#![allow(clippy::too_many_arguments, unused_imports)]
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{
    Activation, AdamW, Attend, Heads, LossTerms, Qkv, RouterBalance, RouterNoise, RouterTerms, Slice,
    Softmax, Write,
};
use tensor::{Dropout, Index, Scalar, Tensor, View, ViewMut};

pub(crate) fn embed<S: Scalar>(
    _: &Gpu,
    _y: ViewMut<Cuda<S>>,
    _table: View<Cuda<S>>,
    _ids: &Index<Gpu>,
    _slice: Slice,
) {
    todo!()
}
pub(crate) fn embed_backward<S: Scalar>(
    _: &Gpu,
    _dtable: ViewMut<Cuda<S::Wide>>,
    _dy: View<Cuda<S>>,
    _ids: &Index<Gpu>,
    _slice: Slice,
) {
    todo!()
}
pub(crate) fn row_stab<S: Scalar>(_: &Gpu, _m: ViewMut<Cuda<S::Wide>>, _logits: View<Cuda<S>>) {
    todo!()
}
pub(crate) fn row_sums<S: Scalar>(
    _: &Gpu,
    _sums: ViewMut<Cuda<S::Wide>>,
    _logits: View<Cuda<S>>,
    _m: View<Cuda<S::Wide>>,
    _targets: &Index<Gpu>,
    _slice: Slice,
) {
    todo!()
}
pub(crate) fn cross_entropy<S: Scalar>(
    _: &Gpu,
    _loss: ViewMut<Cuda<S>>,
    _m: ViewMut<Cuda<S>>,
    _sums: View<Cuda<S>>,
    _targets: &Index<Gpu>,
    _terms: &LossTerms,
) {
    todo!()
}
pub(crate) fn cross_entropy_backward<S: Scalar>(
    _: &Gpu,
    _logits: ViewMut<Cuda<S>>,
    _lse: View<Cuda<S::Wide>>,
    _targets: &Index<Gpu>,
    _slice: Slice,
    _terms: &LossTerms,
) {
    todo!()
}
pub(crate) fn mean_square<S: Scalar>(
    _: &Gpu,
    _loss: ViewMut<Cuda<S::Wide>>,
    _x: ViewMut<Cuda<S>>,
    _y: View<Cuda<S>>,
    _numbers: usize,
) {
    todo!()
}
