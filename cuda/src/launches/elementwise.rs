//! Launches of `elementwise.cu`.
use super::{Dropped, Shape, Window, Words, across, each, named, scratch};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::Activation;
use tensor::{Dropout, Index, Scalar, View, ViewMut};

/// y = x, whatever their strides.
pub(crate) fn gather<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, x: View<Cuda<S>>) {
    if x.col_stride() == 1 {
        return copy(gpu, y, x);
    }
    let [y, x] = [Window::from(&y), Window::from(&x)];
    gpu.launch(&named::<S>("gather"), each(gpu, y.len()), &[&y, &x]);
}

pub(crate) fn copy<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, x: View<Cuda<S>>) {
    if x.col_stride() != 1 {
        return gather(gpu, y, x);
    }
    map::<S>(gpu, "copy", Window::from(&x), &[Window::from(&y), Window::from(&x)]);
}

/// A kernel that takes matrices and goes over the elements of one of them.
fn map<S: Scalar>(gpu: &Gpu, kernel: &str, over: Window, windows: &[Window]) {
    let windows: Vec<&dyn crate::card::Argument> = windows.iter().map(|window| window as _).collect();
    gpu.launch(&named::<S>(kernel), by_lanes(gpu, over), &windows);
}

/// Threads that take some elements each: at least 16 bytes of them, where rows lie so.
fn by_lanes(gpu: &Gpu, over: Window) -> Shape {
    each(gpu, over.len().div_ceil(4))
}

pub(crate) fn fill<S: Scalar<Wide = f32>>(gpu: &Gpu, y: ViewMut<Cuda<S>>, value: S) {
    let y = Window::from(&y);
    gpu.launch(&named::<S>("fill"), by_lanes(gpu, y), &[&y, &value.widen()]);
}

pub(crate) fn add<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, a: View<Cuda<S>>) {
    map::<S>(gpu, "add", Window::from(&a), &[Window::from(&y), Window::from(&a)]);
}

pub(crate) fn stab<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, a: View<Cuda<S>>) {
    map::<S>(gpu, "stab", Window::from(&a), &[Window::from(&y), Window::from(&a)]);
}

pub(crate) fn add_row<S: Scalar>(gpu: &Gpu, y: ViewMut<Cuda<S>>, row: View<Cuda<S>>) {
    map::<S>(gpu, "add_row", Window::from(&y), &[Window::from(&y), Window::from(&row)]);
}

pub(crate) fn scale_rows<S: Scalar<Wide = f32>>(gpu: &Gpu, y: ViewMut<Cuda<S>>, by: View<Cuda<f32>>) {
    let [y, by] = [Window::from(&y), Window::from(&by)];
    gpu.launch(&named::<S>("scale_rows"), by_lanes(gpu, y), &[&y, &by]);
}

/// In parts, where there are many rows: what each adds up lies beside the others' until they are added, too.
pub(crate) fn add_rows<S: Scalar<Wide = f32>>(gpu: &Gpu, sum: ViewMut<Cuda<f32>>, x: View<Cuda<S>>) {
    const TOGETHER: usize = 256; // rows of a part, at least
    let parts = x.rows().div_ceil(TOGETHER).min(64);
    let shape = |parts| Shape { blocks: [x.cols().div_ceil(32), parts, 1], threads: 256, shared: 0 };
    let (sum, x) = (Window::from(&sum), Window::from(&x));
    if parts < 2 {
        return gpu.launch(&named::<S>("add_rows"), shape(parts), &[&sum, &x, &1u32]);
    }
    let mut of_parts = scratch(gpu, parts, x.cols as usize);
    let of_parts = Window::from(&of_parts.view_mut());
    gpu.launch(&named::<S>("add_rows"), shape(parts), &[&of_parts, &x, &0u32]);
    gpu.launch(&named::<f32>("add_rows"), shape(1), &[&sum, &of_parts, &1u32]);
}

pub(crate) fn dropout<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    x: ViewMut<Cuda<S>>,
    tokens: &Index<Gpu>,
    first_row: usize,
    dropout: &Dropout,
) {
    let (x, tokens, first) = (Window::from(&x), Words::from(tokens), first_row as u64);
    gpu.launch(&named::<S>("dropout"), across(x), &[&x, &tokens, &first, &Dropped::from(Some(dropout))]);
}

pub(crate) fn rotate<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    x: ViewMut<Cuda<S>>,
    table: View<Cuda<f32>>,
    tokens: &Index<Gpu>,
    dim: usize,
    back: bool,
) {
    let (x, table, tokens) = (Window::from(&x), Window::from(&table), Words::from(tokens));
    gpu.launch(&named::<S>("rotate"), across(x), &[&x, &table, &tokens, &(dim as u32), &u32::from(back)]);
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
    let [h, x] = [Window::from(&h), Window::from(&x)];
    gpu.launch(&named::<S>("activate"), by_lanes(gpu, x), &[&h, &x, &number(f)]);
}

pub(crate) fn activate_backward<S: Scalar>(
    gpu: &Gpu,
    dx: ViewMut<Cuda<S>>,
    x: View<Cuda<S>>,
    dh: View<Cuda<S>>,
    f: Activation,
) {
    let [dx, x, dh] = [Window::from(&dx), Window::from(&x), Window::from(&dh)];
    gpu.launch(&named::<S>("activate_backward"), by_lanes(gpu, x), &[&dx, &x, &dh, &number(f)]);
}

pub(crate) fn swiglu<S: Scalar>(gpu: &Gpu, h: ViewMut<Cuda<S>>, gate: View<Cuda<S>>, up: View<Cuda<S>>) {
    let [h, gate, up] = [Window::from(&h), Window::from(&gate), Window::from(&up)];
    map::<S>(gpu, "swiglu", h, &[h, gate, up]);
}

pub(crate) fn swiglu_backward<S: Scalar>(
    gpu: &Gpu,
    dgate: ViewMut<Cuda<S>>,
    dup: ViewMut<Cuda<S>>,
    gate: View<Cuda<S>>,
    up: View<Cuda<S>>,
    dh: View<Cuda<S>>,
) {
    let to = [Window::from(&dgate), Window::from(&dup)];
    let of = [Window::from(&gate), Window::from(&up), Window::from(&dh)];
    map::<S>(gpu, "swiglu_backward", of[2], &[to[0], to[1], of[0], of[1], of[2]]);
}
