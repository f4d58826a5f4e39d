//! Groups over sets of axes and of any ranks: who meets, by whatever way, what is counted, what is told.
use super::failures::{each, zeros};
use crate::counting::taken;
use crate::drawn::tensor;
use crate::tag::{TAG, Tag};
use crate::threads::watch::PATIENT;
use crate::{Axes, Axis, CommError, Group, Mesh, Op, Reduce, Result, World};
use std::sync::Arc;
use tensor::{Category, Cpu, F61, Host, Scalar, Tensor};

const SIZES: [(Axis, usize); 4] = [(Axis::Dp, 2), (Axis::Cp, 2), (Axis::Tp, 2), (Axis::Ep, 4)];

fn number(device: &Cpu<F61>, value: usize) -> Tensor<Cpu<F61>> {
    Tensor::from_fn(device, Category::Buffers, 1, 1, |_| F61::from_usize(value))
}
/// The ranks of the world in this group, by asking them.
fn asked(mesh: &Mesh<Host>, group: &Group<Host>) -> Result<Vec<usize>> {
    Ok(group.all_gather_values(&[mesh.rank()])?.concat())
}

/// Kills: a group over other ranks than those that differ along its axes, another order, an order of axes
/// that is not the world's.
#[test]
fn groups_over_sets_hold_the_ranks_that_differ_along_them() {
    for order in [[Axis::Tp, Axis::Cp, Axis::Dp], [Axis::Dp, Axis::Tp, Axis::Cp]] {
        let world = World::threads(&SIZES).unwrap().order(&order).unwrap().limit(PATIENT);
        let all: Vec<Axes> = (0..8)
            .flat_map(|bits: usize| {
                [&Axis::DENSE[1..], &Axis::EXPERT[1..]].map(|axes| {
                    axes.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, &a)| a).collect()
                })
            })
            .collect();
        let reported = each(&world, |mesh| {
            let ghost = Mesh::ghost_in_order(&SIZES, &order, mesh.rank()).unwrap();
            assert_eq!((mesh.coordinates(), mesh.size()), (ghost.coordinates(), ghost.size()));
            let of = |&axes: &Axes| {
                let (group, priced) = (mesh.over(axes).unwrap(), ghost.over(axes).unwrap());
                assert_eq!(
                    (group.rank(), group.size(), group.axis()),
                    (priced.rank(), priced.size(), priced.axis())
                );
                asked(mesh, &group).unwrap()
            };
            let places: Vec<_> = Axis::ALL.iter().map(|&axis| mesh.group(axis).rank()).collect();
            (all.iter().map(of).collect::<Vec<_>>(), places)
        });
        for (rank, (groups, mine)) in reported.iter().enumerate() {
            for (axes, group) in all.iter().zip(groups) {
                let factoring = if axes.iter().all(|axis| Axis::DENSE.contains(&axis)) {
                    Axis::DENSE
                } else {
                    Axis::EXPERT
                };
                let alike = |other: &Vec<usize>| {
                    let same =
                        |&axis: &Axis| axes.contains(axis) || other[axis as usize] == mine[axis as usize];
                    factoring.iter().all(same)
                };
                let wanted: Vec<_> = (0..8).filter(|&other| alike(&reported[other].1)).collect();
                assert_eq!(*group, wanted, "rank {rank} over {axes}");
            }
        }
    }
}

