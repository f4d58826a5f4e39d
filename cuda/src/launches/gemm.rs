//! Launches of products: of all ways to compute one that the card has, the fastest that fits.
use super::{In, Launches, Out, Window, boxes, each};
use crate::card::Shape;
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::Write;
use tensor::{Scalar, Tensor};

/// A way to compute a product: a rung of the ladder of `gemm.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rung {
    /// Few rows: `gemm_few.cu`.
    Few,
    /// Copies and products of Hopper's own: `gemm_hopper.cu`.
    Hopper,
    /// Tensor cores: `gemm_tensor.cu`.
    Tensor,
    Tiled,
    Small,
    Naive,
}

/// Products of at most so many rows have kernels of their own: those of `gemm_few.cu`, by how B's numbers lie.
const FEW: [(u32, [&str; 2]); 3] = [
    (1, ["gemm_by_rows_1", "gemm_by_columns_1"]),
    (4, ["gemm_by_rows_4", "gemm_by_columns_4"]),
    (8, ["gemm_by_rows_8", "gemm_by_columns_8"]),
];
/// Kernels by how the factors' numbers lie, A's and B's: along K or along the other dimension.
const TENSOR: [[&str; 2]; 2] = [["gemm_tensor_kn", "gemm_tensor_kk"], ["gemm_tensor_mn", "gemm_tensor_mk"]];
const ON_HOPPER: [[&str; 2]; 2] =
    [["gemm_hopper_kn", "gemm_hopper_kk"], ["gemm_hopper_mn", "gemm_hopper_mk"]];

/// Rows and columns of a tile of `gemm_hopper.cu`, bytes of its stages and of their barriers.
const HOPPER: [u32; 2] = [128, 256];
const HOPPER_SHARED: usize = 4 * (128 + 256) * 64 * 2 + 4 * 2 * 8;
/// Bytes of a tile of sums of `gemm_tensor.cu`, which its stages fit in.
const TENSOR_SHARED: usize = 128 * (128 + 8) * 4;

/// What a product does with C: bits of `how` of `product.cuh`.
const ADD: u32 = 1;
const WIDE: u32 = 2;

/// A product's windows, C with its numbers; whether those are f32 beside factors that are narrower; and what it does with C.
struct Product {
    c: Window,
    a: Window,
    b: Window,
    /// Bytes of a factor's number.
    bytes: u64,
    how: u32,
}

impl Product {
    /// Whether the numbers of a factor's rows lie together (else, those of its columns), if each row begins where 16 bytes may
    /// be read at once.
    fn by_rows(&self, x: &Window) -> Option<bool> {
        let rows = x.col_stride == 1;
        let stride = if rows { x.row_stride } else { x.col_stride };
        let aligned = x.at.is_multiple_of(16) && (stride * self.bytes).is_multiple_of(16);
        (aligned && (rows || x.row_stride == 1)).then_some(rows)
    }
    /// How many tiles of so many rows and columns C has.
    fn tiles(&self, [rows, cols]: [u32; 2]) -> usize {
        self.c.rows.div_ceil(rows) as usize * self.c.cols.div_ceil(cols) as usize
    }
    /// Of these kernels, that for how its factors' numbers lie.
    fn along(&self, kernels: [[&'static str; 2]; 2]) -> Option<&'static str> {
        Some(kernels[usize::from(!self.by_rows(&self.a)?)][usize::from(!self.by_rows(&self.b)?)])
    }
    /// Whether C's columns are pairs that may be written at once.
    fn in_pairs(&self) -> bool {
        let bytes = if self.how & WIDE > 0 { 4 } else { self.bytes };
        [u64::from(self.c.cols), self.c.row_stride, self.c.at / bytes].iter().all(|n| n.is_multiple_of(2))
    }
}

impl Rung {
    /// All, the fastest first.
    pub(crate) const ALL: [Self; 6] =
        [Self::Few, Self::Hopper, Self::Tensor, Self::Tiled, Self::Small, Self::Naive];

    /// The kernel, but for the number at its name's end, and how it is launched; none where it is not for such a product.
    fn launch(self, gpu: &Gpu, of: &Product) -> Option<(&'static str, Shape)> {
        let (c, blocks) =
            (&of.c, |blocks, threads, shared| Shape { blocks: [blocks, 1, 1], threads, shared });
        Some(match self {
            Self::Few => {
                let ((_, [by_rows, by_columns]), v) =
                    (FEW.into_iter().find(|&(rows, _)| c.rows <= rows)?, 16 / of.bytes as u32);
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
    /// Whether it is a good way for such a product, where it is a way at all.
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
    pub(crate) fn gemm(&self, c: Out<S>, a: In<S>, b: In<S>, write: Write) {
        self.product(None, [(&c).into(), (&a).into(), (&b).into()], false, write);
    }

    pub(crate) fn gemm_wide(&self, c: Out<f32>, a: In<S>, b: In<S>, write: Write) {
        let of = [(&c).into(), (&a).into(), (&b).into()];
        self.product(None, of, true, write);
    }

    pub(crate) fn gemm_packed(&self, c: Out<S>, a: In<S>, b: &Tensor<Cuda<S>>, write: Write) {
        self.product(None, [(&c).into(), (&a).into(), (&b.view()).into()], false, write);
    }

    /// C (+)= A·B, by this way or by the best; whether it was computed. C is of the factors' number S, or wide.
    pub(crate) fn product(&self, by: Option<Rung>, [c, a, b]: [Window; 3], wide: bool, write: Write) -> bool {
        let fit = c.rows == a.rows && a.cols == b.rows && b.cols == c.cols;
        assert!(fit && c.col_stride == 1, "a product of matrices that do not fit");
        let add = if write == Write::Add { ADD } else { 0 };
        let how = add | if wide && S::NARROW { WIDE } else { 0 };
        let of = Product { c, a, b, bytes: size_of::<S>() as u64, how };
        let launch = |rung: Rung| -> Option<(Rung, &'static str, Shape)> {
            let (kernel, shape) = rung.launch(self.0, &of)?;
            self.has(kernel).then_some((rung, kernel, shape))
        };
        let suiting = |rung: &Rung| rung.suits(self.0, &of);
        let found = by.map_or_else(|| Rung::ALL.into_iter().filter(suiting).find_map(launch), launch);
        match found {
            Some((Rung::Hopper, kernel, shape)) => {
                let [a, b] = [&a, &b].map(|x| boxes(self.0, x));
                self.launch(kernel, shape, &[&of.c, &of.a.cols, &a, &b, &of.how]);
            }
            Some((_, kernel, shape)) => self.launch(kernel, shape, &[&of.c, &of.a, &of.b, &of.how]),
            None => {}
        }
        found.is_some()
    }
}
