//! The pieces of a vocabulary-parallel cross-entropy, and the embedding.
use super::simd::{stab, sum};
use crate::kernels::Slice;
use tensor::{Cpu, Scalar, View, ViewMut};

#[inline(always)]
pub(super) fn row_stab<S: Scalar>(mut m: ViewMut<Cpu<S>>, logits: View<Cpu<S>>) {
    for i in 0..logits.rows() {
        m.row(i)[0] = stab(logits.row(i));
    }
}

#[inline(always)]
pub(super) fn row_sums<S: Scalar>(
    mut sums: ViewMut<Cpu<S>>,
    logits: View<Cpu<S>>,
    m: View<Cpu<S>>,
    targets: &[u32],
    slice: Slice,
) {
    for i in 0..logits.rows() {
        let (x, m) = (logits.row(i), m.row(i)[0]);
        let total = sum(x, |x| S::exp_sub(x, m));
        sums.row(i).copy_from_slice(&[total, slice.local(targets[i]).map_or(S::ZERO, |j| x[j])]);
    }
}

#[inline(always)]
pub(super) fn cross_entropy<S: Scalar>(
    mut loss: ViewMut<Cpu<S>>,
    mut m: ViewMut<Cpu<S>>,
    sums: View<Cpu<S>>,
    tokens: usize,
) {
    let mut total = S::ZERO;
    for i in 0..sums.rows() {
        let lse = S::lse(m.row(i)[0], sums.row(i)[0]);
        m.row(i)[0] = lse;
        total += lse - sums.row(i)[1];
    }
    loss.row(0)[0] = total * S::from_usize(tokens).inv();
}

#[inline(always)]
pub(super) fn cross_entropy_backward<S: Scalar>(
    mut logits: ViewMut<Cpu<S>>,
    lse: View<Cpu<S>>,
    targets: &[u32],
    slice: Slice,
    tokens: usize,
) {
    let share = S::from_usize(tokens).inv();
    for i in 0..logits.rows() {
        let (x, lse) = (logits.row(i), lse.row(i)[0]);
        for x in x.iter_mut() {
            *x = S::exp_sub(*x, lse) * share;
        }
        if let Some(j) = slice.local(targets[i]) {
            x[j] = x[j] - share;
        }
    }
}

#[inline(always)]
pub(super) fn embed<S: Scalar>(mut y: ViewMut<Cpu<S>>, table: View<Cpu<S>>, ids: &[u32], slice: Slice) {
    for (i, &id) in ids.iter().enumerate() {
        match slice.local(id) {
            Some(j) => y.row(i).copy_from_slice(table.row(j)),
            None => y.row(i).fill(S::ZERO),
        }
    }
}

#[inline(always)]
pub(super) fn embed_backward<S: Scalar>(
    mut dtable: ViewMut<Cpu<S>>,
    dy: View<Cpu<S>>,
    ids: &[u32],
    slice: Slice,
) {
    for (i, &id) in ids.iter().enumerate() {
        if let Some(j) = slice.local(id) {
            for (d, &g) in dtable.row(j).iter_mut().zip(dy.row(i)) {
                *d += g;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Kernels, Slice};
    use tensor::{Category, Cpu, Device, Tensor};

    /// Logits of ±200 in f32, by hand: the loss is the distance to the largest, the gradient ±1 over the tokens.
    #[test]
    fn logits_of_two_hundred_do_not_overflow() {
        let cpu = Cpu::<f32>::default();
        let rows = [[200.0, -200.0, 0.0], [-200.0, -200.0, -200.0]];
        let mut logits = Tensor::from_fn(&cpu, Category::Buffers, 2, 3, |i| rows[i / 3][i % 3]);
        let fresh = |cols| Tensor::from_fn(&cpu, Category::Buffers, 2, cols, |_| 0.0f32);
        let (mut m, mut sums, mut loss) = (fresh(1), fresh(2), Tensor::empty(&cpu, Category::Buffers, 1, 1));
        let (targets, slice) = (cpu.index(&[2, 1]), Slice { first: 0, len: 3 });
        cpu.row_stab(m.view_mut(), logits.view());
        cpu.row_sums(sums.view_mut(), logits.view(), m.view(), &targets, slice);
        cpu.cross_entropy(loss.view_mut(), m.view_mut(), sums.view(), 2);
        let wanted = 100.0 + 3.0f32.ln() / 2.0;
        assert!((loss.read().unwrap()[0] - wanted).abs() < 1e-3, "{:?} {wanted}", loss.read());
        cpu.cross_entropy_backward(logits.view_mut(), m.view(), &targets, slice, 2);
        let third = 1.0 / 6.0;
        let wanted = [0.5, 0.0, -0.5, third, third - 0.5, third];
        for (a, b) in logits.read().unwrap().iter().zip(wanted) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}
