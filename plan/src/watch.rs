//! Events of a search, for whoever waits for it: progress to show, and a way to cut the search.
use crate::cores::each;
use crate::weighed::{Goal, SearchResult};
use parallel::{Layout, Result};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An event of a search.
pub enum SearchEvent<'a> {
    /// Prices blocks and states, from several threads.
    Pricing {
        /// Number of prices of this kind that are left.
        left: usize,
    },
    /// Weighs some layouts.
    Weighing {
        /// Best layouts and numbers so far.
        found: &'a SearchResult,
        /// Counts the layouts whose bounds are below the last of the best, which takes a moment.
        left: &'a dyn Fn() -> usize,
        /// Measure of the best layout. The least is only looked for if no layout fits without entries that
        /// only save memory.
        goal: Goal,
    },
    /// Weighs layouts for texts, from several threads.
    WeighingTexts {
        /// Number of layouts that are left.
        left: usize,
        /// Best layout so far, and its new tokens per second.
        best: Option<(Layout, f64)>,
    },
}

/// Receiver of the events of a search. Returns false, and from then on always, to cut the search, which then
/// returns the best so far.
pub type SearchWatch<'a> = &'a (dyn Fn(&SearchEvent) -> bool + Sync);

/// Measures every key, on all cores, unless the search is cut. Keys that do not fit are left out.
pub(crate) fn measured<K: Clone + Eq + Hash + Send + Sync, T: Send>(
    watch: SearchWatch,
    keys: BTreeSet<K>,
    measure: impl Fn(&K) -> Result<T> + Sync,
) -> HashMap<K, T> {
    let left = AtomicUsize::new(keys.len());
    let known = each(keys, |key| {
        let goes_on = watch(&SearchEvent::Pricing { left: left.fetch_sub(1, Relaxed) });
        let cost = goes_on.then(|| measure(key).ok()).flatten()?;
        Some((key.clone(), cost))
    });
    known.into_iter().flatten().collect()
}
