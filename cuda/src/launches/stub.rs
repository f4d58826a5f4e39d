//! Not launched yet.
#![allow(clippy::too_many_arguments)]
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{AdamW, Attend, Heads, Qkv, RouterBalance, RouterNoise, RouterTerms, Softmax, Write};
use tensor::{Index, Scalar, Tensor, View, ViewMut};

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
pub(crate) fn attention_scratch(_: Heads, _: usize) -> usize {
    1
}
