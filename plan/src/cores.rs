//! Work for all cores.
use parallel::Result;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Measures every key, on all cores. Keys that do not fit are left out.
pub(crate) fn measured<K: Clone + Eq + Hash + Send + Sync, T: Send>(
    keys: impl IntoIterator<Item = K>,
    measure: impl Fn(&K) -> Result<T> + Sync,
) -> HashMap<K, T> {
    let known = each(keys, |key| measure(key).ok().map(|cost| (key.clone(), cost)));
    known.into_iter().flatten().collect()
}

/// Does the same with every one of `all`, on all cores. Returns the results in the same order.
pub(crate) fn each<K: Sync + Send, T: Send>(
    all: impl IntoIterator<Item = K>,
    work: impl Fn(&K) -> T + Sync,
) -> Vec<T> {
    let (all, next): (Vec<K>, _) = (all.into_iter().collect(), AtomicUsize::new(0));
    let some = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(one) = all.get(at) else { return done };
            done.push((at, work(one)));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a price panics for nothing")).collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, one)| one).collect()
}
