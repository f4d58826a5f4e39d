//! Launches of products: of all ways to compute one that the card has, the fastest that fits.
use super::{Window, each};
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
    product(gpu, None, S::NAME, [(&c).into(), (&a).into(), (&b).into()], write);
}

pub(crate) fn gemm_wide<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S::Wide>>,
    a: View<Cuda<S>>,
    b: View<Cuda<S>>,
    write: Write,
) {
    let of = [(&c).into(), (&a).into(), (&b).into()];
    product(gpu, None, &numbers::<S, S::Wide>(), of, write);
}

pub(crate) fn gemm_packed<S: Scalar>(
    gpu: &Gpu,
    c: ViewMut<Cuda<S>>,
    a: View<Cuda<S>>,
    b: &Tensor<Cuda<S>>,
    write: Write,
) {
    product(gpu, None, S::NAME, [(&c).into(), (&a).into(), (&b.view()).into()], write);
}

/// A way to compute a product: a rung of the ladder of `gemm.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rung {
    Tiled,
    Small,
    Naive,
}

impl Rung {
    /// All, the fastest first.
    pub(crate) const ALL: [Self; 3] = [Self::Tiled, Self::Small, Self::Naive];

    /// How it is launched for these windows; none, where it is not for them.
    fn shape(self, gpu: &Gpu, [c, ..]: [&Window; 3]) -> Option<Shape> {
        let tiles = |side: u32| [c.rows.div_ceil(side) as usize * c.cols.div_ceil(side) as usize, 1, 1];
        match self {
            Self::Tiled => Some(Shape { blocks: tiles(128), threads: 256, shared: 0 }),
            Self::Small => Some(Shape { blocks: tiles(64), threads: 256, shared: 0 }),
            Self::Naive => Some(each(gpu, c.len())),
        }
    }
    /// Whether it is the better one of those that compute the same, for these windows.
    fn suits(self, gpu: &Gpu, [c, ..]: [&Window; 3]) -> bool {
        let tiles = c.rows.div_ceil(128) as usize * c.cols.div_ceil(128) as usize;
        !matches!(self, Self::Tiled) || tiles >= gpu.card().about.processors
    }
    /// Its kernel for these numbers.
    pub(crate) fn kernel(self, numbers: &str) -> String {
        let name = match self {
            Self::Tiled => "tiled",
            Self::Small => "small",
            Self::Naive => "naive",
        };
        format!("gemm_{name}_{numbers}")
    }
}

/// The numbers of a product's factors and of the result, as its kernels' names have them.
pub(crate) fn numbers<S: Scalar, C: Scalar>() -> String {
    if S::NAME == C::NAME { S::NAME.into() } else { format!("wide_{}", S::NAME) }
}

/// C (+)= A·B, by this way or by the best; whether it was computed.
pub(crate) fn product(
    gpu: &Gpu,
    by: Option<Rung>,
    numbers: &str,
    [c, a, b]: [Window; 3],
    write: Write,
) -> bool {
    let fit = c.rows == a.rows && a.cols == b.rows && b.cols == c.cols;
    assert!(fit && c.col_stride == 1, "a product of matrices that do not fit");
    let of = [&c, &a, &b];
    let launch = |rung: Rung| {
        let (kernel, shape) = (rung.kernel(numbers), rung.shape(gpu, of)?);
        gpu.card().has(&kernel).then_some((kernel, shape))
    };
    let suiting = |rung: &Rung| rung.suits(gpu, of);
    let found = by.map_or_else(|| Rung::ALL.into_iter().filter(suiting).find_map(launch), launch);
    if let Some((kernel, shape)) = &found {
        gpu.launch(kernel, *shape, &[&c, &a, &b, &u32::from(write == Write::Add)]);
    }
    found.is_some()
}
