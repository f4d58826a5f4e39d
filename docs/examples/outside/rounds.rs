//! `GPipe` in rounds: two microbatches forward and back, then the next two, so that no rank holds the
//! activations of more than two.
//!
//! ```text
//! stages 3, microbatches 4        rank 0   F0 F1 ·  ·  ·  ·  B0 B1 F2 F3 ·  ·  ·  ·  B2 B3
//!                                 rank 1   ·  F0 F1 ·  ·  B0 B1 ·  ·  F2 F3 ·  ·  B2 B3 ·
//!                                 rank 2   ·  ·  F0 F1 B0 B1 ·  ·  ·  ·  F2 F3 B2 B3 ·  ·
//! ```
//!
//! A rank of `K` waits K − 1 forwards and K − 1 backwards in each of the M/2 rounds. `GPipe` waits as long,
//! but in one round, and therefore holds the activations of all `M` microbatches. An odd `M` ends with a
//! round of one. 1F1B holds as little, and waits as `GPipe` does.
//!
//! Source: Huang et al., "`GPipe`", §2.2, arXiv:1811.06965, applied to parts of a batch, as gradients are
//! accumulated.
use comm::Axis;
use layers::{Choice, NumberArgument, StrategyInfo};
use ops::{DividedSize, DivisionRule};
use parallel::Schedule;
use parallel::pipeline::phases::{B, F, in_order, phases};
use parallel::step::{Cell, Plan};

/// `GPipe` in rounds of two microbatches.
///
/// **A schedule** ([`parallel::Schedule`]) writes a table; sends and receives follow from it. A layout with
/// strategies of no list is a [`parallel::Scheme`]. Everything that takes a layout takes a scheme: proofs,
/// prices, [`parallel::session`].
///
/// ```
/// use outside::{InRounds, JustInTime, OwnRows};
/// use parallel::{Layout, Schedule, Scheme};
/// use tensor::{Cpu, F61};
///
/// let layout: Layout = "tp=2,pp=2".parse()?;
/// let mut scheme: Scheme<Cpu<F61>> = Scheme::with(&layout, &[&OwnRows, &JustInTime]);
/// scheme.schedule = Some((&InRounds as &dyn Schedule).into());
/// assert_eq!(scheme.to_string(), "tp=2,pp=2 with own rows and weights just in time and GPipe in rounds");
/// # Ok::<(), parallel::Error>(())
/// ```
pub struct InRounds;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "GPipe in rounds",
    axis: Some(Axis::Pp),
    choice: Choice::Schedule,
    word: "rounds",
    takes: NumberArgument::Nothing,
    tries: layers::Tries::Always(&[]),
    needs: None,
    shares: |design, sizes| {
        let (size, over) = (design.parts(sizes.along(Axis::Tp)), sizes.along(Axis::Pp));
        vec![DividedSize { what: "blocks", size, over, by: DivisionRule::AtLeastOne }]
    },
    alone: false,
    paper: "Huang et al., arXiv:1811.06965",
    chapter: None,
    hints: &[("", "a round begins after the backwards of the one before: check which activations it finds")],
};

impl Schedule for InRounds {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        phases(plan, [(plan.microbatches.div_ceil(2), &[F, F, B, B])], in_order(rank))
    }
}
