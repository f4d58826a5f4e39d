//! Clock of a shape-only rank: the kernels that it would run, with all that their time depends on, and the
//! matrices that it would move to and from its [store](crate::Store).
use crate::KernelKind;

crate::listed! {
    /// Kind of a store.
    StoreKind {
        /// Pinned memory of the host.
        Host = "host",
        /// A file.
        File = "file",
    }
}

/// Counts the time of kernels that do not run.
pub trait Clock: Send + Sync {
    /// Counts one kernel.
    fn kernel(&self, work: &KernelWork);
    /// Counts the beginning of a move to or from a store, which runs beside kernels, after the move begun
    /// before. Returns its number.
    fn start_move(&self, kind: StoreKind, bytes: usize) -> usize {
        let _ = (kind, bytes);
        0
    }
    /// Waits for the end of a move.
    fn finish_move(&self, number: usize) {
        let _ = number;
    }
}

/// A kernel that does not run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelWork {
    /// Name of the kernel.
    pub name: &'static str,
    /// Kind of the kernel.
    pub kind: KernelKind,
    /// Name of the dtype of its device.
    pub dtype: &'static str,
    /// Floating point operations.
    pub flops: u64,
    /// Bytes of all matrices and indices that it reads and writes.
    pub bytes: usize,
    /// Features of a head, in attention over spans of keys; 0 elsewhere.
    pub features: usize,
}
