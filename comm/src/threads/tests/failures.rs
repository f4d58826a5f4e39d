//! Errors that ranks get when something goes wrong on one of them.
use super::until;
use crate::tag::TAG;
use crate::threads::watch::PATIENT;
use crate::{Axis, CommError, Group, Mesh, RankError, Reduce, Result, World};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;
use tensor::{Category, Cpu, F61, Scalar, Tensor};

type One = Mesh<tensor::Host>;
const SHORT: Duration = Duration::from_millis(200);

/// So patient that a rank which is not told, but waits until the limit, is told something else.
pub(super) fn world(ranks: usize) -> World {
    World::threads(&[(Axis::Tp, ranks)]).unwrap().limit(PATIENT)
}
pub(super) fn zeros(rows: usize, cols: usize) -> Tensor<Cpu<F61>> {
    Tensor::from_fn(&Cpu::<F61>::default(), Category::Buffers, rows, cols, |_| F61::ZERO)
}
#[track_caller]
fn reduced(group: &Group<tensor::Host>, rows: usize, cols: usize, reduce: Reduce) -> Result<()> {
    group.all_reduce(&mut zeros(rows, cols), reduce)
}
/// Returns what every rank got, where `f` itself never fails.
pub(super) fn each<T: Send>(world: &World, f: impl Fn(&One) -> T + Sync) -> Vec<T> {
    world.run(|_: Cpu<F61>, mesh| Ok::<_, CommError>(f(&mesh))).unwrap()
}

/// Kills: a field left out of the comparison, a wrong place or rank in the message, one side left waiting.
#[test]
fn ranks_in_different_calls_both_get_an_error() {
    type Act = fn(&Group<tensor::Host>) -> Result<()>;
    let cases: [(Act, Act, &str, &str); 6] = [
        (|g| g.barrier(), |g| reduced(g, 4, 6, Reduce::Sum), "barrier", "all_reduce(sum) over tp of 4x6 f61"),
        (|g| reduced(g, 4, 6, Reduce::Sum), |g| reduced(g, 6, 4, Reduce::Sum), "of 4x6 f61", "of 6x4 f61"),
        (
            |g| reduced(g, 1, 2, Reduce::Sum),
            |g| reduced(g, 1, 2, Reduce::Stab),
            "reduce(sum)",
            "reduce(stab)",
        ),
        (
            |g| g.broadcast(&mut zeros(1, 1), 0),
            |g| g.broadcast(&mut zeros(1, 1), 1),
            "broadcast(from rank 0)",
            "broadcast(from rank 1)",
        ),
        (
            |g| g.all_gather(&zeros(2, 2)).map(drop),
            |g| g.reduce_scatter(&zeros(2, 2)).map(drop),
            "all_gather over tp of 2x2",
            "reduce_scatter(sum) over tp of 2x2",
        ),
        (|g| g.all_gather(&zeros(0, 2)).map(drop), |g| g.all_gather(&zeros(0, 3)).map(drop), "0x2", "0x3"),
    ];
    for (zero, one, zeros_words, ones_words) in cases {
        let reported = each(&world(2), |mesh| {
            let group = mesh.group(Axis::Tp);
            if mesh.rank() == 0 { zero(group) } else { one(group) }
        });
        let mismatches: Vec<_> = reported.iter().filter_map(|t| t.as_ref().err()).collect();
        assert_eq!(mismatches.len(), 2, "{reported:?}");
        let Some(CommError::Mismatch { rank, mine, peer, theirs }) =
            mismatches.iter().find(|error| matches!(error, CommError::Mismatch { .. }))
        else {
            panic!("{reported:?}")
        };
        let (zeros_call, ones_call) = if *rank == 0 { (mine, theirs) } else { (theirs, mine) };
        assert_eq!(*rank + *peer, 1);
        assert!(zeros_call.contains(zeros_words) && ones_call.contains(ones_words), "{reported:?}");
    }
}

