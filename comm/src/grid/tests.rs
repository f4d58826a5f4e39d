//! Ranks of a group, found again by counting.
use super::*;

fn members(grid: &Grid, axes: impl Into<Axes>, rank: usize) -> Vec<usize> {
    grid.members(axes, rank).iter().collect()
}

/// Kills: strides of the wrong axes, an order that follows the caller's.
#[test]
fn the_last_axis_is_innermost_in_whatever_order_sizes_come() {
    for sizes in [[(Axis::Dp, 3), (Axis::Tp, 2)], [(Axis::Tp, 2), (Axis::Dp, 3)]] {
        let grid = Grid::new(&sizes, 100).unwrap();
        assert_eq!(grid.ranks(), 6);
        assert_eq!((grid.coordinate(Axis::Dp, 5), grid.coordinate(Axis::Tp, 5)), (2, 1));
        assert_eq!((members(&grid, Axis::Tp, 3), members(&grid, Axis::Dp, 3)), (vec![2, 3], vec![1, 3, 5]));
    }
    let grid = Grid::new(&[(Axis::Dp, 2)], 100).unwrap();
    assert_eq!((members(&grid, Axis::Tp, 1), members(&grid, Axis::Dp, 1)), (vec![1], vec![0, 1]));
}

#[test]
fn bad_sizes_are_refused() {
    let sizes = |sizes: &[(Axis, usize)]| Grid::new(sizes, 1024).unwrap_err().to_string();
    assert_eq!(
        sizes(&[(Axis::Dp, 2), (Axis::Tp, 0)]),
        "the tp axis has no ranks: its size must be 1 or more"
    );
    assert_eq!(sizes(&[(Axis::Dp, 2), (Axis::Tp, 1), (Axis::Dp, 2)]), "the dp axis is given twice");
    assert_eq!(sizes(&[(Axis::Dp, 32), (Axis::Tp, 33)]), "a world of dp=32 tp=33 has more than 1024 ranks");
    assert!(sizes(&[(Axis::Dp, usize::MAX), (Axis::Tp, 2)]).contains("more than 1024"));
    assert_eq!(Grid::new(&[(Axis::Dp, 32), (Axis::Tp, 32)], 1024).unwrap().ranks(), 1024);
}

/// The coordinates of every rank along these axes, innermost first, by counting up.
fn counted(sizes: &[(Axis, usize)]) -> Vec<Vec<(Axis, usize)>> {
    sizes.iter().fold(vec![vec![]], |all, &(axis, size)| {
        let with = |place| all.iter().map(move |rank: &Vec<_>| [rank.clone(), vec![(axis, place)]].concat());
        (0..size).flat_map(with).collect()
    })
}

/// Every permutation.
fn orders(axes: &[Axis]) -> Vec<Vec<Axis>> {
    let first = |&axis: &Axis| {
        let rest: Vec<_> = axes.iter().copied().filter(|&other| other != axis).collect();
        orders(&rest).into_iter().map(move |rest| [vec![axis], rest].concat())
    };
    if axes.is_empty() { vec![vec![]] } else { axes.iter().flat_map(first).collect() }
}

