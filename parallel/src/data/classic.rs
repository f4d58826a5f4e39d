//! `DataParallel` of 2017, `dp=N:classic`: one rank, the root, has the batch, the loss, the sum of gradients
//! and the optimizer, and lends the others the model for each microbatch of `B` tokens.
//!
//! ```text
//! 1 inputs      ids of the root's batch     scatter, B·(N−1)/N ids, from the root
//! 2 model       W of the root               broadcast, P elements to each of the others
//! 3 outputs     Z[B,V] on the root          gather, B·V·(N−1)/N elements: the loss is there
//! 4 losses      dZ_d[B_d,V] of the root's   scatter, B·V·(N−1)/N elements, from the root
//! 5 gradients   dW = Σ_d dW_d on the root   reduce, P elements from each of the others
//! ```
//!
//! An evaluation has 1 to 3, a text that is generated 2 alone. A step of `dp=N` moves 2·P, too, but around a
//! ring, and beside backward. Neighbour: [`replicated`](super::replicated).
//!
//! Source: Paszke et al., "PyTorch", arXiv:1912.01703. Chapter: data parallelism.
use super::state_split::StateSplit;
use crate::Result;
use comm::Axis;
use kernels::Kernels;
use layers::{Choice, StrategyInfo, Tries};
use ops::{PassContext, RootExchange, ShardingStrategy, Wide};
use std::cmp::Ordering;
use tensor::{Category, Scalar, Tensor};

/// Data parallelism with a root.
pub static CLASSIC: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "DataParallel, with a root",
        word: "classic",
        alone: true,
        tries: Tries::Never,
        paper: "Paszke et al., arXiv:1912.01703",
        chapter: Some("data-parallelism.md"),
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

/// Returns this rank's ids of those that the root has; zeros on the meta device. They travel as numbers,
/// which are exact below 2^24 in f32.
pub(crate) fn scatter_ids<D: Kernels>(
    (root, device): (&RootExchange<D::Place>, &D),
    cx: &PassContext<D>,
    ids: &[u32],
) -> Result<Vec<u32>> {
    let number = |i: usize| Wide::<D>::from_usize(ids[i] as usize);
    let all = Tensor::from_fn(device.wide(), Category::Activations, ids.len(), 1, number);
    let own = root.scatter(cx, &all)?.and_then(|own| own.read());
    Ok(own.map_or_else(|| vec![0; cx.rows()], |own| own.into_iter().map(id).collect()))
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
