//! Requests: messages under way while their rank goes on, and what becomes of a rank that forgets one.
use super::failures::{each, world, zeros};
use super::until;
use crate::tag::TAG;
use crate::{Axis, CommError, Group, Op, Request, Result, World};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tensor::{Category, Cpu, F61, Scalar, Tensor};

type One = Cpu<F61>;

fn number(device: &One, n: usize) -> Tensor<One> {
    Tensor::from_fn(device, Category::Buffers, 1, 1, |_| F61::from_usize(n))
}
fn value(x: &Tensor<One>) -> usize {
    x.read().unwrap()[0].canonical() as usize
}

/// Kills: a message overtaken by one started later, on either side; a request waited for out of order.
#[test]
fn messages_come_in_order_whichever_side_starts_first_and_in_whatever_order_they_are_waited_for() {
    const MESSAGES: usize = 7;
    for order in 0..MESSAGES {
        let ran = world(2).run(|device: One, mesh| {
            let group = mesh.group(Axis::Tp);
            let start = |i| match mesh.rank() {
                0 => group.start_send(1, number(&device, i), TAG),
                _ => group.start_receive(&device, 0, 1, 1, TAG),
            };
            if order % 2 == mesh.rank() {
                group.barrier()?; // the other one starts first
            }
            let started: Vec<_> = (0..MESSAGES).map(start).collect::<Result<_>>()?;
            if order % 2 != mesh.rank() {
                group.barrier()?;
            }
            let mut started: Vec<_> = started.into_iter().enumerate().collect();
            started.rotate_left(order);
            for (i, request) in started {
                assert_eq!(value(&request.wait()?), i);
            }
            Ok::<_, CommError>(mesh.ledger())
        });
        for (ledger, op) in ran.unwrap().iter().zip([Op::Send, Op::Receive]) {
            let traffic = ledger.get(Axis::Tp, op);
            assert_eq!((traffic.calls, traffic.elements), (MESSAGES, MESSAGES));
            assert_eq!(traffic.bytes, if op == Op::Send { 8 * MESSAGES } else { 0 });
        }
    }
}

/// All send first, and then receive: with requests nobody waits in a ring. One that receives later meets one
/// that does so at once.
#[test]
fn a_ring_of_requests_turns() {
    for ranks in [2, 3, 8] {
        let got = each(&world(ranks), |mesh| {
            let (group, device) = (mesh.group(Axis::Tp), Cpu::default());
            let (next, before) = ((mesh.rank() + 1) % ranks, (mesh.rank() + ranks - 1) % ranks);
            let sent = group.start_send(next, number(&device, mesh.rank()), TAG)?;
            let got = group.receive(&device, before, 1, 1, TAG)?;
            assert_eq!(value(&sent.wait()?), mesh.rank());
            let coming = group.start_receive(&device, before, 1, 1, TAG)?;
            group.send(next, &got, TAG)?;
            let got = coming.wait()?;
            Ok::<_, CommError>(value(&got))
        });
        assert!(got.into_iter().eq((0..ranks).map(|rank| Ok((rank + ranks - 2) % ranks))));
    }
}

/// Returns the end of a run in which rank 1 does this with a message that it has started to send to rank 0.
fn forgotten(
    act: impl Fn(&Group<tensor::Host>, Request<One>) -> Result<(), String> + Sync,
) -> (usize, String) {
    let error = world(2).run(|device: One, mesh| {
        let group = mesh.group(Axis::Tp).named("0F1");
        if mesh.rank() == 1 {
            let request = group.start_send(0, number(&device, 1), TAG).unwrap();
            return act(&group, request);
        }
        let reported = group.barrier().and_then(|()| group.barrier());
        reported.map_err(|error| error.to_string())
    });
    let error = error.unwrap_err();
    (error.rank, error.reason)
}

