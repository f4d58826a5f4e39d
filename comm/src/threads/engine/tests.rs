//! Results and traffic of the collectives, for all sizes of groups.
use crate::call::{Call, Elem};
use crate::drawn::{element, tensor};
use crate::tag::TAG;
use crate::{Axis, CommError, Group, Ledger, Op, Reduce, Result, World};
use kernels::Kernels;
use tensor::{Bf16, Category, Cpu, F61, Host, Scalar, Tensor};

mod blocks;

const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
/// Nothing, less than ranks, what no number of ranks divides, several pieces a share.
const SHAPES: [[usize; 2]; 6] = [[0, 3], [3, 0], [1, 1], [2, 5], [7, 13], [101, 113]];

/// Runs `f` on every rank of worlds of all sizes, for all shapes; returns the ledgers by number of ranks.
fn everywhere<S: Scalar>(
    f: impl Fn(&Cpu<S>, &Group<tensor::Host>, [usize; 2]) -> Result<()> + Sync,
) -> Vec<Vec<Ledger>> {
    let run = |&ranks: &usize| {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let ran = world.run(|device, mesh| {
            for shape in SHAPES {
                f(&device, mesh.group(Axis::Tp), shape)?;
            }
            Ok::<_, CommError>(mesh.ledger())
        });
        ran.unwrap()
    };
    RANKS.iter().map(run).collect()
}
/// Elements and bytes of an operation over all ranks, for each number of ranks.
fn totals(ledgers: &[Vec<Ledger>], op: Op) -> Vec<[usize; 3]> {
    let total = |ranks: &Vec<Ledger>| {
        let all = ranks.iter().map(|ledger| ledger.get(Axis::Tp, op));
        all.fold([0; 3], |[calls, elements, bytes], t| {
            [calls + t.calls, elements + t.elements, bytes + t.bytes]
        })
    };
    ledgers.iter().map(total).collect()
}
fn elements() -> usize {
    SHAPES.iter().map(|[rows, cols]| rows * cols).sum()
}

fn all_reduce_equals_a_fold<S: Scalar>()
where
    Cpu<S>: Kernels<Elem = S, Place = Host>,
{
    for (reduce, join) in [(Reduce::Sum, S::add as fn(S, S) -> S), (Reduce::Stab, S::stab)] {
        let ledgers = everywhere(|device: &Cpu<S>, group, shape| {
            let mut x = tensor(device, group.rank(), shape);
            group.all_reduce(&mut x, reduce)?;
            let fold = |i| (1..group.size()).fold(element(0, i), |sum, r| join(sum, element(r, i)));
            assert!(x.read().unwrap().into_iter().eq((0..x.len()).map(fold)));
            Ok(())
        });
        for (n, total) in RANKS.into_iter().zip(totals(&ledgers, Op::AllReduce)).skip(1) {
            let bytes = 2 * (n - 1) * elements() * size_of::<S>();
            assert_eq!(total, [n * SHAPES.len(), n * elements(), bytes]);
        }
        assert_eq!(ledgers[0], [Ledger::default()]);
    }
}
/// Kills: a share left out or reduced twice, another order of the ranks, sum for stabiliser.
#[test]
fn all_reduce_equals_a_fold_in_rank_order_bit_for_bit() {
    all_reduce_equals_a_fold::<f32>();
    all_reduce_equals_a_fold::<F61>();
}

