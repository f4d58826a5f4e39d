//! Errors of a group before anyone waits, and its counts.
use super::*;
use crate::tag::TAG;
use crate::{Axis, Mesh, Op};
use kernels::Meta;
use tensor::{Category, Tensor};

type Priced = Meta<f32>;

fn group(sizes: &[(Axis, usize)], rank: usize) -> Group<tensor::MetaPlace> {
    Mesh::ghost(sizes, rank).unwrap().group(Axis::Tp).clone()
}
fn zeros(rows: usize, cols: usize) -> Tensor<Priced> {
    Tensor::empty(&Priced::default(), Category::Buffers, rows, cols)
}

/// The words of an error, and the line that it must name.
macro_rules! refused {
    ($call:expr) => {
        ($call.map(drop).unwrap_err().to_string(), line!())
    };
}

/// Kills: arguments checked after others wait, or counted though nothing is said.
#[test]
fn bad_arguments_are_refused_at_once_with_their_place() {
    let g = group(&[(Axis::Dp, 2), (Axis::Tp, 3)], 4);
    let (d, mut x, four) = (Priced::default(), zeros(1, 1), zeros(4, 1));
    let cases = [
        (refused!(g.send(3, &x, TAG)), "rank 1 of the tp group of 3 ranks cannot send to rank 3"),
        (refused!(g.send(1, &x, TAG)), "cannot send to rank 1"),
        (refused!(g.start_send(3, x.clone(), TAG)), "cannot send to rank 3"),
        (refused!(g.receive(&d, 1, 1, 1, TAG)), "cannot receive from rank 1"),
        (refused!(g.receive(&d, 7, 1, 1, TAG)), "cannot receive from rank 7"),
        (refused!(g.start_receive(&d, 7, 1, 1, TAG)), "cannot receive from rank 7"),
        (refused!(g.broadcast(&mut x, 3)), "cannot broadcast from rank 3"),
        (refused!(g.gather(&x, 3)), "cannot gather on rank 3"),
        (refused!(g.scatter(&d, None, 3, 1, 1)), "cannot scatter from rank 3"),
        (refused!(g.reduce_scatter(&four)), "4 rows cannot be cut into equal blocks for the 3"),
        (refused!(g.all_to_all(&four)), "4 rows cannot be cut into equal blocks for the 3"),
        (refused!(g.all_gather_v(&four, &[4, 4])), "of [4, 4]x1 f32"),
        (refused!(g.all_gather_v(&four, &[4, 4])), "there are 2 counts for 3 ranks"),
        (refused!(g.all_gather_v(&four, &[4, 3, 4])), "rank 1 has 4 rows, but its count is 3"),
        (refused!(g.all_gather_columns(&four, 4)), "4 columns are wanted, but 3 ranks have 1 each"),
        (refused!(g.reduce_scatter_v(&four, &[2, 2])), "there are 2 counts for 3 ranks"),
        (refused!(g.reduce_scatter_v(&four, &[1, 2, 2])), "[1, 2, 2] add up to 5 rows, but the tensor has 4"),
        (refused!(g.reduce_scatter_v(&four, &[2, usize::MAX, 3])), "more rows than fit in 64 bits"),
        (refused!(g.all_gather_v(&four, &[1, 4, 1 << 62])), "more bytes than fit in memory"),
        (refused!(g.all_gather_v(&four, &[1, 4, usize::MAX])), "more rows than fit in 64 bits"),
        (refused!(g.all_to_all_v(&four, &[1, 2, 1], &[0, 2, 1 << 62])), "more bytes than fit in memory"),
        (refused!(g.all_to_all_v(&four, &[1, 2], &[0, 2, 0])), "there are 2 counts for 3 ranks"),
        (refused!(g.all_to_all_v(&four, &[1, 2, 1], &[0, 2])), "there are 2 counts for 3 ranks"),
        (refused!(g.all_to_all_v(&four, &[1, 2, 0], &[0, 2, 0])), "add up to 3 rows, but the tensor has 4"),
        (refused!(g.all_to_all_v(&four, &[1, 2, 1], &[0, 1, 0])), "rank 1 gives itself 2 rows, but takes 1"),
        (refused!(g.scatter(&d, Some(&four), 0, 4, 1)), "rank 1 passes 4x1, but must pass nothing"),
        (refused!(g.scatter(&d, None, 1, 4, 1)), "rank 1 passes nothing, but must pass 12x1"),
        (refused!(g.scatter(&d, Some(&four), 1, 4, 1)), "rank 1 passes 4x1, but must pass 12x1"),
        (refused!(g.consecutive(2)), "has no subgroups of 2: the size must be 1 or 3"),
        (refused!(g.consecutive(0)), "has no subgroups of 0"),
        (refused!(g.consecutive(6)), "has no subgroups of 6"),
        (refused!(g.subgroup(&[])), "ranks [] form no group within the tp group of 3 ranks: a group needs"),
        (refused!(g.subgroup(&[0, 2])), "this rank, 1, is not among them"),
        (refused!(g.subgroup(&[0, 1, 3])), "there is no rank 3"),
        (refused!(g.subgroup(&[1, 0, 1])), "rank 1 is named twice"),
    ];
    for ((reported, line), words) in cases {
        assert!(reported.contains(words), "{reported}");
        assert!(reported.contains(&format!("at comm/src/group/tests.rs:{line}")), "line {line}: {reported}");
    }
    assert_eq!(g.ledger(), Ledger::default());
    assert_eq!(d.meter().peaks_of_all().total, 0);
}

