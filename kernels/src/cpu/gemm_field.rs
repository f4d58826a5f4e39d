//! C (+)= A·B in the field: sums of exact 122-bit products, reduced once per 60 of them.
use crate::kernels::Write;
use std::cell::RefCell;
use tensor::{Cpu, F61, View, ViewMut};

/// 64 products fit into 128 bits; some room is left for what was reduced before.
const TOGETHER: usize = 60;

thread_local! { static PACKED: RefCell<(Vec<F61>, Vec<F61>)> = const { RefCell::new((Vec::new(), Vec::new())) }; }

pub(super) fn product(mut c: ViewMut<Cpu<F61>>, a: View<Cpu<F61>>, b: View<Cpu<F61>>, write: Write) {
    super::gemm::check(&c, &a, &b);
    let (m, n, k) = (c.rows(), c.cols(), a.cols());
    PACKED.with_borrow_mut(|(rows, columns)| {
        rows.clear();
        rows.extend((0..m).flat_map(|i| (0..k).map(move |p| a.at(i, p))));
        columns.clear();
        columns.extend((0..n).flat_map(|j| (0..k).map(move |p| b.at(p, j))));
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
fn dot(x: &[F61], y: &[F61]) -> F61 {
    let mut sum = F61::new(0);
    for (x, y) in x.chunks(TOGETHER).zip(y.chunks(TOGETHER)) {
        let wide = x.iter().zip(y).fold(0u128, |wide, (&x, &y)| wide + x.wide(y));
        sum += F61::from_wide(wide);
    }
    sum
}
