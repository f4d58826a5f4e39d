//! Element-wise kernels: additions, dropout, rotary embedding, caps.
use super::matrices::{In, Out};
use crate::indexed::entries;
use crate::{Heads, Segment};
use tensor::{Dropout, Scalar};

#[inline(always)]
pub(super) fn fill<S: Scalar>(mut y: Out<S>, value: S) {
    for i in 0..y.rows() {
        y.row(i).fill(value);
    }
}

#[inline(always)]
pub(super) fn copy<S: Scalar>(mut y: Out<S>, x: In<S>) {
    const TILE: usize = 32; // rows and columns of a transposed matrix, so that both fit in the cache
    assert_eq!([y.rows(), y.cols()], [x.rows(), x.cols()]);
    if x.col_stride() == 1 {
        return (0..x.rows()).for_each(|i| y.row(i).copy_from_slice(x.row(i)));
    }
    for rows in (0..x.rows()).step_by(TILE) {
        for cols in (0..x.cols()).step_by(TILE) {
            for i in rows..x.rows().min(rows + TILE) {
                let out = &mut y.row(i)[cols..];
                (cols..x.cols().min(cols + TILE)).zip(out).for_each(|(j, to)| *to = x.at(i, j));
            }
        }
    }
}

#[inline(always)]
pub(super) fn put_rows<S: Scalar>(mut y: Out<S>, x: In<S>, segments: &[u32]) {
    for of in entries::<Segment>(segments) {
        (0..of.len).for_each(|i| y.row(of.position + i).copy_from_slice(x.row(of.row + i)));
    }
}

/// Calls `f(y, x)` for every element of x and the element of y in its place; y may have more rows.
#[inline(always)]
pub(super) fn each<S: Scalar, T: Scalar>(mut y: Out<S>, x: In<T>, f: impl Fn(&mut S, T)) {
    for i in 0..x.rows() {
        for (y, &x) in y.row(i).iter_mut().zip(x.row(i)) {
            f(y, x);
        }
    }
}

#[inline(always)]
pub(super) fn stab<S: Scalar>(y: Out<S>, a: In<S>) {
    assert_eq!((y.rows(), y.cols()), (a.rows(), a.cols()));
    each(y, a, |y, a| *y = S::stab(*y, a));
}

#[inline(always)]
pub(super) fn add<S: Scalar>(y: Out<S>, a: In<S>) {
    assert_eq!(y.rows(), a.rows());
    each(y, a, |y, a| *y += a);
}

#[inline(always)]
pub(super) fn add_row<S: Scalar>(mut y: Out<S>, row: In<S>) {
    for i in 0..y.rows() {
        for (y, &r) in y.row(i).iter_mut().zip(row.row(0)) {
            *y += r;
        }
    }
}

#[inline(always)]
pub(super) fn add_rows<S: Scalar>(mut sum: Out<S::Wide>, x: In<S>) {
    for i in 0..x.rows() {
        for (sum, &x) in sum.row(0).iter_mut().zip(x.row(i)) {
            *sum += x.widen();
        }
    }
}

/// Rows are numbered in the whole matrix; x holds those from `first_row` on.
#[inline(always)]
pub(super) fn dropout<S: Scalar>(mut x: Out<S>, tokens: &[u32], first_row: usize, dropout: &Dropout) {
    let scale = dropout.scale::<S::Wide>();
    let here = first_row..first_row + x.rows();
    for t in entries::<Segment>(tokens) {
        for row in t.row.max(here.start)..(t.row + t.len).min(here.end) {
            let position = t.position + row - t.row;
            for (feature, x) in x.row(row - first_row).iter_mut().enumerate() {
                let keep = dropout.keeps(t.sequence, position, feature as u64);
                *x = if keep { S::narrow(x.widen() * scale) } else { S::ZERO };
            }
        }
    }
}

/// Turns (a, b) into (a·cos − b·sin, a·sin + b·cos), the same for all heads.
#[inline(always)]
pub(super) fn rotate<S: Scalar>(mut x: Out<S>, table: In<S::Wide>, tokens: &[u32], heads: Heads, back: bool) {
    let half = heads.rotated / 2;
    for (row, position) in
        entries::<Segment>(tokens).flat_map(|t| (0..t.len).map(move |i| (t.row + i, t.position + i)))
    {
        let (cos, sin) = table.row(position).split_at(half);
        for head in x.row(row).chunks_exact_mut(heads.dim) {
            if heads.neighbours {
                let pairs = head[heads.plain..heads.plain + 2 * half].chunks_exact_mut(2);
                for ((pair, &cos), &sin) in pairs.zip(cos).zip(sin) {
                    let sin = if back { -sin } else { sin };
                    let [x, y] = [pair[0].widen(), pair[1].widen()];
                    pair.copy_from_slice(&[S::narrow(x * cos - y * sin), S::narrow(x * sin + y * cos)]);
                }
                continue;
            }
            let (a, b) = head[heads.plain..].split_at_mut(half);
            for (((a, b), &cos), &sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                let sin = if back { -sin } else { sin };
                let (x, y) = (a.widen(), b.widen());
                (*a, *b) = (S::narrow(x * cos - y * sin), S::narrow(x * sin + y * cos));
            }
        }
    }
}

#[inline(always)]
pub(super) fn stretch<S: Scalar>(y: Out<S>, x: In<S>, n: usize) {
    let root = S::Wide::from_usize(n) * S::Wide::inv_sqrt(n);
    each(y, x, |y, x| *y = S::narrow(x.widen() * root));
}

#[inline(always)]
pub(super) fn cap<S: Scalar>(mut y: Out<S>, c: f64) {
    let c = S::Wide::from_f64(c);
    let inv = c.inv();
    for i in 0..y.rows() {
        for y in y.row(i) {
            *y = S::narrow(c * (y.widen() * inv).tanh());
        }
    }
}