/// Kills: an engine for each way to a group, one found by its first member or by its axes.
#[test]
fn ranks_meet_in_a_group_by_whatever_way_they_came() {
    let world = World::threads(&SIZES).unwrap().limit(PATIENT);
    let ran = world.run(|device: Cpu<F61>, mesh| {
        let first = mesh.rank() % 2;
        let list: Vec<_> = (0..4).map(|i| 2 * i + first).collect();
        let ways: [&dyn Fn() -> Result<Group<Host>>; 5] = [
            &|| mesh.over(Axis::Dp | Axis::Cp),
            &|| mesh.over([Axis::Cp, Axis::Dp, Axis::Pp]),
            &|| mesh.subgroup(&list),
            &|| mesh.world().split(|rank| rank % 2),
            &|| mesh.over(Axis::Dp | Axis::Tp | Axis::Cp)?.subgroup(&list)?.subgroup(&[0, 1, 2, 3]),
        ];
        for round in 0..ways.len() {
            let group = ways[(round + mesh.rank() / 2) % ways.len()]()?;
            let mut x = number(&device, mesh.rank());
            group.all_reduce(&mut x, Reduce::Sum)?;
            assert_eq!(x.read().unwrap(), [F61::from_usize(12 + 4 * first)]);
        }
        // Experts' ranks are the first four and the last four, which is what cp × tp gives, too.
        let group =
            if mesh.rank() % 2 == 0 { mesh.group(Axis::Ep) } else { &mesh.over(Axis::Cp | Axis::Tp)? };
        let four = mesh.rank() / 4 * 4;
        assert_eq!(asked(&mesh, group)?, (four..four + 4).collect::<Vec<_>>());
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Kills: channels shared by groups that have two ranks in common.
#[test]
fn messages_through_one_group_are_not_those_through_another() {
    let reported = each(&World::threads(&SIZES).unwrap().limit(PATIENT), |mesh| {
        let device = Cpu::<F61>::default();
        let (pair, more) = (mesh.group(Axis::Tp).clone(), mesh.over(Axis::Dp | Axis::Tp).unwrap());
        if mesh.rank() == 0 {
            let sent =
                [pair.start_send(1, number(&device, 7), TAG), more.start_send(1, number(&device, 8), TAG)];
            for sent in sent {
                sent.unwrap().wait().unwrap();
            }
        } else if mesh.rank() == 1 {
            let got =
                [&more, &pair].map(|group| group.receive(&device, 0, 1, 1, TAG).unwrap().read().unwrap());
            assert_eq!(got.concat(), [F61::from_usize(8), F61::from_usize(7)]);
        }
        mesh.ledger().get(Axis::Dp | Axis::Tp, Op::Send).calls
    });
    assert_eq!(reported, [1, 0, 0, 0, 0, 0, 0, 0]);
}

/// Three stages of one, two and three ranks; the first of each passes on a sum. Kills: places taken for
/// ranks, a list that only ranks along an axis may form.
#[test]
fn stages_may_have_different_numbers_of_ranks() {
    let world = World::threads(&[(Axis::Pp, 6)]).unwrap().limit(PATIENT);
    let ran = world.run(|device: Cpu<F61>, mesh| {
        let stages: [&[usize]; 3] = [&[0], &[1, 2], &[3, 4, 5]];
        let stage = stages.iter().position(|stage| stage.contains(&mesh.rank())).unwrap();
        let (group, heads) = (mesh.subgroup(stages[stage])?, stages.map(|stage| stage[0]));
        let mut x = number(&device, mesh.rank() + 1);
        if group.rank() == 0 {
            let line = mesh.subgroup(&heads)?;
            let tag = |stage| Tag::new("activation", stage);
            if stage > 0 {
                x = line.receive(&device, stage - 1, 1, 1, tag(stage))?;
            }
            if stage < 2 {
                line.send(stage + 1, &x, tag(stage + 1))?;
            }
        }
        group.all_reduce(&mut x, Reduce::Sum)?;
        let reported = group.subgroup(&[9]).map(drop).unwrap_err().to_string();
        Ok::<_, CommError>((x.read().unwrap()[0], reported))
    });
    let ran = ran.unwrap();
    let sums: Vec<_> = ran.iter().map(|(sum, _)| *sum).collect();
    assert_eq!(sums, [1, 1 + 3, 1 + 3, 1 + 5 + 6, 1 + 5 + 6, 1 + 5 + 6].map(F61::from_usize));
    assert!(
        ran[5].1.starts_with("ranks [9] form no group within the pp[3..6] group of 3 ranks"),
        "{}",
        ran[5].1
    );
}

/// Kills: a set counted under one of its axes, a part under its own, axes of one rank in a name.
#[test]
fn sets_count_by_themselves_and_go_by_the_axes_that_are_split() {
    let reported = each(&World::threads(&SIZES).unwrap().limit(PATIENT), |mesh| {
        let both = mesh.over(Axis::Dp | Axis::Cp).unwrap();
        both.all_reduce(&mut zeros(3, 5), Reduce::Sum).unwrap();
        both.consecutive(2).unwrap().barrier().unwrap();
        mesh.over([Axis::Pp, Axis::Dp]).unwrap().barrier().unwrap();
        mesh.over([Axis::Pp]).unwrap().barrier().unwrap();
        mesh.over([]).unwrap().barrier().unwrap();
        let said: Vec<_> =
            mesh.ledger().iter().map(|(axes, op, t)| format!("{axes} {op} {}", t.calls)).collect();
        said.join(", ")
    });
    assert_eq!(reported, ["dp barrier 1, dp.cp all_reduce 1, dp.cp barrier 1"; 8]);
    let sums = |sizes: &[(Axis, usize)], axes: Axes| {
        each(&World::threads(sizes).unwrap(), |mesh| {
            mesh.over(axes).unwrap().all_reduce(&mut zeros(3, 5), Reduce::Sum).unwrap();
            mesh.ledger().get(axes, Op::AllReduce)
        })[..4]
            .to_vec()
    };
    assert_eq!(
        sums(&[(Axis::Dp, 2), (Axis::Cp, 2)], Axis::Dp | Axis::Cp),
        sums(&[(Axis::Dp, 4)], Axis::Dp.into())
    );
}

/// Kills: a gradient taken for an activation of equal shape, one that waits behind an activation that nobody
/// asks for yet.
#[test]
fn messages_of_one_kind_pass_those_of_another() {
    let world = World::threads(&[(Axis::Pp, 2)]).unwrap().limit(PATIENT);
    let kinds = ["activation", "gradient"].map(|what| Tag::new(what, 3));
    let got = each(&world, |mesh| {
        let (group, device) = (mesh.group(Axis::Pp), Cpu::<F61>::default());
        if mesh.rank() == 0 {
            let sent = [2, 4].map(|rows| zeros(rows, 3)).into_iter().zip(kinds);
            let sent: Vec<_> = sent.map(|(x, tag)| group.start_send(1, x, tag).unwrap()).collect();
            return sent.into_iter().map(|request| request.wait().unwrap().rows()).collect::<Vec<_>>();
        }
        let first = group.receive(&device, 0, 4, 3, kinds[1]).unwrap();
        vec![first.rows(), group.receive(&device, 0, 2, 3, kinds[0]).unwrap().rows()]
    });
    assert_eq!(got, [[2, 4], [4, 2]]);
}

/// Kills: a unit taken for another, one side that is not told, a file or line of the other's
/// call or of the library.
#[test]
fn crossed_messages_are_reported_on_both_sides_by_their_tags() {
    let world = World::threads(&[(Axis::Pp, 2)]).unwrap().limit(PATIENT);
    let sent = Tag::new("activation", 3);
    {
        let (wanted, name) = (Tag { unit: 4, ..sent }, "activation of 4");
        let reported = each(&world, |mesh| {
            let (group, device) = (mesh.group(Axis::Pp).named("1F1B"), Cpu::default());
            let first = match mesh.rank() {
                0 => group.send(1, &zeros(2, 3), sent),
                _ => group.receive(&device, 0, 2, 3, wanted).map(drop),
            };
            let then = match mesh.rank() {
                0 => group.start_send(1, zeros(2, 3), wanted).and_then(crate::Request::wait),
                _ => group.start_receive(&device, 0, 2, 3, wanted).and_then(crate::Request::wait),
            };
            then.unwrap();
            first
        });
        for (rank, reported) in reported.into_iter().enumerate() {
            let Err(CommError::Mismatch { rank: me, mine, peer, theirs }) = reported else {
                panic!("{reported:?}")
            };
            assert_eq!((me, peer), (rank, 1 - rank));
            let [send, receive] = if rank == 0 { [mine, theirs] } else { [theirs, mine] };
            let here = "comm/src/threads/tests/sets.rs:";
            let words = format!("send(to rank 1) over pp of 2x3 f61 as activation of 3 for 1F1B at {here}");
            let send: u32 = send.strip_prefix(&words).unwrap_or_else(|| panic!("{send}")).parse().unwrap();
            let words = format!("receive(from rank 0) over pp of 2x3 f61 as {name} for 1F1B at {here}");
            let receive = receive.strip_prefix(&words).unwrap_or_else(|| panic!("{receive}"));
            assert_eq!(receive.parse(), Ok(send + 1), "the line after");
        }
    }
}

/// Kills: a set of both factorings that is let pass, a group of one that meets or counts.
#[test]
fn sets_of_both_factorings_are_refused() {
    let mesh = Mesh::ghost(&SIZES, 5).unwrap();
    let (refused, line) = (mesh.over(Axis::Dp | Axis::Ep), line!());
    let why = refused.map(drop).unwrap_err().to_string();
    assert!(
        why.starts_with("no group has axes dp.ep: ") && why.contains(&format!("sets.rs:{line}:")),
        "{why}"
    );
    assert!(mesh.over(Axis::Pp | Axis::Edp | Axis::Ep).is_ok() && mesh.over(Axis::Pp | Axis::Tp).is_ok());
    let none = mesh.over([]).unwrap();
    assert_eq!((none.size(), none.rank(), none.axis().name()), (1, 0, "none"));
    let some = mesh.subgroup(&[7, 5]).unwrap();
    assert_eq!((some.rank(), some.size(), some.axis()), (1, 2, Axis::Dp | Axis::Cp | Axis::Tp));
    let reported = mesh.subgroup(&[0, 1]).map(drop).unwrap_err().to_string();
    assert!(
        reported.contains("within the dp.cp.tp group of 8 ranks: this rank, 5, is not among them"),
        "{reported}"
    );
}

/// Kills: lists of members made for groups of which nobody asks them.
#[test]
fn groups_of_huge_worlds_are_not_listed() {
    let sizes = [(Axis::Pp, 1 << 10), (Axis::Dp, 1 << 20), (Axis::Tp, 1 << 20), (Axis::Ep, 1 << 30)];
    let rank = (1 << 50) - 3;
    let mesh = Mesh::ghost(&sizes, rank).unwrap();
    let all = mesh.over([Axis::Pp, Axis::Dp, Axis::Tp]).unwrap();
    assert_eq!((all.size(), all.rank(), mesh.world().size()), (1 << 50, rank, 1 << 50));
    let experts = mesh.group(Axis::Ep);
    assert_eq!(
        (experts.size(), experts.rank(), mesh.group(Axis::Edp).size()),
        (1 << 30, (1 << 30) - 3, 1 << 10)
    );
    let block = experts.consecutive(4).unwrap();
    assert_eq!((block.size(), block.rank()), (4, 1));
    let mut x = Tensor::from_fn(&kernels::meta_of::<Cpu<F61>>(), Category::Buffers, 1, 1, |_| F61::ONE);
    block.all_reduce(&mut x, Reduce::Sum).unwrap();
    assert_eq!(mesh.subgroup(&[rank, 0]).unwrap().size(), 2);
}

/// Kills: a set whose calls go by an engine of its own for every call, or that take memory.
#[test]
fn clones_of_a_mesh_share_its_groups() {
    let ran = World::threads(&SIZES).unwrap().run(|device: Cpu<F61>, mesh| {
        let (group, mesh) = (mesh.group(Axis::Edp).clone(), mesh.clone());
        assert!(Arc::ptr_eq(&group.engine, &mesh.group(Axis::Edp).engine));
        let (before, again) = (taken(), mesh.over(Axis::Edp | Axis::Etp)?);
        assert_eq!(taken(), before, "a group known to the mesh took memory");
        assert!(Arc::ptr_eq(&group.engine, &again.engine) && group.size() == 2);
        assert_eq!(group.all_gather(&tensor(&device, mesh.rank(), [1, 2]))?.shape(), [2, 2]);
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}
