//! The host as a device: one generic body of every kernel for every number; a number overrides only its product
//! and its tile sizes (`number.rs`).
mod activation;
mod attention;
mod attention_backward;
#[cfg(test)]
mod attention_proof;
mod attention_tile;
mod elementwise;
mod gemm;
#[cfg(target_arch = "x86_64")]
mod gemm_avx512;
mod gemm_field;
#[cfg(target_arch = "x86_64")]
mod gemv_avx512;
mod kernel;
mod layer_norm;
mod loss;
pub mod machine;
mod norm;
mod number;
mod optimizer;
mod panels;
mod simd;

pub use number::CpuScalar;
pub use panels::Packed;
pub use simd::widest;

use crate::kernels::{
    Activation, AdamW, Attend, Causal, Heads, Kernels, LossTerms, Qkv, Slice, Softmax, Span, Write,
};
use kernel::Kernel;
use tensor::{Cpu, Device, Dropout, Profile, View, ViewMut};

type V<'a, S> = View<'a, Cpu<S>>;
type M<'a, S> = ViewMut<'a, Cpu<S>>;

/// Runs a kernel's body with the widest vectors the machine has; a profile that is being taken is told.
#[inline]
fn run<S: CpuScalar>(cpu: &Cpu<S>, kernel: Kernel, body: impl FnOnce()) {
    let profile = cpu.profile();
    let from = profile.and_then(Profile::now);
    if S::VECTORS {
        widest(body);
    } else {
        body();
    }
    if let (Some(profile), Some(from)) = (profile, from) {
        profile.kernel(kernel.called(), from, cpu.meter().flops());
    }
}

macro_rules! run {
    ($cpu:expr, $kernel:ident, $body:expr) => {
        run(
            $cpu,
            Kernel::$kernel,
            #[inline(always)]
            || $body,
        )
    };
}