/// Kills: a sum that is rounded at each step, at none, or not to the nearest; in an order other than that of
/// the ranks.
#[test]
fn sums_of_narrow_numbers_equal_the_wide_sum_in_rank_order_rounded_once() {
    let bits = |x: &Tensor<Cpu<Bf16>>| x.read().unwrap().into_iter().map(Bf16::to_bits).collect::<Vec<_>>();
    for ranks in 2..=8 {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let ran = world.run(|device: Cpu<Bf16>, mesh| {
            let (group, me) = (mesh.group(Axis::Tp), mesh.rank());
            for [rows, cols] in SHAPES.map(|[rows, cols]| [rows * ranks, cols]) {
                let wide = |i| {
                    (1..ranks)
                        .fold(element::<Bf16>(0, i).widen(), |sum, r| sum + element::<Bf16>(r, i).widen())
                };
                let wanted: Vec<_> = (0..rows * cols).map(|i| Bf16::narrow(wide(i)).to_bits()).collect();
                let stepwise =
                    |i| (1..ranks).fold(element(0, i), |sum: Bf16, r| sum + element(r, i)).to_bits();
                let differ = (0..rows * cols).any(|i| stepwise(i) != wanted[i]);
                assert!(differ || ranks == 2 || rows * cols < 100, "{ranks} {rows} {cols}");

                let mut data = tensor(&device, me, [rows, cols]);
                let mine = rows / ranks * cols;
                let mine = &wanted[me * mine..][..mine];
                assert_eq!(bits(&group.reduce_scatter(&data)?), mine);
                assert_eq!(bits(&group.start_reduce_scatter(data.clone())?.wait()?), mine);
                let number = Elem::of::<Bf16>();
                let call =
                    Call { reduce: Some(Reduce::Sum), ..group.call(Op::AllReduce, [rows, cols], number) };
                // as all_reduce does, whether or not there are kernels
                group.together(&call, None, Some(&mut data))?;
                assert_eq!(bits(&data), wanted);
            }
            Ok::<_, CommError>(())
        });
        ran.unwrap();
    }
}

fn all_gather_equals_all<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, shape| {
        let mine = tensor(device, group.rank(), shape);
        let all = group.all_gather(&mine)?;
        assert_eq!(all.shape(), [shape[0] * group.size(), shape[1]]);
        let each = (0..group.size()).flat_map(|r| (0..mine.len()).map(move |i| element(r, i)));
        assert!(all.read().unwrap().into_iter().eq(each));
        Ok(())
    });
    for (n, total) in RANKS.into_iter().zip(totals(&ledgers, Op::AllGather)).skip(1) {
        let bytes = n * (n - 1) * elements() * size_of::<S>();
        assert_eq!(total, [n * SHAPES.len(), n * elements(), bytes]);
    }
}
/// Kills: another order of the ranks, a block at the wrong place.
#[test]
fn all_gather_equals_all_ranks_below_each_other() {
    all_gather_equals_all::<f32>();
    all_gather_equals_all::<F61>();
}

fn columns_equal_all<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, shape @ [rows, cols]| {
        let (mine, ranks) = (tensor(device, group.rank(), shape), group.size());
        // All of them, and as many less as leave the last rank none, and the one before it some.
        let less = if ranks == 1 { 0 } else { cols + cols / 2 };
        for n in [ranks * cols, ranks * cols - less] {
            let all = group.all_gather_columns(&mine, n)?;
            assert_eq!(all.shape(), [rows, n]);
            let each = (0..rows).flat_map(|r| (0..n).map(move |c| element(c / cols, r * cols + c % cols)));
            assert!(all.read().unwrap().into_iter().eq(each));
        }
        Ok(())
    });
    for (n, total) in RANKS.into_iter().zip(totals(&ledgers, Op::AllGather)).skip(1) {
        let bytes = n * (n - 1) * elements() * size_of::<S>();
        assert_eq!(total, [2 * n * SHAPES.len(), 2 * n * elements(), 2 * bytes]);
    }
}
/// Kills: another order of the ranks, a row's length for another's, padding that is kept.
#[test]
fn all_gather_equals_all_ranks_side_by_side() {
    columns_equal_all::<f32>();
    columns_equal_all::<F61>();
}

fn reduce_scatter_equals_a_block<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, [rows, cols]| {
        let data = tensor(device, group.rank(), [rows * group.size(), cols]);
        let block = group.reduce_scatter(&data)?;
        assert_eq!(block.shape(), [rows, cols]);
        let fold = |i| (1..group.size()).fold(element(0, i), |sum: S, r| sum + element(r, i));
        let from = group.rank() * block.len();
        assert!(block.read().unwrap().into_iter().eq((from..from + block.len()).map(fold)));
        Ok(())
    });
    for (n, total) in RANKS.into_iter().zip(totals(&ledgers, Op::ReduceScatter)).skip(1) {
        let bytes = n * (n - 1) * elements() * size_of::<S>();
        assert_eq!(total, [n * SHAPES.len(), n * n * elements(), bytes]);
    }
}
/// Kills: another rank's block, another order of the ranks.
#[test]
fn reduce_scatter_equals_this_ranks_block_of_the_fold() {
    reduce_scatter_equals_a_block::<f32>();
    reduce_scatter_equals_a_block::<F61>();
}

