//! Clock of a shape-only rank: the kernels that it would run, with all that their time depends on.
use crate::KernelKind;

/// Counts the time of kernels that do not run.
pub trait Clock: Send + Sync {
    /// Counts one kernel.
    fn kernel(&self, work: &KernelWork);
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
    /// Floating point operations that the meter has counted so far, this kernel's included.
    pub flops: u64,
    /// Bytes of all matrices and indices that it reads and writes.
    pub bytes: usize,
    /// Features of a head, in attention over spans of keys; 0 elsewhere.
    pub features: usize,
}
