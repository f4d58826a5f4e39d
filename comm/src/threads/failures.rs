//! What ranks are told when something goes wrong on one of them.
use crate::{Axis, CommError, Group, Mesh, RankError, Reduce, Result, World};
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{scope, yield_now};
use std::time::Duration;
use tensor::{Category, Cpu, F61, Key, Scalar, Tensor};

type One = Mesh<Cpu<F61>>;
const SHORT: Duration = Duration::from_millis(30);

fn world(ranks: usize) -> World {
    World::threads(&[(Axis::Tp, ranks)]).unwrap()
}
fn zeros(rows: usize, cols: usize) -> Tensor<Cpu<F61>> {
    Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, |_| F61::ZERO)
}
fn reduced(group: &Group<Cpu<F61>>, rows: usize, cols: usize, reduce: Reduce) -> Result<()> {
    group.all_reduce(&mut zeros(rows, cols), reduce)
}
fn until(done: impl Fn() -> bool) {
    while !done() {
        yield_now();
    }
}
/// What every rank got, where `f` itself never fails.
fn each<T: Send>(world: &World, f: impl Fn(&One) -> T + Sync) -> Vec<T> {
    world.run(|_, mesh| Ok::<_, CommError>(f(&mesh))).unwrap()
}
/// `at file:line` of the line `up` lines above the caller's.
#[track_caller]
fn above(up: u32) -> String {
    let at = Location::caller();
    format!("at {}:{}", at.file(), at.line() - up)
}

/// Kills: a field left out of the comparison, a wrong place or rank in the message, one side left waiting.
#[test]
fn ranks_in_different_calls_are_told_both() {
    type Act = fn(&Group<Cpu<F61>>) -> Result<()>;
    let cases: [(Act, Act, &str, &str); 6] = [
        (|g| g.barrier(), |g| reduced(g, 4, 6, Reduce::Sum), "barrier", "all_reduce(sum) over tp of 4x6 f61"),
        (|g| reduced(g, 4, 6, Reduce::Sum), |g| reduced(g, 6, 4, Reduce::Sum), "of 4x6 f61", "of 6x4 f61"),
        (|g| reduced(g, 1, 2, Reduce::Sum), |g| reduced(g, 1, 2, Reduce::Stab), "reduce(sum)", "reduce(stab)"),
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
        let told = each(&world(2), |mesh| {
            let group = mesh.group(Axis::Tp);
            if mesh.rank() == 0 { zero(group) } else { one(group) }
        });
        let mismatches: Vec<_> = told.iter().filter_map(|t| t.as_ref().err()).collect();
        assert_eq!(mismatches.len(), 2, "{told:?}");
        let Some(CommError::Mismatch { rank, mine, peer, theirs }) =
            mismatches.iter().find(|error| matches!(error, CommError::Mismatch { .. }))
        else {
            panic!("{told:?}")
        };
        let (zeros_call, ones_call) = if *rank == 0 { (mine, theirs) } else { (theirs, mine) };
        assert_eq!(*rank + *peer, 1);
        assert!(zeros_call.contains(zeros_words) && ones_call.contains(ones_words), "{told:?}");
    }
}

#[test]
fn both_calls_are_named_by_file_line_and_label() {
    let (mut zeros_place, mut ones_place) = (String::new(), String::new());
    let places = Mutex::new((&mut zeros_place, &mut ones_place));
    let error = world(2).run(|_: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        if mesh.rank() == 0 {
            *places.lock().unwrap().0 = above(0);  group.named("head.dw").barrier()
        } else {
            *places.lock().unwrap().1 = above(0);  reduced_here(group)
        }
    });
    let why = error.unwrap_err().reason;
    assert!(why.contains(&format!("barrier over tp for head.dw {zeros_place}")), "{why}");
    assert!(why.contains(&format!("all_reduce(sum) over tp of 1x1 f61 {ones_place}")), "{why}");
}
#[track_caller]
fn reduced_here(group: &Group<Cpu<F61>>) -> Result<()> {
    group.all_reduce(&mut zeros(1, 1), Reduce::Sum)
}

/// Kills: labels or places in the comparison.
#[test]
fn labels_and_places_may_differ() {
    let told = each(&world(2), |mesh| {
        let group = mesh.group(Axis::Tp);
        if mesh.rank() == 0 { group.named("here").barrier() } else { group.named("there").barrier() }
    });
    assert_eq!(told, [Ok(()), Ok(())]);
}

/// Every rank of two times two waits along the axis along which the next one does not.
#[test]
fn groups_entered_in_a_ring_are_told_the_whole_ring() {
    let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap();
    let told = each(&world, |mesh| {
        let data_first = [0, 3].contains(&mesh.rank());
        let order = if data_first { [Axis::Dp, Axis::Tp] } else { [Axis::Tp, Axis::Dp] };
        order.into_iter().try_for_each(|axis| mesh.group(axis).barrier())
    });
    let rings = told.iter().filter_map(|told| match told {
        Err(CommError::Deadlock { waits }) => Some(waits),
        _ => None,
    });
    let rings: Vec<_> = rings.collect();
    assert!(!rings.is_empty() && told.iter().all(Result::is_err), "{told:?}");
    for ring in rings {
        let mut ranks: Vec<_> = ring.iter().map(|(rank, _)| *rank).collect();
        assert!([1, 2].contains(&ranks[1].abs_diff(ranks[0])), "neighbours: {ring:?}");
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2, 3]);
        for (rank, call) in ring {
            let axis = if [0, 3].contains(rank) { "dp" } else { "tp" };
            assert!(call.starts_with(&format!("barrier over {axis} at ")), "{ring:?}");
        }
    }
}

