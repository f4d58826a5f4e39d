//! Launches of `elementwise.cu`.
use super::{Dropped, Shape, Window, across, each, named, scratch};
use crate::card::Argument;
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::Activation;
use tensor::{Dropout, Index, Scalar, View, ViewMut};

/// y = x, whatever their strides.
pub(crate) fn gather<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, x: View<Cuda<S>>) {
    if x.col_stride() == 1 {
        return copy(gpu, y, x);
    }
    gpu.launch(named::<S>("gather"), each(gpu, Window::from(&y).len()), &[&y, &x]);
}

pub(crate) fn copy<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, x: View<Cuda<S>>) {
    if x.col_stride() != 1 {
        return gather(gpu, y, x);
    }
    map::<S>(gpu, "copy", &x, &[&y, &x]);
}

/// A kernel whose threads go over the elements of a matrix: each has some, at least 16 bytes of them, where rows lie so.
fn map<S: Scalar>(gpu: &Gpu, kernel: &'static str, over: impl Into<Window>, arguments: &[&dyn Argument]) {
    gpu.launch(named::<S>(kernel), each(gpu, over.into().len().div_ceil(4)), arguments);
}

pub(crate) fn fill<S: Scalar<Wide = f32>>(gpu: &Gpu, y: ViewMut<Cuda<S>>, value: S) {
    map::<S>(gpu, "fill", &y, &[&y, &value.widen()]);
}

pub(crate) fn add<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, a: View<Cuda<S>>) {
    map::<S>(gpu, "add", &a, &[&y, &a]);
}

pub(crate) fn stab<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, a: View<Cuda<S>>) {
    map::<S>(gpu, "stab", &a, &[&y, &a]);
}

pub(crate) fn add_row<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, row: View<Cuda<S>>) {
    map::<S>(gpu, "add_row", &y, &[&y, &row]);
}

pub(crate) fn scale_rows<S: Scalar<Wide = f32>>(gpu: &Gpu, y: ViewMut<Cuda<S>>, by: View<Cuda<f32>>) {
    map::<S>(gpu, "scale_rows", &y, &[&y, &by]);
}

/// In parts, where there are many rows: what each adds up lies beside the others' until they are added, too.
pub(crate) fn add_rows<S: Scalar<Wide = f32>>(gpu: &Gpu, sum: ViewMut<Cuda<f32>>, x: View<Cuda<S>>) {
    const TOGETHER: usize = 256; // rows of a part, at least
    let parts = x.rows().div_ceil(TOGETHER).min(64);
    let shape = |parts| Shape { blocks: [x.cols().div_ceil(32), parts, 1], threads: 256, shared: 0 };
    if parts < 2 {
        return gpu.launch(named::<S>("add_rows"), shape(parts), &[&sum, &x, &1u32]);
    }
    let mut of_parts = scratch(gpu, parts, x.cols());
    gpu.launch(named::<S>("add_rows"), shape(parts), &[&of_parts.view_mut(), &x, &0u32]);
    gpu.launch(named::<f32>("add_rows"), shape(1), &[&sum, &of_parts.view(), &1u32]);
}

pub(crate) fn dropout<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    x: ViewMut<Cuda<S>>,
    tokens: &Index<Gpu>,
    first_row: usize,
    dropout: &Dropout,
) {
    let arguments: [&dyn Argument; 4] = [&x, tokens, &(first_row as u64), &Dropped::from(Some(dropout))];
    gpu.launch(named::<S>("dropout"), across(&x), &arguments);
}

pub(crate) fn rotate<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    x: ViewMut<Cuda<S>>,
    table: View<Cuda<f32>>,
    tokens: &Index<Gpu>,
    dim: usize,
    back: bool,
) {
    let arguments: [&dyn Argument; 5] = [&x, &table, tokens, &(dim as u32), &u32::from(back)];
    gpu.launch(named::<S>("rotate"), across(&x), &arguments);
}

/// `enum` of `elementwise.cu`.
fn number(f: Activation) -> u32 {
    match f {
        Activation::Gelu => 0,
        Activation::GeluTanh => 1,
        Activation::Relu => 2,
    }
}

pub(crate) fn activate<S: Scalar>(gpu: &Gpu, h: ViewMut<Cuda<S>>, x: View<Cuda<S>>, f: Activation) {
    map::<S>(gpu, "activate", &x, &[&h, &x, &number(f)]);
}

pub(crate) fn activate_backward<S: Scalar>(
    gpu: &Gpu,
    dx: ViewMut<Cuda<S>>,
    x: View<Cuda<S>>,
    dh: View<Cuda<S>>,
    f: Activation,
) {
    map::<S>(gpu, "activate_backward", &x, &[&dx, &x, &dh, &number(f)]);
}

pub(crate) fn swiglu<S: Scalar>(gpu: &Gpu, h: ViewMut<Cuda<S>>, gate: View<Cuda<S>>, up: View<Cuda<S>>) {
    map::<S>(gpu, "swiglu", &h, &[&h, &gate, &up]);
}

pub(crate) fn swiglu_backward<S: Scalar>(
    gpu: &Gpu,
    dgate: ViewMut<Cuda<S>>,
    dup: ViewMut<Cuda<S>>,
    gate: View<Cuda<S>>,
    up: View<Cuda<S>>,
    dh: View<Cuda<S>>,
) {
    map::<S>(gpu, "swiglu_backward", &dh, &[&dgate, &dup, &gate, &up, &dh]);
}