/// Compares a grid with what counting gives, over all sets of axes of both factorings.
fn equals_counting(sizes: &[(Axis, usize)], order: &[Axis], experts: &[Axis]) -> Result<()> {
    let grid = Grid::new(sizes, 1000)?.nested(order)?;
    let size = |axis| sizes.iter().find(|(a, _)| *a == axis).map_or(1, |(_, size)| *size);
    let dense = counted(&order.iter().map(|&axis| (axis, size(axis))).collect::<Vec<_>>());
    let stage: usize = [Axis::Dp, Axis::Cp, Axis::Tp].map(size).iter().product();
    let edp = stage / size(Axis::Ep) / size(Axis::Etp);
    let expert_size = |axis| if axis == Axis::Edp { edp } else { size(axis) };
    let within = counted(&experts.iter().map(|&axis| (axis, expert_size(axis))).collect::<Vec<_>>());
    let stage_of =
        |rank: &[(Axis, usize)]| rank.iter().find(|(axis, _)| *axis == Axis::Pp).map_or(0, |p| p.1);
    let mut next = vec![within.into_iter(); size(Axis::Pp)];
    let expert: Vec<_> = dense
        .iter()
        .map(|rank| {
            let stage = stage_of(rank);
            [next[stage].next().unwrap(), vec![(Axis::Pp, stage)]].concat()
        })
        .collect();
    for (factoring, axes) in [(&dense, Axis::DENSE), (&expert, Axis::EXPERT)] {
        assert_eq!(factoring.len(), grid.ranks());
        for bits in 0..16 {
            let set: Axes = (0..4).filter(|i| bits >> i & 1 == 1).map(|i| axes[i]).collect();
            for (rank, mine) in factoring.iter().enumerate() {
                let alike = |other: &Vec<(Axis, usize)>| {
                    mine.iter().zip(other).all(|(a, b)| a == b || set.contains(a.0))
                };
                let wanted: Vec<_> = (0..grid.ranks()).filter(|&r| alike(&factoring[r])).collect();
                assert_eq!(members(&grid, set, rank), wanted, "{sizes:?} {order:?} {set} {rank}");
                assert!(mine.iter().all(|&(axis, place)| grid.coordinate(axis, rank) == place));
            }
        }
    }
    Ok(())
}

/// Kills: a stride of another order, members out of rank order, an axis left out of a set, experts that do
/// not follow the order, stages that differ between the factorings.
#[test]
fn groups_equal_those_found_by_counting_in_every_order() {
    let (mut equal, mut cut) = (0, 0);
    for [pp, dp, cp, tp, ep, etp] in
        [[1, 4, 1, 2, 4, 1], [2, 2, 3, 2, 4, 1], [3, 2, 2, 2, 2, 2], [2, 3, 1, 2, 3, 2], [1, 1, 2, 2, 1, 1]]
    {
        let sizes = [
            (Axis::Ep, ep),
            (Axis::Pp, pp),
            (Axis::Cp, cp),
            (Axis::Tp, tp),
            (Axis::Dp, dp),
            (Axis::Etp, etp),
        ];
        for order in orders(&Axis::DENSE) {
            let data_first = order.iter().find(|axis| [Axis::Dp, Axis::Tp].contains(axis)) == Some(&Axis::Dp);
            let experts =
                if data_first { [Axis::Edp, Axis::Etp, Axis::Ep] } else { [Axis::Etp, Axis::Ep, Axis::Edp] };
            match equals_counting(&sizes, &order, &experts) {
                Ok(()) => equal += 1,
                Err(CommError::BadWorld(why))
                    if why.contains("does not nest") && pp > 1 && order[3] != Axis::Pp =>
                {
                    cut += 1;
                }
                Err(error) => panic!("{sizes:?} {order:?}: {error}"),
            }
        }
    }
    assert_eq!(equal + cut, 5 * 24);
    assert!(cut > 0 && equal > 80, "{equal} {cut}");
}

/// Kills: ep put beside tp where the order names it elsewhere.
#[test]
fn experts_lie_where_the_order_names_them() {
    let sizes = [(Axis::Dp, 6), (Axis::Tp, 2), (Axis::Ep, 3), (Axis::Etp, 2)];
    let order = [Axis::Tp, Axis::Dp, Axis::Ep];
    let grid = Grid::new(&sizes, 100).unwrap().nested(&order).unwrap();
    assert_eq!(members(&grid, Axis::Ep, 1), [1, 5, 9]);
    assert_eq!(members(&grid, Axis::Edp, 1), [1, 3]);
    let first = Grid::new(&sizes, 100).unwrap().nested(&[Axis::Ep, Axis::Dp, Axis::Tp]).unwrap();
    assert_eq!((members(&first, Axis::Ep, 1), members(&first, Axis::Etp, 1)), (vec![0, 1, 2], vec![1, 7]));
}

