//! Not launched yet.
#![allow(clippy::too_many_arguments)]
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Activation, AdamW, LossTerms, RouterBalance, RouterNoise, RouterTerms, Slice, Write};
use tensor::{Dropout, Index, Scalar, Tensor, View, ViewMut};

pub(crate) fn gemm<S: Scalar>(
    _: &Gpu,
    _c: ViewMut<Cuda<S>>,
    _a: View<Cuda<S>>,
    _b: View<Cuda<S>>,
    _write: Write,
) {
    todo!()
}
pub(crate) fn gemm_wide<S: Scalar>(
    _: &Gpu,
    _c: ViewMut<Cuda<S::Wide>>,
    _a: View<Cuda<S>>,
    _b: View<Cuda<S>>,
    _write: Write,
) {
    todo!()
}
pub(crate) fn gemm_packed<S: Scalar>(
    _: &Gpu,
    _c: ViewMut<Cuda<S>>,
    _a: View<Cuda<S>>,
    _b: &Tensor<Cuda<S>>,
    _write: Write,
) {
    todo!()
}
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
pub(crate) fn choose<S: Scalar>(
    _: &Gpu,
    _chosen: &mut Index<Gpu>,
    _logits: View<Cuda<S::Wide>>,
    _bias: Option<View<Cuda<S>>>,
    _noise: Option<RouterNoise<Gpu>>,
    _router: &RouterTerms,
) {
    todo!()
}
pub(crate) fn gates<S: Scalar>(
    _: &Gpu,
    _gates: ViewMut<Cuda<S>>,
    _lse: ViewMut<Cuda<S>>,
    _logits: View<Cuda<S>>,
    _chosen: &Index<Gpu>,
    _router: &RouterTerms,
) {
    todo!()
}
pub(crate) fn router_loss<S: Scalar>(
    _: &Gpu,
    _loss: ViewMut<Cuda<S>>,
    _logits: View<Cuda<S>>,
    _lse: View<Cuda<S>>,
    _balance: RouterBalance<Cuda<S>>,
    _sigmoid: bool,
) {
    todo!()
}
pub(crate) fn router_backward<S: Scalar>(
    _: &Gpu,
    _dlogits: ViewMut<Cuda<S>>,
    _logits: View<Cuda<S::Wide>>,
    _lse: View<Cuda<S::Wide>>,
    _dgates: View<Cuda<S::Wide>>,
    _chosen: &Index<Gpu>,
    _balance: Option<RouterBalance<Cuda<S::Wide>>>,
    _router: &RouterTerms,
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
pub(crate) fn add_norm2<S: Scalar>(_: &Gpu, _out: ViewMut<Cuda<S>>, _x: View<Cuda<S>>) {
    todo!()
}
pub(crate) fn clip_factor<S: Scalar>(_: &Gpu, _factor: ViewMut<Cuda<S>>, _norm2: View<Cuda<S>>, _limit: f64) {
    todo!()
}
pub(crate) fn sgd<S: Scalar>(
    _: &Gpu,
    _w: ViewMut<Cuda<S>>,
    _master: Option<ViewMut<Cuda<S::Wide>>>,
    _g: View<Cuda<S::Wide>>,
    _factor: View<Cuda<S::Wide>>,
    _lr: f64,
) {
    todo!()
}
pub(crate) fn adamw<S: Scalar>(
    _: &Gpu,
    _w: ViewMut<Cuda<S>>,
    _master: Option<ViewMut<Cuda<S::Wide>>>,
    _moments: (ViewMut<Cuda<S::Wide>>, ViewMut<Cuda<S::Wide>>),
    _g: View<Cuda<S::Wide>>,
    _factor: View<Cuda<S::Wide>>,
    _constants: AdamW,
) {
    todo!()
}
pub(crate) fn top_k<S: Scalar>(_: &Gpu, _: ViewMut<Cuda<S>>, _: &mut Index<Gpu>, _: View<Cuda<S>>) {
    todo!()
}
