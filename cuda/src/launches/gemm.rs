//! Launches of products: the fastest of the card's kernels that fits.
use super::row::{RowRules, row_kernels};
use super::{Launches, MatrixIn, MatrixOut, MatrixView, SizedMatrix, boxes, each};
use crate::card::{Argument, LaunchConfig};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::Write;
use tensor::{Scalar, Tensor};

/// A way to compute a product: a rung of the ladder of `gemm.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rung {
    /// One row: `gemm_row.cuh`.
    Row,
    /// Few rows: `gemm_few.cu`.
    Few,
    /// Hopper's own asynchronous copies and products: `gemm_hopper.cu`.
    Hopper,
    /// Tensor cores: `gemm_tensor.cu`.
    Tensor,
    Tiled,
    Small,
    Naive,
}

/// Kernels for products of at most this number of rows, from `gemm_few.cu`, by the layout of B.
const FEW: [(u32, [&str; 2]); 3] = [
    (1, ["gemm_by_rows_4", "gemm_by_columns_1"]),
    (4, ["gemm_by_rows_4", "gemm_by_columns_4"]),
    (8, ["gemm_by_rows_8", "gemm_by_columns_8"]),
];
/// Kernels by the layout of the factors A and B: adjacent elements along K, or along the other dimension.
const TENSOR: [[&str; 2]; 2] = [["gemm_tensor_kn", "gemm_tensor_kk"], ["gemm_tensor_mn", "gemm_tensor_mk"]];
const ON_HOPPER: [[&str; 2]; 2] =
    [["gemm_hopper_kn", "gemm_hopper_kk"], ["gemm_hopper_mn", "gemm_hopper_mk"]];

/// Rows and columns of a tile of `gemm_hopper.cu`; below, bytes of its stages and of their barriers.
const HOPPER: [u32; 2] = [128, 256];
const HOPPER_SHARED: usize = 4 * (128 + 256) * 64 * 2 + 4 * 2 * 8;
/// Bytes of a tile of sums of `gemm_tensor.cu`, which also holds its stages.
const TENSOR_SHARED: usize = 128 * (128 + 8) * 4;

/// Bits of `how` of `product.cuh`: adds to C; C is wide (f32).
const ADD: u32 = 1;
const WIDE: u32 = 2;

/// A product: the windows of C and its factors, the size of a factor's elements, and how C is written.
pub(super) struct Product {
    pub(super) c: MatrixView,
    pub(super) a: MatrixView,
    pub(super) b: MatrixView,
    /// Bytes of a factor's element.
    pub(super) bytes: u64,
    how: u32,
}

