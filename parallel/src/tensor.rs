//! Strategies that build layers: split inside over the ranks of the axis of layers, or around each block.
use crate::strategies::lists::builders;

builders! {
    tensor_parallel::TensorParallel,
    sequence_parallel::SequenceParallel,
    recompute::Recompute,
}
