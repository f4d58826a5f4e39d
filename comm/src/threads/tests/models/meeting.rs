//! Ranks that meet and part.
use super::{ModelRanks, explore, run};
use crate::call::Call;
use crate::call::windows::AllWindows;
use crate::error::CommError;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::yield_now;
use loom::thread::spawn;
use std::sync::Arc;

fn round(ranks: &ModelRanks, rank: usize, round: usize) {
    let all: Vec<_> = (0..ranks.windows.len()).map(|rank| 10 * round + rank).collect();
    assert_eq!(ranks.collective(rank, all[rank], &Call::barrier()), Ok(all));
}
fn rounds(ranks: &ModelRanks, rank: usize) {
    (1..=2).for_each(|number| round(ranks, rank, number));
}

/// Kills: a window read before it was written, or written while a peer still reads it; a rank of the second
/// round taken for one of the first; one left asleep.
#[test]
fn two_ranks_meet_twice() {
    explore(Some(3), || run(&ModelRanks::new(2, 2), &[|ranks| rounds(ranks, 0), |ranks| rounds(ranks, 1)]));
}

/// Kills: what is seen of a peer by way of a third only; a rank woken by the first of two.
#[test]
fn three_ranks_meet() {
    explore(Some(2), || {
        run(
            &ModelRanks::new(3, 3),
            &[|ranks| round(ranks, 0, 1), |ranks| round(ranks, 1, 1), |ranks| round(ranks, 2, 1)],
        );
    });
}

/// One rank calls from one thread and then from another, which knows of the first call but need not have seen
/// what it did.
///
/// Kills: a rank that has forgotten the call before.
#[test]
fn two_threads_of_a_rank_take_turns() {
    explore(Some(2), || {
        let (ranks, first) = (ModelRanks::new(2, 2), Arc::new(AtomicBool::new(false)));
        let call = |ranks: &ModelRanks, rank: usize| {
            let work = |_: &AllWindows| ranks.windows[rank].write(1);
            let outcome = ranks.place.collective(rank, std::ptr::null_mut::<()>(), &Call::barrier(), work);
            assert_eq!(outcome, Ok(()));
        };
        let (others, reported) = (ranks.clone(), first.clone());
        let second = spawn(move || {
            while !reported.load(Relaxed) {
                yield_now();
            }
            call(&others, 0);
        });
        let others = ranks.clone();
        let peer = spawn(move || (0..2).for_each(|_| call(&others, 1)));
        call(&ranks, 0);
        first.store(true, Relaxed);
        second.join().expect("a model that fails ends at once");
        peer.join().expect("a model that fails ends at once");
    });
}

/// Kills: a rank that is in two calls at once.
#[test]
fn two_threads_of_a_rank_are_not_in_one_call() {
    fn call(ranks: &ModelRanks) {
        let work = |_: &AllWindows| ranks.windows[0].write(1);
        let outcome = ranks.place.collective(0, std::ptr::null_mut::<()>(), &Call::barrier(), work);
        assert!(matches!(outcome, Ok(()) | Err(CommError::Busy { rank: 0, .. })));
    }
    explore(None, || run(&ModelRanks::new(1, 1), &[call, call]));
}
