//! Collectives that pass blocks from rank to rank, equal ones and others, and plain values.
use super::{RANKS, SHAPES, elements, everywhere, totals};
use crate::drawn::{element, tensor};
use crate::{Axis, CommError, Group, Op, Result, World};
use tensor::{Cpu, F61, Scalar, Tensor};

fn values<S: Scalar>(x: &Tensor<Cpu<S>>) -> Vec<S> {
    x.read().unwrap()
}
/// Elements of a rank from one on.
fn run<S: Scalar>(rank: usize, from: usize, len: usize) -> impl Iterator<Item = S> {
    (from..from + len).map(move |i| element(rank, i))
}
/// Rows of a rank's block: none of some, and of a few ranks never one size.
fn count(rank: usize) -> usize {
    [3, 0, 2, 7, 1][rank % 5]
}
/// Rows that one rank has for another: none between some.
fn between(from: usize, to: usize) -> usize {
    (3 * from + to) % 4
}
fn sum(range: std::ops::Range<usize>, of: impl Fn(usize) -> usize) -> usize {
    range.map(of).sum()
}

fn gathers_and_scatters<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, shape @ [rows, cols]| {
        let (n, me, len) = (group.size(), group.rank(), rows * cols);
        for root in 0..n {
            let all = group.gather(&tensor(device, me, shape), root)?;
            assert_eq!(all.is_some(), me == root);
            if let Some(all) = all {
                assert_eq!(all.shape(), [n * rows, cols]);
                assert!(values(&all).into_iter().eq((0..n).flat_map(|r| run(r, 0, len))));
            }
            let data = (me == root).then(|| tensor(device, root, [n * rows, cols]));
            let block = group.scatter(device, data.as_ref(), root, rows, cols)?;
            assert_eq!(block.shape(), shape);
            assert!(values(&block).into_iter().eq(run(root, me * len, len)));
        }
        Ok(())
    });
    for op in [Op::Gather, Op::Scatter] {
        for (n, total) in RANKS.into_iter().zip(totals(&ledgers, op)).skip(1) {
            let bytes = n * (n - 1) * elements() * size_of::<S>();
            assert_eq!(total, [n * n * SHAPES.len(), n * n * elements(), bytes], "{op}");
        }
    }
}
/// Kills: another root, another order of the ranks, another rank's block.
#[test]
fn gather_and_scatter_equal_all_ranks_and_the_roots_blocks() {
    gathers_and_scatters::<f32>();
    gathers_and_scatters::<F61>();
}

fn all_to_all_equals<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, [rows, cols]| {
        let (n, me, len) = (group.size(), group.rank(), rows * cols);
        let mine = tensor(device, me, [n * rows, cols]);
        let got = group.all_to_all(&mine)?;
        assert_eq!(got.shape(), [n * rows, cols]);
        assert!(values(&got).into_iter().eq((0..n).flat_map(|r| run(r, me * len, len))));
        // There and back again.
        assert_eq!(values(&group.all_to_all(&got)?), values(&mine));
        Ok(())
    });
    for (n, total) in RANKS.into_iter().zip(totals(&ledgers, Op::AllToAll)).skip(1) {
        let bytes = 2 * n * (n - 1) * elements() * size_of::<S>();
        assert_eq!(total, [2 * n * SHAPES.len(), 2 * n * n * elements(), bytes]);
    }
}
/// Kills: a block to or from another rank.
#[test]
fn all_to_all_equals_the_transpose_of_ranks_and_blocks() {
    all_to_all_equals::<f32>();
    all_to_all_equals::<F61>();
}

fn uneven<S: Scalar>() {
    let ledgers = everywhere(|device: &Cpu<S>, group, [_, cols]| {
        let (n, me) = (group.size(), group.rank());
        let counts: Vec<_> = (0..n).map(count).collect();
        let all = group.all_gather_v(&tensor(device, me, [count(me), cols]), &counts)?;
        assert_eq!(all.shape(), [counts.iter().sum(), cols]);
        assert!(values(&all).into_iter().eq((0..n).flat_map(|r| run(r, 0, count(r) * cols))));

        let data = tensor(device, me, [counts.iter().sum(), cols]);
        let block = group.reduce_scatter_v(&data, &counts)?;
        assert_eq!(block.shape(), [count(me), cols]);
        let from = sum(0..me, count) * cols;
        let fold = |i| (1..n).fold(element(0, i), |sum: S, r| sum + element(r, i));
        assert!(values(&block).into_iter().eq((from..from + block.len()).map(fold)));

        let (give, take): (Vec<_>, Vec<_>) = (0..n).map(|r| (between(me, r), between(r, me))).unzip();
        let got = group.all_to_all_v(&tensor(device, me, [give.iter().sum(), cols]), &give, &take)?;
        assert_eq!(got.shape(), [take.iter().sum(), cols]);
        let of = |r: usize| run(r, sum(0..me, |to| between(r, to)) * cols, between(r, me) * cols);
        assert!(values(&got).into_iter().eq((0..n).flat_map(of)));
        Ok(())
    });
    let cols: usize = SHAPES.iter().map(|[_, cols]| cols).sum();
    for (i, n) in RANKS.into_iter().enumerate().skip(1) {
        let rows = sum(0..n, count);
        let total = |op| totals(&ledgers, op)[i];
        let calls = n * SHAPES.len();
        assert_eq!(total(Op::AllGather), [calls, rows * cols, (n - 1) * rows * cols * size_of::<S>()]);
        assert_eq!(
            total(Op::ReduceScatter),
            [calls, n * rows * cols, (n - 1) * rows * cols * size_of::<S>()]
        );
        let given = sum(0..n, |from| sum(0..n, |to| between(from, to)));
        let kept = sum(0..n, |rank| between(rank, rank));
        assert_eq!(total(Op::AllToAll), [calls, given * cols, (given - kept) * cols * size_of::<S>()]);
    }
}
/// Kills: a block that begins where blocks of one size would, counts of the wrong rank, empty blocks.
#[test]
fn blocks_of_any_sizes_come_where_they_belong() {
    uneven::<f32>();
    uneven::<F61>();
}

