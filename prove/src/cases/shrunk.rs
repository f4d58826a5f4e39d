//! Shrinking: finds a small case that fails as a drawn one does. First the wishes shrink, each on its own.
//! Then the layouts of fewer ranks and strategies are tried one by one, since a failure on eight ranks and on
//! two may not occur on three.
use super::case::ProofCase;
use super::drawn::{Wish, wishes};
use super::failure::Failure;
use crate::Verdict;
use comm::Axis;
use parallel::Layout;
use proptest::strategy::ValueTree;
use std::time::{Duration, Instant};
use tensor::Key;

/// Largest number of cases that are judged to shrink one, before layouts are tried.
const MOST: usize = 1000;
/// Longest time of a case. A slower case hangs until a rank's time limit, so it is shrunk no further.
const SLOW: Duration = Duration::from_secs(20);

/// Smallest failing case so far.
struct Smallest<'a> {
    number: u64,
    wish: Wish,
    case: ProofCase,
    outcome: Verdict,
    judge: &'a dyn Fn(&ProofCase) -> Verdict,
    slow: bool,
}

impl Smallest<'_> {
    /// Takes this wish if its case fails alike.
    fn fails(&mut self, wish: Wish) -> bool {
        let case = wish.clone().case(self.number);
        if case == self.case {
            self.wish = wish;
            return true;
        }
        let began = Instant::now();
        let outcome = (self.judge)(&case);
        self.slow |= began.elapsed() > SLOW;
        let fails = outcome.is_like(&self.outcome);
        if fails {
            (self.wish, self.case, self.outcome) = (wish, case, outcome);
        }
        fails
    }
}

/// Shrinks the failing case of this number, which follows `after` equal cases.
pub(super) fn shrunk(
    (after, Key(number)): (usize, Key),
    layout: Option<Layout>,
    outcome: Verdict,
    judge: &dyn Fn(&ProofCase) -> Verdict,
) -> Failure {
    let mut tree = wishes(number, layout);
    let wish = tree.current();
    let mut smallest =
        Smallest { number, case: wish.clone().case(number), wish, outcome, judge, slow: false };
    let mut simpler = tree.simplify();
    for _ in 0..MOST {
        if !simpler || smallest.slow {
            break;
        }
        simpler = if smallest.fails(tree.current()) { tree.simplify() } else { tree.complicate() };
    }
    if layout.is_none() {
        for layout in smaller(smallest.case.layout) {
            if smallest.slow || smallest.fails(smallest.wish.clone().under(layout)) {
                break;
            }
        }
    }
    let Verdict { first_difference, error, .. } = smallest.outcome;
    Failure { after, number: Key(number), case: smallest.case, first_difference, error }
}

/// Returns the layouts with no more ranks along any axis and no other named strategies, fewest ranks first,
/// then fewest strategies.
fn smaller(layout: Layout) -> Vec<Layout> {
    let mut sizes: Vec<Vec<(Axis, usize)>> = vec![Vec::new()];
    for (axis, most) in layout.axes() {
        let with = |before: &Vec<_>, n: usize| [&before[..], &[(axis, n)]].concat();
        sizes = sizes.iter().flat_map(|before| (1..=most).map(move |n| with(before, n))).collect();
    }
    // sizes of expert axes divide a stage's
    let mut layouts: Vec<_> = sizes.iter().filter_map(|sizes| Layout::new(sizes).ok()).collect();
    for named in layout.named() {
        layouts.extend(layouts.clone().into_iter().filter_map(|layout| layout.with(&named).ok()));
    }
    layouts.retain(|other| *other != layout);
    layouts.sort_by_key(|layout| (layout.ranks(), layout.strategies().len()));
    layouts
}
