//! The harness where tokens are dealt: to data ranks, and to ranks that have parts of each sequence.
use super::*;
use crate::Builder;
use crate::build::strategy::Column;
use crate::linear::column::ColumnLinear;
use comm::{Axis, Op};
use kernels::{Kernels, Segment};
use ops::Result;
use tensor::Scalar;

/// A column layer whose tokens are dealt: the halves of each sequence; or whole sequences, where every other
/// rank has none.
struct Dealt<const BY_HALVES: bool> {
    trusted: bool,
}

impl<const BY_HALVES: bool> Case for Dealt<BY_HALVES> {
    type Layer<D: Kernels> = ColumnLinear<D>;
    const RANKS: &'static [usize] = &[1, 2];
    fn dealers(&self) -> Vec<(Axis, usize)> {
        let data = (!BY_HALVES).then_some((Axis::Dp, 2));
        data.into_iter().chain([(Axis::Cp, 2)]).collect()
    }
    fn deal(&self, tokens: &[Segment], (rank, ranks): (usize, usize)) -> Vec<Segment> {
        let part = |t: &Segment| {
            let from = if BY_HALVES { t.len * rank / ranks } else { rank % 2 * t.len };
            let to = if BY_HALVES { t.len * (rank + 1) / ranks } else { t.len };
            Segment { row: t.row + from, position: t.position + from, len: to.saturating_sub(from), ..*t }
        };
        let n = tokens.len();
        let mine = if BY_HALVES { tokens } else { &tokens[n * (rank / 2) / 2..n * (rank / 2 + 1) / 2] };
        mine.iter().map(part).collect()
    }
    fn features(&self) -> [usize; 2] {
        [5, 6]
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<ColumnLinear<D>> {
        let sections = &[6.into()];
        ColumnLinear::shard(at, &Column { axis: Axis::Tp, name: "w", inputs: 5, sections, bias: false })
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let (mut dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, [5, 6]);
        if !self.trusted {
            dx.rotate_left(5); // another token's
        }
        let y = reference::linear(&g.x, &g.weights["w"], [5, 6]);
        Answer { y, dx, gradients: [("w".into(), dw)].into() }
    }
    fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllReduce, tokens * 5)]
    }
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllGather, 2 * share * 5), (Op::ReduceScatter, ranks * share * 5)] // X twice; dX
    }
}

/// Kills: tokens put back at other rows than they were dealt from, gradients that are not summed over the
/// ranks that have them, a world without the further axes.
#[test]
fn dealt_tokens_are_put_back_where_they_were() {
    proves(&Dealt::<true> { trusted: true });
    proves(&Dealt::<false> { trusted: true });
    proves_in_regions(&Dealt::<true> { trusted: true });
}

/// Kills: tokens that are compared in no order, or not at all.
#[test]
#[should_panic(expected = "dX")]
fn another_tokens_gradient_is_refused_where_tokens_are_dealt() {
    proves(&Dealt::<true> { trusted: false });
}
