//! Each process of these tests is a thread with its own connections and its own world.
mod faults;
mod secrets;
mod shares;
mod strangers;
mod waits;

use super::launch::Launch;
use super::processes::Processes;
use super::run_inputs::RunInputs;
use super::secret::Secret;
use crate::{Axis, CommError, Group, InPlace, Mesh, RankError, Reduce, Tag, World};
use kernels::Kernels;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use tensor::{Bf16, Category, Cpu, Host, Scalar, Tensor};

type Sizes<'a> = &'a [(Axis, usize)];
const LIMIT: Duration = Duration::from_secs(20);

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
fn asked(words: &str) -> RunInputs {
    RunInputs { words: words.into(), ..RunInputs::default() }
}
/// Meets, and goes again.
fn met(launch: &Launch, words: &str, limit: Duration) -> Result<(), String> {
    Processes::meet(launch, &asked(words), limit).map(drop).map_err(|error| error.why)
}
/// Results of `ranks` processes that have met.
pub(super) fn each<T: Send>(ranks: usize, process: impl Fn(Arc<Processes>) -> T + Sync) -> Vec<T> {
    let port = port();
    scope(|threads| {
        let one = |rank| {
            let process = &process;
            threads.spawn(move || {
                process(Processes::meet(&Launch::nearby(rank, ranks, port), &asked("a test"), LIMIT).unwrap())
            })
        };
        let all: Vec<_> = (0..ranks).map(one).collect();
        all.into_iter().map(|process| process.join().unwrap()).collect()
    })
}
/// Results of the rank of each process.
fn ran<D: Kernels<Place = Host>, T: Send>(
    sizes: Sizes,
    limit: Duration,
    program: impl Fn(D, Mesh<Host>) -> Result<T, CommError> + Sync,
) -> Vec<Result<Vec<T>, RankError>> {
    let world = World::threads(sizes).unwrap().limit(limit);
    each(world.size(), |processes| world.clone().over(&processes).unwrap().run(&program))
}

/// All that the ranks of a group do together, on numbers that differ by rank.
fn together<D: Kernels<Place = Host>>(
    device: &D,
    rank: usize,
    group: &Group<Host>,
) -> Result<Vec<D::Elem>, CommError> {
    let (n, place) = (group.size(), group.rank());
    let draw = |seed: usize, rows, cols| {
        let value = |i| D::Elem::sample(tensor::mix((seed * 1000 + rank * 100 + i) as u64), 1.0);
        Tensor::from_fn(device, Category::Buffers, rows, cols, value)
    };
    let counts: Vec<_> = (0..n).map(|to| (to * 3 + 1) % 4).collect(); // one of them 0 for two ranks or more
    let all_rows = counts.iter().sum();
    let [mut sum, mut most, mut sent] = [1, 2, 3].map(|seed| draw(seed, 6, 7));
    let started = group.start_together(InPlace::ReduceScatter, vec![draw(4, 2 * n, 5), draw(5, 3 * n, 1)])?;
    let gathered = group.start_together(InPlace::AllGather, vec![draw(6, 2 * n, 3)])?;
    let alone = group.start_all_reduce(draw(7, 50, 7), Reduce::Sum)?;
    let many = group.start_all_reduce_together(vec![draw(19, 3, 40), draw(20, 70, 3)], Reduce::Sum)?;
    group.all_reduce(&mut sum, Reduce::Sum)?;
    group.all_reduce(&mut most, Reduce::Stab)?;
    group.broadcast(&mut sent, n - 1)?;
    let give: Vec<_> = (0..n).map(|to| place + to).collect();
    let mut all = vec![
        group.all_gather(&draw(8, 2, 3))?,
        group.all_gather_columns(&draw(9, 2, 3), 3 * n - usize::from(n > 1))?,
        group.all_gather_v(&draw(10, counts[place], 2), &counts)?,
        group.reduce_scatter(&draw(11, 2 * n, 3))?,
        group.reduce_scatter_v(&draw(12, all_rows, 3), &counts)?,
        group.all_to_all(&draw(13, 3 * n, 2))?,
        group.all_to_all_v(&draw(14, give.iter().sum(), 2), &give, &give)?,
        group.scatter(device, (place == n - 1).then(|| draw(15, 2 * n, 2)).as_ref(), n - 1, 2, 2)?,
    ];
    let [next, last] = [1, n - 1].map(|step| (place + step) % n);
    if n > 1 {
        // all send before any receives
        let large = group.start_send(next, draw(16, 300, 1000), Tag::new("large", 0))?;
        let other = group.start_send(next, draw(17, 1, 4), Tag::new("ring", 7))?;
        all.push(group.receive(device, last, 1, 4, Tag::new("ring", 7))?);
        all.push(group.receive(device, last, 300, 1000, Tag::new("large", 0))?);
        drop((large.wait()?, other.wait()?));
    }
    all.extend(group.gather(&draw(18, 2, 2), 0)?);
    group.barrier()?;
    all.extend(alone.wait());
    all.extend([sum, most, sent]);
    all.extend(many.wait()?);
    let own = started.wait()?;
    all.extend(gathered.wait()?);
    let values = group.all_gather_values(&vec![rank as u32; place])?.concat();
    let values = values.into_iter().map(|x| D::Elem::from_usize(x as usize));
    let mut largest = [rank, 7];
    group.all_reduce_values(&mut largest, usize::max)?;
    let block = |x: &Tensor<D>| x.read().unwrap()[place * x.len() / n..(place + 1) * x.len() / n].to_vec();
    let values = values.chain(largest.map(D::Elem::from_usize)).chain(own.iter().flat_map(block));
    Ok(all.iter().flat_map(|x| x.read().unwrap()).chain(values).collect())
}