#[test]
fn both_calls_are_named_by_file_line_and_label() {
    let lines = [AtomicU32::new(0), AtomicU32::new(0)];
    let error = world(2).run(|_: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        if mesh.rank() == 0 {
            lines[0].store(line!() + 1, SeqCst);
            return group.named("head.dw").barrier();
        }
        lines[1].store(line!() + 1, SeqCst);
        reduced(group, 1, 1, Reduce::Sum)
    });
    let why = error.unwrap_err().reason;
    let [zeros_line, ones_line] = lines.map(AtomicU32::into_inner);
    let place = "at comm/src/threads/tests/failures.rs";
    assert!(why.contains(&format!("barrier over tp for head.dw {place}:{zeros_line}")), "{why}");
    assert!(why.contains(&format!("all_reduce(sum) over tp of 1x1 f61 {place}:{ones_line}")), "{why}");
}

/// Kills: labels or places in the comparison.
#[test]
fn labels_and_places_may_differ() {
    let reported = each(&world(2), |mesh| {
        let group = mesh.group(Axis::Tp);
        match mesh.rank() {
            0 => group.named("here").barrier(),
            _ => group.named("there").barrier(),
        }
    });
    assert_eq!(reported, [Ok(()), Ok(())]);
}

/// Every rank of two times two waits along the axis along which the next one does not.
#[test]
fn groups_entered_in_a_ring_get_the_whole_ring() {
    let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap();
    let reported = each(&world, |mesh| {
        let data_first = [0, 3].contains(&mesh.rank());
        let order = if data_first { [Axis::Dp, Axis::Tp] } else { [Axis::Tp, Axis::Dp] };
        order.into_iter().try_for_each(|axis| mesh.group(axis).barrier())
    });
    let rings = reported.iter().filter_map(|reported| match reported {
        Err(CommError::Deadlock { waits }) => Some(waits),
        _ => None,
    });
    let rings: Vec<_> = rings.collect();
    assert!(!rings.is_empty() && reported.iter().all(Result::is_err), "{reported:?}");
    for ring in rings {
        assert_eq!(ring.len(), 4);
        for ((rank, call), (next, _)) in ring.iter().zip(ring.iter().cycle().skip(1)) {
            let (axis, peer) = if [0, 3].contains(rank) { ("dp", rank ^ 2) } else { ("tp", rank ^ 1) };
            assert!(call.starts_with(&format!("barrier over {axis} at ")) && *next == peer, "{ring:?}");
        }
    }
}

#[test]
fn ranks_that_wait_for_each_others_messages_get_an_error() {
    type Act = fn(&Group<tensor::Host>, usize) -> Result<()>;
    let acts: [(Act, &str); 3] = [
        (|g, to| g.send(to, &zeros(1, 2), TAG), "send(to rank"),
        (|g, from| g.receive(&Cpu::<F61>::default(), from, 1, 2, TAG).map(drop), "receive(from rank"),
        (|g, _| g.barrier(), "barrier"),
    ];
    for (zero, one) in [(0, 0), (1, 1), (0, 2), (2, 1)] {
        let reported = each(&world(2), |mesh| {
            let (act, _) = acts[if mesh.rank() == 0 { zero } else { one }];
            act(mesh.group(Axis::Tp), 1 - mesh.rank())
        });
        let ring = reported.iter().find_map(|reported| match reported {
            Err(CommError::Deadlock { waits }) => Some(waits),
            _ => None,
        });
        let ring = ring.unwrap_or_else(|| panic!("{reported:?}"));
        for (rank, call) in ring {
            assert!(call.starts_with(acts[if *rank == 0 { zero } else { one }].1), "{ring:?}");
        }
    }
}

/// Kills: waiters left asleep until the limit, a reason lost.
#[test]
fn a_rank_that_fails_ends_all_at_once_with_its_reason() {
    for panics in [false, true] {
        let reported = Mutex::new(Vec::new());
        let error = world(4).run(|_: Cpu<F61>, mesh| {
            if mesh.rank() == 2 {
                sleep(Duration::from_millis(2)); // most likely the others sleep by now
                assert!(!panics, "disk melted");
                return Err("disk on fire".to_string());
            }
            let group = mesh.group(Axis::Tp);
            let waited = match mesh.rank() {
                0 => group.barrier(),
                1 => group.receive(&Cpu::<F61>::default(), 2, 1, 1, TAG).map(drop),
                _ => group.send(2, &zeros(1, 1), TAG),
            };
            reported.lock().unwrap().push(waited.clone());
            waited.map_err(|error| error.to_string())
        });
        let error = error.unwrap_err();
        if panics {
            assert!(error.reason.starts_with("panicked at comm/src/threads/tests/failures.rs:"), "{error}");
            assert!(error.reason.ends_with(": disk melted") && error.rank == 2, "{error}");
        } else {
            assert_eq!(error.to_string(), "rank 2: disk on fire");
        }
        let dead = CommError::Dead { rank: 2, reason: error.reason };
        assert_eq!(reported.into_inner().unwrap(), [Err(dead.clone()), Err(dead.clone()), Err(dead)]);
    }
}

