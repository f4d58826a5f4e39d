//! Blocks of a group are groups: what they compute, what they count, what their ranks are told.
use super::failures::{each, world, zeros};
use super::until;
use crate::drawn::{element, tensor};
use crate::tag::TAG;
use crate::threads::watch::PATIENT;
use crate::{Axis, CommError, Group, Mesh, Reduce, Result, World};
use kernels::Kernels;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tensor::{Category, Cpu, F61, Scalar, Tensor};

fn divisors(n: usize) -> impl Iterator<Item = usize> {
    (1..=n).filter(move |&size| n.is_multiple_of(size))
}

/// Every call over `group`, whose members are these ranks of the world.
fn calls<S: Scalar>(device: &Cpu<S>, group: &Group<tensor::Host>, members: &[usize]) -> Result<()>
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host>,
{
    let (n, me, shape) = (group.size(), group.rank(), [5, 7]);
    assert_eq!(n, members.len());
    let (mine, len) = (tensor(device, members[me], shape), 5 * 7);
    let value = |x: &Tensor<Cpu<S>>| x.read().unwrap();
    let sum = |i| members[1..].iter().fold(element(members[0], i), |sum: S, &r| sum + element(r, i));

    let mut x = tensor(device, members[me], shape);
    group.all_reduce(&mut x, Reduce::Sum)?;
    assert!(value(&x).into_iter().eq((0..len).map(sum)));
    let all = members.iter().flat_map(|&r| (0..len).map(move |i| element(r, i)));
    assert!(value(&group.all_gather(&mine)?).into_iter().eq(all));
    let long = tensor(device, members[me], [5 * n, 7]);
    assert!(value(&group.reduce_scatter(&long)?).into_iter().eq((me * len..(me + 1) * len).map(sum)));
    for (root, &rank) in members.iter().enumerate() {
        let mut x = tensor(device, members[me], shape);
        group.broadcast(&mut x, root)?;
        assert!(value(&x).into_iter().eq((0..len).map(|i| element(rank, i))));
    }
    for (from, to) in (1..n).map(|to| (to - 1, to)) {
        if me == from {
            group.send(to, &mine, TAG)?;
        } else if me == to {
            let got = group.receive(device, from, 5, 7, TAG)?;
            assert!(value(&got).into_iter().eq((0..len).map(|i| element(members[from], i))));
        }
    }
    group.barrier()
}

fn blocks_equal_folds<S: Scalar>()
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host>,
{
    for ranks in [1, 2, 4, 6, 8] {
        let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, ranks)]).unwrap();
        let ran = world.run(|device: Cpu<S>, mesh| {
            for (axis, group) in mesh.axes() {
                let stride = if axis == Axis::Tp { 1 } else { ranks };
                let all: Vec<_> =
                    (0..group.size()).map(|i| mesh.rank() + i * stride - group.rank() * stride).collect();
                for size in divisors(group.size()) {
                    for _ in 0..3 {
                        let block = group.consecutive(size)?;
                        assert_eq!((block.axis(), block.rank()), (axis.into(), group.rank() % size));
                        calls(&device, &block, &all[group.rank() / size * size..][..size])?;
                        calls(&device, group, &all)?;
                    }
                }
            }
            Ok::<_, CommError>(())
        });
        ran.unwrap();
    }
}
/// Kills: a block of other ranks, an order that is not theirs, a block mixed up with the group or with blocks
/// of another size, a meeting place for each who asks.
#[test]
fn calls_over_blocks_and_over_their_group_equal_folds_over_their_ranks() {
    blocks_equal_folds::<f32>();
    blocks_equal_folds::<F61>();
}