/// Kills: another block, root, order of addends, counts or dtype of any call across processes; a message that
/// does not arrive while both sides send; a second run on the same connections that hears of the first.
#[test]
fn processes_have_what_threads_have_bit_for_bit() {
    fn same<D: Kernels<Place = Host>>(sizes: Sizes) {
        let program = |device: D, mesh: Mesh<Host>| {
            let mut all = together(&device, mesh.rank(), mesh.world())?;
            for (_, group) in mesh.axes() {
                all.extend(together(&device, mesh.rank(), group)?);
            }
            Ok::<_, CommError>((
                all,
                mesh.ledger().iter().map(|kept| format!("{kept:?}")).collect::<Vec<_>>(),
            ))
        };
        let world = World::threads(sizes).unwrap();
        let threads = world.run(program).unwrap();
        let processes = each(world.size(), |processes| {
            let world = world.clone().over(&processes).unwrap();
            [0, 1].map(|_| world.run(program).unwrap())
        });
        for (rank, (processes, threads)) in processes.into_iter().zip(threads).enumerate() {
            for ran in processes {
                assert!(ran == [threads.clone()], "rank {rank} of {sizes:?}");
            }
        }
    }
    same::<Cpu<f32>>(&[]);
    same::<Cpu<f32>>(&[(Axis::Tp, 2)]);
    same::<Cpu<Bf16>>(&[(Axis::Tp, 3)]);
    same::<Cpu<f32>>(&[(Axis::Pp, 2), (Axis::Dp, 2)]);
}

/// Runs two ranks or three, of which `program` fails some: all processes end with this failure.
fn fails(
    ranks: usize,
    limit: Duration,
    program: impl Fn(Cpu<f32>, Mesh<Host>) -> Result<(), CommError> + Sync,
) -> (usize, String) {
    let all: Vec<_> = ran(&[(Axis::Tp, ranks)], limit, program).into_iter().map(Result::unwrap_err).collect();
    for error in &all {
        // of ranks whose limit ends at one time, each process may hear another one first
        let anyone = error.reason.contains(" did not arrive within ");
        assert_eq!(error.reason, all[0].reason);
        assert!(anyone || error.rank == all[0].rank, "{error}");
        assert_eq!(
            error.calls.to_string().lines().filter(|row| row.contains("ended")).count(),
            ranks,
            "{}",
            error.calls
        );
    }
    (all[0].rank, all[0].reason.clone())
}
fn ones(device: &Cpu<f32>, len: usize) -> Tensor<Cpu<f32>> {
    Tensor::from_fn(device, Category::Buffers, 1, len, |_| 1.0)
}