/// Kills: a request forgotten without a word, at the end, in the next call, or in the words of the peer.
#[test]
fn who_never_waits_for_a_request_is_named_with_its_call() {
    type Act = fn(&Group<tensor::Host>, Request<One>) -> Result<(), String>;
    static KEPT: Mutex<Vec<Request<One>>> = Mutex::new(Vec::new());
    let acts: [Act; 4] = [
        |_, request| {
            drop(request);
            Ok(())
        },
        |group, request| {
            drop(request);
            let next = group.barrier();
            assert!(matches!(next, Err(CommError::Forgotten { rank: 1, .. })), "{next:?}");
            next.map_err(|error| error.to_string())
        },
        |_, request| {
            std::mem::forget(request);
            Ok(())
        },
        |_, request| {
            KEPT.lock().unwrap().push(request);
            Ok(())
        },
    ];
    for act in acts {
        let (rank, reason) = forgotten(act);
        let words = "never waited for send(to rank 0) over tp of 1x1 f61 as x of 0 for 0F1 at comm/src/threads/tests/requests.rs:";
        assert!(rank == 1 && reason.starts_with(words), "rank {rank}: {reason}");
    }
    KEPT.lock().unwrap().clear(); // when its world has long ended
}

/// Kills: a post that outlives its request, so that a peer copies from or to memory that is gone.
#[test]
fn a_request_that_is_dropped_takes_its_post_back() {
    for sends in [true, false] {
        let (dropped, reported) = (AtomicBool::new(false), Mutex::new(None));
        let error = world(2).run(|device: One, mesh| {
            let group = mesh.group(Axis::Tp);
            if mesh.rank() == 0 {
                let here = number(&device, 1);
                let request = if sends {
                    group.start_send(1, here, TAG)
                } else {
                    group.start_receive(&device, 1, 1, 1, TAG)
                };
                drop(request);
                dropped.store(true, SeqCst);
                return Ok(());
            }
            until(|| dropped.load(SeqCst));
            let receive = || group.receive(&device, 0, 1, 1, TAG).map(drop);
            let outcome = if sends { receive() } else { group.send(0, &number(&device, 2), TAG) };
            *reported.lock().unwrap() = Some(outcome.clone());
            outcome
        });
        assert_eq!(error.unwrap_err().rank, 0);
        let reported = reported.into_inner().unwrap().unwrap();
        assert!(matches!(&reported, Err(CommError::Dead { rank: 0, .. })), "{reported:?}");
    }
}

/// Kills: an error or a panic hidden by the requests that it leaves behind.
#[test]
fn an_error_comes_before_the_requests_that_it_leaves_behind() {
    let (rank, reason) = forgotten(|_, request| {
        drop(request);
        Err("disk on fire".into())
    });
    assert_eq!((rank, reason.as_str()), (1, "disk on fire"));
    let (rank, reason) = forgotten(|_, _request| panic!("disk melted"));
    assert!(rank == 1 && reason.ends_with("disk melted"), "{reason}");
}

/// Kills: a refused request that is said again at the end, a post that stands on.
#[test]
fn a_request_of_another_shape_is_reported_on_both_sides_and_the_next_one_goes() {
    let reported = each(&world(2), |mesh| {
        let (group, device) = (mesh.group(Axis::Tp), Cpu::default());
        let started = match mesh.rank() {
            0 => [group.start_send(1, zeros(2, 3), TAG)?, group.start_send(1, number(&device, 5), TAG)?],
            _ => [group.start_receive(&device, 0, 3, 2, TAG)?, group.start_receive(&device, 0, 1, 1, TAG)?],
        };
        let [first, second] = started.map(Request::wait);
        assert_eq!(value(&second?), 5);
        Ok::<_, CommError>(first.map(drop).unwrap_err().to_string())
    });
    for (rank, reported) in reported.into_iter().enumerate() {
        let reported = reported.unwrap();
        assert!(reported.starts_with(&format!("ranks disagree: rank {rank} is in ")), "{reported}");
        assert!(reported.contains("send(to rank 1) over tp of 2x3 f61 as x of 0 at "), "{reported}");
        assert!(reported.contains("receive(from rank 0) over tp of 3x2 f61 as x of 0 at "), "{reported}");
    }
}

