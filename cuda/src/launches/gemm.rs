//! Launches of products: of all ways to compute one that the card has, the fastest that fits.
use super::{Window, each, named};
use crate::card::Shape;
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::Write;
use tensor::{Scalar, Tensor, View, ViewMut};

pub(crate) fn gemm<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S>>,
    a: View<Cuda<S>>,
    b: View<Cuda<S>>,
    write: Write,
) {
    product::<S>(gpu, None, [(&c).into(), (&a).into(), (&b).into()], false, write);
}

pub(crate) fn gemm_wide<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S::Wide>>,
    a: View<Cuda<S>>,
    b: View<Cuda<S>>,
    write: Write,
) {
    let of = [(&c).into(), (&a).into(), (&b).into()];
    product::<S>(gpu, None, of, true, write);
}

pub(crate) fn gemm_packed<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S>>,
    a: View<Cuda<S>>,
    b: &Tensor<Cuda<S>>,
    write: Write,
) {
    product::<S>(gpu, None, [(&c).into(), (&a).into(), (&b.view()).into()], false, write);
}

/// A way to compute a product: a rung of the ladder of `gemm.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rung {
    /// Few rows: `gemm_few.cu`.
    Few,
    /// Tensor cores: `gemm_tensor.cu`.
    Tensor,
    Tiled,
    Small,
    Naive,
}

/// Products of at most so many rows have kernels of their own: those of `gemm_few.cu`.
const FEW: [u32; 3] = [1, 4, 8];

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
        let aligned = x.at % 16 == 0 && stride * self.bytes % 16 == 0;
        (aligned && (rows || x.row_stride == 1)).then_some(rows)
    }
    /// How many tiles of so many rows and columns C has.
    fn tiles(&self, side: u32) -> usize {
        self.c.rows.div_ceil(side) as usize * self.c.cols.div_ceil(side) as usize
    }
}

impl Rung {
    /// All, the fastest first.
    pub(crate) const ALL: [Self; 5] = [Self::Few, Self::Tensor, Self::Tiled, Self::Small, Self::Naive];

    /// The kernel, but for the number at its name's end, and how it is launched; none where it is not for such a product.
    fn launch(self, gpu: &Gpu, of: &Product) -> Option<(String, Shape)> {
        let (c, blocks) =
            (&of.c, |blocks, threads, shared| Shape { blocks: [blocks, 1, 1], threads, shared });
        Some(match self {
            Self::Few => {
                let (rows, v) = (FEW.into_iter().find(|&rows| c.rows <= rows)?, 16 / of.bytes as u32);
                if of.by_rows(&of.b)? {
                    let whole = c.cols % v == 0;
                    let shape = blocks(c.cols.div_ceil(4 * v) as usize, 512, 0);
                    return whole.then(|| (format!("by_rows_{rows}"), shape));
                }
                let whole = of.by_rows(&of.a)? && of.a.cols % v == 0;
                return whole
                    .then(|| (format!("by_columns_{rows}"), blocks(c.cols.div_ceil(4) as usize, 128, 0)));
            }
            Self::Tensor => {
                let of_a = if of.by_rows(&of.a)? { "k" } else { "m" };
                let of_b = if of.by_rows(&of.b)? { "n" } else { "k" };
                (format!("tensor_{of_a}{of_b}"), blocks(of.tiles(128), 256, 128 * 136 * 4))
            }
            Self::Tiled => ("tiled".into(), blocks(of.tiles(128), 256, 0)),
            Self::Small => ("small".into(), blocks(of.tiles(64), 256, 0)),
            Self::Naive => ("naive".into(), each(gpu, c.len())),
        })
    }
    /// Whether it is a good way for such a product, where it is a way at all.
    fn suits(self, gpu: &Gpu, of: &Product) -> bool {
        !matches!(self, Self::Tiled) || of.tiles(128) >= gpu.card().about.processors
    }
}

/// C (+)= A·B, by this way or by the best; whether it was computed. C is of the factors' number S, or wide.
pub(crate) fn product<S: Scalar>(
    gpu: &Gpu,
    by: Option<Rung>,
    [c, a, b]: [Window; 3],
    wide: bool,
    write: Write,
) -> bool {
    let fit = c.rows == a.rows && a.cols == b.rows && b.cols == c.cols;
    assert!(fit && c.col_stride == 1, "a product of matrices that do not fit");
    let how = u32::from(write == Write::Add) | if wide && S::NARROW { 2 } else { 0 };
    let of = Product { c, a, b, bytes: size_of::<S>() as u64, how };
    let launch = |rung: Rung| {
        let (kernel, shape) = rung.launch(gpu, &of)?;
        let kernel = named::<S>(&format!("gemm_{kernel}"));
        gpu.card().has(&kernel).then_some((kernel, shape))
    };
    let suiting = |rung: &Rung| rung.suits(gpu, &of);
    let found = by.map_or_else(|| Rung::ALL.into_iter().filter(suiting).find_map(launch), launch);
    if let Some((kernel, shape)) = &found {
        gpu.launch(kernel, *shape, &[&of.c, &of.a, &of.b, &of.how]);
    }
    found.is_some()
}