/// Kills: a rank that is late, means something else, has finished, fails, panics or forgets and is not named
/// in every process, with the place of its call.
#[test]
fn every_failure_is_named_in_all_processes() {
    let late = fails(3, Duration::from_millis(300), |_, mesh| {
        if mesh.rank() == 1 {
            sleep(Duration::from_secs(1));
        }
        mesh.world().named("a step").barrier()
    });
    let says =
        "rank 1 did not arrive within 300ms at barrier over tp for a step at comm/src/process/tests.rs:";
    assert!(late.0 != 1 && late.1.starts_with(says) && late.1.ends_with("; ranks 0 and 2 did"), "{late:?}");
    let other = fails(2, LIMIT, |device, mesh| {
        mesh.world().named("a loss").all_reduce(&mut ones(&device, 5 + mesh.rank()), Reduce::Sum)
    });
    let says = [
        "ranks disagree: rank ",
        " of 1x5 f32 for a loss at comm/src/",
        " of 1x6 f32 for a loss at comm/src/",
    ];
    assert!(says.iter().all(|says| other.1.contains(says)), "{other:?}");
    let messages = fails(2, LIMIT, |device, mesh| {
        let tag = Tag::new("x", mesh.rank());
        match mesh.rank() {
            0 => mesh.world().send(1, &ones(&device, 3), tag),
            _ => mesh.world().receive(&device, 0, 1, 3, tag).map(drop),
        }
    });
    assert!(
        messages.1.contains("1x3 f32 as x of 0 at") && messages.1.contains("1x3 f32 as x of 1 at"),
        "{messages:?}"
    );
    let finished = fails(2, LIMIT, |_, mesh| if mesh.rank() == 0 { mesh.world().barrier() } else { Ok(()) });
    assert!(
        finished.0 == 0 && finished.1.starts_with("rank 1 has finished and will not enter barrier"),
        "{finished:?}"
    );
    let reported = fails(3, LIMIT, |_, mesh| match mesh.rank() {
        2 => Err(CommError::BadWorld("no more paper".into())),
        _ => mesh.world().barrier(),
    });
    assert_eq!(reported, (2, "no more paper".into()));
    let panics = fails(3, LIMIT, |_, mesh| {
        assert!(mesh.rank() != 1, "it is one");
        mesh.world().barrier()
    });
    assert!(panics.0 == 1 && panics.1.ends_with(": it is one"), "{panics:?}");
    let forgotten = fails(2, LIMIT, |device, mesh| {
        let sum = mesh.world().start_all_reduce(ones(&device, 3), Reduce::Sum)?;
        if mesh.rank() == 1 {
            drop(sum);
            return Ok(());
        }
        sum.wait().map(drop)
    });
    assert!(forgotten.0 == 1 && forgotten.1.starts_with("never waited for all_reduce(sum)"), "{forgotten:?}");
    for round in 0..16 {
        // By chance a stand-in finds it in every process.
        let ring = fails(3, Duration::from_secs(5), |device, mesh| {
            let next = (mesh.rank() + 1) % 3;
            mesh.world().send(next, &ones(&device, 3), Tag::new("x", 0))
        });
        assert!(ring.1.starts_with("ranks wait for each other: rank "), "{round}: {ring:?}");
    }
}

/// Kills: an exited process that is waited for, or is not named; one that hangs for good and takes others
/// with it.
#[test]
fn a_process_that_is_gone_is_named() {
    let exited = each(3, |processes| {
        if processes.rank() == 1 {
            return None; // its connections close
        }
        let world = World::threads(&[(Axis::Tp, 3)]).unwrap().limit(LIMIT).over(&processes).unwrap();
        Some(world.run(|_: Cpu<f32>, mesh| mesh.world().barrier()).unwrap_err())
    });
    for error in exited.into_iter().flatten() {
        let says = "its process exited without a report, or its connection broke";
        assert!(error.rank == 1 && error.reason.starts_with(says), "{error}");
    }
    let (go_on, begun) = (AtomicBool::new(false), Instant::now());
    let hangs = ran(&[(Axis::Tp, 2)], Duration::from_millis(200), |_: Cpu<f32>, mesh: Mesh<Host>| {
        if mesh.rank() == 1 {
            while !go_on.load(SeqCst) && begun.elapsed() < LIMIT {
                sleep(Duration::from_millis(5));
            }
            return Ok(());
        }
        let outcome = mesh.world().barrier();
        sleep(Duration::from_millis(100));
        go_on.store(true, SeqCst);
        outcome
    });
    assert!(begun.elapsed() < LIMIT);
    for error in hangs {
        assert!(error.unwrap_err().reason.starts_with("rank 1 did not arrive within 200ms at barrier"));
    }
}

