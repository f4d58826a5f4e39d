//! Job morphing: the best layout over as many devices as are left, at the same global batch.
//!
//! ```text
//! n = N, and g·⌊N/g⌋ for groups of g = 2, 4, 8, … devices: as many whole groups as there are
//! n devices take at least as long as one with ideal kernels, divided by n: fewer than that are not tried
//! ```
//! A layout keeps its batch: data ranks need not divide it, but some of them then have a sequence more.
//!
//! Source: Athlur et al., "Varuna: scalable, low-cost training of massive deep learning models",
//! `EuroSys` 2022, arXiv:2111.04007.
use crate::search::{BEST, LayoutSearch};
use crate::space::divisions;
use crate::step::KnownPrices;
use crate::weighed::{Goal, SearchResult};
use kernels::Kernels;
use layers::Design;
use parallel::Layout;
use std::sync::Arc;

/// Sequences of the ideal device's microbatch: enough to read its weights seldom.
const AT_ONCE: usize = 8;

/// Searches the layouts of `search.ranks` devices and, if these do not divide evenly, of fewer.
pub fn find<D: Kernels>(search: &LayoutSearch) -> SearchResult {
    let numbers = numbers(search.ranks);
    let alone = if numbers.len() > 1 { alone::<D>(search) } else { 0.0 };
    let among = |needed: bool| {
        let mut found = SearchResult::default();
        for ranks in &numbers {
            let best = found.best.first().map_or(f64::INFINITY, |best| best.step.seconds);
            let is_enough = alone / *ranks as f64 >= best || search.goal == Goal::Memory;
            if found.cut || is_enough && !found.best.is_empty() {
                break;
            }
            let more = search.among::<D>(&[*ranks], needed);
            found.count(&more);
            found.best.extend(more.best);
            if search.goal == Goal::Time {
                found.best.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
            }
            found.best.truncate(BEST);
        }
        found
    };
    search.find_in::<D>(&numbers, &among)
}

/// Returns the numbers of devices that are tried, falling.
pub(crate) fn numbers(ranks: usize) -> Vec<usize> {
    let groups = (0..usize::BITS).map(|power| 1 << power).take_while(|group| *group <= ranks);
    let mut numbers: Vec<usize> = groups.map(|group| ranks / group * group).collect();
    numbers.dedup();
    numbers
}

/// Seconds of the step on one device with any memory, whose kernels all run at their best rate.
fn alone<D: Kernels>(search: &LayoutSearch) -> f64 {
    let mut ideal = search.machine.ideal();
    ideal.launch.value = 0.0;
    let microbatches = search.job.batch_size.div_ceil(AT_ONCE);
    let known = &mut KnownPrices::default();
    let step = known.step::<D>(&Layout::UNSPLIT, search.job, (microbatches, usize::MAX), &Arc::new(ideal));
    step.map_or(0.0, |step| step.seconds)
}

/// Returns the most devices, no more than `ranks`, that some layout of the model divides fully, given
/// sequences and the tokens of each.
pub fn divisible(ranks: usize, design: &Design, sizes: [usize; 2]) -> Option<usize> {
    (1..=ranks).rev().find(|ranks| !divisions(*ranks, design, sizes).is_empty())
}
