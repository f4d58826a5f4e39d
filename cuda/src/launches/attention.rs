//! Launches of `attention.cu` and `attention_backward.cu`.
use super::{Dropped, THREADS, Window, Words, named};
use crate::card::{Argument, Shape};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Attend, Heads, Mask, Qkv, Softmax};
use std::ffi::c_void;
use tensor::{Index, Scalar, View, ViewMut};

/// What is attended, as kernels see it: `Attend` of `attention.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Attended {
    dropout: Dropped,
    queries: u32,
    keys: u32,
    dim: u32,
    first: u32,
    causal: u32,
    size: u32,
    sinks: u32,
    scale: f32,
}
// SAFETY: as `Attend` has them.
unsafe impl Argument for Attended {
    fn bytes(&self) -> (*mut c_void, usize) {
        ((&raw const *self).cast_mut().cast(), size_of::<Self>())
    }
}

impl From<&Attend> for Attended {
    fn from(attend: &Attend) -> Self {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX); // positions are below that
        let Heads { queries, keys, dim } = attend.heads;
        assert!(dim <= 256, "{dim} features a head; GPUs take up to 256");
        let (causal, size, sinks) = match attend.mask {
            Mask::All => (false, usize::MAX, 0),
            Mask::Causal => (true, usize::MAX, 0),
            Mask::Window { size, sinks } => (true, size, sinks),
        };
        Self {
            dropout: attend.dropout.as_ref().into(),
            queries: small(queries),
            keys: small(keys),
            dim: small(dim),
            first: small(attend.first),
            causal: causal.into(),
            size: small(size),
            sinks: small(sinks),
            scale: 1.0 / (dim as f32).sqrt(),
        }
    }
}

/// Rows of a tile.
const TILE: usize = 64;

/// A block of tiles for every so many rows and each head.
fn tiles(rows: usize, heads: usize) -> Shape {
    Shape { blocks: [rows.div_ceil(TILE), heads, 1], threads: 256, shared: 3 * TILE * (TILE + 4) * 4 }
}

/// A kernel by tiles: its name says how many features it takes.
fn wide_enough<S: Scalar>(kernel: &str, dim: usize) -> String {
    let width = [64, 128, 256].into_iter().find(|&width| dim <= width).expect("at most 256");
    named::<S>(&format!("{kernel}_{width}"))
}

/// A warp for each row and head.
fn warps(gpu: &Gpu, n: usize) -> Shape {
    let most = gpu.card().about.processors * 64;
    Shape { blocks: [(n * 32).div_ceil(THREADS).min(most), 1, 1], threads: THREADS, shared: 0 }
}

/// The softmax over these spans, to (o, out, max, sum).
fn forward<S: Scalar>(gpu: &Gpu, attend: &Attend, spans: &Index<Gpu>, qkv: &Qkv<Cuda<S>>, to: [Window; 4]) {
    let (a, spans) = (Attended::from(attend), Words::from(spans));
    let [q, k, v] = [&qkv.q, &qkv.k, &qkv.v].map(Window::from);
    let [o, out, max, sum] = to;
    let shape = tiles(qkv.q.rows(), attend.heads.queries);
    let kernel = wide_enough::<S>("attention", attend.heads.dim);
    gpu.launch(&kernel, shape, &[&a, &spans, &q, &k, &v, &o, &out, &max, &sum]);
}

pub(crate) fn attention<S: Scalar>(
    gpu: &Gpu,
    attend: &Attend,
    spans: &Index<Gpu>,
    qkv: Qkv<Cuda<S>>,
    o: ViewMut<Cuda<S>>,
    lse: ViewMut<Cuda<S::Wide>>,
    _: ViewMut<Cuda<S::Wide>>,
) {
    forward(gpu, attend, spans, &qkv, [Window::from(&o), Window::NONE, Window::from(&lse), Window::NONE]);
}

pub(crate) fn attention_block<S: Scalar>(
    gpu: &Gpu,
    attend: &Attend,
    spans: &Index<Gpu>,
    qkv: Qkv<Cuda<S>>,
    run: Softmax<Cuda<S::Wide>>,
    _: ViewMut<Cuda<S::Wide>>,
) {
    let [out, max, sum] = [&run.out, &run.max, &run.sum].map(Window::from);
    forward(gpu, attend, spans, &qkv, [Window::NONE, out, max, sum]);
}

pub(crate) fn attention_finish<S: Scalar>(
    gpu: &Gpu,
    heads: Heads,
    o: ViewMut<Cuda<S>>,
    run: Softmax<Cuda<S::Wide>>,
) {
    let [out, max, sum] = [&run.out, &run.max, &run.sum].map(Window::from);
    let (o, dim) = (Window::from(&o), heads.dim as u32);
    gpu.launch(&named::<S>("attention_finish"), warps(gpu, max.len()), &[&o, &out, &max, &sum, &dim]);
}

pub(crate) fn attention_delta<S: Scalar>(
    gpu: &Gpu,
    heads: Heads,
    delta: ViewMut<Cuda<S::Wide>>,
    o: View<Cuda<S>>,
    d_o: View<Cuda<S>>,
) {
    let (delta, [o, d_o], dim) = (Window::from(&delta), [&o, &d_o].map(Window::from), heads.dim as u32);
    gpu.launch(&named::<S>("attention_delta"), warps(gpu, delta.len()), &[&delta, &o, &d_o, &dim]);
}

/// Two passes: the gradients of keys and values, where each block has some of their rows, and those of queries.
pub(crate) fn attention_backward<S: Scalar>(
    gpu: &Gpu,
    attend: &Attend,
    spans: &Index<Gpu>,
    qkv: Qkv<Cuda<S>>,
    (lse, delta): (View<Cuda<S::Wide>>, View<Cuda<S::Wide>>),
    d_o: View<Cuda<S>>,
    dqkv: [ViewMut<Cuda<S>>; 3],
    _: ViewMut<Cuda<S::Wide>>,
) {
    let (a, spans) = (Attended::from(attend), Words::from(spans));
    let [q, k, v, d_o] = [&qkv.q, &qkv.k, &qkv.v, &d_o].map(Window::from);
    let ([lse, delta], [dq, dk, dv]) = ([&lse, &delta].map(Window::from), dqkv.each_ref().map(Window::from));
    let Heads { queries, keys, dim } = attend.heads;
    let given: [&dyn Argument; 8] = [&a, &spans, &q, &k, &v, &lse, &delta, &d_o];
    gpu.launch(
        &wide_enough::<S>("attention_keys", dim),
        tiles(qkv.k.rows(), keys),
        &[&given[..], &[&dk, &dv]].concat(),
    );
    gpu.launch(
        &wide_enough::<S>("attention_queries", dim),
        tiles(qkv.q.rows(), queries),
        &[&given[..], &[&dq]].concat(),
    );
}

/// No scratch is used; one number, since no tensor is empty.
pub(crate) fn attention_scratch(_: Heads, _: usize) -> usize {
    1
}
