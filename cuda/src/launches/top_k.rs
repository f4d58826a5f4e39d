//! Launches of `top_k.cu`.
use super::{Window, Words, named};
use crate::card::Shape;
use crate::device::Cuda;
use crate::gpu::Gpu;
use tensor::{Index, Scalar, View, ViewMut};

pub(crate) fn top_k<S: Scalar>(
    gpu: &Gpu,
    values: ViewMut<Cuda<S>>,
    columns: &mut Index<Gpu>,
    x: View<Cuda<S>>,
) {
    let ([values, x], columns) = ([Window::from(&values), Window::from(&x)], Words::from(&*columns));
    assert!(
        values.cols <= x.cols && columns.len == values.len() as u64,
        "{} of {} numbers in a row",
        values.cols,
        x.cols
    );
    if values.cols > 0 {
        let threads = if x.cols < 1024 { 128 } else { 1024 };
        let shape = Shape { blocks: [x.rows as usize, 1, 1], threads, shared: 0 };
        gpu.launch(&named::<S>("top_k"), shape, &[&values, &columns, &x]);
    }
}
