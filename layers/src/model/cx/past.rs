//! KV cache of the tokens so far, by block; for training on slices of sequences, with its gradients.
use crate::ops::filled;
use kernels::Kernels;
use tensor::{Category, Scalar, Tensor, count};

/// The cache of all blocks. Sequence `b` has the rows from `b · capacity` on.
pub(crate) struct Past<D: Kernels> {
    /// Number of tokens of one sequence.
    pub(crate) capacity: usize,
    sequences: usize,
    slots: Vec<Option<BlockPast<D>>>, // by block
}

/// Keys and values of a block.
pub(crate) struct BlockPast<D: Kernels> {
    pub(crate) stored: [Tensor<D>; 2],
    gradients: Option<[Tensor<D>; 2]>,
}

impl<D: Kernels> BlockPast<D> {
    /// Returns keys and values, and the sums of their gradients from later tokens.
    pub(crate) fn with_gradients(&mut self) -> (&[Tensor<D>; 2], &mut [Tensor<D>; 2]) {
        let Self { stored, gradients } = self;
        let zero = |of: &Tensor<D>| filled(of.device(), Category::Activations, of.shape(), D::Elem::ZERO);
        (stored, gradients.get_or_insert_with(|| stored.each_ref().map(zero)))
    }
}

impl<D: Kernels> Past<D> {
    /// Creates an empty cache.
    pub(crate) fn new(sequences: usize, capacity: usize) -> Self {
        count::product("the tokens of a cache", &[sequences, capacity]);
        Self { capacity, sequences, slots: Vec::new() }
    }
    /// Returns the keys and values of a block, of `cols` columns each.
    pub(crate) fn slot(&mut self, block: usize, device: &D, cols: usize) -> &mut BlockPast<D> {
        let rows = self.sequences * self.capacity;
        if self.slots.len() <= block {
            self.slots.resize_with(block + 1, || None);
        }
        let empty = |()| Tensor::empty(device, Category::KvCache, rows, cols);
        let fresh = || BlockPast { stored: [(); 2].map(empty), gradients: None };
        self.slots[block].get_or_insert_with(fresh)
    }
    /// Frees the keys and values of a block.
    pub(crate) fn free(&mut self, block: usize) {
        self.slots[block] = None;
    }
}