/// Megatron-LM's own example: 16 ranks, tensor ranks of 2, 4 stages, so data ranks of 2; and one of folding,
/// in which experts have four ranks, one tensor rank each. Kills: groups of another layout than theirs.
#[test]
fn groups_are_those_that_megatron_makes() {
    let grid = Grid::new(&[(Axis::Tp, 2), (Axis::Pp, 4), (Axis::Dp, 2)], 100).unwrap();
    assert_eq!((members(&grid, Axis::Dp, 0), members(&grid, Axis::Dp, 7)), (vec![0, 2], vec![5, 7]));
    assert_eq!((members(&grid, Axis::Tp, 0), members(&grid, Axis::Tp, 11)), (vec![0, 1], vec![10, 11]));
    assert_eq!(members(&grid, Axis::Pp, 0), [0, 4, 8, 12]);
    let grid = Grid::new(&[(Axis::Dp, 4), (Axis::Tp, 2), (Axis::Ep, 4)], 100).unwrap();
    assert_eq!((members(&grid, Axis::Tp, 5), members(&grid, Axis::Dp, 5)), (vec![4, 5], vec![1, 3, 5, 7]));
    assert_eq!(
        (members(&grid, Axis::Ep, 2), members(&grid, Axis::Ep, 5)),
        (vec![0, 1, 2, 3], vec![4, 5, 6, 7])
    );
    assert_eq!((members(&grid, Axis::Edp, 2), members(&grid, Axis::Etp, 5)), (vec![2, 6], vec![5]));
    assert_eq!(members(&grid, Axis::Edp | Axis::Ep, 5), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Kills: a size that is rounded, an order with gaps, sets that are no set of ranks.
#[test]
fn what_is_no_grid_gets_one_sentence() {
    let sizes = [(Axis::Dp, 3), (Axis::Tp, 2), (Axis::Pp, 2)];
    let of = |more: &[(Axis, usize)]| Grid::new(&[&sizes[..], more].concat(), 100);
    let why = |more: &[(Axis, usize)]| of(more).unwrap_err().to_string();
    let uneven = "the 6 ranks of a stage (dp=3 cp=1 tp=2) cannot be cut into ep=4 times etp=1: ep·etp must divide them";
    assert_eq!(why(&[(Axis::Ep, 4)]), uneven);
    assert!(why(&[(Axis::Ep, usize::MAX), (Axis::Etp, 2)]).contains("ep=18446744073709551615 times etp=2"));
    assert_eq!(why(&[(Axis::Edp, 6)]), "the size of the edp axis must not be given: it is dp·cp·tp/(ep·etp)");
    assert_eq!(why(&[(Axis::Ep, 0)]), "the ep axis has no ranks: its size must be 1 or more");
    let order = |order: &[Axis]| of(&[]).unwrap().nested(order).unwrap_err().to_string();
    assert_eq!(order(&[Axis::Tp, Axis::Pp]), "the order tp.pp lacks dp, which has 3 ranks: add it");
    assert_eq!(order(&[Axis::Tp, Axis::Dp, Axis::Tp, Axis::Pp]), "the order tp.dp.tp.pp names tp twice");
    assert!(order(&[Axis::Etp, Axis::Tp]).starts_with("the order etp.tp names etp, whose place is that"));
    let across =
        of(&[(Axis::Ep, 3)]).unwrap().nested(&[Axis::Tp, Axis::Pp, Axis::Dp]).unwrap_err().to_string();
    let words =
        "ep=3 does not nest in the order tp.pp.dp.cp, where 2 ranks of a stage are consecutive: put pp last";
    assert_eq!(across, words);
    let folded = of(&[(Axis::Ep, 2)]).unwrap();
    let split = |axes: Axes| folded.split(axes, Location::caller());
    let mixed = split(Axis::Dp | Axis::Ep).unwrap_err().to_string();
    assert!(
        mixed.starts_with("no group has axes dp.ep: take axes from dp, cp and tp or from edp, ep"),
        "{mixed}"
    );
    assert!(split(Axis::Cp | Axis::Etp).is_err(), "though there is one rank along each");
    assert_eq!(split(Axis::Pp | Axis::Ep | Axis::Etp).unwrap(), Axis::Pp | Axis::Ep);
    assert_eq!(split(Axis::Pp | Axis::Cp | Axis::Dp).unwrap(), Axis::Pp | Axis::Dp);
    assert_eq!(split(Axis::Cp.into()).unwrap(), Axis::Cp);
}
