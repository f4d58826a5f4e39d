//! All-gather, `ep=N:all-gather`: every rank receives all tokens, and adds up what its own experts give for
//! them.
//!
//! ```text
//! out    X of all ranks     all-gather, B·D elements
//! back   Y of own experts   reduce-scatter, N·B·D elements
//! ```
//!
//! Less traffic than an all-to-all if a token goes to more experts than there are ranks.
//!
//! Source: Megatron-LM, `MoEAllGatherTokenDispatcher`. Neighbour: [`all_to_all`](super::all_to_all).
use crate::dispatch::{self, RowKind, Dispatch, TokenDispatcher, RowCapacity, added, dispatched};
use crate::routing::Routing;
use comm::{Axis, Group, Request};
use kernels::Kernels;
use ops::{Result, rows_of};
use layers::{Choice, StrategyInfo};
use tensor::Tensor;

/// All-gather of tokens, reduce-scatter of results.
#[derive(Clone, Copy)]
pub struct AllGather;

/// Its description.
pub static ABOUT: StrategyInfo = StrategyInfo {
    name: "expert parallelism by all-gather",
    word: "all-gather",
    shares: dispatch::shares,
    paper: "Megatron-LM, token_dispatcher.py",
    chapter: Some("experts.md"),
    hints: &[
        (
            "gradient of",
            "an expert's gradient is summed over the ranks that have the same expert, and over no others",
        ),
        ("", "every rank adds up what its own experts give for all tokens: a partial sum, scattered once"),
    ],
    ..StrategyInfo::of(Some(Axis::Ep), Choice::Dispatcher)
};

impl<D: Kernels> TokenDispatcher<D> for AllGather {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn plan(
        &self,
        ep: &Group<D::Place>,
        all: &[Routing],
        (experts, room): (usize, &RowCapacity),
        place: &D::Place,
    ) -> Dispatch<D::Place> {
        let here = experts.div_ceil(ep.size());
        let local = ep.rank() * here..(ep.rank() + 1) * here;
        let together = Routing::together(all);
        let counts = together.counts(here * ep.size())[local.clone()].to_vec();
        let taken: usize = counts.iter().sum();
        let [tokens, copies] = [Routing::tokens, Routing::len].map(|of| all.iter().map(of).collect());
        let room = room.with(taken, all, here);
        let list = dispatched(&together, 0, local);
        Dispatch::new((ep, place), (&together, (taken, &list[..]), room), (counts, room), [tokens, copies])
    }
    fn begin(&self, plan: &Dispatch<D::Place>, x: Tensor<D>, what: RowKind) -> Result<Request<D>> {
        Ok(plan.ep.start_all_gather_v(x, &plan.rows[what as usize])?)
    }
    fn end(&self, plan: &Dispatch<D::Place>, came: Tensor<D>, what: RowKind) -> Tensor<D> {
        rows_of(&came, &plan.picks[what as usize])
    }
    fn back(&self, plan: &Dispatch<D::Place>, y: Tensor<D>, what: RowKind) -> Result<Tensor<D>> {
        let what = what as usize;
        Ok(plan.ep.reduce_scatter_v(&added(&y, &plan.homes[what]), &plan.rows[what])?)
    }
}

#[cfg(test)]
crate::tests::proves_dispatcher!(AllGather);
