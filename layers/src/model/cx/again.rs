//! Forwards for strategies that go through layers again, not keep what these would.
use super::Cx;
use crate::ops::filled;
use kernels::Kernels;
use tensor::{Category, Scalar, Tensor};

impl<D: Kernels> Cx<D> {
    /// A forward that keeps nothing for backward, which will go [forward again](Cx::again).
    pub fn keeping_nothing<T>(&self, forward: impl FnOnce() -> T) -> T {
        let before = self.drops.replace(true);
        let y = forward();
        self.drops.set(before);
        y
    }
    /// A second forward through layers, at their backward, for what they keep. The first one was what counts: losses, counts
    /// and records are those of the first, and a profile has the time of the second as backward's.
    pub fn again<T>(&self, forward: impl FnOnce() -> T) -> T {
        let before = (self.added.take(), self.counts.take(), self.beside.take());
        let none = |sum: &Tensor<_>| filled(sum.device(), Category::Buffers, sum.shape(), Scalar::ZERO);
        self.beside.replace(before.2.as_ref().map(none)); // as if no block had added to it
        let (drops, second) = (self.drops.replace(false), self.second.replace(true));
        let y = forward();
        self.drops.set(drops);
        self.second.set(second);
        self.added.replace(before.0);
        self.counts.replace(before.1);
        self.beside.replace(before.2);
        y
    }
}