/// Kills: values of another rank or length, an alignment taken for granted.
#[test]
fn values_of_any_type_and_number_are_gathered_and_joined() {
    everywhere(|_: &Cpu<f32>, group, _| {
        let (n, me) = (group.size(), group.rank());
        let of = |rank: usize| (0..count(rank) as u16).map(|i| [i, rank as u16, 7]).collect::<Vec<_>>();
        assert_eq!(group.all_gather_values(&of(me))?, (0..n).map(of).collect::<Vec<_>>());
        assert_eq!(group.all_gather_values::<u8>(&[])?, vec![Vec::<u8>::new(); n]);
        let mut most = [me as f64, -(me as f64)];
        group.all_reduce_values(&mut most, f64::max)?;
        assert_eq!(most, [(n - 1) as f64, 0.0]);
        let mut words = [1u64 << me];
        group.all_reduce_values(&mut words, |a, b| a << 8 ^ b)?; // shows the order
        assert_eq!(words, [(1..n).fold(1, |a, b| a << 8 ^ 1 << b)]);
        Ok(())
    });
}

/// Errors of two ranks.
fn reported(
    zero: impl Fn(&Group<tensor::Host>) -> Result<()> + Sync,
    one: impl Fn(&Group<tensor::Host>) -> Result<()> + Sync,
) -> [Result<()>; 2] {
    let ran = World::threads(&[(Axis::Tp, 2)]).unwrap().run(|_: Cpu<F61>, mesh| {
        let group = mesh.group(Axis::Tp);
        Ok::<_, CommError>(if mesh.rank() == 0 { zero(group) } else { one(group) })
    });
    ran.unwrap().try_into().unwrap()
}
fn ones(rows: usize) -> Tensor<Cpu<F61>> {
    tensor(&Cpu::default(), 1, [rows, 2])
}

/// At once and started. Kills: counts, types or numbers of values that differ and are not compared.
#[test]
fn what_ranks_give_and_do_not_take_is_reported_on_both() {
    let cases = [
        reported(
            |g| g.all_to_all_v(&ones(3), &[1, 2], &[1, 5]).map(drop),
            |g| g.all_to_all_v(&ones(5), &[4, 1], &[2, 1]).map(drop),
        ),
        reported(
            |g| g.all_gather_v(&ones(1), &[1, 2]).map(drop),
            |g| g.all_gather_v(&ones(3), &[1, 3]).map(drop),
        ),
        reported(
            |g| g.reduce_scatter_v(&ones(3), &[1, 2]).map(drop),
            |g| g.reduce_scatter_v(&ones(3), &[2, 1]).map(drop),
        ),
        reported(
            |g| g.start_all_to_all_v(ones(3), [&[1, 2], &[1, 5]], 0)?.wait().map(drop),
            |g| g.start_all_to_all_v(ones(5), [&[4, 1], &[2, 1]], 0)?.wait().map(drop),
        ),
        reported(
            |g| g.start_all_gather_v(ones(1), &[1, 2])?.wait().map(drop),
            |g| g.start_all_gather_v(ones(3), &[1, 3])?.wait().map(drop),
        ),
        reported(
            |g| g.start_reduce_scatter_v(ones(3), &[1, 2])?.wait().map(drop),
            |g| g.start_reduce_scatter_v(ones(3), &[2, 1])?.wait().map(drop),
        ),
        reported(|g| g.all_gather_values(&[1u64]).map(drop), |g| g.all_gather_values(&[1i64]).map(drop)),
        reported(|g| g.all_gather_values(&[1u64]).map(drop), |g| g.all_gather(&ones(1)).map(drop)),
        reported(
            |g| g.all_reduce_values(&mut [1u8], u8::max),
            |g| g.all_reduce_values(&mut [1u8, 2], u8::max),
        ),
    ];
    for (case, reported) in cases.into_iter().enumerate() {
        assert!(reported.iter().all(Result::is_err), "case {case}: {reported:?}");
        let named = |reported: &Result<()>| matches!(reported, Err(CommError::Mismatch { .. }));
        assert!(reported.iter().any(named), "case {case}: {reported:?}");
    }
}
