//! A rank that waits for a started call waits for all of its shares.
use super::*;
use crate::threads::watch::PATIENT;
use crate::{Op, Reduce};
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;

/// How often the rank with the last share lets the other run before the share is done.
const LINGERS: usize = 2000;

/// One of two ranks is still at the last share while the other waits. Kills: a rank that goes on, or frees
/// its memory, before the last share is done.
#[test]
fn nobody_returns_before_the_last_share_is_done() {
    for op in [Op::AllReduce, Op::AllGather, Op::ReduceScatter, Op::AllToAll] {
        let call = Call { op, reduce: Some(Reduce::Sum), rows: 2, cols: 1, ..Call::barrier() };
        let started = Started::new([0, 1].into(), Arc::new(Watch::alone(2, PATIENT)), None);
        let [flags, done] = [(); 2].map(|()| [const { AtomicBool::new(false) }; 2]);
        let waits = &flags;
        let work = |share: usize, _: *mut (), _: &AllWindows, _: &Call| {
            if share == 1 {
                while !waits.iter().all(|waits| waits.load(SeqCst)) {
                    yield_now();
                }
                (0..LINGERS).for_each(|_| yield_now());
            }
            done[share].store(true, SeqCst);
        };
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (started, call, done, work) = (&started, &call, &done, &work);
                scope.spawn(move || {
                    // SAFETY: there are no windows, and `work` touches none.
                    let post =
                        unsafe { started.post(rank, std::iter::once(([null_mut(); 2], call.clone()))) };
                    waits[rank].store(true, SeqCst);
                    started.finish(post.unwrap(), call, work).unwrap();
                    let all = done.each_ref().map(|done| done.load(SeqCst));
                    assert_eq!(all, [true; 2], "rank {rank} has returned from {op}");
                });
            }
        });
    }
}
