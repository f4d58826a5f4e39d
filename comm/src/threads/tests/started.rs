//! Calls that are started and waited for later.
use crate::counting::taken;
use crate::drawn::tensor;
use crate::{Axis, CommError, Group, InPlace, Op, Reduce, Request, World};
use algorithms::Link;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use tensor::{Category, Cpu, F61, Host, Tensor};

type One = Cpu<f32>;
type Result<T> = std::result::Result<T, CommError>;
type Start = fn(&Group<Host>, &One) -> Result<Request<One>>;

fn world(ranks: usize) -> World {
    World::threads(&[(Axis::Tp, ranks)]).unwrap()
}
fn values(x: &Tensor<One>) -> Vec<f32> {
    x.read().unwrap()
}

/// Every call, at once and started, on this rank's tensors of so many rows.
type Pair = (
    fn(&Group<Host>, Tensor<One>) -> Result<Tensor<One>>,
    fn(&Group<Host>, Tensor<One>) -> Result<Request<One>>,
);
const PAIRS: [Pair; 8] = [
    (|g, mut x| g.all_reduce(&mut x, Reduce::Sum).map(|()| x), |g, x| g.start_all_reduce(x, Reduce::Sum)),
    (|g, mut x| g.all_reduce(&mut x, Reduce::Stab).map(|()| x), |g, x| g.start_all_reduce(x, Reduce::Stab)),
    (|g, x| g.all_gather(&x), |g, x| g.start_all_gather(x)),
    (|g, x| g.all_gather_v(&uneven(g, x), &counts(g)), |g, x| g.start_all_gather_v(uneven(g, x), &counts(g))),
    (|g, x| g.reduce_scatter(&x), |g, x| g.start_reduce_scatter(x)),
    (|g, x| g.reduce_scatter_v(&x, &cut(g)), |g, x| g.start_reduce_scatter_v(x, &cut(g))),
    (|g, x| g.all_to_all(&x), |g, x| g.start_all_to_all(x)),
    (
        |g, x| g.all_to_all_v(&x, &between(g), &between(g)),
        |g, x| g.start_all_to_all_v(x, [&between(g); 2], 0),
    ),
];
/// Rows that are `ranks·(ranks − 1)` more than twice the ranks, as `between` gives away.
fn rows(g: &Group<Host>) -> usize {
    2 * g.size() * g.size()
}
fn counts(g: &Group<Host>) -> Vec<usize> {
    (0..g.size()).collect()
}
fn uneven(g: &Group<Host>, x: Tensor<One>) -> Tensor<One> {
    x.first_rows(g.rank())
}
fn cut(g: &Group<Host>) -> Vec<usize> {
    let mut cut: Vec<_> = (0..g.size()).map(|rank| 2 * g.size() + rank).collect();
    let more = g.size() * (g.size() - 1) / 2;
    *cut.last_mut().unwrap() -= more;
    cut
}
/// As many rows between two ranks both ways, in all those of `rows`.
fn between(g: &Group<Host>) -> Vec<usize> {
    let (n, me) = (g.size(), g.rank());
    let mut give: Vec<_> = (0..n).map(|peer| 2 * n + usize::from((me + peer) % 2 == 0)).collect();
    let all: usize = give.iter().sum();
    give[me] -= all - rows(g);
    give
}

/// Started in one order and waited for in another. Kills: another sum, a share left out or done twice, a
/// result in another rank's place, traffic that is not counted, a request that gives another's tensor.
#[test]
fn started_calls_give_what_calls_give_bit_for_bit() {
    for ranks in 1..6 {
        let run = |backwards: bool| {
            world(ranks).run(|device: One, mesh| {
                let group = mesh.group(Axis::Tp);
                let mine = |n: usize| tensor(&device, mesh.rank() + 10 * n, [rows(group), 37]);
                let at_once: Result<Vec<_>> = PAIRS
                    .iter()
                    .enumerate()
                    .map(|(n, (call, _))| Ok(values(&call(group, mine(n))?)))
                    .collect();
                let (at_once, before) = (at_once?, mesh.ledger());
                let started: Result<Vec<_>> =
                    PAIRS.iter().enumerate().map(|(n, (_, start))| start(group, mine(n))).collect();
                let mut started: Vec<_> = started?.into_iter().zip(at_once).collect();
                if backwards && mesh.rank() % 2 == 0 {
                    started.reverse();
                }
                for (request, wanted) in started {
                    assert_eq!(values(&request.wait()?), wanted, "rank {} of {ranks}", mesh.rank());
                }
                assert_eq!(mesh.ledger() - &before, before);
                Ok::<_, CommError>(())
            })
        };
        run(false).unwrap();
        run(true).unwrap();
    }
}

