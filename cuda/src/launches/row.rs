//! Products of one row, as in decoding one sequence: `gemm_row.cuh`. On Hopper a product begins to read its
//! matrix before the kernel before it has ended, and does the work of small kernels around it.
use super::gemm::Product;
use super::{MatrixView, across};
use crate::card::{Argument, CardLaunch, LaunchConfig, LaunchRules, LoadedKernels};
use std::ops::Range;

/// A block's size: few blocks of many warps keep all memory busy; many blocks are small, so that all of them
/// run at once.
struct Size {
    warps: usize,
    /// The kernels: on any kernels, on Hopper, with RMSNorm before the product, with SwiGLU before it.
    any: &'static str,
    hopper: &'static str,
    normed: &'static str,
    gated: &'static str,
}
const SIZES: [Size; 2] = [
    Size {
        warps: 16,
        any: "gemm_row_16",
        hopper: "gemm_row_hopper_16",
        normed: "gemm_row_normed_16",
        gated: "gemm_row_gated_16",
    },
    Size {
        warps: 8,
        any: "gemm_row_8",
        hopper: "gemm_row_hopper_8",
        normed: "gemm_row_normed_8",
        gated: "gemm_row_gated_8",
    },
];
/// Most bytes of A that a block computes.
const COMPUTED: usize = 48 << 10;
/// Bits of `how`: C is wide (`product.cuh`); B is read before the kernel waits for others (`gemm_row.cuh`).
const WIDE: u32 = 2;
const EARLY: u32 = 4;

/// Kernels, and arguments of those of products.
const NORM: &str = "rms_norm";
const SWIGLU: &str = "swiglu";
const ADD: &str = "add";
const C: usize = 0;
const A: usize = 1;
const B: usize = 2;
const HOW: usize = 3;
const MORE: usize = 4;

/// Returns the kernels of a product of one row, the best first, and their launch; `None` if they cannot
/// compute it.
pub(super) fn row_kernels(processors: usize, of: &Product) -> Option<([&'static str; 2], LaunchConfig)> {
    let columns = 64 / of.bytes as u32;
    let fits = of.by_rows(&of.b)? && of.by_rows(&of.a)? && of.a.cols.is_multiple_of(8);
    let blocks = of.c.cols.div_ceil(columns) as usize;
    let Size { warps, any, hopper, .. } = SIZES[usize::from(blocks > processors)];
    let shape = LaunchConfig { blocks: [blocks, 1, 1], threads: warps * 32, shared: 0 };
    (fits && of.c.cols.is_multiple_of(columns / 4)).then_some(([hopper, any], shape))
}

/// Returns the bytes of an element of the kernel's dtype.
pub(super) fn bytes_of(launch: &CardLaunch) -> u64 {
    if launch.kernel.1 == "f32" { 4 } else { 2 }
}

pub(super) fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Rules of products of one row, norms and SwiGLU: a product does the work of a norm or SwiGLU whose result
/// it multiplies, and of a sum of its result and another matrix.
pub(crate) struct RowRules;

impl LaunchRules for RowRules {
    fn may_merge(&self, kernels: &LoadedKernels, launch: &CardLaunch) -> bool {
        match launch.kernel.0 {
            NORM => kernels.has((SIZES[0].normed, launch.kernel.1)) && launch.shape.blocks == [1; 3],
            SWIGLU => {
                kernels.has((SIZES[0].gated, launch.kernel.1))
                    && launch.argument::<MatrixView>(kernels, 0).rows == 1
            }
            _ => self.begins_early(launch) && launch.argument::<MatrixView>(kernels, MORE).at == 0,
        }
    }

    fn merged(&self, kernels: &LoadedKernels, held: &CardLaunch, next: &CardLaunch) -> Option<CardLaunch> {
        if held.kernel.1 != next.kernel.1 {
            return None;
        }
        let matrix = |of: &CardLaunch, which| of.argument::<MatrixView>(kernels, which);
        let bytes = bytes_of(held);
        // Rows that are read by 16 bytes at a time; what is written is read by no other block.
        let lanes = |x: &MatrixView| {
            x.col_stride == 1 && [x.at, u64::from(x.cols) * bytes].iter().all(|n| n.is_multiple_of(16))
        };
        let apart = |written: &[MatrixView], read: &[MatrixView]| {
            written.iter().all(|w| read.iter().all(|r| !meet(&w.range(bytes), &r.range(bytes))))
        };
        if next.kernel.0 == ADD && self.begins_early(held) {
            let how = held.argument::<u32>(kernels, HOW);
            let [to, more] = [0, 1].map(|i| matrix(next, i));
            let c = matrix(held, C);
            let a = matrix(held, A);
            let fits = how == 0 && to.same(&c) && more.col_stride == 1 && apart(&[c, a], &[more]);
            return fits.then(|| {
                let mut both = held.clone();
                both.set(kernels, MORE, more);
                both.touching(held, next)
            });
        }
        let size = SIZES.iter().find(|size| size.hopper == next.kernel.0)?;
        let [c, a, b] = [C, A, B].map(|which| matrix(next, which));
        let how = next.argument::<u32>(kernels, HOW);
        let shared = (u64::from(a.cols) * bytes) as usize;
        let shape = LaunchConfig { shared, ..next.shape };
        if !a.same(&matrix(held, 0)) || !lanes(&a) || shared > COMPUTED || how & WIDE > 0 {
            return None;
        }
        let both = match held.kernel.0 {
            NORM => {
                let r = matrix(held, 1);
                let [x, gain] = [2, 3].map(|which| matrix(held, which));
                let [count, eps] = [4, 5].map(|which| held.argument::<f32>(kernels, which));
                let threads = across(x).threads as u32;
                let fits = lanes(&x) && lanes(&gain) && apart(&[c, a, r], &[x, gain]);
                let arguments: [&dyn Argument; 11] =
                    [&c, &a, &b, &how, &MatrixView::NONE, &r, &x, &gain, &count, &eps, &threads];
                fits.then(|| kernels.prepare((size.normed, next.kernel.1), shape, &arguments))
            }
            SWIGLU => {
                let [gate, up] = [1, 2].map(|which| matrix(held, which));
                let fits = lanes(&gate) && lanes(&up) && apart(&[c, a], &[gate, up]);
                let arguments: [&dyn Argument; 7] = [&c, &a, &b, &how, &MatrixView::NONE, &gate, &up];
                fits.then(|| kernels.prepare((size.gated, next.kernel.1), shape, &arguments))
            }
            _ => None,
        };
        both.map(|both| both.under(&Self).touching(held, next))
    }
    fn begins_early(&self, launch: &CardLaunch) -> bool {
        SIZES.iter().any(|size: &Size| [size.hopper, size.normed, size.gated].contains(&launch.kernel.0))
    }

    fn reading_early(
        &self,
        kernels: &LoadedKernels,
        mut launch: CardLaunch,
        in_use: &[Range<u64>],
    ) -> CardLaunch {
        let b: MatrixView = launch.argument(kernels, B);
        let b = b.range(bytes_of(&launch));
        if in_use.iter().all(|range| !meet(range, &b)) {
            let how: u32 = launch.argument(kernels, HOW);
            launch.set(kernels, HOW, how | EARLY);
        }
        launch
    }
}

impl MatrixView {
    /// Returns true if both are the same row.
    fn same(&self, other: &Self) -> bool {
        [self.rows, other.rows] == [1; 2] && (self.at, self.cols) == (other.at, other.cols)
    }
}