impl Product {
    /// Returns true if the elements of a factor's rows are adjacent, false if those of its columns are;
    /// `None` unless each row (or column) begins on a multiple of 16 bytes.
    pub(super) fn by_rows(&self, x: &MatrixView) -> Option<bool> {
        let rows = x.col_stride == 1;
        let stride = if rows { x.row_stride } else { x.col_stride };
        let aligned = x.at.is_multiple_of(16) && (stride * self.bytes).is_multiple_of(16);
        (aligned && (rows || x.row_stride == 1)).then_some(rows)
    }
    /// Returns the number of tiles of `rows` by `cols` in C.
    fn tiles(&self, [rows, cols]: [u32; 2]) -> usize {
        self.c.rows.div_ceil(rows) as usize * self.c.cols.div_ceil(cols) as usize
    }
    /// Returns the kernel for the layout of the factors.
    fn along(&self, kernels: [[&'static str; 2]; 2]) -> Option<&'static str> {
        Some(kernels[usize::from(!self.by_rows(&self.a)?)][usize::from(!self.by_rows(&self.b)?)])
    }
    /// Returns true if C's columns are pairs that can be written together.
    fn in_pairs(&self) -> bool {
        let bytes = if self.how & WIDE > 0 { 4 } else { self.bytes };
        [u64::from(self.c.cols), self.c.row_stride, self.c.at / bytes].iter().all(|n| n.is_multiple_of(2))
    }
}

impl Rung {
    /// All rungs, the fastest first.
    pub(crate) const ALL: [Self; 7] =
        [Self::Row, Self::Few, Self::Hopper, Self::Tensor, Self::Tiled, Self::Small, Self::Naive];

    /// Returns the kernel without its dtype suffix, and its launch; `None` if the rung cannot compute this
    /// product.
    fn launch(self, gpu: &Gpu, of: &Product) -> Option<(&'static str, LaunchConfig)> {
        let c = &of.c;
        let blocks = |blocks, threads, shared| LaunchConfig { blocks: [blocks, 1, 1], threads, shared };
        Some(match self {
            Self::Row => {
                let (names, shape) = row_kernels(gpu.card().about.processors, of).filter(|_| c.rows == 1)?;
                let number = if of.bytes == 4 { "f32" } else { "bf16" };
                (names.into_iter().find(|name| gpu.card().kernels.has((name, number)))?, shape)
            }
            Self::Few => {
                let (_, [by_rows, by_columns]) = FEW.into_iter().find(|&(rows, _)| c.rows <= rows)?;
                let v = 16 / of.bytes as u32;
                if of.by_rows(&of.b)? {
                    let shape = blocks(c.cols.div_ceil(4 * v) as usize, 512, 0);
                    return c.cols.is_multiple_of(v).then_some((by_rows, shape));
                }
                let whole = of.by_rows(&of.a)? && of.a.cols.is_multiple_of(v);
                return whole.then(|| (by_columns, blocks(c.cols.div_ceil(4) as usize, 128, 0)));
            }
            Self::Hopper => {
                let fits = of.bytes == 2 && of.a.cols > 0 && of.in_pairs();
                let tiles = of.tiles(HOPPER).min(gpu.card().about.processors);
                (of.along(ON_HOPPER).filter(|_| fits)?, blocks(tiles, 384, HOPPER_SHARED))
            }
            Self::Tensor => (of.along(TENSOR)?, blocks(of.tiles([128; 2]), 256, TENSOR_SHARED)),
            Self::Tiled => ("gemm_tiled", blocks(of.tiles([128; 2]), 256, 0)),
            Self::Small => ("gemm_small", blocks(of.tiles([64; 2]), 256, 0)),
            Self::Naive => ("gemm_naive", each(gpu, c.len())),
        })
    }
    /// Returns true if the rung is a good choice for a product that it can compute.
    fn suits(self, gpu: &Gpu, of: &Product) -> bool {
        let processors = gpu.card().about.processors;
        match self {
            Self::Hopper => {
                2 * of.tiles(HOPPER) >= processors && of.c.rows >= HOPPER[0] / 2 && of.c.cols >= HOPPER[1] / 2
            }
            Self::Tiled => of.tiles([128; 2]) >= processors,
            _ => true,
        }
    }
}

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn gemm(&self, c: MatrixOut<S>, a: MatrixIn<S>, b: MatrixIn<S>, write: Write) {
        self.product(None, [(&c).into(), (&a).into(), (&b).into()], false, write);
    }

    pub(crate) fn gemm_wide(&self, c: MatrixOut<f32>, a: MatrixIn<S>, b: MatrixIn<S>, write: Write) {
        self.product(None, [(&c).into(), (&a).into(), (&b).into()], true, write);
    }

    pub(crate) fn gemm_packed(&self, c: MatrixOut<S>, a: MatrixIn<S>, b: &Tensor<Cuda<S>>, write: Write) {
        self.product(None, [(&c).into(), (&a).into(), (&b.view()).into()], false, write);
    }

    /// Computes C (+)= A·B, by the given rung or the best one; returns whether it did. C has the factors'
    /// dtype S, or is wide.
    pub(crate) fn product(
        &self,
        by: Option<Rung>,
        [c, a, b]: [MatrixView; 3],
        wide: bool,
        write: Write,
    ) -> bool {
        let fit = c.rows == a.rows && a.cols == b.rows && b.cols == c.cols;
        assert!(fit && c.col_stride == 1, "the shapes of C, A and B must fit, and C must be row-major");
        let add = if write == Write::Add { ADD } else { 0 };
        let how = add | if wide && S::NARROW { WIDE } else { 0 };
        let product = Product { c, a, b, bytes: size_of::<S>() as u64, how };
        let launch = |rung: Rung| -> Option<(Rung, &'static str, LaunchConfig)> {
            let (kernel, shape) = rung.launch(self.0, &product)?;
            self.has(kernel).then_some((rung, kernel, shape))
        };
        let suiting = |rung: &Rung| rung.suits(self.0, &product);
        let found = by.map_or_else(|| Rung::ALL.into_iter().filter(suiting).find_map(launch), launch);
        let bytes_of_c = if how & WIDE > 0 { 4 } else { product.bytes };
        let [c, a, b] = [(product.c, bytes_of_c), (product.a, product.bytes), (product.b, product.bytes)]
            .map(|(view, bytes)| SizedMatrix(view, bytes));
        match found {
            Some((Rung::Hopper, kernel, shape)) => {
                let [a, b] = [&product.a, &product.b].map(|x| boxes(self.0, x));
                self.launch(kernel, shape, &[&c, &product.a.cols, &a, &b, &product.how]);
            }
            Some((Rung::Row, kernel, shape)) => {
                let arguments: [&dyn Argument; 5] = [&c, &a, &b, &product.how, &MatrixView::NONE];
                self.launch_under(&RowRules, kernel, shape, &arguments);
            }
            Some((_, kernel, shape)) => self.launch(kernel, shape, &[&c, &a, &b, &product.how]),
            None => {}
        }
        found.is_some()
    }
}
