//! C (+)= A·B in a field: sums of exact products, of 122 bits at most, reduced once per 60 of them.
use crate::terms::Write;
use std::cell::RefCell;
use tensor::{Cpu, Field, View, ViewMut};

/// 64 products fit into 128 bits; some room is left for what was reduced before.
const TOGETHER: usize = 60;

/// Both factors by rows, as canonical words: one memory for every field.
type Packed = (Vec<u64>, Vec<u64>);
thread_local! { static PACKED: RefCell<Packed> = const { RefCell::new((Vec::new(), Vec::new())) }; }

pub(super) fn product<const BITS: u32>(
    mut c: ViewMut<Cpu<Field<BITS>>>,
    a: View<Cpu<Field<BITS>>>,
    b: View<Cpu<Field<BITS>>>,
    write: Write,
) {
    super::gemm::check(&c, &a, &b);
    let (m, n, k) = (c.rows(), c.cols(), a.cols());
    PACKED.with_borrow_mut(|(rows, columns)| {
        rows.clear();
        rows.extend((0..m).flat_map(|i| (0..k).map(move |p| a.at(i, p).canonical())));
        columns.clear();
        columns.extend((0..n).flat_map(|j| (0..k).map(move |p| b.at(p, j).canonical())));
        for i in 0..m {
            for j in 0..n {
                let sum = dot(&rows[i * k..(i + 1) * k], &columns[j * k..(j + 1) * k]);
                let sum = if write == Write::Add { c.read().at(i, j) + sum } else { sum };
                c.set(i, j, sum);
            }
        }
    });
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
