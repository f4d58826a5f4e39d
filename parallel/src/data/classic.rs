//! `DataParallel` of 2017, `dp=N:classic`: one rank, the root, has the batch, the loss, the gradient's sum and
//! the optimizer; the others are lent the model for each microbatch of `B` tokens. `V` logits, `P` parameters.
//!
//! ```text
//! 1 inputs      ids of the root's batch     scatter, B·(N−1)/N ids, from the root
//! 2 model       W of the root               broadcast, P elements to each of the others
//! 3 outputs     Z[B,V] on the root          gather, B·V·(N−1)/N elements, to the root: the loss is there
//! 4 losses      dZ_d[B_d,V] of the root's   scatter, B·V·(N−1)/N elements, from the root
//! 5 gradients   dW = Σ_d dW_d on the root   reduce, P elements from each of the others; then it updates W
//! ```
//!
//! An evaluation has 1 to 3, and a text that is generated 2 alone. In a step of one microbatch, dp=N moves 2·P
//! too, but around a ring, beside backward. The scalars of a report are told to all ranks.
//!
//! Source: Paszke et al., "PyTorch", arXiv:1912.01703 (`torch.nn.DataParallel`). Neighbour:
//! [`replicated`](super::replicated). Chapter: 8.
use super::StateSplit;
use crate::{BuildContext, Result};
use comm::{Axis, Group, Tag};
use kernels::Kernels;
use layers::{Choice, ShardingStrategy, StrategyInfo, TokenShards};
use std::cmp::Ordering;
use tensor::{Category, Device, Scalar, Tensor};

/// Data parallelism with a root.
pub static CLASSIC: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "DataParallel, with a root",
        word: "classic",
        alone: true,
        paper: "Paszke et al., arXiv:1912.01703",
        hints: &[
            ("loss", "the root computes the loss of all ranks' rows, in the order of ranks"),
            (
                "gradient of",
                "the root adds the others' gradients to its own once a microbatch, and keeps the sum",
            ),
            ("", "a value that the root lent is valid for one microbatch: for the next one it is sent again"),
        ],
        ..StrategyInfo::of(Some(Axis::Dp), Choice::State)
    },
    change: |_, _| ShardingStrategy::ROOT,
};

/// Returns the data ranks, if the first of them is the root of a model that is built here.
pub(crate) fn group<D: Kernels>(at: &BuildContext<D>) -> Option<Group<D::Place>> {
    (at.rests == ShardingStrategy::ROOT).then(|| at.mesh.group(TokenShards::SEQUENCES).named("inputs"))
}

/// Returns this rank's rows of the root's batch, `[rows, cols]`. Only the root calls `of_rank`, which returns
/// the rows of a rank.
pub(crate) fn scatter<D: Device>(
    (root, microbatch): (&Group<D::Place>, usize),
    device: &D,
    [rows, cols]: [usize; 2],
    of_rank: impl Fn(usize) -> Result<Tensor<D>>,
) -> Result<Tensor<D>> {
    let tag = Tag::new("inputs", microbatch);
    match root.rank() {
        0 => {
            for rank in 1..root.size() {
                let theirs = of_rank(rank)?;
                if theirs.rows() > 0 {
                    root.send(rank, &theirs, tag)?;
                }
            }
            of_rank(0)
        }
        _ if rows == 0 => Ok(Tensor::empty(device, Category::Activations, 0, cols)),
        _ => Ok(root.receive(device, 0, rows, cols, tag)?),
    }
}

/// Returns this rank's `n` ids of the root's batch; zeros on the meta device. They travel as numbers, exact
/// below 2^24 in f32.
pub(crate) fn scatter_ids<D: Device>(
    root: (&Group<D::Place>, usize),
    device: &D,
    n: usize,
    of_rank: impl Fn(usize) -> Result<Vec<u32>>,
) -> Result<Vec<u32>> {
    let numbers = |rank| -> Result<_> {
        let ids = of_rank(rank)?;
        let number = |i: usize| D::Elem::from_usize(ids[i] as usize);
        Ok(Tensor::from_fn(device, Category::Activations, ids.len(), 1, number))
    };
    let own = scatter(root, device, [n, 1], numbers)?;
    Ok(own.read().map_or_else(|| vec![0; n], |own| own.into_iter().map(id).collect()))
}

/// Returns the id that is this number.
fn id<S: Scalar>(number: S) -> u32 {
    let (mut id, mut bit) = (0, 1 << (u32::BITS - 1));
    while bit > 0 {
        if S::from_usize((id | bit) as usize).order(number) != Ordering::Greater {
            id |= bit;
        }
        bit >>= 1;
    }
    id
}

#[cfg(test)]
mod tests;
