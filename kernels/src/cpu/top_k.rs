//! Of every row the numbers that come first, and where they stand: what a token is chosen from.
//!
//! `values[B, k]`, `columns[B·k]` from `x[B, N]`. The first k numbers are a heap whose root is the last of them in the
//! order. Then one pass over the others, in blocks: a block in which nothing comes before the root is passed over in
//! a few vector comparisons; in any other, what comes before the root takes its place. In a row without order
//! k·ln(N/k) do. In the end the heap is sorted where it lies, so no memory is taken: at worst N·log₂ k steps.
//!
//! Source: Williams, "Algorithm 232: Heapsort", Communications of the ACM 7(6), 1964.
use super::{In, Out};
use tensor::Real;

/// Numbers that are compared with the root together.
const BLOCK: usize = 64;

#[inline(always)]
pub(super) fn top_k<S: Real>(mut values: Out<S>, columns: &mut [u32], x: In<S>) {
    let k = values.cols();
    assert!(k <= x.cols() && columns.len() == x.rows() * k, "{k} of {} numbers in a row", x.cols());
    if k > 0 {
        for (i, columns) in columns.chunks_exact_mut(k).enumerate() {
            row(&mut First { values: values.row(i), columns }, x.row(i));
        }
    }
}

/// Numbers of a row and their columns.
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
            break; // all k are such numbers, and those to come stand behind them
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

/// Whether a number comes before a finite one that stands before it in the row: it is larger, or not finite.
#[inline(always)]
fn enters<S: Real>(x: S, root: S) -> bool {
    !(x > S::NEG_INF && x <= root)
}

#[inline(always)]
fn finite<S: Real>(x: S) -> bool {
    x.to_f64().is_finite()
}

