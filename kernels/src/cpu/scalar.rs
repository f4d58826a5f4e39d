//! A number that the host computes with: what differs from number to number.
use super::matrices::{In, Out};
use super::panels::{self, Panels};
use crate::Write;
use tensor::Scalar;

/// A number that the host can compute with. What differs from number to number is here.
pub trait CpuScalar: Scalar {
    /// Attention's tile, queries × keys. Tiny where numbers are exact, so that small proofs cross tile borders.
    const TILE: [usize; 2];
    /// Whether loops over it gain from vectors: only then kernels are compiled once for each width.
    const VECTORS: bool;
    /// The most columns of a panel; attention's blocks of keys begin at multiples of it, and so do its tiles.
    const PANEL: usize;
    /// C (+)= A·B for any strides.
    fn gemm(c: Out<Self>, a: In<Self>, b: In<Self>, write: Write);
    /// C (+)= A·B for any strides, with every sum as it is.
    fn gemm_wide(c: Out<Self::Wide>, a: In<Self>, b: In<Self>, write: Write);
    /// The same matrix, if its numbers are wide as they lie.
    fn as_wide(x: In<Self>) -> Option<In<Self::Wide>>;
    /// How wide the panels of a factor of `n` columns are: at least 1, and `PANEL` or all of them.
    fn panel(n: usize) -> usize {
        n.max(1)
    }
    /// Lays out a factor in panels, which `to` has one below the other.
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