/// Kills: a check that only larger groups make.
#[test]
fn alone_bad_arguments_are_refused_too() {
    let (g, d, four) = (Mesh::alone().group(Axis::Tp).clone(), Priced::default(), zeros(4, 1));
    assert!(g.all_gather_v(&four, &[3]).is_err() && g.all_gather_v(&four, &[4]).is_ok());
    assert!(g.all_gather_columns(&four, 0).is_err() && g.all_gather_columns(&four, 1).is_ok());
    assert!(g.reduce_scatter_v(&four, &[2, 2]).is_err() && g.reduce_scatter_v(&four, &[4]).is_ok());
    assert!(g.all_to_all_v(&four, &[4], &[3]).is_err() && g.all_to_all_v(&four, &[4], &[4]).is_ok());
    assert!(g.gather(&four, 1).is_err() && g.gather(&four, 0).unwrap().is_some());
    assert!(g.scatter(&d, None, 0, 4, 1).is_err() && g.scatter(&d, Some(&four), 0, 4, 1).is_ok());
    assert!(g.subgroup(&[1]).is_err() && g.subgroup(&[0]).is_ok() && g.split(|_| 7).is_ok());
}

/// Kills: ranks of another colour, another order, places counted in the group that is split.
#[test]
fn groups_are_split_by_colour_and_into_any_lists() {
    let names = |rank: usize| {
        let tp = group(&[(Axis::Dp, 2), (Axis::Tp, 6)], 6 + rank);
        let odd = tp.split(|rank| rank % 2).unwrap();
        let ends = odd.split(|rank| rank / 2).unwrap();
        let of = |g: &Group<tensor::MetaPlace>| (g.over.to_string(), g.rank(), g.size());
        (of(&odd), of(&ends))
    };
    assert_eq!(names(1), (("tp[1,3,5]".into(), 0, 3), ("tp[1,3]".into(), 0, 2)));
    assert_eq!(names(4), (("tp[0,2,4]".into(), 2, 3), ("tp[4..5]".into(), 0, 1)));
    let tp = group(&[(Axis::Dp, 2), (Axis::Tp, 6)], 6 + 3);
    let some = tp.subgroup(&[5, 3, 0]).unwrap();
    assert_eq!(
        (some.over.to_string().as_str(), some.rank(), some.members.clone()),
        ("tp[5,3,0]", 1, Members::List([11, 9, 6].into()))
    );
    let turned = some.subgroup(&[1, 0]).unwrap();
    assert_eq!(
        (turned.over.to_string().as_str(), turned.rank(), turned.members.clone()),
        ("tp[3,5]", 0, Members::List([9, 11].into()))
    );
    assert_eq!(tp.subgroup(&[0, 1, 2, 3, 4, 5]).unwrap().over, Ranks::all(Axis::Tp));
}

/// Kills: results in another category or of another size.
#[test]
fn gathered_tensors_are_buffers_and_others_activations() {
    let (group, device) = (group(&[(Axis::Tp, 2)], 0), Priced::default());
    let x = Tensor::empty(&device, Category::Weights, 4, 3);
    let held = |category| device.meter().now(category);
    let _all = group.all_gather(&x).unwrap();
    assert_eq!((held(Category::Buffers), held(Category::Activations)), (8 * 3 * 4, 0));
    let _block = group.reduce_scatter(&x).unwrap();
    assert_eq!((held(Category::Buffers), held(Category::Activations)), (8 * 3 * 4, 2 * 3 * 4));
    let _got = group.receive(&device, 1, 1, 5, TAG).unwrap();
    assert_eq!((held(Category::Buffers), held(Category::Activations)), (8 * 3 * 4, (2 * 3 + 5) * 4));
}

#[test]
fn alone_there_is_nobody_to_talk_to() {
    let group = Mesh::alone().group(Axis::Tp).clone();
    assert!(
        group.send(0, &zeros(1, 1), TAG).is_err() && group.receive(&Priced::default(), 0, 1, 1, TAG).is_err()
    );
    assert!(group.broadcast(&mut zeros(1, 1), 1).is_err() && group.broadcast(&mut zeros(1, 1), 0).is_ok());
}

/// Kills: a name that starts a ledger of its own.
#[test]
fn a_named_group_counts_in_the_same_ledger() {
    let mesh = Mesh::ghost(&[(Axis::Tp, 2)], 0).unwrap();
    let group = mesh.group(Axis::Tp);
    let named = group.named("blocks.0").named(String::from("blocks.1"));
    named.barrier().unwrap();
    group.barrier().unwrap();
    for ledger in [named.ledger(), group.ledger(), mesh.clone().ledger()] {
        assert_eq!(ledger.get(Axis::Tp, Op::Barrier).calls, 2);
    }
    assert_eq!((named.axis(), named.rank(), named.size()), (Axis::Tp.into(), 0, 2));
}
