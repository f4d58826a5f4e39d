//! Checks of `rotary.cuh`, and of one kernel that does both.
use super::{CheckOutcome, Side, SideKernels, check, draw};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Heads, Indexed, Kernels, Segment};
use tensor::{Bf16, Category, Device, Place, Real, Scalar, Tensor};

fn part([row, len, position, sequence]: [usize; 4]) -> Segment {
    Segment { row, len, position, sequence }
}

/// Checks even and odd dims, heads whose halves can be read by 16 bytes and others, pairs of neighbours, more
/// heads than a block takes at once.
pub(crate) fn rotations<D: SideKernels>(c: &mut Side<D>) {
    let tokens = c.index(&[[0, 3, 4, 7], [3, 0, 0, 8], [3, 4, 0, 2]].map(part));
    let whole = [[128, 3], [32, 40], [16, 1], [2, 9], [7, 3], [1, 4], [24, 5], [1040, 2]];
    let whole = whole.map(|[dim, heads]| Heads::new(heads, 0, dim));
    let part = |[dim, plain, rotated]: [usize; 3]| Heads { plain, rotated, ..Heads::new(3, 0, dim) };
    let parts = [[192, 128, 64], [48, 16, 32], [40, 3, 16], [24, 8, 8], [9, 2, 5]].map(part);
    let neighbours = [[192, 128, 64], [40, 3, 16], [9, 2, 5]].map(part);
    let neighbours = neighbours.map(|heads| Heads { neighbours: true, ..heads });
    for heads in whole.into_iter().chain(parts).chain(neighbours) {
        let (turned, cols) = (heads.rotated / 2 * 2, heads.q().len());
        let table = c.wide([9, turned, turned, 0], draw(1));
        for ([more, at], back) in
            [[0, 0], [16, 8], [3, 1]].into_iter().flat_map(|at| [(at, false), (at, true)])
        {
            let mut x = c.of([9, cols, cols + more, at], draw(2));
            check!(c.rotate(x.to(), table.of(), &tokens, heads, back) => x 2.0); // of sums up to about 8
        }
    }
}

/// Checks the places of rows in a cache with rows to spare: alone, and after a rotation of some of their
/// columns. Kills: a row put before it is turned, or where another is; columns cut off, or taken from beside
/// them; a rotation that is left out.
pub(crate) fn cached<D: SideKernels>(c: &mut Side<D>) {
    // Segments of one row and of several, in another order in the cache; rows 6 and 7 are padding.
    let (tokens, to) = ([(0, 1, 5), (1, 3, 0), (4, 0, 2), (4, 2, 7)], [9, 3, 8, 0]);
    let of = |i: usize, (row, len, position)| (part([row, len, position, i]), part([row, len, to[i], i]));
    let (tokens, to): (Vec<_>, Vec<_>) = tokens.into_iter().enumerate().map(|(i, s)| of(i, s)).unzip();
    let [tokens, to] = [tokens, to].map(|list| c.index(&list));
    for (dim, [queries, keys], [more, at]) in
        [(16, [3, 2], [0, 0]), (32, [2, 2], [16, 8]), (7, [1, 1], [3, 1]), (600, [1, 1], [0, 0])]
    {
        let heads = Heads::new(queries, keys, dim);
        let [q, turned, row] = [heads.q().len(), heads.turned().len(), heads.row()];
        let table = c.wide([9, dim / 2 * 2, dim / 2 * 2, 0], draw(1));
        for rows in [8, 1] {
            c.case = format!("{rows} rows of {row} columns");
            let (mut x, kv) = (c.of([rows, row, row + more, at], draw(2)), [0, q, rows, row - q]);
            let mut y = c.of([12, row - q, row + more, at], draw(3));
            let (tokens, to) = if rows > 1 {
                (tokens.clone(), to.clone())
            } else {
                (c.index(&[part([0, 1, 4, 0])]), c.index(&[part([0, 1, 11, 0])]))
            };
            check!(c.put_rows(y.to(), x.part(kv), &to) => y 0.0);
            let mut z = c.of([12, row - q, row + more, at], draw(4));
            c.on.rotate(x.part_mut([0, 0, rows, turned]), table.of(), &tokens, heads, false);
            c.on.put_rows(z.to(), x.part(kv), &to);
            c.close("what was turned", &x, 2.0);
            c.close("what was put to a cache", &z, 2.0);
        }
    }
}

/// Checks that a rotation and a cache's write have the same bits as one launch.
pub(crate) fn as_one(gpu: &Gpu) -> CheckOutcome {
    same_bits::<Cuda<f32>>(gpu)?;
    same_bits::<Cuda<Bf16>>(gpu)
}

fn same_bits<D: Kernels<Place = Gpu, Elem: Real, Wide: Device<Elem = f32>>>(gpu: &Gpu) -> CheckOutcome {
    const DIM: usize = 64;
    let (rows, of_queries, of_keys) = (5, 4 * DIM, 2 * DIM);
    let list = |position| Indexed::from(vec![part([0, rows, position, 0])]).on(gpu).clone();
    let [tokens, to] = [3, 2].map(list);
    let table = Tensor::from_fn(D::Wide::on(gpu), Category::Buffers, 9, DIM, |i| draw(1)(i) as f32);
    let run = |alone: bool| {
        let of = |seed, rows, cols| {
            let number = |i| D::Elem::from_f64(draw(seed)(i));
            Tensor::<D>::from_fn(D::on(gpu), Category::Buffers, rows, cols, number)
        };
        let (mut x, mut y) = (of(2, rows, of_queries + 2 * of_keys), of(3, 9, 2 * of_keys));
        let before = gpu.card().launches();
        let turned = x.view_mut().take_cols(0, of_queries + of_keys);
        D::on(gpu).rotate(turned, table.view(), &tokens, Heads::new(4, 2, DIM), false);
        if alone {
            gpu.settle();
        }
        D::on(gpu).put_rows(y.view_mut(), x.view().take_cols(of_queries, 2 * of_keys), &to);
        gpu.settle();
        let launches = gpu.card().launches() - before;
        let bits =
            [x, y].map(|x| x.read().expect("a card has values").into_iter().map(|x| x.to_f64().to_bits()));
        (launches, bits.map(Iterator::collect::<Vec<_>>))
    };
    let [(alone, wanted), (together, seen)] = [true, false].map(run);
    let launches = if gpu.card().kernels.has(("rotate_put", "f32")) { 1 } else { 2 };
    if (alone, together) != (2, launches) {
        return Err(format!("{together} launches, alone {alone}; wanted {launches} and 2"));
    }
    if seen == wanted { Ok(()) } else { Err("other bits than those of two launches".into()) }
}