/// Kills: a rank that needs the others' help once they have posted, so that nothing overlaps.
#[test]
fn who_waits_works_while_others_compute() {
    let (done, reported) = std::sync::mpsc::channel();
    let (done, reported) = (Mutex::new(done), Mutex::new(reported));
    let sums = world(3).run(|device: One, mesh| {
        let group = mesh.group(Axis::Tp);
        let request = group.start_all_reduce(tensor(&device, mesh.rank(), [64, 100]), Reduce::Sum)?;
        if mesh.rank() != 1 {
            reported.lock().unwrap().recv().unwrap(); // computes until rank 1 has its sum
            return Ok(values(&request.wait()?));
        }
        let sum = values(&request.wait()?);
        (0..2).for_each(|_| done.lock().unwrap().send(()).unwrap());
        Ok::<_, CommError>(sum)
    });
    let sums = sums.unwrap();
    assert!(sums[0] == sums[1] && sums[1] == sums[2]);
}

/// Kills: tensors that change places, a meeting for each, an empty list that waits.
#[test]
fn many_tensors_meet_once() {
    let ran = world(3).run(|device: One, mesh| {
        let group = mesh.group(Axis::Tp);
        let shapes = [[3, 5], [0, 2], [64, 33], [1, 1]];
        let mine = || shapes.map(|shape| tensor(&device, mesh.rank(), shape));
        let mut one_by_one = mine();
        one_by_one.iter_mut().try_for_each(|x| group.all_reduce(x, Reduce::Sum))?;
        let before = mesh.ledger();
        let together = group.start_all_reduce_together(mine().into(), Reduce::Sum)?.wait()?;
        let said = (mesh.ledger() - &before).get(Axis::Tp, Op::AllReduce);
        assert_eq!((said.calls, said.elements), (1, 15 + 64 * 33 + 1));
        assert!(
            together.iter().zip(&one_by_one).all(|(a, b)| a.shape() == b.shape() && values(a) == values(b))
        );
        assert!(group.start_all_reduce_together(Vec::<Tensor<One>>::new(), Reduce::Sum)?.wait()?.is_empty());
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Kills: a block of another rank or tensor, addends that are read after they were overwritten, a block that
/// is not this rank's and changes where it should not, or one that is not gathered; traffic of all ranks'
/// blocks, or of none.
#[test]
fn many_tensors_are_gathered_and_scattered_in_place() {
    let ran = world(3).run(|device: One, mesh| {
        let (group, rank) = (mesh.group(Axis::Tp), mesh.rank());
        let shapes = [[3, 5], [6, 700], [3, 1]];
        let mine = || shapes.map(|shape| tensor(&device, rank, shape));
        let own = |x: &Tensor<One>| {
            let (len, x) = (x.len() / 3, values(x));
            [x[..rank * len].to_vec(), x[rank * len..][..len].to_vec(), x[(rank + 1) * len..].to_vec()]
        };
        let before = mesh.ledger();
        let scattered = group.start_together(InPlace::ReduceScatter, mine().into())?.wait()?;
        let gathered = group.start_together(InPlace::AllGather, mine().into())?.wait()?;
        let said = mesh.ledger() - &before;
        let said = [Op::ReduceScatter, Op::AllGather].map(|op| said.get(Axis::Tp, op));
        assert_eq!(said.map(|said| (said.calls, said.elements)), [(1, 3 * 1406), (1, 1406)]);
        assert_eq!(said[0].bytes, said[1].bytes);
        for ((mine, scattered), gathered) in mine().into_iter().zip(&scattered).zip(&gathered) {
            let block = Tensor::from_fn(&device, Category::Buffers, mine.rows() / 3, mine.cols(), |i| {
                own(&mine)[1][i]
            });
            assert_eq!(values(gathered), values(&group.all_gather(&block)?));
            let [before, _, after] = own(&mine);
            assert_eq!(own(scattered), [before, values(&group.reduce_scatter(&mine)?), after]);
        }
        let odd = group.start_together(InPlace::AllGather, vec![tensor(&device, rank, [4, 1])]).map(drop);
        assert!(odd.unwrap_err().to_string().starts_with("4 rows cannot be cut into equal blocks"));
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Errors of ranks 0 and 1 that start these.
fn reported(acts: [Start; 2]) -> [String; 2] {
    let reported = [const { Mutex::new(String::new()) }; 2];
    let ran = world(2).run(|device: One, mesh| {
        let request = acts[mesh.rank()](mesh.group(Axis::Tp), &device)?;
        let error = request.wait().err().expect("they differ");
        *reported[mesh.rank()].lock().unwrap() = error.to_string();
        Err::<(), _>(error)
    });
    assert!(ran.unwrap_err().reason.starts_with("ranks disagree"));
    reported.map(|reported| reported.into_inner().unwrap())
}

/// Kills: started calls that are taken for each other: of other shapes, operations, reductions or numbers of
/// tensors.
#[test]
fn ranks_that_start_different_calls_both_get_an_error() {
    let here = "comm/src/threads/tests/started.rs:";
    let one = |g: &Group<Host>, d: &One| g.start_all_reduce(tensor(d, 0, [2, 3]), Reduce::Sum);
    let others: [(Start, &str); 3] = [
        (|g, d| g.start_all_reduce(tensor(d, 0, [3, 2]), Reduce::Sum), "all_reduce(sum) over tp of 3x2 f32"),
        (
            |g, d| g.start_all_reduce(tensor(d, 0, [2, 3]), Reduce::Stab),
            "all_reduce(stab) over tp of 2x3 f32",
        ),
        (|g, d| g.start_all_gather(tensor(d, 0, [2, 3])), "all_gather over tp of 2x3 f32"),
    ];
    for (other, words) in others {
        let [zero, first] = reported([one, other]);
        let mine = format!("all_reduce(sum) over tp of 2x3 f32 at {here}");
        assert!(zero.contains(&format!("rank 0 is in {mine}")) && zero.contains(words), "{zero}");
        assert!(
            first.contains(&format!("rank 1 is in {words} at {here}")) && first.contains(&mine),
            "{first}"
        );
    }
    let ran = world(2).run(|device: One, mesh| {
        let tensors = (0..=mesh.rank()).map(|_| tensor(&device, 0, [1, 1])).collect();
        mesh.group(Axis::Tp).start_all_reduce_together(tensors, Reduce::Sum)?.wait().map(drop)
    });
    assert!(ran.unwrap_err().reason.starts_with("ranks disagree"));
}

/// Kills: a started call forgotten without a word, a peer that is not told or hangs, a post that outlives its
/// tensors.
#[test]
fn who_never_waits_for_a_started_call_is_named() {
    for (first, late) in [(0, false), (1, false), (0, true)] {
        let error = world(2).run(|device: One, mesh| {
            let group = mesh.group(Axis::Tp).named("head");
            if late && mesh.rank() == 1 {
                group.barrier()?; // rank 0 has dropped its request then
            }
            let request = group.start_all_reduce(tensor(&device, mesh.rank(), [30, 40]), Reduce::Sum)?;
            if mesh.rank() != first {
                return request.wait().map(drop);
            }
            drop(request);
            let forgotten = group.barrier();
            assert!(matches!(forgotten, Err(CommError::Forgotten { .. })), "{forgotten:?}");
            forgotten
        });
        let (error, words) =
            (error.unwrap_err(), "never waited for all_reduce(sum) over tp of 30x40 f32 for head at ");
        assert!(error.rank == first && error.reason.starts_with(words), "{error}");
    }
}

/// Kills: many tensors under way that are forgotten without a word, or leave their posts behind.
#[test]
fn who_never_waits_for_many_tensors_is_named() {
    let error = world(2).run(|device: One, mesh| {
        let group = mesh.group(Axis::Tp).named("gradients of blocks.0");
        let tensors = (1..4).map(|rows| tensor(&device, mesh.rank(), [rows, 40])).collect();
        let sums = group.start_all_reduce_together(tensors, Reduce::Sum)?;
        if mesh.rank() == 1 {
            return sums.wait().map(drop);
        }
        drop(sums);
        Ok(())
    });
    let error = error.unwrap_err();
    let words = "never waited for all_reduce(sum) over tp of 1x240 f32 for gradients of blocks.0 at ";
    assert!(error.rank == 0 && error.reason.starts_with(words), "{error}");
}

/// Rank 0 takes its post back before rank 1 has come. Kills: a post that counts though it was taken back, so
/// that its memory is read.
#[test]
fn a_post_that_was_taken_back_has_never_come() {
    let [(tell, hear), (answer, answered)] = [(); 2].map(|()| {
        let (tell, hear) = std::sync::mpsc::channel();
        (Mutex::new(tell), Mutex::new(hear))
    });
    let error = world(2).run(|device: One, mesh| {
        let start = || mesh.group(Axis::Tp).start_all_gather(tensor(&device, mesh.rank(), [4, 4]));
        if mesh.rank() == 0 {
            drop(start()?);
            tell.lock().unwrap().send(()).unwrap();
            answered.lock().unwrap().recv().unwrap();
            return Ok(());
        }
        hear.lock().unwrap().recv().unwrap();
        let request = start()?;
        answer.lock().unwrap().send(()).unwrap();
        let outcome = request.wait().map(drop);
        assert!(outcome.is_err(), "rank 0 has taken its post back");
        outcome
    });
    let error = error.unwrap_err();
    assert!(error.rank == 0 && error.reason.starts_with("never waited for all_gather"), "{error}");
}

/// Kills: a rank that waits for ever for one that failed, finished or came too late; another rank's name.
#[test]
fn who_does_not_come_to_a_started_call_is_named() {
    let run = |act: &(dyn Fn() -> std::result::Result<(), String> + Sync), limit| {
        let both_have_started = Barrier::new(2); // so that only the limit's end is a matter of time
        let ran = world(3).limit(limit).run(|device: One, mesh| {
            if mesh.rank() == 2 {
                return act();
            }
            let request = mesh.group(Axis::Tp).start_all_gather(tensor(&device, 0, [4, 4]));
            both_have_started.wait();
            request.and_then(Request::wait).map(drop).map_err(|error| error.to_string())
        });
        ran.unwrap_err()
    };
    let long = Duration::from_secs(20);
    let error = run(&|| Err("disk on fire".into()), long);
    assert_eq!((error.rank, error.reason.as_str()), (2, "disk on fire"));
    let error = run(&|| Ok(()), long);
    assert!(error.reason.starts_with("rank 2 has finished and will not enter all_gather"), "{error}");
    let late = || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    };
    let error = run(&late, Duration::from_millis(100));
    assert!(error.reason.starts_with("rank 2 did not arrive within 100ms at all_gather"), "{error}");
}

/// Kills: a rank that gave up, and then is named as one that did not come.
#[test]
fn who_gave_up_is_not_late() {
    let gave_up = Barrier::new(2);
    let ran = world(3).limit(Duration::from_millis(100)).run(|device: One, mesh| {
        if mesh.rank() == 2 {
            std::thread::sleep(Duration::from_secs(1));
            return Ok(());
        }
        let request = mesh.group(Axis::Tp).start_all_gather(tensor(&device, 0, [4, 4]))?;
        if mesh.rank() == 1 {
            gave_up.wait();
            return request.wait().map(drop);
        }
        let outcome = request.wait().map(drop);
        gave_up.wait();
        std::thread::sleep(Duration::from_millis(500)); // rank 1 is the first to end
        outcome
    });
    let error = ran.unwrap_err();
    assert!(
        error.rank == 0 && error.reason.starts_with("rank 2 did not arrive within 100ms at all_gather"),
        "{error}"
    );
}

/// Two calls that move 20 ms of bytes each, and wait a little. Kills: calls in flight that each have the link
/// for themselves, or a blocking call that has; latencies one after the other, time that begins when the rank
/// waits.
#[test]
fn started_calls_share_a_slow_link() {
    let link: Link = "5ms,100kB/s".parse().unwrap(); // two ranks: 2·5 ms, and as long as one tensor takes
    let ran = world(2).link(Axis::Tp, link).run(|device: One, mesh| {
        let group = mesh.group(Axis::Tp);
        let x = || Tensor::from_fn(&device, Category::Buffers, 20, 25, |_| 1.0f32); // 2 kB: 20 ms
        let from = Instant::now();
        let (first, second) =
            (group.start_all_reduce(x(), Reduce::Sum)?, group.start_all_reduce(x(), Reduce::Sum)?);
        let posted = from.elapsed();
        first.wait()?;
        let first = from.elapsed();
        second.wait()?;
        let second = from.elapsed();
        group.barrier()?;
        let (from, mut at_once) = (Instant::now(), x());
        let started = group.start_all_reduce(x(), Reduce::Sum)?;
        group.all_reduce(&mut at_once, Reduce::Sum)?;
        let blocking = from.elapsed();
        started.wait()?;
        Ok::<_, CommError>([posted, first, second, blocking])
    });
    let ms = Duration::from_millis;
    for times @ [posted, first, second, blocking] in ran.unwrap() {
        assert!(posted < ms(10) && first >= ms(30) && second >= ms(50), "{times:?}");
        assert!(blocking >= ms(50), "a blocking call goes after what is under way: {times:?}");
    }
}

/// Kills: lists that grow with every call.
#[test]
fn started_calls_take_no_memory_in_a_steady_state() {
    let ran = world(3).run(|device: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp).named("blocks.0");
        let mut x = Tensor::from_fn(&device, Category::Buffers, 10, 100, |_| F61::new(1));
        let mut list =
            (0..4).map(|_| Tensor::from_fn(&device, Category::Buffers, 5, 5, |_| F61::new(2))).collect();
        let mut fewest = usize::MAX;
        for _ in 0..100 {
            let before = taken();
            let (one, many) = (
                group.start_all_reduce(x, Reduce::Sum)?,
                group.start_all_reduce_together(list, Reduce::Sum)?,
            );
            (x, list) = (one.wait()?, many.wait()?);
            fewest = fewest.min(taken() - before); // a long wait is announced, which takes some
        }
        Ok::<_, CommError>(fewest)
    });
    assert_eq!(ran.unwrap(), [0; 3]);
}
