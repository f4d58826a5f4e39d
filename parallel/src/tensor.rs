//! Strategies that build layers: split inside over the tensor ranks, or wrapped around each block.
use crate::lists::builders;

builders! {
    tensor_parallel::TensorParallel,
    sequence_parallel::SequenceParallel,
    sparse::SparseMessages,
    recompute::Recompute,
    recompute_every::RecomputeEvery,
    recompute_selective::RecomputeSelective,
}
