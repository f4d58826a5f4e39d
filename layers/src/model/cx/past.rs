//! Keys and values of the tokens so far, by block.
use kernels::Kernels;
use tensor::{Category, Tensor, count};

/// Sequence `b` has the rows from `b · capacity` on.
pub(crate) struct Past<D: Kernels> {
    /// Tokens of one sequence.
    pub(crate) capacity: usize,
    sequences: usize,
    slots: Vec<Option<[Tensor<D>; 2]>>, // keys and values of a block
}

impl<D: Kernels> Past<D> {
    /// No tokens yet.
    pub(crate) fn new(sequences: usize, capacity: usize) -> Self {
        count::product("the tokens of a cache", &[sequences, capacity]);
        Self { capacity, sequences, slots: Vec::new() }
    }
    /// Keys and values of a block, of so many columns each.
    pub(crate) fn slot(&mut self, block: usize, device: &D, cols: usize) -> &mut [Tensor<D>; 2] {
        let rows = self.sequences * self.capacity;
        if self.slots.len() <= block {
            self.slots.resize_with(block + 1, || None);
        }
        let fresh = || [(); 2].map(|()| Tensor::empty(device, Category::KvCache, rows, cols));
        self.slots[block].get_or_insert_with(fresh)
    }
}
