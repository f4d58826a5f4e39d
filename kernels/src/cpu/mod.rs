//! The host as a device: one generic body of every kernel for every number; a number overrides only its product
//! and its tile sizes (`number.rs`).
mod activation;
mod attention;
mod attention_backward;
#[cfg(test)]
mod attention_proof;
mod attention_tile;
pub mod bf16;
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
#[cfg(target_arch = "x86_64")]
mod micro_avx512;
mod norm;
mod number;
mod optimizer;
mod panels;
mod simd;
mod top_k;

pub use number::CpuScalar;
pub use panels::Packed;
pub use simd::widest;

use crate::kernels::{
    Activation, AdamW, Attend, Causal, Heads, Kernels, LossTerms, Qkv, Selects, Slice, Softmax, Span, Write,
};
use kernel::Kernel;
use tensor::{Bf16, Cpu, Device, Dropout, Dual, Field, Host, Index, Profile, Scalar, View, ViewMut};

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

/// The kernels of each number. Those of floats are compiled here, once; a generic number's where it is used.
macro_rules! kernels {
    ($([$($of:tt)*] $s:ty;)*) => {$(
        impl<$($of)*> Kernels for Cpu<$s> {
            type Packed = Packed<$s>;
            fn gemm(&self, c: M<$s>, a: V<$s>, b: V<$s>, write: Write) {
                run!(self, Product, <$s>::gemm(c, a, b, write));
            }
            fn pack(&self, b: V<$s>) -> Packed<$s> {
                let mut packed = Packed::empty(self, [b.rows(), b.cols()]);
                run!(self, Pack, <$s>::pack(packed.memory(), b));
                packed
            }
            fn gemm_packed(&self, c: M<$s>, a: V<$s>, b: &Packed<$s>, write: Write) {
                run!(self, Product, <$s>::gemm_panels(c, a, &b.panels(), write));
            }
            fn packed_len(k: usize, n: usize) -> usize {
                Packed::<$s>::len(k, n)
            }
            fn fill(&self, y: M<$s>, value: $s) {
                run!(self, Fill, elementwise::fill(y, value));
            }
            fn copy(&self, y: M<$s>, x: V<$s>) {
                run!(self, Copy, elementwise::copy(y, x));
            }
            fn stab(&self, y: M<$s>, a: V<$s>) {
                run!(self, Stab, elementwise::stab(y, a));
            }
            fn add(&self, y: M<$s>, a: V<$s>) {
                run!(self, Add, elementwise::add(y, a));
            }
            fn add_row(&self, y: M<$s>, row: V<$s>) {
                run!(self, AddRow, elementwise::add_row(y, row));
            }
            fn add_rows(&self, sum: M<$s>, x: V<$s>) {
                run!(self, AddRows, elementwise::add_rows(sum, x));
            }
            fn dropout(&self, x: M<$s>, tokens: &[Causal], first_row: usize, dropout: &Dropout) {
                run!(self, Dropout, elementwise::dropout(x, tokens, first_row, dropout));
            }
            fn rotate(&self, x: M<$s>, table: V<$s>, tokens: &[Causal], dim: usize, back: bool) {
                run!(self, Rotate, elementwise::rotate(x, table, tokens, dim, back));
            }
            fn rms_norm(&self, y: M<$s>, r: M<$s>, x: V<$s>, gain: V<$s>, eps: f64) {
                run!(self, Norm, norm::forward(y, r, x, gain, eps));
            }
            fn rms_norm_backward(
                &self,
                dx: M<$s>,
                dgain: M<$s>,
                x: V<$s>,
                r: V<$s>,
                gain: V<$s>,
                dy: V<$s>,
                skip: Option<V<$s>>,
            ) {
                run!(self, NormBackward, norm::backward(dx, dgain, x, r, gain, dy, skip));
            }
            fn layer_norm(&self, y: M<$s>, stats: M<$s>, x: V<$s>, gain: V<$s>, bias: V<$s>, eps: f64) {
                run!(self, Norm, layer_norm::forward(y, stats, x, gain, bias, eps));
            }
            fn layer_norm_backward(
                &self,
                dx: M<$s>,
                dgain_dbias: [M<$s>; 2],
                x: V<$s>,
                stats: V<$s>,
                gain: V<$s>,
                dy: V<$s>,
                skip: Option<V<$s>>,
            ) {
                run!(self, NormBackward, layer_norm::backward(dx, dgain_dbias, x, stats, gain, dy, skip));
            }
            fn activate(&self, h: M<$s>, x: V<$s>, f: Activation) {
                run!(self, Activate, activation::forward(h, x, f));
            }
            fn activate_backward(&self, dx: M<$s>, x: V<$s>, dh: V<$s>, f: Activation) {
                run!(self, ActivateBackward, activation::backward(dx, x, dh, f));
            }
            fn swiglu(&self, h: M<$s>, gate: V<$s>, up: V<$s>) {
                run!(self, Swiglu, elementwise::swiglu(h, gate, up));
            }
            fn swiglu_backward(&self, dgate: M<$s>, dup: M<$s>, gate: V<$s>, up: V<$s>, dh: V<$s>) {
                run!(self, SwigluBackward, elementwise::swiglu_backward(dgate, dup, gate, up, dh));
            }
            fn attention_block(
                &self,
                attend: &Attend,
                spans: &[Span],
                qkv: Qkv<Self>,
                out: Softmax<Self>,
                scratch: M<$s>,
            ) {
                run!(self, Attention, attention::block(attend, spans, &qkv, out, scratch));
            }
            fn attention_finish(&self, heads: Heads, out: Softmax<Self>) {
                run!(self, AttentionFinish, attention::finish(heads, out));
            }
            fn attention_delta(&self, heads: Heads, delta: M<$s>, o: V<$s>, d_o: V<$s>) {
                run!(self, AttentionDelta, attention_backward::delta(heads, delta, o, d_o));
            }
            fn attention_block_backward(
                &self,
                attend: &Attend,
                spans: &[Span],
                qkv: Qkv<Self>,
                saved: (V<$s>, V<$s>),
                d_o: V<$s>,
                dqkv: [M<$s>; 3],
                scratch: M<$s>,
            ) {
                run!(
                    self,
                    AttentionBackward,
                    attention_backward::block(attend, spans, &qkv, saved, d_o, dqkv, scratch)
                );
            }
            fn attention_scratch(heads: Heads, keys: usize) -> usize {
                attention_tile::scratch_len::<$s>(heads, keys)
            }
            fn embed(&self, y: M<$s>, table: V<$s>, ids: &Index<Host>, slice: Slice) {
                run!(self, Embed, loss::embed(y, table, ids.words(), slice));
            }
            fn embed_backward(&self, dtable: M<$s>, dy: V<$s>, ids: &Index<Host>, slice: Slice) {
                run!(self, EmbedBackward, loss::embed_backward(dtable, dy, ids.words(), slice));
            }
            fn row_stab(&self, m: M<$s>, logits: V<$s>) {
                run!(self, LossStab, loss::row_stab(m, logits));
            }
            fn row_sums(&self, sums: M<$s>, logits: V<$s>, m: V<$s>, targets: &Index<Host>, slice: Slice) {
                run!(self, LossSums, loss::row_sums(sums, logits, m, targets.words(), slice));
            }
            fn cross_entropy(&self, loss: M<$s>, m: M<$s>, sums: V<$s>, targets: &Index<Host>, terms: &LossTerms) {
                run!(self, Loss, loss::cross_entropy(loss, m, sums, targets.words(), terms));
            }
            fn cross_entropy_backward(
                &self,
                logits: M<$s>,
                lse: V<$s>,
                targets: &Index<Host>,
                slice: Slice,
                terms: &LossTerms,
            ) {
                run!(self, LossBackward, loss::cross_entropy_backward(logits, lse, targets.words(), slice, terms));
            }
            fn add_norm2(&self, out: M<$s>, x: V<$s>) {
                run!(self, Norm2, optimizer::add_norm2(out, x));
            }
            fn clip_factor(&self, mut factor: M<$s>, norm2: V<$s>, limit: f64) {
                run!(self, ClipFactor, factor.set(0, 0, <$s>::clip_factor(norm2.at(0, 0), limit)));
            }
            fn sgd(&self, w: M<$s>, g: V<$s>, factor: V<$s>, lr: f64) {
                run!(self, Sgd, optimizer::sgd(w, g, factor, lr));
            }
            fn adamw(&self, w: M<$s>, moments: (M<$s>, M<$s>), g: V<$s>, factor: V<$s>, constants: AdamW) {
                run!(self, Adamw, optimizer::adamw(w, moments, g, factor, constants));
            }
        }
    )*};
}

kernels! {
    [] f32;
    [] f64;
    [] Bf16;
    [const BITS: u32] Field<BITS>;
    [S: Scalar] Dual<S>;
}

/// What only numbers with an order have.
macro_rules! selects {
    ($($s:ty;)*) => {$(
        impl Selects for Cpu<$s> {
            fn top_k(&self, values: M<$s>, columns: &mut Index<Host>, x: V<$s>) {
                run!(self, TopK, top_k::top_k(values, columns.words_mut(), x));
            }
        }
    )*};
}

selects! {
    f32;
    f64;
}
