//! Launches of `loss.cu`.
use super::{Shape, Window, across, each, named, scratch};
use crate::card::Argument;
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{LossTerms, Slice};
use tensor::{Index, Scalar, View, ViewMut};

/// A block for each row, also where rows have no columns.
fn rows<S: Scalar>(of: &View<Cuda<S>>) -> Shape {
    Shape { blocks: [of.rows(), 1, 1], ..across(of) }
}

/// First row and how many.
fn ends(slice: Slice) -> [u32; 2] {
    [slice.first, slice.len].map(|n| u32::try_from(n).expect("ids are below 2^32"))
}

pub(crate) fn embed<S: Scalar>(
    gpu: &Gpu,
    y: ViewMut<Cuda<S>>,
    table: View<Cuda<S>>,
    ids: &Index<Gpu>,
    slice: Slice,
) {
    let (blocks, [first, len]) = (if Window::from(&y).len() == 0 { 0 } else { ids.len() }, ends(slice));
    let shape = Shape { blocks: [blocks, 1, 1], ..across(&y) };
    gpu.launch(named::<S>("embed"), shape, &[&y, &table, ids, &first, &len]);
}

pub(crate) fn embed_backward<S: Scalar>(
    gpu: &Gpu,
    dtable: ViewMut<Cuda<S::Wide>>,
    dy: View<Cuda<S>>,
    ids: &Index<Gpu>,
    slice: Slice,
) {
    const OWNERS: usize = 256; // of the table's rows
    const WIDTH: usize = 512; // columns of a block
    let [first, len] = ends(slice);
    let blocks = [OWNERS.min(slice.len), dy.cols().div_ceil(WIDTH), 1];
    let shape = Shape { blocks, threads: 256, shared: 0 };
    gpu.launch(named::<S>("embed_backward"), shape, &[&dtable, &dy, ids, &first, &len]);
}

pub(crate) fn row_stab<S: Scalar>(gpu: &Gpu, m: ViewMut<Cuda<S::Wide>>, logits: View<Cuda<S>>) {
    gpu.launch(named::<S>("row_stab"), rows(&logits), &[&m, &logits]);
}

pub(crate) fn row_sums<S: Scalar>(
    gpu: &Gpu,
    sums: ViewMut<Cuda<S::Wide>>,
    logits: View<Cuda<S>>,
    m: View<Cuda<S::Wide>>,
    targets: &Index<Gpu>,
    slice: Slice,
) {
    let [first, len] = ends(slice);
    let arguments: [&dyn Argument; 6] = [&sums, &logits, &m, targets, &first, &len];
    gpu.launch(named::<S>("row_sums"), rows(&logits), &arguments);
}

/// 1/n; 0 of 0.
fn inverse(n: usize) -> f64 {
    if n == 0 { 0.0 } else { 1.0 / n as f64 }
}

/// 1/n, 1 − ε, ε/V, λ.
fn constants(terms: &LossTerms) -> [f32; 4] {
    let every = terms.smoothing * inverse(terms.vocabulary);
    [inverse(terms.mean_over), 1.0 - terms.smoothing, every, terms.z].map(|x| x as f32)
}

pub(crate) fn cross_entropy<S: Scalar>(
    gpu: &Gpu,
    loss: ViewMut<Cuda<S>>,
    m: ViewMut<Cuda<S>>,
    sums: View<Cuda<S>>,
    targets: &Index<Gpu>,
    terms: &LossTerms,
) {
    let [share, own, every, z] = constants(terms);
    let arguments: [&dyn Argument; 8] = [&loss, &m, &sums, targets, &share, &own, &every, &z];
    let shape = Shape { blocks: [1; 3], threads: 1024, shared: 0 };
    gpu.launch(named::<S>("cross_entropy"), shape, &arguments);
}

pub(crate) fn cross_entropy_backward<S: Scalar>(
    gpu: &Gpu,
    logits: ViewMut<Cuda<S>>,
    lse: View<Cuda<S::Wide>>,
    targets: &Index<Gpu>,
    slice: Slice,
    terms: &LossTerms,
) {
    let ([first, len], [share, own, every, z]) = (ends(slice), constants(terms));
    let arguments: [&dyn Argument; 9] = [&logits, &lse, targets, &first, &len, &share, &own, &every, &z];
    gpu.launch(named::<S>("cross_entropy_backward"), across(&logits), &arguments);
}

/// Every block's sum, then theirs.
pub(crate) fn mean_square<S: Scalar<Wide = f32>>(
    gpu: &Gpu,
    loss: ViewMut<Cuda<f32>>,
    x: ViewMut<Cuda<S>>,
    y: View<Cuda<S>>,
    numbers: usize,
) {
    let (shape, share) = (each(gpu, Window::from(&y).len().div_ceil(4)), inverse(numbers));
    let mut parts = scratch(gpu, 1, shape.blocks[0]);
    gpu.launch(named::<S>("mean_square"), shape, &[&parts.view_mut(), &x, &y, &((2.0 * share) as f32)]);
    let one = Shape { blocks: [1; 3], ..shape };
    gpu.launch(("mean_square_total", ""), one, &[&loss, &parts.view(), &(share as f32)]);
}
