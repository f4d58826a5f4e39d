//! Two processes, of which rank 0's says the order.
use super::*;
use crate::CommError;
use crate::process::tests::each;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Results of two processes that each run `process` with their order, beside the thread that follows.
fn two<T: Send>(
    limit: Duration,
    alive: impl Fn() -> Result<()> + Clone + Send + Sync + 'static,
    process: impl Fn(&Order, usize) -> T + Sync,
) -> Vec<T> {
    each(2, |processes| {
        let order = Order::new(&processes, limit, alive.clone());
        std::thread::scope(|threads| {
            threads.spawn(|| order.follow());
            let had = process(&order, processes.rank());
            order.end();
            order.ended();
            had
        })
    })
}
fn both() -> Arc<[usize]> {
    Arc::new([0, 1])
}
const LONG: Duration = Duration::from_secs(20);

/// Kills: parts in the order in which a process finds them, a part that is given what was drawn for another
/// group or drawn again, a process that goes on before its part is done, a part of a group that has no rank
/// here.
#[test]
fn parts_are_done_as_rank_0_says_with_what_was_drawn_once_for_their_group() {
    let (drawn, met) = (AtomicUsize::new(0), Barrier::new(2));
    let done = two(
        LONG,
        || Ok(()),
        |order, rank| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let mut names = [[0, 1], [1, 1], [0, 2], [1, 2]];
            if rank == 1 {
                names.reverse();
            }
            for name in names {
                let (seen, members) = (seen.clone(), if name[0] == 0 { both() } else { Arc::new([1, 0]) });
                let draws = || vec![drawn.fetch_add(1, SeqCst) as u8];
                let part = move |drawn: &[u8]| {
                    std::thread::sleep(Duration::from_millis(5));
                    seen.lock().unwrap().push((name, drawn.to_vec()));
                };
                order.arrived(name, &members, draws, Box::new(part));
            }
            order.arrived(
                [rank, 9],
                &(Arc::new([1 - rank]) as Arc<[usize]>),
                Vec::new,
                Box::new(|_| panic!("another's")),
            );
            order.finish_parts().unwrap();
            met.wait();
            seen.lock().unwrap().clone()
        },
    );
    let wanted = [([0, 1], vec![0]), ([1, 1], vec![1]), ([0, 2], vec![0]), ([1, 2], vec![1])];
    assert_eq!(done, [wanted.to_vec(), wanted.to_vec()]);
    assert_eq!(drawn.into_inner(), 2);
}

/// Kills: a part that fails and lets its rank go on, or that fails the other's.
#[test]
fn a_part_that_fails_ends_its_rank() {
    for fails in [0, 1] {
        let ended = two(
            LONG,
            || Ok(()),
            |order, rank| {
                let part = move |_: &[u8]| {
                    if rank == fails {
                        PlaceError("a broken card".into()).unwind();
                    }
                };
                order.arrived([0, 1], &both(), Vec::new, Box::new(part));
                PlaceError::caught(|| order.finish_parts().unwrap())
            },
        );
        assert_eq!(ended[fails], Err(PlaceError("a broken card".into())));
        assert_eq!(ended[1 - fails], Ok(()));
    }
}

/// Kills: a wait without a limit or beyond a failure, a part that is done when its rank has gone on without
/// it.
#[test]
fn nothing_is_done_for_a_rank_that_no_longer_waits() {
    let (short, met) = (Duration::from_millis(100), Barrier::new(2));
    let run = |limit, alive: fn() -> Result<()>, waits: bool| {
        let met = &met;
        let ended = two(limit, alive, |order, rank| {
            let done: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
            let part = Box::new(|_: &[u8]| assert_eq!(done.fetch_add(1, SeqCst), 0));
            if rank == 0 {
                met.wait();
                order.arrived([0, 1], &both(), Vec::new, part);
                return None;
            }
            order.arrived([0, 1], &both(), Vec::new, part);
            let outcome = waits.then(|| PlaceError::caught(|| order.finish_parts()));
            order.end();
            met.wait();
            std::thread::sleep(short);
            assert_eq!(done.load(SeqCst), 0);
            outcome
        });
        ended.into_iter().flatten().next()
    };
    assert_eq!(run(LONG, || Ok(()), false), None);
    let said = "rank 0's process did not send the next call within 100ms";
    assert_eq!(run(short, || Ok(()), true), Some(Err(PlaceError(said.into()))));
    let dead = || Err(CommError::Dead { rank: 0, reason: "no more paper".into() });
    assert_eq!(run(LONG, dead, true), Some(Ok(dead())));
}
