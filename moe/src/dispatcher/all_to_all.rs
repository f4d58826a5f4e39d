//! All-to-all, `ep=N`: each rank sends every other rank only the rows of the tokens that it routes to experts
//! there.
//!
//! ```text
//! out    rows of copies, sorted by expert  all-to-all of uneven counts, k·B·D elements, less those that stay
//! back   the same rows, the same way       all-to-all of uneven counts, k·B·D elements
//! ```
//!
//! Source: Lepikhin et al., `GShard`, §3.2, arXiv:2006.16668. Chapter: experts.
use crate::dispatch::{self, RowKind, Dispatch, TokenDispatcher, RowCapacity, added, dispatched, index, sorted};
use crate::routing::Routing;
use comm::{Axis, Group, Request};
use kernels::Kernels;
use ops::{Result, rows_of};
use layers::{Choice, StrategyInfo};
use tensor::Tensor;

/// All-to-all with uneven counts.
#[derive(Clone, Copy)]
pub struct AllToAll;

/// Its description.
pub static ABOUT: StrategyInfo = StrategyInfo {
    name: "expert parallelism",
    word: "ep",
    shares: dispatch::shares,
    paper: "Lepikhin et al., arXiv:2006.16668",
    chapter: Some("experts.md"),
    hints: &[
        (
            "gradient of",
            "an expert's gradient is summed over the ranks that have the same expert, and over no others",
        ),
        (
            "",
            "each rank receives what the other sent; the rows that return are those that were sent, in order",
        ),
    ],
    ..StrategyInfo::of(Some(Axis::Ep), Choice::Dispatcher)
};

impl<D: Kernels> TokenDispatcher<D> for AllToAll {
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
        let (me, here) = (ep.rank(), experts.div_ceil(ep.size()));
        let local = me * here..(me + 1) * here;
        let of_ranks: Vec<_> = all.iter().map(|of| of.counts(here * ep.size())).collect();
        let give: Vec<usize> = of_ranks[me].chunks(here).map(|of| of.iter().sum()).collect();
        let take: Vec<usize> = of_ranks.iter().map(|of| of[local.clone()].iter().sum()).collect();
        let counts: Vec<usize> = local.clone().map(|e| of_ranks.iter().map(|of| of[e]).sum()).collect();
        let [sent, came] = [&give, &take].map(|rows| rows.iter().sum::<usize>());
        let room = room.with(came, all, here);
        let tokens = (&all[me], (sent, &dispatched(&all[me], me, 0..experts)[..]), all[me].len());
        let plan = Dispatch::new((ep, place), tokens, (counts, room), [give, take]);
        if ep.size() == 1 {
            return plan;
        }
        let rows: Vec<_> =
            all.iter().enumerate().flat_map(|(rank, of)| dispatched(of, rank, local.clone())).collect();
        let arrived: Vec<u32> = (0..rows.len() as u32).collect();
        let sort = sorted(&arrived, experts, |&at| rows[at as usize].expert);
        let mut back = vec![0; sort.len()];
        sort.iter().zip(0..).for_each(|(&from, to)| back[from as usize] = to);
        let sorts = [sort, back].map(|numbers| index(place, came, numbers.into_iter(), room));
        Dispatch { sorts: Some(sorts), ..plan }
    }
    fn begin(&self, plan: &Dispatch<D::Place>, x: Tensor<D>, what: RowKind) -> Result<Request<D>> {
        let [give, take] = &plan.rows;
        Ok(plan.ep.start_all_to_all_v(rows_of(&x, &plan.picks[what as usize]), [give, take], plan.room)?)
    }
    fn end(&self, plan: &Dispatch<D::Place>, came: Tensor<D>, _: RowKind) -> Tensor<D> {
        match &plan.sorts {
            Some([sort, _]) => rows_of(&came, sort),
            None => came,
        }
    }
    fn back(&self, plan: &Dispatch<D::Place>, mut y: Tensor<D>, what: RowKind) -> Result<Tensor<D>> {
        if let Some([_, back]) = &plan.sorts {
            let [give, take] = &plan.rows;
            let home = plan.picks[what as usize].room();
            y = plan.ep.start_all_to_all_v(rows_of(&y, back), [take, give], home)?.wait()?;
        }
        Ok(added(&y, &plan.homes[what as usize]))
    }
}

#[cfg(test)]
crate::tests::proves_dispatcher!(AllToAll);