/// Kills: two threads of one rank that sleep in one place, of which one is never woken.
#[test]
fn two_threads_of_one_rank_that_wait_for_messages_are_refused() {
    let reported = AtomicBool::new(false);
    let got = each(&world(2), |mesh| {
        let (group, device) = (mesh.group(Axis::Tp), Cpu::default());
        if mesh.rank() == 1 {
            until(|| reported.load(SeqCst));
            return group.send(0, &number(&device, 5), TAG).map(|()| 1);
        }
        let receive = || {
            let got = group.receive(&device, 1, 1, 1, TAG);
            reported.fetch_or(matches!(got, Err(CommError::Busy { rank: 0, .. })), SeqCst);
            got
        };
        let both = std::thread::scope(|threads| {
            let other = threads.spawn(receive);
            [receive(), other.join().unwrap()]
        });
        let got: Vec<_> = both.into_iter().flatten().map(|x| value(&x)).collect();
        assert_eq!(got, [5]);
        Ok(got.len())
    });
    assert_eq!(got, [Ok(1), Ok(1)]);
}

/// Kills: a request left out of the flight recorder because other calls came after it.
#[test]
fn requests_under_way_stay_in_the_flight_recorder() {
    for (barriers, next) in [(9, 7), (1, 2)] {
        let error = world(2).run(|device: One, mesh| {
            let group = mesh.group(Axis::Tp);
            let request =
                (mesh.rank() == 0).then(|| group.named("0F1").start_send(1, number(&device, 1), TAG));
            for _ in 0..barriers {
                group.barrier().map_err(|error| error.to_string())?;
            }
            std::mem::forget(request);
            if mesh.rank() == 1 { Err("disk on fire".to_string()) } else { Ok(()) }
        });
        let table = error.unwrap_err().calls.to_string();
        let mut rows = table.lines().skip_while(|row| !row.starts_with("   0")); // after those of the cause
        let first = rows.next().unwrap();
        let words = ["   0     1", "under way", "send(to rank 1)", "for 0F1"];
        assert!(words.iter().all(|words| first.contains(words)), "{table}");
        assert!(rows.next().unwrap().starts_with(&format!("   0  {next:>4}")), "{table}");
    }
}

/// Kills: the call that a rank failed in left out because it began before the last ones, a forgotten one
/// under way.
#[test]
fn requests_that_failed_or_were_forgotten_stay_in_the_flight_recorder() {
    for waits in [true, false] {
        let error = world(2).run(|device: One, mesh| {
            let group = mesh.group(Axis::Tp);
            let coming =
                (mesh.rank() == 0).then(|| group.named("0F1").start_receive(&device, 1, 1, 1, TAG).unwrap());
            for _ in 0..9 {
                group.barrier().map_err(|error| error.to_string())?;
            }
            match coming {
                Some(request) if waits => request.wait().map(drop).map_err(|error| error.to_string()),
                Some(_) => Ok(()),
                None => Err("disk on fire".to_string()),
            }
        });
        let table = error.unwrap_err().calls.to_string();
        let mut rows = table.lines().filter(|row| row.starts_with("   0"));
        let first = rows.next().unwrap();
        let outcome = if waits { "failed after" } else { "never waited for" };
        assert!(first.starts_with("   0     1") && first.contains(outcome), "{table}");
    }
}

/// A tensor that is being sent is as it is; who would write it is told.
#[test]
#[should_panic(expected = "cannot write a tensor with two owners")]
fn a_tensor_under_way_is_not_written() {
    let ran = World::threads(&[(Axis::Tp, 2)]).unwrap().run(|device: One, mesh| {
        let (group, mut x) = (mesh.group(Axis::Tp), number(&device, 1));
        if mesh.rank() == 0 {
            let request = group.start_send(1, x.clone(), TAG)?;
            x.write(&mut |_| F61::ZERO);
            request.wait()?;
        }
        Ok::<_, CommError>(())
    });
    panic!("{}", ran.unwrap_err());
}