fn broadcast_equals_the_root<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, shape| {
        for root in 0..group.size() {
            let mut x = tensor(device, group.rank(), shape);
            group.broadcast(&mut x, root)?;
            assert!(x.read().unwrap().into_iter().eq((0..x.len()).map(|i| element(root, i))));
        }
        Ok(())
    });
    for (n, total) in RANKS.into_iter().zip(totals(&ledgers, Op::Broadcast)).skip(1) {
        let bytes = n * (n - 1) * elements() * size_of::<S>();
        assert_eq!(total, [n * n * SHAPES.len(), n * n * elements(), bytes]);
    }
}
/// Kills: another root.
#[test]
fn broadcast_equals_the_roots_values() {
    broadcast_equals_the_root::<f32>();
    broadcast_equals_the_root::<F61>();
}

fn messages_equal_their_senders<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, shape| {
        let (n, mine) = (group.size(), tensor(device, group.rank(), shape));
        for pair in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            match pair {
                (from, to) if from == to => {}
                (from, to) if from == group.rank() => group.send(to, &mine, TAG)?,
                (from, to) if to == group.rank() => {
                    let got = group.receive(device, from, shape[0], shape[1], TAG)?;
                    assert!(got.read().unwrap().into_iter().eq((0..got.len()).map(|i| element(from, i))));
                }
                _ => {}
            }
        }
        Ok(())
    });
    for (i, n) in RANKS.into_iter().enumerate() {
        let (sent, got) = (totals(&ledgers, Op::Send)[i], totals(&ledgers, Op::Receive)[i]);
        let (calls, elements) = (n * (n - 1) * SHAPES.len(), n * (n - 1) * elements());
        assert_eq!(sent, [calls, elements, elements * size_of::<S>()]);
        assert_eq!(got, [calls, elements, 0]);
    }
}
/// Kills: a message to or from another rank.
#[test]
fn messages_equal_their_senders_values() {
    messages_equal_their_senders::<f32>();
    messages_equal_their_senders::<F61>();
}

/// Kills: a barrier that lets someone through.
#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    for ranks in RANKS {
        let come = AtomicUsize::new(0);
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
        let ran = world.run(|_: Cpu<f32>, mesh| {
            for round in 1..200 {
                come.fetch_add(1, SeqCst);
                mesh.group(Axis::Tp).barrier()?;
                assert!(come.load(SeqCst) >= round * ranks);
            }
            Ok::<_, CommError>(mesh.ledger().get(Axis::Tp, Op::Barrier))
        });
        assert!(ran.unwrap().into_iter().all(|t| (t.elements, t.bytes) == (0, 0)));
    }
}

#[test]
fn groups_of_a_mesh_hold_the_ranks_that_differ_along_their_axis() {
    let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 3)]).unwrap();
    let ran = world.run(|device: Cpu<f64>, mesh| {
        let me = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| mesh.rank() as f64);
        let all = |axis| mesh.group(axis).all_gather(&me).map(|all| all.read().unwrap());
        Ok::<_, CommError>((all(Axis::Dp)?, all(Axis::Tp)?, mesh.coordinates()))
    });
    for (rank, (dp, tp, coordinates)) in ran.unwrap().into_iter().enumerate() {
        let (row, column) = (rank / 3, rank % 3);
        assert_eq!(dp, [column as f64, (3 + column) as f64]);
        assert_eq!(tp, [(3 * row) as f64, (3 * row + 1) as f64, (3 * row + 2) as f64]);
        assert_eq!(coordinates, [(Axis::Pp, 0), (Axis::Dp, row), (Axis::Cp, 0), (Axis::Tp, column)]);
    }
}
