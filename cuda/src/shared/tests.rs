//! Ranks on one card, on cards of their own, and as processes.
use super::*;
use crate::nccl::tests::{PLACED, placed};
use crate::{Cuda, twin};
use comm::{Axis, CommError, InPlace, Launch, Mesh, Op, Processes, RunInputs, Tag, World};
use std::net::TcpListener;
use tensor::{Bf16, Category, Cpu, Device, Scalar, Tensor};

/// All that ranks do together, on numbers that differ by rank; what each has afterwards.
fn together<D: kernels::Kernels<Place: SharedPlace>>() -> Vec<Vec<D::Elem>> {
    had::<D>(&World::threads(&[(Axis::Tp, 3)]).unwrap())
}
/// The same, of the ranks of this process.
fn had<D: kernels::Kernels<Place: SharedPlace>>(world: &World) -> Vec<Vec<D::Elem>> {
    let ran = world.run(|device: D, mesh| {
        let (group, rank) = (mesh.group(Axis::Tp), mesh.rank());
        let draw = |seed: usize, rows, cols| {
            let value = |i| D::Elem::sample(tensor::mix((seed * 1000 + rank * 100 + i) as u64), 1.0);
            Tensor::from_fn(&device, Category::Buffers, rows, cols, value)
        };
        let [mut sum, mut most, mut sent] = [1, 2, 3].map(|seed| draw(seed, 6, 7));
        group.all_reduce(&mut sum, Reduce::Sum)?;
        group.all_reduce(&mut most, Reduce::Stab)?;
        group.broadcast(&mut sent, 1)?;
        let started = group.start_together(InPlace::ReduceScatter, vec![draw(4, 6, 5)])?;
        let counts = [1, 3, 2];
        let mut all = vec![
            group.all_gather(&draw(5, 2, 3))?,
            group.all_gather_columns(&draw(6, 2, 3), 8)?,
            group.all_gather_columns(&draw(15, 2, 3), 5)?,
            group.reduce_scatter(&draw(7, 6, 3))?,
            group.reduce_scatter_v(&draw(8, 6, 3), &counts)?,
            group.all_to_all(&draw(9, 6, 2))?,
            group.all_to_all_v(
                &draw(12, 4 + rank, 2),
                &[1, 2, 1 + rank],
                &[[1, 1, 1], [2, 2, 2], [1, 2, 3]][rank],
            )?,
            group.scatter(&device, (rank == 2).then(|| draw(13, 6, 2)).as_ref(), 2, 2, 2)?,
            group.all_gather_v(&draw(10, counts[rank], 2), &counts)?,
        ];
        let next = group.start_send((rank + 1) % 3, draw(11, 1, 4), Tag::new("ring", 0))?;
        all.push(group.receive(&device, (rank + 2) % 3, 1, 4, Tag::new("ring", 0))?);
        next.wait()?;
        all.extend([sum, most, sent]);
        all.extend(group.gather(&draw(14, 2, 2), 1)?);
        let own = started.wait()?.swap_remove(0).read().unwrap();
        let own = own[rank * 10..(rank + 1) * 10].iter().copied();
        Ok::<_, CommError>(all.iter().flat_map(|x| x.read().unwrap()).chain(own).collect::<Vec<_>>())
    });
    ran.unwrap()
}

/// Kills: another order of addends, a sum rounded after each, a window that is off by an element or a rank.
#[test]
fn ranks_on_one_card_have_what_ranks_on_the_host_have_bit_for_bit() {
    if let Err(reason) = twin::install() {
        return twin::skipped(&reason);
    }
    assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>());
    assert_eq!(together::<Cuda<Bf16>>(), together::<Cpu<Bf16>>());
}

/// Kills: on NCCL, another count, block, root, order or kind of number of any call; a rank that sees
/// another's result too early; a reduction that goes past NCCL.
#[test]
fn ranks_on_cards_of_their_own_have_what_ranks_on_the_host_have() {
    let Some(nccl) = placed(&[]) else { return };
    PLACED.set(Some(nccl));
    assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>());
    assert_eq!(together::<Cuda<Bf16>>(), together::<Cpu<Bf16>>());
}