/// Kills: processes that meet though they do not belong together, one that is waited for though another has
/// come in its place, a missing one that is not named, a stranger that is taken for one of them.
#[test]
fn who_does_not_belong_together_does_not_meet() {
    let meet = |launches: [Launch; 2], about: [&str; 2], limit| {
        scope(|threads| {
            let zero = threads.spawn(|| met(&launches[0], about[0], limit));
            let one = threads.spawn(|| met(&launches[1], about[1], limit));
            [zero, one].map(|meeting| meeting.join().unwrap())
        })
    };
    let two = |port| [0, 1].map(|rank| Launch::nearby(rank, 2, port));
    let (port_a, port_b, port_c) = (port(), port(), port());
    let differ = meet(two(port_a), ["--lr 1", "--lr 2"], LIMIT);
    let says = "ranks have different arguments: rank 1 has --lr 2, rank 0 has --lr 1";
    assert_eq!(differ, [Err(says.to_string()), Err(says.to_string())]);
    let sizes = meet([Launch::nearby(0, 2, port_b), Launch::nearby(1, 3, port_b)], [""; 2], LIMIT);
    assert_eq!(
        sizes,
        [
            Err("rank 1 is one of 3 ranks, rank 0 one of 2".to_string()),
            Err("rank 1 is one of 3 ranks, rank 0 one of 2".to_string())
        ]
    );
    let twice = scope(|threads| {
        let all =
            [0, 1, 1].map(|rank| threads.spawn(move || met(&Launch::nearby(rank, 3, port_c), "", LIMIT)));
        all.map(|meeting| meeting.join().unwrap())
    });
    assert!(twice.iter().all(|met| *met == Err("two processes have rank 1".to_string())), "{twice:?}");

    let short = Duration::from_millis(300);
    let (late, taken, strange) = (port(), TcpListener::bind(("127.0.0.1", 0)).unwrap(), port());
    let nobody = met(&Launch::nearby(0, 3, late), "", short);
    assert_eq!(nobody, Err(format!("ranks 1, 2 did not connect to 127.0.0.1:{late} within 300ms")));
    let nobody = met(&Launch::nearby(2, 3, late), "", short).unwrap_err();
    assert!(
        nobody.starts_with(&format!("rank 2 found no rank 0 at 127.0.0.1:{late} within 300ms: ")),
        "{nobody}"
    );
    let at = taken.local_addr().unwrap().port();
    let refused = met(&Launch::nearby(0, 2, at), "", LIMIT).unwrap_err();
    assert!(refused.starts_with(&format!("rank 0 cannot listen at 127.0.0.1:{at}: ")), "{refused}");

    let both = scope(|threads| {
        threads.spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < LIMIT {
                if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", strange)) {
                    return std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").unwrap();
                }
            }
        });
        let zero = threads.spawn(|| met(&Launch::nearby(0, 2, strange), "", LIMIT));
        sleep(short);
        let one = met(&Launch::nearby(1, 2, strange), "", LIMIT);
        [zero.join().unwrap(), one]
    });
    assert_eq!(both, [Ok(()), Ok(())]);
    let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
    assert_eq!(each(3, |processes| processes.here()), [3; 3], "all have this machine's address");
    let here = |rank, port| {
        let launch = Launch { here: Some(1), ..Launch::nearby(rank, 2, port) };
        Processes::meet(&launch, &asked(""), LIMIT).unwrap().here()
    };
    let port = port();
    let said = scope(|threads| {
        [0, 1].map(|rank| threads.spawn(move || here(rank, port))).map(|one| one.join().unwrap())
    });
    assert_eq!(said, [1, 1], "as LOCAL_WORLD_SIZE says");
    let wrong = each(2, |processes| world.clone().over(&processes).map(drop).unwrap_err().to_string());
    assert_eq!(wrong, ["a world of 3 ranks needs 3 processes, one for each rank; there are 2"; 2]);
}
