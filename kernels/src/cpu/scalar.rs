//! Dtypes that the host computes with: what differs from dtype to dtype.
use super::matrices::{In, Out};
use super::panels::{self, Panels};
use crate::Write;
use tensor::Scalar;

/// A dtype that the host can compute with. Its members are what differs from dtype to dtype.
pub trait CpuScalar: Scalar {
    /// Attention's tile, queries × keys. Tiny for exact dtypes, so that small proofs cross tile borders.
    const TILE: [usize; 2];
    /// True if loops over the dtype gain from vectors: only then are kernels compiled once for each vector
    /// width.
    const VECTORS: bool;
    /// Largest number of columns of a panel; attention's tiles of keys begin at multiples of it.
    const PANEL: usize;
    /// C (+)= A·B for any strides.
    fn gemm(c: Out<Self>, a: In<Self>, b: In<Self>, write: Write);
    /// C (+)= A·B for any strides, with unrounded sums.
    fn gemm_wide(c: Out<Self::Wide>, a: In<Self>, b: In<Self>, write: Write);
    /// Returns the same matrix, if its dtype is the wide dtype.
    fn as_wide(x: In<Self>) -> Option<In<Self::Wide>>;
    /// Width of the panels of a factor of `n` columns: at least 1, and `PANEL` or all columns.
    fn panel(n: usize) -> usize {
        n.max(1)
    }
    /// Packs a factor into panels, one below the other in `to`.
    #[doc(hidden)]
    #[inline(always)]
    fn pack(to: Out<Self>, b: In<Self>) {
        panels::pack(to, b);
    }
    /// C (+)= A·B for B in panels.
    #[doc(hidden)]
    #[inline(always)]
    fn gemm_panels(c: Out<Self>, a: In<Self>, b: &Panels<Self>, write: Write) {
        panels::product(c, a, b, write);
    }
}