/// Results of processes that have met: threads, each with connections and a world of its own.
fn processes<T: Send>(sizes: &[(Axis, usize)], process: impl Fn(World) -> T + Sync) -> Option<Vec<T>> {
    let nccl = placed(&[])?;
    let world = World::threads(sizes).unwrap().limit(Duration::from_secs(20));
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let one = |rank: usize| {
        PLACED.set(Some(nccl));
        let launch = Launch::nearby(rank, world.size(), port);
        let met = Processes::meet(&launch, &RunInputs::default(), Duration::from_secs(20)).unwrap();
        process(world.clone().over(&met).unwrap())
    };
    Some(std::thread::scope(|threads| {
        let all: Vec<_> = (0..world.size()).map(|rank| threads.spawn(move || one(rank))).collect();
        all.into_iter().map(|process| process.join().unwrap()).collect()
    }))
}

/// Kills: NCCL's calls of processes with a part that is missing, another's, of another number or done by all;
/// an id that a group does not have; a second run that follows the order of the first.
#[test]
fn processes_on_cards_of_their_own_have_what_ranks_on_the_host_have() {
    fn same<D: kernels::Kernels<Place = Gpu>>(wanted: &[Vec<D::Elem>]) {
        let all = processes(&[(Axis::Tp, 3)], |world| [0, 1].map(|_| had::<D>(&world)));
        for (rank, runs) in all.into_iter().flatten().enumerate() {
            assert!(runs.iter().all(|had| had == &wanted[rank..=rank]), "rank {rank}");
        }
    }
    same::<Cuda<f32>>(&together::<Cpu<f32>>());
    same::<Cuda<Bf16>>(&together::<Cpu<Bf16>>());
}

/// Error that ends a run of `ranks` ranks on cards of their own.
fn ended(ranks: usize, program: impl Fn(Cuda<f32>, Mesh<Gpu>) -> Result<(), CommError> + Sync) -> String {
    let world = World::threads(&[(Axis::Tp, ranks)]).unwrap().limit(Duration::from_secs(2));
    let error = world.run(program).unwrap_err();
    assert!(!error.reason.contains("panicked"), "{error}");
    error.reason
}
/// Sums `len` elements over the ranks.
fn sum(device: &Cuda<f32>, mesh: &Mesh<Gpu>, len: usize) -> Result<Tensor<Cuda<f32>>, CommError> {
    let mut x = Tensor::from_fn(device, Category::Buffers, 1, len, |_| 1.0);
    mesh.group(Axis::Tp).named("loss").all_reduce(&mut x, Reduce::Sum)?;
    Ok(x)
}

/// Kills: a failure of NCCL that hangs, goes unnoticed, has another's name, or takes another world with it.
#[test]
fn what_fails_in_nccl_ends_all_ranks_with_its_sentence() {
    let Some(nccl) = placed(&[]) else { return };
    PLACED.set(Some(nccl));
    let broken = ended(3, |device, mesh| {
        let x = sum(&device, &mesh, 4001)?;
        drop(x.read());
        unreachable!("the sum is no sum")
    });
    let remote = "an asynchronous NCCL call failed: remote process exited or there was a network error";
    assert_eq!(broken, remote);
    let waits = ended(3, |device, mesh| {
        let x = sum(&device, &mesh, 4001)?;
        mesh.group(Axis::Tp).barrier()?;
        std::thread::sleep(2 * crate::cards::EVERY); // it is noticed by who watches
        sum(&device, &mesh, 7).map(|_| drop(x))
    });
    assert_eq!(waits, remote);
    let never = ended(3, |device, mesh| sum(&device, &mesh, 4003).map(drop));
    let words = "all_reduce(sum) over tp of 1x4003 f32 for loss at cuda/src/shared/tests.rs:";
    let end = ": NCCL's rank 0 was not ready within 1s";
    assert!(never.starts_with(words) && never.ends_with(end), "{never}");
    let alone = ended(13, |device, mesh| sum(&device, &mesh, 7).map(drop));
    assert!(alone.ends_with(": ncclCommInitRankConfig failed: unhandled system error"), "{alone}");
    assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>(), "later worlds work");
}

