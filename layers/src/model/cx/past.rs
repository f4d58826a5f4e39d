//! Keys and values of the tokens so far, by block; where a sequence is learnt from in slices, with their gradients.
use crate::ops::filled;
use kernels::Kernels;
use tensor::{Category, Scalar, Tensor, count};

/// Sequence `b` has the rows from `b · capacity` on.
pub(crate) struct Past<D: Kernels> {
    /// Tokens of one sequence.
    pub(crate) capacity: usize,
    sequences: usize,
    slots: Vec<Option<Slot<D>>>, // by block
}

/// Keys and values of a block.
pub(crate) struct Slot<D: Kernels> {
    pub(crate) stored: [Tensor<D>; 2],
    gradients: Option<[Tensor<D>; 2]>,
}

impl<D: Kernels> Slot<D> {
    /// Keys and values, with the sums of their gradients: those that the tokens after them have.
    pub(crate) fn with_gradients(&mut self) -> (&[Tensor<D>; 2], &mut [Tensor<D>; 2]) {
        let Self { stored, gradients } = self;
        let zero = |of: &Tensor<D>| filled(of.device(), Category::Activations, of.shape(), D::Elem::ZERO);
        (stored, gradients.get_or_insert_with(|| stored.each_ref().map(zero)))
    }
}

impl<D: Kernels> Past<D> {
    /// No tokens yet.
    pub(crate) fn new(sequences: usize, capacity: usize) -> Self {
        count::product("the tokens of a cache", &[sequences, capacity]);
        Self { capacity, sequences, slots: Vec::new() }
    }
    /// Keys and values of a block, of so many columns each.
    pub(crate) fn slot(&mut self, block: usize, device: &D, cols: usize) -> &mut Slot<D> {
        let rows = self.sequences * self.capacity;
        if self.slots.len() <= block {
            self.slots.resize_with(block + 1, || None);
        }
        let empty = |()| Tensor::empty(device, Category::KvCache, rows, cols);
        let fresh = || Slot { stored: [(); 2].map(empty), gradients: None };
        self.slots[block].get_or_insert_with(fresh)
    }
    /// Frees what a block has stored.
    pub(crate) fn free(&mut self, block: usize) {
        self.slots[block] = None;
    }
}