impl<S: CpuScalar> Kernels for Cpu<S> {
    type Packed = Packed<S>;
    fn gemm(&self, c: M<S>, a: V<S>, b: V<S>, write: Write) {
        run!(self, Product, S::gemm(c, a, b, write));
    }
    fn pack(&self, b: V<S>) -> Packed<S> {
        let mut packed = Packed::empty(self, [b.rows(), b.cols()]);
        run!(self, Pack, S::pack(packed.memory(), b));
        packed
    }
    fn gemm_packed(&self, c: M<S>, a: V<S>, b: &Packed<S>, write: Write) {
        run!(self, Product, S::gemm_panels(c, a, &b.panels(), write));
    }
    fn packed_len(k: usize, n: usize) -> usize {
        Packed::<S>::len(k, n)
    }
    fn fill(&self, y: M<S>, value: S) {
        run!(self, Fill, elementwise::fill(y, value));
    }
    fn copy(&self, y: M<S>, x: V<S>) {
        run!(self, Copy, elementwise::copy(y, x));
    }
    fn stab(&self, y: M<S>, a: V<S>) {
        run!(self, Stab, elementwise::stab(y, a));
    }
    fn add(&self, y: M<S>, a: V<S>) {
        run!(self, Add, elementwise::add(y, a));
    }
    fn add_row(&self, y: M<S>, row: V<S>) {
        run!(self, AddRow, elementwise::add_row(y, row));
    }
    fn add_rows(&self, sum: M<S>, x: V<S>) {
        run!(self, AddRows, elementwise::add_rows(sum, x));
    }
    fn dropout(&self, x: M<S>, tokens: &[Causal], first_row: usize, dropout: &Dropout) {
        run!(self, Dropout, elementwise::dropout(x, tokens, first_row, dropout));
    }
    fn rotate(&self, x: M<S>, table: V<S>, tokens: &[Causal], dim: usize, back: bool) {
        run!(self, Rotate, elementwise::rotate(x, table, tokens, dim, back));
    }
    fn rms_norm(&self, y: M<S>, r: M<S>, x: V<S>, gain: V<S>, eps: f64) {
        run!(self, Norm, norm::forward(y, r, x, gain, eps));
    }
    fn rms_norm_backward(
        &self,
        dx: M<S>,
        dgain: M<S>,
        x: V<S>,
        r: V<S>,
        gain: V<S>,
        dy: V<S>,
        skip: Option<V<S>>,
    ) {
        run!(self, NormBackward, norm::backward(dx, dgain, x, r, gain, dy, skip));
    }
    fn layer_norm(&self, y: M<S>, stats: M<S>, x: V<S>, gain: V<S>, bias: V<S>, eps: f64) {
        run!(self, Norm, layer_norm::forward(y, stats, x, gain, bias, eps));
    }
    fn layer_norm_backward(
        &self,
        dx: M<S>,
        dgain_dbias: [M<S>; 2],
        x: V<S>,
        stats: V<S>,
        gain: V<S>,
        dy: V<S>,
        skip: Option<V<S>>,
    ) {
        run!(self, NormBackward, layer_norm::backward(dx, dgain_dbias, x, stats, gain, dy, skip));
    }
    fn activate(&self, h: M<S>, x: V<S>, f: Activation) {
        run!(self, Activate, activation::forward(h, x, f));
    }
    fn activate_backward(&self, dx: M<S>, x: V<S>, dh: V<S>, f: Activation) {
        run!(self, ActivateBackward, activation::backward(dx, x, dh, f));
    }
    fn swiglu(&self, h: M<S>, gate: V<S>, up: V<S>) {
        run!(self, Swiglu, elementwise::swiglu(h, gate, up));
    }
    fn swiglu_backward(&self, dgate: M<S>, dup: M<S>, gate: V<S>, up: V<S>, dh: V<S>) {
        run!(self, SwigluBackward, elementwise::swiglu_backward(dgate, dup, gate, up, dh));
    }
    fn attention_block(
        &self,
        attend: &Attend,
        spans: &[Span],
        qkv: Qkv<Self>,
        out: Softmax<Self>,
        scratch: M<S>,
    ) {
        run!(self, Attention, attention::block(attend, spans, &qkv, out, scratch));
    }
    fn attention_finish(&self, heads: Heads, out: Softmax<Self>) {
        run!(self, AttentionFinish, attention::finish(heads, out));
    }
    fn attention_delta(&self, heads: Heads, delta: M<S>, o: V<S>, d_o: V<S>) {
        run!(self, AttentionDelta, attention_backward::delta(heads, delta, o, d_o));
    }
    fn attention_block_backward(
        &self,
        attend: &Attend,
        spans: &[Span],
        qkv: Qkv<Self>,
        saved: (V<S>, V<S>),
        d_o: V<S>,
        dqkv: [M<S>; 3],
        scratch: M<S>,
    ) {
        run!(
            self,
            AttentionBackward,
            attention_backward::block(attend, spans, &qkv, saved, d_o, dqkv, scratch)
        );
    }
    fn attention_scratch(heads: Heads, keys: usize) -> usize {
        attention_tile::scratch_len::<S>(heads, keys)
    }
    fn embed(&self, y: M<S>, table: V<S>, ids: &Self::Index, slice: Slice) {
        run!(self, Embed, loss::embed(y, table, ids, slice));
    }
    fn embed_backward(&self, dtable: M<S>, dy: V<S>, ids: &Self::Index, slice: Slice) {
        run!(self, EmbedBackward, loss::embed_backward(dtable, dy, ids, slice));
    }
    fn row_stab(&self, m: M<S>, logits: V<S>) {
        run!(self, LossStab, loss::row_stab(m, logits));
    }
    fn row_sums(&self, sums: M<S>, logits: V<S>, m: V<S>, targets: &Self::Index, slice: Slice) {
        run!(self, LossSums, loss::row_sums(sums, logits, m, targets, slice));
    }
    fn cross_entropy(&self, loss: M<S>, m: M<S>, sums: V<S>, targets: &Self::Index, terms: &LossTerms) {
        run!(self, Loss, loss::cross_entropy(loss, m, sums, targets, terms));
    }
    fn cross_entropy_backward(
        &self,
        logits: M<S>,
        lse: V<S>,
        targets: &Self::Index,
        slice: Slice,
        terms: &LossTerms,
    ) {
        run!(self, LossBackward, loss::cross_entropy_backward(logits, lse, targets, slice, terms));
    }
    fn add_norm2(&self, out: M<S>, x: V<S>) {
        run!(self, Norm2, optimizer::add_norm2(out, x));
    }
    fn clip_factor(&self, mut factor: M<S>, norm2: V<S>, limit: f64) {
        run!(self, ClipFactor, factor.set(0, 0, S::clip_factor(norm2.at(0, 0), limit)));
    }
    fn sgd(&self, w: M<S>, g: V<S>, factor: V<S>, lr: f64) {
        run!(self, Sgd, optimizer::sgd(w, g, factor, lr));
    }
    fn adamw(&self, w: M<S>, moments: (M<S>, M<S>), g: V<S>, factor: V<S>, constants: AdamW) {
        run!(self, Adamw, optimizer::adamw(w, moments, g, factor, constants));
    }
}
