//! Matrices on the host, as kernels receive them.
use tensor::{Cpu, View, ViewMut};

/// A matrix to read.
pub(super) type In<'a, S> = View<'a, Cpu<S>>;
/// A matrix to write.
pub(super) type Out<'a, S> = ViewMut<'a, Cpu<S>>;