/// Kills: a call that never ends on cards and nobody tells of, or of which the wrong one is told.
#[test]
fn cards_that_wait_for_ever_are_named() {
    let Some(nccl) = placed(&[]) else { return };
    PLACED.set(Some(nccl));
    let stuck = |came| {
        ended(3, |device, mesh| {
            if mesh.rank() == 0 {
                twin::events(came); // those of the first launch, and what it stands for: rank 0 launches
            }
            let x = sum(&device, &mesh, 5)?;
            loop {
                std::thread::sleep(crate::cards::EVERY);
                x.read();
            }
        })
    };
    let words = "the GPU of rank 2 did not reach all_reduce(sum) over tp of 1x5 f32 for loss at ";
    let seen = stuck(2);
    assert!(seen.starts_with(words) && seen.ends_with(" within 2s; ranks 0, 1 did"), "{seen}");
    let seen = stuck(3);
    let words = "the GPUs of ranks 0, 1, 2 reached all_reduce(sum) over tp of 1x5 f32 for loss at ";
    assert!(seen.starts_with(words) && seen.ends_with(" and did not finish it within 2s"), "{seen}");
}

/// Kills: ranks on cards whose calls are not compared, or that wait for each other on their cards.
#[test]
fn who_disagrees_or_does_not_come_is_named_before_anything_is_launched() {
    let Some(nccl) = placed(&[]) else { return };
    PLACED.set(Some(nccl));
    let other = ended(2, |device, mesh| sum(&device, &mesh, 5 + mesh.rank()).map(drop));
    assert!(other.starts_with("ranks disagree: rank "), "{other}");
    let finished = ended(2, |device, mesh| match mesh.rank() {
        0 => sum(&device, &mesh, 5).map(drop),
        _ => Ok(()),
    });
    assert!(finished.starts_with("rank 1 has finished and will not enter all_reduce(sum)"), "{finished}");
    let ran = crosswise(&World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap());
    assert!(ran.into_iter().enumerate().all(|(rank, seen)| seen == crosswise_wanted(rank)));
}

/// Runs two groups' collectives and messages to both neighbours side by side a hundred times, half of the
/// ranks in the other order. Returns the results of this process's ranks, of dp=2,tp=2.
fn crosswise(world: &World) -> Vec<Vec<usize>> {
    let ran = world.run(|device: Cuda<f32>, mesh| {
        let (tp, dp, all, rank) = (mesh.group(Axis::Tp), mesh.group(Axis::Dp), mesh.world(), mesh.rank());
        let one = |x: usize| Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| x as f32);
        let (turns, [next, last], tag) = (rank % 2 == 0, [(rank + 1) % 4, (rank + 3) % 4], Tag::new("x", 0));
        let mut seen = Vec::new();
        for round in 0..100 {
            let a = tp.start_together(InPlace::AllReduce(Reduce::Sum), vec![one(rank)])?;
            let b = dp.start_together(InPlace::AllReduce(Reduce::Stab), vec![one(rank + round)])?;
            let sent = [next, last].map(|to| all.start_send(to, one(rank + round), tag));
            let [from_next, from_last] = if turns {
                let from_next = all.receive(&device, next, 1, 1, tag)?;
                [from_next, all.receive(&device, last, 1, 1, tag)?]
            } else {
                let from_last = all.receive(&device, last, 1, 1, tag)?;
                [all.receive(&device, next, 1, 1, tag)?, from_last]
            };
            let [a, b] = if turns {
                [a.wait()?, b.wait()?]
            } else {
                let b = b.wait()?;
                [a.wait()?, b]
            };
            for sent in sent {
                sent?.wait()?;
            }
            let numbers = [&a[0], &b[0], &from_next, &from_last].map(|x| x.read().unwrap()[0] as usize);
            seen.extend([numbers[0], numbers[1] - round, numbers[2] - round, numbers[3] - round]);
        }
        assert_eq!(mesh.ledger().get(Axis::Tp, Op::AllReduce).calls, 100);
        Ok::<_, CommError>(seen)
    });
    ran.unwrap()
}
/// Wanted result of a rank.
fn crosswise_wanted(rank: usize) -> Vec<usize> {
    [2 * (rank / 2 * 2) + 1, rank % 2 + 2, (rank + 1) % 4, (rank + 3) % 4].repeat(100)
}

