//! Work for all cores.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use tensor::limits;

/// Does the same with every one of `all`, on all cores. Returns the results in the same order.
pub(crate) fn each<K: Sync + Send, T: Send>(
    all: impl IntoIterator<Item = K>,
    work: impl Fn(&K) -> T + Sync,
) -> Vec<T> {
    let (all, next): (Vec<K>, _) = (all.into_iter().collect(), AtomicUsize::new(0));
    let some = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(one) = all.get(index) else { return done };
            done.push((index, work(one)));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| limits::scoped(scope, some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a price panics for nothing")).collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, one)| one).collect()
}