/// Kills: a panic inside that leaves peers waiting, an echo reported for its cause.
#[test]
fn a_panic_in_the_middle_of_a_collective_is_the_reason_reported() {
    for _ in 0..50 {
        let error = world(3).run(|device: Cpu<F61>, mesh| {
            // The sentinel lies in the share of rank 1, whose arithmetic panics on it.
            let value = |i: usize| if i == 20 { F61::NEG_INF } else { F61::ZERO };
            let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 40, value);
            mesh.group(Axis::Tp).all_reduce(&mut x, Reduce::Sum)
        });
        let RankError { rank, reason, .. } = error.unwrap_err();
        assert!(rank == 1 && reason.contains("arithmetic on the sentinel"), "rank {rank}: {reason}");
    }
}

/// Kills: the wrong ranks named as missing, a limit that is not kept.
#[test]
fn late_ranks_are_named() {
    let reported = Mutex::new(Vec::new());
    let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 3)]).unwrap().limit(SHORT);
    let outcome = world.run(|_: Cpu<F61>, mesh| {
        if mesh.rank() == 4 {
            until(|| reported.lock().unwrap().len() == 2);
        } else if mesh.rank() > 2 {
            let waited = mesh.group(Axis::Tp).barrier();
            reported.lock().unwrap().push(waited.clone());
            waited?;
        }
        Ok::<_, CommError>(())
    });
    let why = outcome.unwrap_err().to_string();
    assert!(why.contains("rank 4 did not arrive within") && why.ends_with("ranks 3 and 5 did"), "{why}");
    let late = reported.into_inner().unwrap().into_iter().find_map(|reported| match reported {
        Err(CommError::Late { missing, arrived, call, limit, .. }) => Some((missing, arrived, call, limit)),
        _ => None,
    });
    let (missing, arrived, call, limit) = late.expect("one is late, the other may find the group broken");
    assert_eq!((missing, arrived), (vec![4], vec![3, 5]));
    assert!(call.starts_with("barrier over tp at ") && limit == SHORT);
}

#[test]
fn late_senders_and_receivers_are_named() {
    for sends in [true, false] {
        let done = AtomicBool::new(false);
        let reported = each(&world(3).limit(SHORT), |mesh| {
            let group = mesh.group(Axis::Tp);
            let reported = match mesh.rank() {
                1 if sends => group.send(2, &zeros(1, 1), TAG),
                1 => group.receive(&Cpu::<F61>::default(), 2, 1, 1, TAG).map(drop),
                _ => {
                    until(|| done.load(SeqCst));
                    Ok(())
                }
            };
            done.store(true, SeqCst);
            reported
        });
        let Err(CommError::Late { missing, arrived, .. }) = &reported[1] else { panic!("{reported:?}") };
        assert_eq!((&missing[..], &arrived[..]), (&[2][..], &[1][..]));
    }
}