#[test]
fn ranks_that_wait_for_each_others_messages_are_told() {
    type Act = fn(&Group<Cpu<F61>>, usize) -> Result<()>;
    let acts: [(Act, &str); 3] = [
        (|g, to| g.send(to, &zeros(1, 2)), "send(to rank"),
        (|g, from| g.receive(&Cpu::default(), from, 1, 2).map(drop), "receive(from rank"),
        (|g, _| g.barrier(), "barrier"),
    ];
    for (zero, one) in [(0, 0), (1, 1), (0, 2), (2, 1)] {
        let told = each(&world(2), |mesh| {
            let (act, _) = acts[if mesh.rank() == 0 { zero } else { one }];
            act(mesh.group(Axis::Tp), 1 - mesh.rank())
        });
        let ring = told.iter().find_map(|told| match told {
            Err(CommError::Deadlock { waits }) => Some(waits),
            _ => None,
        });
        let ring = ring.unwrap_or_else(|| panic!("{told:?}"));
        for (rank, call) in ring {
            assert!(call.starts_with(acts[if *rank == 0 { zero } else { one }].1), "{ring:?}");
        }
    }
}

/// Kills: waiters left asleep until the limit, a reason lost.
#[test]
fn a_rank_that_fails_ends_all_at_once_with_its_reason() {
    for panics in [false, true] {
        let told = Mutex::new(Vec::new());
        let error = world(4).run(|_: Cpu<F61>, mesh| {
            if mesh.rank() == 2 {
                std::thread::sleep(Duration::from_millis(2)); // most likely the others sleep by now
                assert!(!panics, "disk melted");
                return Err("disk on fire".to_string());
            }
            let group = mesh.group(Axis::Tp);
            let waited = match mesh.rank() {
                0 => group.barrier(),
                1 => group.receive(&Cpu::default(), 2, 1, 1).map(drop),
                _ => group.send(2, &zeros(1, 1)),
            };
            told.lock().unwrap().push(waited.clone());
            waited.map_err(|error| error.to_string())
        });
        let error = error.unwrap_err();
        if panics {
            assert!(error.reason.starts_with("panicked at comm/src/threads/failures.rs:"), "{error}");
            assert!(error.reason.ends_with(": disk melted") && error.rank == 2, "{error}");
        } else {
            assert_eq!(error.to_string(), "rank 2: disk on fire");
        }
        let dead = CommError::Dead { rank: 2, reason: error.reason };
        assert_eq!(told.into_inner().unwrap(), [Err(dead.clone()), Err(dead.clone()), Err(dead)]);
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
        let RankError { rank, reason } = error.unwrap_err();
        assert!(rank == 1 && reason.contains("arithmetic on the sentinel"), "rank {rank}: {reason}");
    }
}

/// Kills: the wrong ranks named as missing, a limit that is not kept.
#[test]
fn late_ranks_are_named() {
    let told = Mutex::new(Vec::new());
    let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 3)]).unwrap().limit(SHORT);
    let outcome = world.run(|_: Cpu<F61>, mesh| {
        if mesh.rank() == 4 {
            until(|| told.lock().unwrap().len() == 2);
        } else if mesh.rank() > 2 {
            let waited = mesh.group(Axis::Tp).barrier();
            told.lock().unwrap().push(waited.clone());
            waited?;
        }
        Ok::<_, CommError>(())
    });
    let why = outcome.unwrap_err().to_string();
    assert!(why.contains("rank 4 did not come within") && why.ends_with("ranks 3 and 5 did"), "{why}");
    let late = told.into_inner().unwrap().into_iter().find_map(|told| match told {
        Err(CommError::Late { missing, arrived, call, waited }) => Some((missing, arrived, call, waited)),
        _ => None,
    });
    let (missing, arrived, call, waited) = late.expect("one is late, the other may find the group broken");
    assert_eq!((missing, arrived), (vec![4], vec![3, 5]));
    assert!(call.starts_with("barrier over tp at ") && waited >= SHORT);
}

#[test]
fn late_senders_and_receivers_are_named() {
    for sends in [true, false] {
        let done = AtomicBool::new(false);
        let told = each(&world(3).limit(SHORT), |mesh| {
            let group = mesh.group(Axis::Tp);
            let told = match mesh.rank() {
                1 if sends => group.send(2, &zeros(1, 1)),
                1 => group.receive(&Cpu::default(), 2, 1, 1).map(drop),
                _ => return until(|| done.load(SeqCst)).into(),
            };
            done.store(true, SeqCst);
            Some(told)
        });
        let Some(Err(CommError::Late { missing, arrived, .. })) = &told[1] else { panic!("{told:?}") };
        assert_eq!((&missing[..], &arrived[..]), (&[2][..], &[1][..]));
    }
}

/// Kills: a rank that has ended waited for until the limit.
#[test]
fn a_rank_that_has_finished_is_not_waited_for() {
    for message in [true, false] {
        let told = each(&world(4), |mesh| {
            let group = mesh.group(Axis::Tp);
            match mesh.rank() {
                2 => group.barrier(),
                3 => Ok(()),
                _ if message => group.barrier().and_then(|()| group.send(3, &zeros(1, 1))),
                _ => group.barrier(),
            }
        });
        let finished = told.iter().filter_map(|told| match told {
            Err(CommError::Finished { rank, call }) => Some((*rank, call.starts_with("barrier over tp at"))),
            Err(CommError::Broken { reason, .. }) => {
                Some((3, reason.starts_with("rank 3 has finished and will not come to barrier")))
            }
            other => panic!("{other:?}"),
        });
        assert!(told[..3].iter().all(Result::is_err) && told[3].is_ok());
        assert!(finished.take(0).all(|f| f == (3, true)));
    }
}
