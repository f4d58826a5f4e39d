//! Not launched yet.
#![allow(clippy::too_many_arguments)]
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Activation, Attend, Heads, LossTerms, Qkv, Slice, Softmax};
use tensor::{Dropout, Index, Scalar, View, ViewMut};

pub(crate) fn fill<S: Scalar>(_: &Gpu, _y: ViewMut<Cuda<S>>, _value: S) {
    todo!()
}
pub(crate) fn stab<S: Scalar>(_: &Gpu, _y: ViewMut<Cuda<S>>, _a: View<Cuda<S>>) {
    todo!()
}
pub(crate) fn add_row<S: Scalar>(_: &Gpu, _y: ViewMut<Cuda<S>>, _row: View<Cuda<S>>) {
    todo!()
}
pub(crate) fn add_rows<S: Scalar>(_: &Gpu, _sum: ViewMut<Cuda<S::Wide>>, _x: View<Cuda<S>>) {
    todo!()
}
pub(crate) fn dropout<S: Scalar>(
    _: &Gpu,
    _x: ViewMut<Cuda<S>>,
    _tokens: &Index<Gpu>,
    _first_row: usize,
    _dropout: &Dropout,
) {
    todo!()
}
pub(crate) fn rotate<S: Scalar>(
    _: &Gpu,
    _x: ViewMut<Cuda<S>>,
    _table: View<Cuda<S::Wide>>,
    _tokens: &Index<Gpu>,
    _dim: usize,
    _back: bool,
) {
    todo!()
}
pub(crate) fn rms_norm<S: Scalar>(
    _: &Gpu,
    _y: ViewMut<Cuda<S>>,
    _r: ViewMut<Cuda<S::Wide>>,
    _x: View<Cuda<S>>,
    _gain: View<Cuda<S>>,
    _eps: f64,
) {
    todo!()
}
pub(crate) fn rms_norm_backward<S: Scalar>(
    _: &Gpu,
    _dx: ViewMut<Cuda<S>>,
    _dgain: ViewMut<Cuda<S::Wide>>,
    _x: View<Cuda<S>>,
    _r: View<Cuda<S::Wide>>,
    _gain: View<Cuda<S>>,
    _dy: View<Cuda<S>>,
    _skip: Option<View<Cuda<S>>>,
) {
    todo!()
}
pub(crate) fn layer_norm<S: Scalar>(
    _: &Gpu,
    _y: ViewMut<Cuda<S>>,
    _stats: ViewMut<Cuda<S::Wide>>,
    _x: View<Cuda<S>>,
    _gain: View<Cuda<S>>,
    _bias: View<Cuda<S>>,
    _eps: f64,
) {
    todo!()
}
pub(crate) fn layer_norm_backward<S: Scalar>(
    _: &Gpu,
    _dx: ViewMut<Cuda<S>>,
    _dgain_dbias: [ViewMut<Cuda<S::Wide>>; 2],
    _x: View<Cuda<S>>,
    _stats: View<Cuda<S::Wide>>,
    _gain: View<Cuda<S>>,
    _dy: View<Cuda<S>>,
    _skip: Option<View<Cuda<S>>>,
) {
    todo!()
}
pub(crate) fn activate<S: Scalar>(_: &Gpu, _h: ViewMut<Cuda<S>>, _x: View<Cuda<S>>, _f: Activation) {
    todo!()
}
pub(crate) fn activate_backward<S: Scalar>(
    _: &Gpu,
    _dx: ViewMut<Cuda<S>>,
    _x: View<Cuda<S>>,
    _dh: View<Cuda<S>>,
    _f: Activation,
) {
    todo!()
}
pub(crate) fn swiglu<S: Scalar>(_: &Gpu, _h: ViewMut<Cuda<S>>, _gate: View<Cuda<S>>, _up: View<Cuda<S>>) {
    todo!()
}
pub(crate) fn swiglu_backward<S: Scalar>(
    _: &Gpu,
    _dgate: ViewMut<Cuda<S>>,
    _dup: ViewMut<Cuda<S>>,
    _gate: View<Cuda<S>>,
    _up: View<Cuda<S>>,
    _dh: View<Cuda<S>>,
) {
    todo!()
}
pub(crate) fn attention<S: Scalar>(
    _: &Gpu,
    _attend: &Attend,
    _spans: &Index<Gpu>,
    _qkv: Qkv<Cuda<S>>,
    _o: ViewMut<Cuda<S>>,
    _lse: ViewMut<Cuda<S::Wide>>,
    _scratch: ViewMut<Cuda<S::Wide>>,
) {
    todo!()
}
pub(crate) fn attention_block<S: Scalar>(
    _: &Gpu,
    _attend: &Attend,
    _spans: &Index<Gpu>,
    _qkv: Qkv<Cuda<S>>,
    _run: Softmax<Cuda<S::Wide>>,
    _scratch: ViewMut<Cuda<S::Wide>>,
) {
    todo!()
}
pub(crate) fn attention_finish<S: Scalar>(
    _: &Gpu,
    _heads: Heads,
    _o: ViewMut<Cuda<S>>,
    _run: Softmax<Cuda<S::Wide>>,
) {
    todo!()
}
pub(crate) fn attention_delta<S: Scalar>(
    _: &Gpu,
    _heads: Heads,
    _delta: ViewMut<Cuda<S::Wide>>,
    _o: View<Cuda<S>>,
    _d_o: View<Cuda<S>>,
) {
    todo!()
}
pub(crate) fn attention_backward<S: Scalar>(
    _: &Gpu,
    _attend: &Attend,
    _spans: &Index<Gpu>,
    _qkv: Qkv<Cuda<S>>,
    _saved: (View<Cuda<S::Wide>>, View<Cuda<S::Wide>>),
    _d_o: View<Cuda<S>>,
    _dqkv: [ViewMut<Cuda<S>>; 3],
    _scratch: ViewMut<Cuda<S::Wide>>,
) {
    todo!()
}
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
pub(crate) fn scale_rows<S: Scalar>(_: &Gpu, _y: ViewMut<Cuda<S>>, _by: View<Cuda<S::Wide>>) {
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
pub(crate) fn attention_scratch(_: Heads, _: usize) -> usize {
    1
}