/// Kills: processes that launch in orders of their own, so that their cards wait for each other in two calls.
#[test]
fn processes_go_through_calls_of_several_groups_in_one_order() {
    let sizes = [(Axis::Dp, 2), (Axis::Tp, 2)];
    for (rank, seen) in processes(&sizes, |world| crosswise(&world)).into_iter().flatten().enumerate() {
        assert_eq!(seen, [crosswise_wanted(rank)], "rank {rank}");
    }
}

/// Kills: a failure of NCCL, or of a rank, that some processes wait for, or know by another sentence.
#[test]
fn what_fails_in_one_process_ends_all_with_its_sentence() {
    let fails = |program: fn(Cuda<f32>, Mesh<Gpu>) -> Result<(), CommError>| {
        let all = processes(&[(Axis::Tp, 3)], |world| {
            world.limit(Duration::from_secs(2)).run(program).unwrap_err().reason
        });
        all.map(|all| {
            assert!(all.iter().all(|reason| *reason == all[0]), "{all:?}");
            all[0].clone()
        })
    };
    let never = fails(|device, mesh| sum(&device, &mesh, 4003).map(drop));
    let Some(never) = never else { return };
    assert!(
        never.starts_with("all_reduce(sum) over tp of 1x4003 f32 for loss at cuda/src/shared/tests.rs:"),
        "{never}"
    );
    assert!(never.contains(": NCCL's rank ") && never.ends_with(" was not ready within 1s"), "{never}");
    for fails_at in [0, 2] {
        let reported = if fails_at == 0 {
            fails(|device, mesh| match mesh.rank() {
                0 => Err(CommError::BadWorld("no more paper".into())),
                _ => sum(&device, &mesh, 7).map(drop),
            })
        } else {
            fails(|device, mesh| match mesh.rank() {
                2 => Err(CommError::BadWorld("no more paper".into())),
                _ => sum(&device, &mesh, 7).map(drop),
            })
        };
        assert_eq!(reported.unwrap(), "no more paper", "of rank {fails_at}");
    }
    // Rank 0's process has no part in what fails.
    let others = processes(&[(Axis::Dp, 2), (Axis::Tp, 2)], |world| {
        let ran = world.limit(Duration::from_secs(2)).run(|device: Cuda<f32>, mesh: Mesh<Gpu>| {
            sum(&device, &mesh, if mesh.rank() < 2 { 5 } else { 4003 }).map(drop)
        });
        ran.unwrap_err().reason
    });
    let others = others.unwrap();
    assert!(others.iter().all(|why| *why == others[0] && why.contains("1x4003 f32")), "{others:?}");
    let other = fails(|device, mesh| sum(&device, &mesh, 5 + mesh.rank() / 2).map(drop)).unwrap();
    assert!(other.starts_with("ranks disagree: rank "), "{other}");
}

/// Kills: a failure of the driver that is a panic with a backtrace, or none at all.
#[test]
fn memory_that_a_card_has_not_ends_the_rank_with_a_sentence() {
    if let Err(reason) = twin::install() {
        return twin::skipped(&reason);
    }
    let world = World::threads(&[(Axis::Tp, 2)]).unwrap();
    let ran = world.run(|device: Cuda<f32>, mesh| {
        let rows = if mesh.rank() == 1 { 1 << 40 } else { 1 };
        let x = Tensor::empty(&device, Category::Weights, rows, 1);
        mesh.group(Axis::Tp).barrier()?;
        Ok::<_, CommError>(x.len())
    });
    let wanted = "4398046511104 more bytes of weights do not fit beside the 0 held: the system has no more";
    assert_eq!(ran.unwrap_err().reason, wanted);
    let device = Cuda::<f32>::default();
    assert!(device.place().card().settle().is_ok());
    let error = Card::open(1).err().map(|error| error.to_string());
    assert_eq!(error.unwrap(), "there is no GPU 1; this machine has 1, numbered from 0");
}
