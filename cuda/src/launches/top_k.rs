//! Launches of `top_k.cu`.
use super::{In, Launches, Out};
use crate::card::Shape;
use crate::gpu::Gpu;
use tensor::{Index, Scalar};

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn top_k(&self, values: Out<S>, columns: &mut Index<Gpu>, x: In<S>) {
        assert!(
            values.cols() <= x.cols() && columns.len() == values.rows() * values.cols(),
            "{} of {} numbers in a row",
            values.cols(),
            x.cols()
        );
        if values.cols() > 0 {
            let threads = if x.cols() < 1024 { 128 } else { 1024 };
            let shape = Shape { blocks: [x.rows(), 1, 1], threads, shared: 0 };
            self.launch("top_k", shape, &[&values, columns, &x]);
        }
    }
}
