//! Launches of `top_k.cu`.
use super::named;
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
    assert!(
        values.cols() <= x.cols() && columns.len() == values.rows() * values.cols(),
        "{} of {} numbers in a row",
        values.cols(),
        x.cols()
    );
    if values.cols() > 0 {
        let threads = if x.cols() < 1024 { 128 } else { 1024 };
        let shape = Shape { blocks: [x.rows(), 1, 1], threads, shared: 0 };
        gpu.launch(named::<S>("top_k"), shape, &[&values, columns, &x]);
    }
}
