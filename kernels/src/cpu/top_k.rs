//! Top-k of every row: the first k elements in order, and their columns, from which a token is chosen.
//!
//! `values[B, k]`, `columns[B·k]` from `x[B, N]`. The first k elements are a heap whose root is the last of
//! them in the order. Then one pass over the others, in blocks: a block in which no element comes before the
//! root is skipped after a few vector comparisons; in any other block, each element that comes before the
//! root replaces it. In a row without order k·ln(N/k) elements do. In the end the heap is sorted in place, so
//! no memory is allocated: at worst N·log₂ k steps.
//!
//! Source: Williams, "Algorithm 232: Heapsort", Communications of the ACM 7(6), 1964.
use super::matrices::{In, Out};
use tensor::Real;

/// Elements that are compared with the root together.
const BLOCK: usize = 64;

#[inline(always)]
pub(super) fn top_k<S: Real>(mut values: Out<S>, columns: &mut [u32], x: In<S>) {
    let k = values.cols();
    assert!(k <= x.cols() && columns.len() == x.rows() * k, "{k} of {} elements of a row", x.cols());
    if k > 0 {
        for (i, columns) in columns.chunks_exact_mut(k).enumerate() {
            row(&mut First { values: values.row(i), columns }, x.row(i));
        }
    }
}

/// First elements of a row and their columns.
struct First<'a, S> {
    values: &'a mut [S],
    columns: &'a mut [u32],
}

#[inline(always)]
fn row<S: Real>(first: &mut First<S>, x: &[S]) {
    let k = first.values.len();
    let (head, rest) = x.split_at(k);
    first.values.copy_from_slice(head);
    first.columns.iter_mut().zip(0..).for_each(|(column, at)| *column = at);
    (0..k / 2).rev().for_each(|at| first.sink(at, k));
    for (block, from) in rest.chunks(BLOCK).zip((k..).step_by(BLOCK)) {
        let mut root = first.values[0];
        if !finite(root) {
            break; // all k are not finite, and come before all later ones
        }
        if !block.iter().fold(false, |any, &x| any | enters(x, root)) {
            continue;
        }
        for (&x, column) in block.iter().zip(from..) {
            if finite(root) && enters(x, root) {
                (first.values[0], first.columns[0]) = (x, column as u32);
                first.sink(0, k);
                root = first.values[0];
            }
        }
    }
    for end in (1..k).rev() {
        first.swap(0, end);
        first.sink(0, end);
    }
}

/// True if an element comes before a finite one in an earlier column: it is larger, or not finite.
#[inline(always)]
fn enters<S: Real>(x: S, root: S) -> bool {
    !(x > S::NEG_INF && x <= root)
}

#[inline(always)]
fn finite<S: Real>(x: S) -> bool {
    x.to_f64().is_finite()
}

impl<S: Real> First<'_, S> {
    /// True if element `i` comes before element `j`.
    #[inline(always)]
    fn before(&self, i: usize, j: usize) -> bool {
        let [a, b] = [i, j].map(|element| self.values[element]);
        let earlier = self.columns[i] < self.columns[j];
        match (finite(a), finite(b)) {
            (true, true) => a > b || a == b && earlier,
            (false, false) => earlier,
            (_, regular) => regular,
        }
    }
    #[inline(always)]
    fn swap(&mut self, i: usize, j: usize) {
        self.values.swap(i, j);
        self.columns.swap(i, j);
    }
    /// Moves an element of the heap of the first `len` down until no element below it comes after it.
    #[inline(always)]
    fn sink(&mut self, mut at: usize, len: usize) {
        while 2 * at + 1 < len {
            let mut below = 2 * at + 1;
            if below + 1 < len && self.before(below, below + 1) {
                below += 1;
            }
            if self.before(below, at) {
                return;
            }
            self.swap(at, below);
            at = below;
        }
    }
}
