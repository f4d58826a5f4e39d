//! Searches in memory that nothing fits into.
use super::{machine, search, small};
use plan::morphing;
use plan::search::LayoutSearch;
use plan::watch::SearchEvent;
use plan::weighed::{Goal, SearchResult};
use std::sync::{Arc, Mutex};
use tensor::{Bf16, Cpu};

/// The least of 2 ranks, and of 3 or fewer, as weighing everything finds it. Kills: a least that does not fit
/// the memory and is taken for the best; a least of one number of devices alone, or that no search found; a
/// search by memory for each number of devices, or where something fits.
#[test]
fn what_fits_nowhere_is_known_after_one_search_by_memory() {
    let (job, machine, goals) = (small(), Arc::new(machine()), Mutex::new(Vec::new()));
    let watch = &|event: &SearchEvent| {
        if let SearchEvent::Weighing { goal, .. } = event {
            goals.lock().unwrap().push(*goal);
        }
        true
    };
    let searches = || {
        let mut goals = std::mem::take(&mut *goals.lock().unwrap());
        goals.dedup();
        goals
    };
    let of = |ranks, memory| LayoutSearch { memory, watch, ..search(&job, &machine, ranks) };
    let least = |found: &SearchResult| found.least.as_ref().map(|of| of.step.peak);
    let all = |ranks| LayoutSearch { all: true, ..of(ranks, 0) }.find::<Cpu<Bf16>>();
    let [two, three] = [2, 3].map(|ranks| least(&all(ranks)).unwrap());
    searches();
    let any = two.min(three);
    for (ranks, found, wanted) in
        [(2, LayoutSearch::find::<Cpu<Bf16>> as fn(&_) -> _, two), (3, morphing::find::<Cpu<Bf16>>, any)]
    {
        let found: SearchResult = found(&of(ranks, wanted - 1));
        assert_eq!((found.best.len(), found.cut, least(&found)), (0, false, Some(wanted)));
        assert_eq!(searches(), [Goal::Time, Goal::Least]);
    }
    assert_eq!(of(2, two).find::<Cpu<Bf16>>().best[0].step.peak, two);
    assert_eq!(searches(), [Goal::Time, Goal::Least, Goal::Time]);
    assert_eq!(least(&of(2, usize::MAX).find::<Cpu<Bf16>>()), None);
    assert_eq!(searches(), [Goal::Time]);
}

/// A search that is cut while it weighs for the least, once it has found some. Kills: a cut that hides what
/// holds the least so far, or takes it for what fits.
#[test]
fn a_search_that_is_cut_tells_the_least_so_far() {
    let (job, machine) = (small(), Arc::new(machine()));
    let watch = &|event: &SearchEvent| match event {
        SearchEvent::Weighing { found, goal, .. } => *goal != Goal::Least || found.best.is_empty(),
        _ => true,
    };
    let of = |memory| LayoutSearch { memory, watch, ..search(&job, &machine, 2) }.find::<Cpu<Bf16>>();
    let none = of(1000);
    assert!(none.cut && none.best.is_empty() && none.least.is_some_and(|of| of.step.peak > 1000));
    let least = LayoutSearch { watch: &|_| true, memory: 0, ..search(&job, &machine, 2) }.find::<Cpu<Bf16>>();
    let some = of(least.least.unwrap().step.peak * 2);
    assert!(some.least.is_none() && !some.best.is_empty());
}