/// Kills: a block counted from its block's first rank, a block of a block that is another than the group's.
#[test]
fn a_block_of_a_block_is_a_block_of_the_group() {
    let ran = world(8).run(|device: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        for size in [2, 1, 4, 8] {
            let block = match group.rank() % 3 {
                0 => group.consecutive(size)?,
                1 => group.consecutive(8)?.consecutive(4.max(size))?.consecutive(size)?.consecutive(size)?,
                _ => group.consecutive(4.max(size))?.consecutive(size.max(2))?.consecutive(size)?,
            };
            let first = mesh.rank() / size * size;
            calls(&device, &block, &(first..first + size).collect::<Vec<_>>())?;
            let reported = block.consecutive(3).map(drop).unwrap_err().to_string();
            let name = if size == 8 { "tp".to_string() } else { format!("tp[{first}..{}]", first + size) };
            assert!(
                reported.starts_with(&format!(
                    "the {name} group of {} has no subgroups of 3: ",
                    tensor::quoted::counted(size, "rank")
                )),
                "{reported}"
            );
        }
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Kills: a size refused only once all have come, or counted though nothing is said.
#[test]
fn sizes_that_do_not_divide_are_refused_at_once() {
    let reported = each(&world(4), |mesh| match mesh.rank() {
        2 => [0, 3, 8]
            .map(|size| mesh.group(Axis::Tp).consecutive(size).map(drop).unwrap_err().to_string())
            .to_vec(),
        _ => Vec::new(),
    });
    for (reported, size) in reported[2].iter().zip([0, 3, 8]) {
        let words = format!(
            "the tp group of 4 ranks has no subgroups of {size}: the size must be 1, 2 or 4 (at comm/"
        );
        assert!(reported.starts_with(&words), "{reported}");
    }
    let alone = Mesh::<tensor::Host>::alone();
    assert_eq!(alone.group(Axis::Tp).consecutive(1).unwrap().size(), 1);
    let reported = alone.group(Axis::Tp).consecutive(2).map(drop).unwrap_err().to_string();
    assert!(
        reported.contains("the tp group of 1 rank has no subgroups of 2: the size must be 1 ("),
        "{reported}"
    );
}

/// Kills: a failure that stays in the block, a reason lost.
#[test]
fn a_rank_that_fails_in_a_block_ends_all_at_once_with_its_reason() {
    for panics in [false, true] {
        let reported = Mutex::new(Vec::new());
        let error = world(4).run(|device: Cpu<F61>, mesh| {
            let group = mesh.group(Axis::Tp);
            let block = group.consecutive(2).unwrap();
            if mesh.rank() == 3 && !panics {
                std::thread::sleep(Duration::from_millis(2)); // most likely the others sleep by now
                return Err("disk on fire".to_string());
            }
            // The sentinel lies in the share of the second rank, whose arithmetic panics on it.
            let value = |i: usize| if i == 35 && mesh.rank() == 3 { F61::NEG_INF } else { F61::ZERO };
            let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 40, value);
            let waited =
                if mesh.rank() < 2 { group.barrier() } else { block.all_reduce(&mut x, Reduce::Sum) };
            reported.lock().unwrap().push(waited.clone());
            waited.map_err(|error| error.to_string())
        });
        let (error, reported) = (error.unwrap_err(), reported.into_inner().unwrap());
        let words = if panics { "arithmetic on the sentinel" } else { "disk on fire" };
        assert!(error.rank == 3 && error.reason.contains(words), "{error}");
        assert_eq!(reported.len(), 3);
        for reported in reported {
            match reported.unwrap_err() {
                CommError::Dead { rank: 3, reason } if reason == error.reason => {}
                CommError::Dead { rank: 3, reason } | CommError::Broken { rank: 3, reason } if panics => {
                    assert_eq!(reason, "it panicked"); // an echo of the one who shared the block
                }
                other => panic!("{other}"),
            }
        }
    }
}

type Act = fn(&Group<tensor::Host>) -> Result<()>;

/// Kills: ranks that wait for each other in a block and in its group until the limit, groups called by one
/// name.
#[test]
fn ranks_that_wait_in_a_block_and_in_its_group_both_get_an_error() {
    let group: (Act, &str) = (|g| g.barrier(), "barrier over tp at ");
    let twos: (Act, &str) = (|g| g.consecutive(2)?.barrier(), "barrier over tp[2..4] at ");
    let fours: (Act, &str) = (|g| g.consecutive(4)?.barrier(), "barrier over tp[0..4] at ");
    let send: (Act, &str) =
        (|g| g.consecutive(2)?.send(1, &zeros(1, 1), TAG), "send(to rank 3) over tp[2..4] of 1x1 ");
    let receive: (Act, &str) = (
        |g| g.receive(&Cpu::<F61>::default(), 2, 1, 1, TAG).map(drop),
        "receive(from rank 2) over tp of 1x1 ",
    );
    for (two, three, others) in [
        (group, twos, group),
        (twos, group, group),
        (fours, twos, fours),
        (twos, fours, fours),
        (fours, group, group),
        (send, receive, group),
        (send, group, group),
        (twos, receive, group),
    ] {
        let by = |rank| match rank {
            2 => two,
            3 => three,
            _ => others,
        };
        let reported = each(&world(8), |mesh| by(mesh.rank()).0(mesh.group(Axis::Tp)));
        assert!(reported[2].is_err() && reported[3].is_err(), "{reported:?}");
        let mut rings = reported.iter().filter_map(|reported| match reported {
            Err(CommError::Deadlock { waits }) => Some(waits),
            _ => None,
        });
        let ring = rings.next().unwrap_or_else(|| panic!("{reported:?}"));
        let named = ring.iter().all(|(rank, call)| call.starts_with(by(*rank).1));
        assert!(named && ring.len() == 2, "{ring:?}");
    }
}

/// Kills: a block that is made anew when it is asked for again; a block that breaks its group or its
/// neighbours.
#[test]
fn a_block_that_was_left_early_stays_so_and_others_go_on() {
    let reported = each(&world(4), |mesh| {
        let group = mesh.group(Axis::Tp);
        let first = if mesh.rank() == 3 {
            group.consecutive(2)?.all_gather(&zeros(1, 1)).map(drop)
        } else {
            group.consecutive(2)?.named("step 1").barrier()
        };
        group.barrier()?;
        Ok::<_, CommError>((first, group.consecutive(2)?.barrier()))
    });
    let reported: Vec<_> = reported.into_iter().map(Result::unwrap).collect();
    assert_eq!(reported[..2], [(Ok(()), Ok(())), (Ok(()), Ok(()))]);
    for (first, second) in &reported[2..] {
        let first = first.as_ref().unwrap_err().to_string();
        assert!(
            first.contains("all_gather over tp[2..4] of 1x1 f61 at comm/src/threads/tests/blocks.rs:"),
            "{first}"
        );
        assert!(
            first.contains("barrier over tp[2..4] for step 1 at comm/src/threads/tests/blocks.rs:"),
            "{first}"
        );
        assert!(matches!(second, Err(CommError::Broken { rank: 2 | 3, .. })), "{second:?}");
    }
}

/// Kills: a limit, or an end, that a block does not see; ranks counted along the axis where they are the
/// world's.
#[test]
fn ranks_that_do_not_come_to_a_block_are_named() {
    for late in [false, true] {
        let limit = if late { Duration::from_millis(30) } else { PATIENT };
        let exited = AtomicBool::new(!late);
        let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 4)]).unwrap().limit(limit);
        let reported = each(&world, |mesh| {
            let reported = match mesh.rank() {
                6 => mesh.group(Axis::Tp).consecutive(2)?.barrier(),
                7 => {
                    until(|| exited.load(SeqCst));
                    Ok(())
                }
                _ => Ok(()),
            };
            exited.fetch_or(mesh.rank() == 6, SeqCst);
            reported
        });
        let error = reported[6].as_ref().unwrap_err().to_string();
        let words =
            if late { "rank 7 did not arrive within " } else { "rank 7 has finished and will not enter " };
        assert!(error.starts_with(words) && error.contains("barrier over tp[2..4] at "), "{error}");
    }
}

