//! Forwards for activation recomputation.
use super::PassContext;
use crate::filled;
use kernels::Kernels;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

impl<D: Kernels> PassContext<D> {
    /// Runs a forward that keeps nothing for backward and will run [again](PassContext::again).
    pub fn keeping_nothing<T>(&self, forward: impl FnOnce() -> T) -> T {
        let before = self.drops.replace(true);
        let y = forward();
        self.drops.set(before);
        y
    }
    /// Runs a second forward through layers, during their backward, for what they keep. Losses, counts and
    /// records are those of the first forward; a profile counts the second one's time as backward.
    pub fn again<T>(&self, forward: impl FnOnce() -> T) -> T {
        let before = (self.added.take(), self.counts.take(), self.beside.take());
        let none = |sum: &Tensor<_>| filled(sum.device(), Category::Buffers, sum.shape(), Scalar::ZERO);
        self.beside.replace(before.2.as_ref().map(none)); // as before any block added to it
        let (drops, second) = (self.drops.replace(false), self.second.replace(true));
        let y = forward();
        self.drops.set(drops);
        self.second.set(second);
        self.added.replace(before.0);
        self.counts.replace(before.1);
        self.beside.replace(before.2);
        y
    }
    /// Keeps what a layer chose in a forward that keeps nothing else, such as the experts of tokens, for the
    /// second forward.
    pub fn keep_choice<T: 'static>(&self, layer: &Arc<str>, choice: T) {
        if self.pass.keeps {
            self.choices.borrow_mut().push((layer.clone(), Box::new(choice)));
        }
    }
    /// Takes what a layer chose in the first forward, if this is the second one.
    pub fn take_choice<T: 'static>(&self, layer: &str) -> Option<T> {
        let mut choices = self.choices.borrow_mut();
        let index = choices.iter().position(|(of, _)| self.second.get() && **of == *layer)?;
        choices.swap_remove(index).1.downcast().ok().map(|choice| *choice)
    }
}