/// Kills: a rank that has ended waited for until the limit.
#[test]
fn a_rank_that_has_finished_is_not_waited_for() {
    let reported = each(&world(4), |mesh| match mesh.rank() {
        3 => Ok(()),
        _ => mesh.group(Axis::Tp).barrier(),
    });
    let words =
        "rank 3 has finished and will not enter barrier over tp at comm/src/threads/tests/failures.rs";
    let mut finished = 0;
    for reported in &reported[..3] {
        let error = reported.as_ref().expect_err("one is missing");
        finished += usize::from(matches!(error, CommError::Finished { rank: 3, .. }));
        // the first who sees it, or who leaves for that reason
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(finished > 0);
}

#[test]
fn messages_with_a_rank_that_has_finished_are_not_waited_for() {
    for sends in [true, false] {
        let reported = each(&world(2), |mesh| match mesh.rank() {
            1 => Ok(()),
            _ if sends => mesh.group(Axis::Tp).send(1, &zeros(1, 1), TAG),
            _ => mesh.group(Axis::Tp).receive(&Cpu::<F61>::default(), 1, 1, 1, TAG).map(drop),
        });
        assert!(matches!(reported[0], Err(CommError::Finished { rank: 1, .. })), "{reported:?}");
    }
}

/// Everything that a rank did before it finished still counts.
#[test]
fn a_rank_may_finish_while_others_are_on_their_way_out() {
    for _ in 0..300 {
        assert_eq!(each(&world(3), |mesh| mesh.group(Axis::Tp).barrier()), [Ok(()), Ok(()), Ok(())]);
    }
}

/// Kills: an echo reported for its cause.
#[test]
fn the_cause_is_reported_even_if_its_echo_ends_first() {
    let echoed = AtomicBool::new(false);
    let error = world(3).limit(SHORT).run(|_: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        match mesh.rank() {
            // Leaves the group for a reason of its own, and tells it late.
            0 => {
                let outcome = group.broadcast(&mut zeros(1, 1), 0);
                until(|| echoed.load(SeqCst));
                outcome.map_err(|error| format!("in step 7: {error}"))
            }
            1 => {
                let outcome = group.barrier();
                echoed.store(true, SeqCst);
                outcome.map_err(|error| format!("an echo: {error}"))
            }
            _ => {
                until(|| echoed.load(SeqCst));
                Ok(())
            }
        }
    });
    let RankError { rank, reason, .. } = error.unwrap_err();
    assert!(rank < 2 && reason.contains(": rank 2 did not arrive within"), "rank {rank}: {reason}");
    assert!(!reason.contains("left the group early"), "rank {rank}: {reason}");
    assert_eq!(rank == 0, reason.starts_with("in step 7: "), "{reason}");
}

#[test]
fn two_threads_of_one_rank_are_refused() {
    let reported = AtomicBool::new(false);
    let outcome = world(2).run(|_: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        if mesh.rank() == 1 {
            until(|| reported.load(SeqCst));
            return group.barrier();
        }
        let enter = || {
            let outcome = group.barrier();
            reported.fetch_or(matches!(outcome, Err(CommError::Busy { rank: 0, .. })), SeqCst);
            outcome
        };
        let both = std::thread::scope(|threads| {
            let other = threads.spawn(enter);
            [enter(), other.join().unwrap()]
        });
        assert_eq!(both.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{both:?}");
        Ok::<_, CommError>(())
    });
    outcome.unwrap();
}

/// Kills: a message with another shape taken for what it is not.
#[test]
fn messages_of_another_shape_are_reported_on_both_sides() {
    let reported = each(&world(2), |mesh| match mesh.rank() {
        0 => mesh.group(Axis::Tp).named("0F1").send(1, &zeros(2, 3), TAG),
        _ => mesh.group(Axis::Tp).named("1F1").receive(&Cpu::<F61>::default(), 0, 3, 2, TAG).map(drop),
    });
    for (rank, reported) in reported.into_iter().enumerate() {
        let Err(CommError::Mismatch { rank: me, mine, peer, theirs }) = reported else {
            panic!("{reported:?}")
        };
        assert_eq!((me, peer), (rank, 1 - rank));
        let calls = if rank == 0 { [mine, theirs] } else { [theirs, mine] };
        assert!(
            calls[0].starts_with("send(to rank 1) over tp of 2x3 f61 as x of 0 for 0F1 at "),
            "{calls:?}"
        );
        assert!(
            calls[1].starts_with("receive(from rank 0) over tp of 3x2 f61 as x of 0 for 1F1 at "),
            "{calls:?}"
        );
    }
}

#[test]
fn after_a_refused_message_the_next_one_comes() {
    let reported = each(&world(2), |mesh| {
        let group = mesh.group(Axis::Tp);
        if mesh.rank() == 0 {
            [group.send(1, &zeros(1, 1), TAG), group.send(1, &zeros(2, 2), TAG)].map(|sent| sent.is_ok())
        } else {
            let receive = || group.receive(&Cpu::<F61>::default(), 0, 2, 2, TAG);
            [receive().is_ok(), receive().is_ok()]
        }
    });
    assert_eq!(reported, [[false, true]; 2]);
}
