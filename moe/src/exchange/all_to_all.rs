//! All-to-all, `ep=N`: each rank gives every other the rows of the tokens that it hands to experts there, as many as they are.
//!
//! ```text
//! out    rows of copies, sorted by expert    all-to-all of uneven counts, k·B·D elements, less those that stay
//! back   the same rows, the same way         all-to-all of uneven counts, k·B·D elements
//! ```
//!
//! Source: Lepikhin et al., `GShard`, §3.2, arXiv:2006.16668. Chapter: 16.
use super::{Carried, Dispatch, Exchange, added, handed, homes, index};
use crate::routing::{NOBODY, Routing};
use comm::{Axis, Group, Request};
use kernels::Kernels;
use layers::ops::rows_of;
use layers::{About, Choice, Result, Takes};
use tensor::Tensor;

/// All-to-all of uneven counts.
#[derive(Clone, Copy)]
pub struct AllToAll;

/// Its description.
pub static ABOUT: About = About {
    name: "expert parallelism",
    axis: Some(Axis::Ep),
    choice: Choice::Exchange,
    word: "ep",
    takes: Takes::Nothing,
    shares: super::shares,
    paper: "Lepikhin et al., arXiv:2006.16668",
    chapter: Some("experts.md"),
    hints: &[
        (
            "gradient of",
            "an expert's gradient is summed over the ranks that have the same expert, and over no others",
        ),
        (
            "",
            "what a rank gives is what the other takes; rows that come back are those that went, in their order",
        ),
    ],
};

impl<D: Kernels> Exchange<D> for AllToAll {
    fn about(&self) -> &'static About {
        &ABOUT
    }
    fn plan(
        &self,
        ep: &Group<D::Place>,
        all: &[Routing],
        experts: usize,
        place: &D::Place,
    ) -> Dispatch<D::Place> {
        let (me, here, k) = (ep.rank(), experts.div_ceil(ep.size()), all[0].chosen);
        let of = |rank: usize| rank * here..(rank + 1) * here;
        let given = handed(&all[me], me, 0..experts);
        let give = (0..ep.size()).map(|rank| given.iter().filter(|c| of(rank).contains(&c.expert)).count());
        let came: Vec<_> = (0..ep.size()).flat_map(|rank| handed(&all[rank], rank, of(me))).collect();
        let take = (0..ep.size()).map(|rank| came.iter().filter(|c| c.rank == rank).count());
        let mut sort: Vec<u32> = (0..came.len() as u32).collect();
        sort.sort_by_key(|&at| came[at as usize]);
        let mut back = vec![0; sort.len()];
        sort.iter().enumerate().for_each(|(to, &from)| back[from as usize] = to as u32);
        let mut at = vec![NOBODY; all[me].list.len()];
        given.iter().enumerate().for_each(|(row, c)| at[c.at] = row as u32);
        let picks = [k, 1].map(|each| given.iter().map(|c| (c.at / each) as u32).collect::<Vec<_>>());
        Dispatch {
            counts: of(me).map(|e| came.iter().filter(|c| c.expert == e).count()).collect(),
            rows: [give.collect(), take.collect()],
            picks: picks.each_ref().map(|numbers| index(place, numbers)),
            homes: homes(place, &at, k),
            sorts: if ep.size() == 1 {
                vec![]
            } else {
                [&sort, &back].map(|numbers| index(place, numbers)).into()
            },
        }
    }
    fn begin(
        &self,
        ep: &Group<D::Place>,
        plan: &Dispatch<D::Place>,
        x: Tensor<D>,
        what: Carried,
    ) -> Result<Request<D>> {
        let [give, take] = &plan.rows;
        Ok(ep.start_all_to_all_v(rows_of(&x, &plan.picks[what as usize]), give, take)?)
    }
    fn end(&self, plan: &Dispatch<D::Place>, came: Tensor<D>, _: Carried) -> Tensor<D> {
        plan.sorts.first().map_or_else(|| came.clone(), |sort| rows_of(&came, sort))
    }
    fn back(
        &self,
        ep: &Group<D::Place>,
        plan: &Dispatch<D::Place>,
        mut y: Tensor<D>,
        what: Carried,
    ) -> Result<Tensor<D>> {
        if ep.size() > 1 {
            let [give, take] = &plan.rows;
            y = ep.all_to_all_v(&rows_of(&y, &plan.sorts[1]), take, give)?;
        }
        Ok(added(&y, &plan.homes[what as usize]))
    }
}
