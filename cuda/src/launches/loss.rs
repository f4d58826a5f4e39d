//! Launches of `loss.cu`.
use super::{Launches, MatrixIn, MatrixOut, MatrixView, across, each, scratch};
use crate::card::{Argument, LaunchConfig};
use crate::gpu::Gpu;
use kernels::{LossTerms, MeanOver, RowShard};
use tensor::{Index, Scalar};

/// One block per row, also if rows have no columns.
fn rows<S: Scalar>(of: &MatrixIn<S>) -> LaunchConfig {
    LaunchConfig { blocks: [of.rows(), 1, 1], ..across(of) }
}

/// Returns a vocabulary shard's first row and length.
fn ends(slice: RowShard) -> [u32; 2] {
    [slice.first, slice.len].map(|n| u32::try_from(n).expect("ids are below 2^32"))
}

/// Returns the share of a target, 1 − ε, ε/V, λ.
fn constants(terms: &LossTerms) -> [f32; 4] {
    let every = terms.smoothing * MeanOver::of(terms.vocabulary).share::<f64>();
    [terms.mean_over.share(), 1.0 - terms.smoothing, every, terms.z].map(|x| x as f32)
}

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn embed(&self, y: MatrixOut<S>, table: MatrixIn<S>, ids: &Index<Gpu>, slice: RowShard) {
        let blocks = if MatrixView::from(&y).len() == 0 { 0 } else { ids.len() };
        let [first, len] = ends(slice);
        let shape = LaunchConfig { blocks: [blocks, 1, 1], ..across(&y) };
        self.launch("embed", shape, &[&y, &table, ids, &first, &len]);
    }

    pub(crate) fn embed_backward(
        &self,
        dtable: MatrixOut<f32>,
        dy: MatrixIn<S>,
        ids: &Index<Gpu>,
        slice: RowShard,
    ) {
        const OWNERS: usize = 256; // of the table's rows
        const WIDTH: usize = 512; // columns of a block
        let [first, len] = ends(slice);
        let blocks = [OWNERS.min(slice.len), dy.cols().div_ceil(WIDTH), 1];
        let shape = LaunchConfig { blocks, threads: 256, shared: 0 };
        self.launch("embed_backward", shape, &[&dtable, &dy, ids, &first, &len]);
    }

    pub(crate) fn row_stab(&self, m: MatrixOut<f32>, logits: MatrixIn<S>) {
        self.launch("row_stab", rows(&logits), &[&m, &logits]);
    }

    pub(crate) fn row_sums(
        &self,
        sums: MatrixOut<f32>,
        logits: MatrixIn<S>,
        m: MatrixIn<f32>,
        targets: &Index<Gpu>,
        slice: RowShard,
    ) {
        let [first, len] = ends(slice);
        let arguments: [&dyn Argument; 6] = [&sums, &logits, &m, targets, &first, &len];
        self.launch("row_sums", rows(&logits), &arguments);
    }

    pub(crate) fn cross_entropy(
        &self,
        loss: MatrixOut<S>,
        m: MatrixOut<S>,
        sums: MatrixIn<S>,
        targets: &Index<Gpu>,
        terms: &LossTerms,
    ) {
        let [share, own, every, z] = constants(terms);
        let arguments: [&dyn Argument; 8] = [&loss, &m, &sums, targets, &share, &own, &every, &z];
        self.launch("cross_entropy", LaunchConfig { blocks: [1; 3], threads: 1024, shared: 0 }, &arguments);
    }

    pub(crate) fn cross_entropy_backward(
        &self,
        logits: MatrixOut<S>,
        lse: MatrixIn<f32>,
        targets: &Index<Gpu>,
        slice: RowShard,
        terms: &LossTerms,
    ) {
        let [first, len] = ends(slice);
        let [share, own, every, z] = constants(terms);
        let inv = terms.cap.map_or(0.0, |cap| (1.0 / cap) as f32);
        let arguments: [&dyn Argument; 10] =
            [&logits, &lse, targets, &first, &len, &share, &own, &every, &z, &inv];
        self.launch("cross_entropy_backward", across(&logits), &arguments);
    }

    /// Sums each block, then the blocks' sums.
    pub(crate) fn mean_square(&self, loss: MatrixOut<f32>, x: MatrixOut<S>, y: MatrixIn<S>, over: MeanOver) {
        let shape = each(self.0, MatrixView::from(&y).len().div_ceil(4));
        let share = over.share::<f64>();
        let mut parts = scratch(self.0, 1, shape.blocks[0]);
        self.launch("mean_square", shape, &[&parts.view_mut(), &x, &y, &((2.0 * share) as f32)]);
        let one = LaunchConfig { blocks: [1; 3], ..shape };
        self.0.launch(("mean_square_total", ""), one, &[&loss, &parts.view(), &(share as f32)]);
    }
    pub(crate) fn top_k(&self, values: MatrixOut<S>, columns: &mut Index<Gpu>, x: MatrixIn<S>) {
        assert!(
            values.cols() <= x.cols() && columns.len() == values.rows() * values.cols(),
            "top_k of {} among {} values per row",
            values.cols(),
            x.cols()
        );
        if values.cols() > 0 {
            let threads = if x.cols() < 1024 { 128 } else { 1024 };
            let shape = LaunchConfig { blocks: [x.rows(), 1, 1], threads, shared: 0 };
            self.launch("top_k", shape, &[&values, columns, &x]);
        }
    }
}
