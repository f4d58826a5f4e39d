//! C (+)= A·B in a field: sums of exact products, of 122 bits at most, reduced once per 60 of them.
use super::matrices::{In, Out};
use crate::Write;
use std::cell::RefCell;
use tensor::Field;

/// Products per reduction; up to 64 would fit into 128 bits.
const TOGETHER: usize = 60;

/// Both factors by rows, as canonical words: one memory for every field.
type PackedWords = (Vec<u64>, Vec<u64>);
thread_local! { static PACKED: RefCell<PackedWords> = const { RefCell::new((Vec::new(), Vec::new())) }; }

pub(super) fn product<const BITS: u32>(
    mut c: Out<Field<BITS>>,
    a: In<Field<BITS>>,
    b: In<Field<BITS>>,
    write: Write,
) {
    super::factor::check(&c, &a, &b);
    let m = c.rows();
    let n = c.cols();
    let k = a.cols();
    PACKED.with_borrow_mut(|(rows, columns)| {
        pack(rows, [m, k], |i, p| a.at(i, p).canonical());
        pack(columns, [n, k], |j, p| b.at(p, j).canonical());
        for i in 0..m {
            for j in 0..n {
                let sum = Field::from_canonical(sum_of::<BITS>(
                    &rows[i * k..(i + 1) * k],
                    &columns[j * k..(j + 1) * k],
                ));
                let sum = if write == Write::Add { c.read().at(i, j) + sum } else { sum };
                c.set(i, j, sum);
            }
        }
    });
}

/// Packs rows of `k` words at the start of memory that only grows.
#[inline(always)]
fn pack(into: &mut Vec<u64>, [rows, k]: [usize; 2], at: impl Fn(usize, usize) -> u64) {
    if into.len() < rows * k {
        into.resize(rows * k, 0);
    }
    for (i, row) in into[..rows * k].chunks_exact_mut(k.max(1)).enumerate() {
        for (p, word) in row.iter_mut().enumerate() {
            *word = at(i, p);
        }
    }
}

/// Σ x·y, reduced. The field of proofs is compiled in this crate, once, instead of in every crate that
/// proves.
#[inline(always)]
fn sum_of<const BITS: u32>(x: &[u64], y: &[u64]) -> u64 {
    if BITS == 61 { dot_61(x, y) } else { dot::<BITS>(x, y).canonical() }
}

#[inline(never)]
fn dot_61(x: &[u64], y: &[u64]) -> u64 {
    dot::<61>(x, y).canonical()
}

#[inline(always)]
fn dot<const BITS: u32>(x: &[u64], y: &[u64]) -> Field<BITS> {
    let mut sum = Field::new(0);
    for (x, y) in x.chunks(TOGETHER).zip(y.chunks(TOGETHER)) {
        let product = |(&x, &y)| Field::<BITS>::from_canonical(x).wide(Field::from_canonical(y));
        sum += Field::from_wide(x.iter().zip(y).map(product).sum());
    }
    sum
}