/// Kills: traffic of a block priced as the group's, or counted twice, elsewhere or not at all.
#[test]
fn a_block_counts_what_an_axis_of_its_size_would() {
    for size in [1, 2, 4, 8] {
        let ledgers = |ranks: usize| {
            let world = World::threads(&[(Axis::Dp, 8 / ranks), (Axis::Tp, ranks)]).unwrap();
            each(&world, |mesh: &Mesh<tensor::Host>| {
                let block = mesh.group(Axis::Tp).consecutive(size)?;
                let first = mesh.rank() / size * size;
                calls(&Cpu::<F61>::default(), &block, &(first..first + size).collect::<Vec<_>>())?;
                assert_eq!(block.ledger(), mesh.ledger());
                Ok::<_, CommError>(mesh.ledger())
            })
        };
        let counted = ledgers(8);
        assert_eq!(counted, ledgers(size));
        assert!(counted.into_iter().all(|ledger| (ledger.unwrap().wire_bytes() == 0) == (size == 1)));
    }
}

/// Kills: a part that is another for who came by it another way, ranks of a part in another order than its
/// list.
#[test]
fn parts_by_colour_and_by_list_are_groups_like_any_other() {
    let ran = world(8).run(|device: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        for _ in 0..2 {
            let odd = group.split(|rank| rank % 2)?;
            let members: Vec<_> = (0..4).map(|i| 2 * i + mesh.rank() % 2).collect();
            calls(&device, &odd, &members)?;
            let same = group.subgroup(&members)?.subgroup(&[0, 1, 2, 3])?;
            calls(&device, if mesh.rank() < 4 { &odd } else { &same }, &members)?;
            let turned: Vec<_> = members.iter().rev().copied().collect();
            calls(&device, &group.subgroup(&turned)?, &turned)?;
            let pair: Vec<_> = members.chunks(2).find(|pair| pair.contains(&mesh.rank())).unwrap().to_vec();
            calls(&device, &odd.split(|rank| rank / 2)?, &pair)?;
            let turned_twice =
                || group.subgroup(&[7, 6, 5, 4, 3, 2, 1, 0])?.subgroup(&[7, 6, 5, 4, 3, 2, 1, 0]);
            let all = if mesh.rank() < 3 { group.clone() } else { turned_twice()? };
            calls(&device, &all, &[0, 1, 2, 3, 4, 5, 6, 7])?;
        }
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Kills: ranks with other ideas of a group that wait for ever.
#[test]
fn ranks_that_split_otherwise_get_an_error() {
    let error = world(4).run(|_: Cpu<F61>, mesh| {
        let colours = if mesh.rank() == 3 { 4 } else { 2 };
        mesh.group(Axis::Tp).split(|rank| rank % colours)?.named("0F1").barrier()
    });
    let why = error.unwrap_err().reason;
    assert!(why.contains("rank 3 has finished and will not enter barrier over tp[1,3] for 0F1 at "), "{why}");
}
