//! Ranks that start a call and wait for it later.
use super::{ShownWindow, explore, run};
use crate::call::windows::AllWindows;
use crate::call::{Call, Op};
use crate::threads::started::Started;
use crate::threads::watch::{PATIENT, Watch};
use crate::{Post, Reduce};
use loom::thread::spawn;
use std::sync::Arc;

/// A call whose windows are read and written: each rank takes its row of the sum.
fn scatter() -> Call {
    Call { op: Op::ReduceScatter, reduce: Some(Reduce::Sum), rows: 2, cols: 1, ..Call::barrier() }
}

/// Two or three ranks, what they give, and where what they take goes.
struct StartedRanks {
    watch: Arc<Watch>,
    started: Started,
    give: Vec<ShownWindow>,
    take: Vec<ShownWindow>,
}

impl StartedRanks {
    fn new() -> Arc<Self> {
        Self::of(2)
    }
    fn of(ranks: usize) -> Arc<Self> {
        let watch = Arc::new(Watch::alone(ranks, PATIENT));
        let windows = || (0..ranks).map(|_| ShownWindow::new()).collect();
        let started = Started::new((0..ranks).collect(), watch.clone(), None);
        Arc::new(Self { watch, started, give: windows(), take: windows() })
    }
    /// Does a rank's share: it takes what all give, added.
    fn work(_: usize, take: *mut (), windows: &AllWindows, _: &Call) {
        // SAFETY: all post such windows, and the world outlives its ranks.
        let sum = (0..windows.ranks()).map(|rank| unsafe { &*windows.of::<ShownWindow>(rank) }.read()).sum();
        // SAFETY: as above.
        unsafe { &*take.cast::<ShownWindow>() }.write(sum);
    }
    /// Writes what is given, starts the call, waits for it; then both windows are the rank's own again.
    fn round(&self, rank: usize, round: usize) {
        let (give, take) = (&self.give[rank], &self.take[rank]);
        give.write(10 * round + rank);
        let windows = [(&raw const *give).cast_mut().cast(), (&raw const *take).cast_mut().cast()];
        // SAFETY: nobody touches them before it has ended, or loom ends the model.
        let post = unsafe { self.started.post(rank, std::iter::once((windows, scatter()))) };
        let post = post.expect("nobody fails");
        self.started.finish(post, &scatter(), &Self::work).expect("nobody fails");
        assert_eq!(take.read(), 20 * round + 1);
        give.write(usize::MAX);
        take.write(usize::MAX);
    }
}

/// Kills: a share that reads a window before it was written, or is still at it when its rank goes on; one
/// that nobody does; a place used again while somebody is there; a rank left asleep.
#[test]
fn two_ranks_start_and_wait() {
    explore(Some(2), || run(&StartedRanks::new(), &[|pair| pair.round(0, 1), |pair| pair.round(1, 1)]));
}

/// Kills: a share of the second call taken for one of the first.
#[test]
fn places_are_used_again() {
    fn rounds(pair: &StartedRanks, rank: usize) {
        (1..=2).for_each(|round| pair.round(rank, round));
    }
    explore(Some(1), || run(&StartedRanks::new(), &[|pair| rounds(pair, 0), |pair| rounds(pair, 1)]));
}

/// One of three ranks gives up, another waits, the third comes late. Kills: shares that are done though one
/// has taken its post back between two looks of who waits.
#[test]
fn a_post_is_taken_back_before_the_last_one_comes() {
    fn posted(ranks: &StartedRanks, rank: usize) -> Post {
        let windows =
            [&ranks.give[rank], &ranks.take[rank]].map(|window| (&raw const *window).cast_mut().cast());
        ranks.give[rank].write(1);
        // SAFETY: nobody touches them before the post has ended, or loom ends the model.
        unsafe { ranks.started.post(rank, std::iter::once((windows, scatter()))) }.expect("nobody has failed")
    }
    fn own_again(ranks: &StartedRanks, rank: usize) {
        ranks.give[rank].write(2);
        ranks.take[rank].write(3);
    }
    explore(Some(2), || {
        let ranks = StartedRanks::of(3);
        let [post, theirs] = [0, 1].map(|rank| posted(&ranks, rank));
        let (waits, comes) = (ranks.clone(), ranks.clone());
        let waits = spawn(move || {
            let ended = waits.started.finish(theirs, &scatter(), &StartedRanks::work);
            assert!(ended.is_err() || waits.take[1].read() == 3);
            own_again(&waits, 1);
        });
        let comes = spawn(move || drop(posted(&comes, 2)));
        ranks.started.withdraw(post, &StartedRanks::work);
        own_again(&ranks, 0);
        comes.join().expect("a model that fails ends at once");
        ranks.watch.fail(0, "late");
        waits.join().expect("as above");
    });
}

/// One rank takes its post back. Kills: a window that is touched after that.
#[test]
fn a_post_is_taken_back_or_done() {
    explore(Some(2), || {
        run(
            &StartedRanks::new(),
            &[
                |pair| {
                    let windows =
                        [&pair.give[0], &pair.take[0]].map(|window| (&raw const *window).cast_mut().cast());
                    pair.give[0].write(1);
                    // SAFETY: nobody touches them before it was taken back, or loom ends the model.
                    let post = unsafe { pair.started.post(0, std::iter::once((windows, scatter()))) };
                    pair.started.withdraw(post.expect("nobody fails"), &StartedRanks::work);
                    pair.give[0].write(2);
                    pair.take[0].write(3);
                },
                |pair| {
                    let windows =
                        [&pair.give[1], &pair.take[1]].map(|window| (&raw const *window).cast_mut().cast());
                    pair.give[1].write(1);
                    // SAFETY: as above.
                    let post = unsafe { pair.started.post(1, std::iter::once((windows, scatter()))) };
                    pair.started.withdraw(post.expect("nobody fails"), &StartedRanks::work);
                    pair.give[1].write(2);
                    pair.take[1].write(3);
                },
            ],
        );
    });
}
