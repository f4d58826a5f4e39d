//! Zigzag tokens, `cp=N:zigzag`: a sequence is cut into 2N nearly equal pieces, and rank `r` has the pieces
//! `r` and `2N−1−r`. Under the causal mask all ranks see about as many keys: an early piece sees few, and a
//! late one many.
//!
//! Source: Zhu, "ring-flash-attention", issue 2 of <https://github.com/zhuzilin/ring-flash-attention>; Llama
//! Team, §3.3.2, arXiv:2407.21783. Chapter: context parallelism.
use super::dealt::{DEALT, Dealing};
use layers::StrategyInfo;
use std::ops::Range;

/// Zigzag tokens.
pub static ZIGZAG: Dealing = Dealing {
    about: StrategyInfo {
        name: "context parallelism with zigzag tokens",
        word: "zigzag",
        paper: "Zhu, ring-flash-attention",
        ..DEALT
    },
    stretches,
};

/// Pieces `rank` and `2·ranks − 1 − rank`; the first pieces are one token longer, so that no rank is without
/// tokens where there are as many tokens as ranks.
fn stretches(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
    let (size, longer) = (tokens / (2 * ranks), tokens % (2 * ranks));
    let start = |piece: usize| piece * size + piece.min(longer);
    [rank, 2 * ranks - 1 - rank].map(|piece| start(piece)..start(piece + 1)).into()
}
