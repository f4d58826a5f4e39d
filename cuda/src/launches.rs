//! How each kernel of the list is launched: one function of its name, one file for each family of operations.
mod elementwise;
pub(crate) mod gemm;
mod optimizer;
mod router;
mod stub;
mod top_k;

pub(crate) use elementwise::*;
pub(crate) use gemm::*;
pub(crate) use optimizer::*;
pub(crate) use router::*;
pub(crate) use stub::*;
pub(crate) use top_k::*;

use crate::card::{Argument, Shape};
use crate::gpu::Gpu;
use std::ffi::c_void;
use tensor::{Device, Index, Scalar, View, ViewMut};

/// A matrix as kernels see it: `View<T>` of `number.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Window {
    at: u64,
    row_stride: u64,
    col_stride: u64,
    rows: u32,
    cols: u32,
}
// SAFETY: as `View<T>` has them.
unsafe impl Argument for Window {
    fn bytes(&self) -> (*mut c_void, usize) {
        ((&raw const *self).cast_mut().cast(), size_of::<Self>())
    }
}

impl Window {
    /// No matrix at all: where one is optional.
    pub(crate) const NONE: Self = Self { at: 0, row_stride: 0, col_stride: 0, rows: 0, cols: 0 };

    /// How many numbers.
    pub(crate) fn len(&self) -> usize {
        self.rows as usize * self.cols as usize
    }
}

macro_rules! window {
    ($of:ident) => {
        impl<D: Device<Place = Gpu>> From<&$of<'_, D>> for Window {
            fn from(x: &$of<D>) -> Self {
                let small = |n: usize| u32::try_from(n).expect("less than 2^32 rows or columns");
                Self {
                    at: x.ptr().0,
                    row_stride: x.row_stride() as u64,
                    col_stride: x.col_stride() as u64,
                    rows: small(x.rows()),
                    cols: small(x.cols()),
                }
            }
        }
    };
}
window!(View);
window!(ViewMut);

/// A list of whole numbers as kernels see it: `List` of `number.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Words {
    at: u64,
    len: u64,
}
// SAFETY: as `List` has them.
unsafe impl Argument for Words {
    fn bytes(&self) -> (*mut c_void, usize) {
        ((&raw const *self).cast_mut().cast(), size_of::<Self>())
    }
}
impl Words {
    /// No list at all: where one is optional.
    pub(crate) const NONE: Self = Self { at: 0, len: 0 };
}
impl From<&Index<Gpu>> for Words {
    fn from(index: &Index<Gpu>) -> Self {
        Self { at: index.ptr().0, len: index.len() as u64 }
    }
}

/// Threads of a block that computes element by element, or row by row.
pub(crate) const THREADS: usize = 256;

/// A thread for each of `n` elements, or for every so many of them where they are more than a card takes at once.
pub(crate) fn each(gpu: &Gpu, n: usize) -> Shape {
    let most = gpu.card().about.processors * 16;
    Shape { blocks: [n.div_ceil(THREADS).min(most), 1, 1], threads: THREADS, shared: 0 }
}

/// A block for each of `n` rows.
pub(crate) fn rows(n: usize) -> Shape {
    Shape { blocks: [n, 1, 1], threads: THREADS, shared: 0 }
}

/// A kernel's name for a number: `add_f32`.
pub(crate) fn named<S: Scalar>(kernel: &str) -> String {
    format!("{kernel}_{}", S::NAME)
}