impl<S: Real> First<'_, S> {
    /// Whether number `i` comes before number `j`.
    #[inline(always)]
    fn before(&self, i: usize, j: usize) -> bool {
        let (a, b, earlier) = (self.values[i], self.values[j], self.columns[i] < self.columns[j]);
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
    /// Moves a number of the heap of the first `len` down until none below it comes behind it.
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

#[cfg(test)]
mod tests {
    use crate::Selects;
    use crate::proof::{Matrix, filled, matrix, read};
    use std::cmp::Ordering;
    use tensor::{Category, Cpu, Device, Host, Index, Real, Tensor, mix};

    const SPECIAL: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

    fn top<S: Real>(x: &Matrix<S>, k: usize) -> Vec<(S, u32)>
    where
        Cpu<S>: Selects<Elem = S, Place = Host>,
    {
        let cpu = Cpu::<S>::default();
        let (mut values, mut columns) =
            (filled(x.rows(), k, S::ONE), Index::empty(cpu.place(), x.rows() * k));
        cpu.top_k(values.view_mut(), &mut columns, x.view());
        read(&values).into_iter().zip(columns.words().iter().copied()).collect()
    }

    /// The order of the trait, by sorting whole rows.
    fn sorted<S: Real>(x: &Matrix<S>, k: usize) -> Vec<(S, u32)> {
        let order = |a: &(S, u32), b: &(S, u32)| {
            let finite = |x: S| x.to_f64().is_finite();
            match (finite(a.0), finite(b.0)) {
                (true, true) => b.0.partial_cmp(&a.0).unwrap(),
                (false, false) => Ordering::Equal, // stable: by column
                (finite, _) => finite.cmp(&!finite),
            }
        };
        let of_row = |i| {
            let mut row: Vec<_> = x.view().row(i).iter().copied().zip(0..).collect();
            row.sort_by(order);
            row.truncate(k);
            row
        };
        (0..x.rows()).flat_map(of_row).collect()
    }

    /// Equal as bits: −0 is not 0, a NaN is itself.
    fn bits<S: Real>(top: Vec<(S, u32)>) -> Vec<(u64, u32)> {
        top.into_iter().map(|(x, column)| (x.to_f64().to_bits(), column)).collect()
    }

    /// Rows of all kinds: shuffled, rising, falling, of few different numbers, all equal, with numbers that are none.
    fn rows(kind: u64, rows: usize, cols: usize) -> Matrix<f32> {
        matrix(rows, cols, |i| {
            let (hash, column) = (mix(mix(kind) ^ i as u64), (i % cols) as f64);
            let few = (hash % 5) as f64 - 2.0;
            let x = match kind % 7 {
                0 => f64::from_bits(hash >> 12 | 0x3ff << 52) - 1.5,
                1 => column,
                2 => -column,
                3 => few,
                4 => 0.25,
                5 => [0.0, -0.0, few][(hash >> 32) as usize % 3],
                _ if hash % 11 < 3 => SPECIAL[(hash % 11) as usize],
                _ => few,
            };
            x as f32
        })
    }

    /// Rows shorter than a block, longer, and no whole number of blocks. Kills: ties by the larger column or as they
    /// come, an order that is not descending, a heap that keeps another number, a block passed over, the rest of a row
    /// lost, a row that begins with what another left, a number that is not finite passed over or told too late.
    #[test]
    fn top_k_equals_the_head_of_the_sorted_row_exactly() {
        let sizes = [1, 2, 3, 7, 50, 63, 64, 65, 128, 129, 500];
        for kind in 0..28 {
            for cols in sizes {
                let x = rows(kind, 3, cols);
                let double = matrix(3, cols, |i| f64::from(read(&x)[i]));
                for k in sizes.into_iter().chain([0, cols - 1]).filter(|&k| k <= cols) {
                    let wanted = bits(sorted(&x, k));
                    assert_eq!(bits(top(&x, k)), wanted, "{k} of {cols}, kind {kind}");
                    if cols < 129 {
                        assert_eq!(bits(top(&double, k)), wanted, "{k} of {cols}, kind {kind}, f64");
                    }
                }
            }
        }
    }

    /// One number that is not finite, in any column of a rising row. Kills: a comparison that no such number passes, a
    /// minus infinity that is taken for a small number.
    #[test]
    fn a_number_that_is_not_finite_comes_first_wherever_it_stands() {
        for at in 0..200 {
            for special in SPECIAL {
                let x = matrix(1, 200, |i| if i == at { special as f32 } else { i as f32 });
                for k in [1, 2, 5] {
                    let (value, column) = top(&x, k)[0];
                    assert!(!value.is_finite() && column as usize == at, "{value} {column}, not {at}");
                }
            }
        }
    }

    /// By hand. Kills: a row read from where another begins, columns counted over all rows.
    #[test]
    fn columns_are_counted_in_each_row_of_a_window() {
        let x = matrix(2, 5, |i| [9.0f32, 1.0, 4.0, 4.0, 9.0, 9.0, 4.0, 1.0, 2.0, 9.0][i]);
        let (cpu, mut values) = (Cpu::<f32>::default(), filled(2, 2, 0.0));
        let mut columns = Index::empty(cpu.place(), 4);
        cpu.top_k(values.view_mut(), &mut columns, x.view().take_cols(1, 3));
        assert_eq!((read(&values), columns.words()), (vec![4.0, 4.0, 4.0, 2.0], &[1, 2, 0, 2][..]));
    }

    /// Kills: a price without the columns, or one that depends on values.
    #[test]
    fn the_price_of_top_k_is_its_results() {
        let meta = crate::meta_of::<Cpu<f32>>();
        let x = Tensor::empty(&meta, Category::Activations, 3, 100);
        let mut values = Tensor::empty(&meta, Category::Buffers, 3, 7);
        let mut columns = Index::empty(meta.place(), 21);
        meta.top_k(values.view_mut(), &mut columns, x.view());
        assert_eq!(meta.meter().now(Category::Buffers), 3 * 7 * (4 + 4));
    }
}
