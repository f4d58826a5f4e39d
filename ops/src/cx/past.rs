//! KV cache of the tokens so far, by block; for training on slices of sequences, with its gradients, which
//! are summed in the wide dtype.
use crate::filled;
use kernels::Kernels;
use tensor::{Category, Scalar, Tensor, count};

/// The cache of all blocks. Sequence `b` has the rows from `b · room` on: room for all its tokens, or for
/// those of the context ranks that keep their keys here.
pub(crate) struct Past<D: Kernels> {
    /// Number of tokens of one sequence.
    pub(crate) capacity: usize,
    sequences: usize,
    /// Number of tokens of one sequence that each context rank has room for.
    pub(crate) rooms: Vec<usize>,
    slots: Vec<Option<BlockPast<D>>>, // by block
}

/// Keys and values of a block, `[K | V]`.
pub(crate) struct BlockPast<D: Kernels> {
    pub(crate) stored: Tensor<D>,
    gradients: Option<Tensor<D::Wide>>,
}

impl<D: Kernels> BlockPast<D> {
    /// Returns keys and values, and the sums of their gradients from later tokens.
    pub(crate) fn with_gradients(&mut self) -> (&Tensor<D>, &mut Tensor<D::Wide>) {
        let Self { stored, gradients } = self;
        let wide = stored.device().wide();
        let zeros = || filled(wide, Category::Activations, stored.shape(), Scalar::ZERO);
        (stored, gradients.get_or_insert_with(zeros))
    }
}

impl<D: Kernels> Past<D> {
    /// Creates an empty cache.
    pub(crate) fn new(sequences: usize, capacity: usize, rooms: Vec<usize>) -> Self {
        count::product("the tokens of a cache", &[sequences, capacity]);
        Self { capacity, sequences, rooms, slots: Vec::new() }
    }
    /// Returns the rows of each sequence that a member of `of` consecutive context ranks has room for.
    pub(crate) fn room_of(&self, of: usize, member: usize) -> usize {
        self.rooms[member * of..(member + 1) * of].iter().sum()
    }
    /// Returns the keys and values of a block: `room` rows of each sequence, of `cols` columns.
    pub(crate) fn slot(&mut self, block: usize, device: &D, [room, cols]: [usize; 2]) -> &mut BlockPast<D> {
        let rows = self.sequences * room;
        if self.slots.len() <= block {
            self.slots.resize_with(block + 1, || None);
        }
        let empty = || Tensor::empty(device, Category::KvCache, rows, cols);
        let fresh = || BlockPast { stored: empty(), gradients: None };
        self.slots[block].get_or_insert_with(fresh)
    }
    /// Frees the keys and values of a block.
    pub(crate) fn free(&mut self, block: usize) {
        self.slots[block] = None;
    }
}
