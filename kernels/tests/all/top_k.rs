//! The numbers that come first of a row.
use crate::proof::{Matrix, filled, matrix, read};
use kernels::OrderedKernels;
use std::cmp::Ordering;
use tensor::{Category, Cpu, Device, Host, Index, Real, Tensor, mix};

const SPECIAL: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

fn top<S: Real>(x: &Matrix<S>, k: usize) -> Vec<(S, u32)>
where
    Cpu<S>: OrderedKernels<Elem = S, Place = Host>,
{
    let cpu = Cpu::<S>::default();
    let (mut values, mut columns) = (filled(x.rows(), k, S::ONE), Index::empty(cpu.place(), x.rows() * k));
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

/// Rows of all kinds: shuffled, rising, falling, of few different numbers, all equal, with numbers that are
/// none.
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

/// Rows shorter than a block, longer, and no whole number of blocks. Kills: ties by the larger column or as
/// they come, an order that is not descending, a heap that keeps another number, a block passed over, the
/// rest of a row lost, a row that begins with what another left, a number that is not finite passed over or
/// told too late.
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

/// One number that is not finite, in any column of a rising row. Kills: a comparison that no such number
/// passes, a minus infinity that is taken for a small number.
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
    let meta = kernels::meta_of::<Cpu<f32>>();
    let x = Tensor::empty(&meta, Category::Activations, 3, 100);
    let mut values = Tensor::empty(&meta, Category::Buffers, 3, 7);
    let mut columns = Index::empty(meta.place(), 21);
    meta.top_k(values.view_mut(), &mut columns, x.view());
    assert_eq!(meta.meter().now(Category::Buffers), 3 * 7 * (4 + 4));
}
