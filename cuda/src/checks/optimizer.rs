//! Checks of `optimizer.cu` and `adamw_8bit.cu`.
use super::{Side, SideKernels, check, draw, whole};
use tensor::{CodeKind, Coded};

/// Checks integers: contiguous, in a window, one row, a few, none. The kernel adds to the value already
/// there.
pub(crate) fn norms<D: SideKernels>(c: &mut Side<D>) {
    let mut sum = c.of([2, 3, 3, 0], |i| i as f64);
    for (rows, cols, first, take) in
        [(3, 3, 0, 3), (40, 13, 0, 13), (40, 13, 2, 9), (1, 50, 3, 46), (0, 8, 0, 8), (1, 2, 0, 2)]
    {
        // In bf16 all sums stay below 257, the smallest integer that it cannot represent.
        let x = c.of([rows, take, cols, first], |i| f64::from(u8::from(i % 11 == 4)) * (1 + i % 2) as f64);
        check!(c.add_norm2(sum.part_mut([1, 2, 1, 1]), x.of()) => sum 0.0);
    }
}

/// Checks a sum of more elements than all threads take at once, twice over.
pub(crate) fn many_blocks<D: SideKernels>(c: &mut Side<D>) {
    let x = c.of([301, 1031, 1031, 0], draw(1));
    let [first, second] = [(); 2].map(|()| {
        let mut sum = c.of([1, 1, 1, 0], |_| 0.5);
        check!(c.add_norm2(sum.to(), x.of()) => sum 2.0);
        sum.read()[0].to_bits()
    });
    c.close("equality of the bits of two sums", &vec![f64::from(first == second)], 0.0);
}

/// Checks norms above the limit, below it, zero, and NaN.
pub(crate) fn clips<D: SideKernels>(c: &mut Side<D>) {
    let norms = c.of([1, 5, 5, 0], |i| [4.0, 0.25, 0.0, 3.0, f64::NAN][i]);
    let mut factors = c.of([1, 5, 5, 0], |_| 9.0);
    for at in (0..5).map(|i| [0, i, 1, 1]) {
        check!(c.clip_factor(factors.part_mut(at), norms.part(at), 0.75));
    }
    c.close("factors", &factors, if c.number.narrow { 1.0 } else { 0.1 });
}

const ALL: [usize; 4] = [7, 13, 13, 0];
/// Windows of these: first row and column, rows and columns of 7·13. The first is contiguous.
const WINDOWS: [[usize; 4]; 3] = [[0, 0, 7, 13], [1, 3, 5, 9], [0, 1, 7, 12]];

pub(crate) fn steps_of_sgd<D: SideKernels>(c: &mut Side<D>) {
    let (g, factor) = (c.wide(ALL, whole(2)), c.wide([1, 1, 1, 0], |_| 0.5));
    for (at, with_master) in WINDOWS.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let (mut w, mut master) = (c.of(ALL, whole(1)), c.wide(ALL, whole(1)));
        let of_master = with_master.then(|| master.part_mut(at));
        check!(c.sgd(w.part_mut(at), of_master, g.part(at), factor.of(), [2f64.powi(-12), 0.0])
            => w 0.0, master 0.0);
    }
}

/// Checks three steps. The constants are exact in f32, so only the rounding of each operation differs.
pub(crate) fn steps_of_adamw<D: SideKernels>(c: &mut Side<D>) {
    let factor = c.wide([1, 1, 1, 0], |_| 0.5);
    for (at, with_master) in WINDOWS.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let mut w = c.of(ALL, draw(1));
        let first = w.read();
        let mut master = c.wide(ALL, |i| first[i]);
        let [mut m, mut v] = [(); 2].map(|()| c.wide(ALL, |_| 0.0));
        for step in 1..=3 {
            let g = c.wide(ALL, draw(9 + step as u64));
            let constants = [0.125, 0.875, 0.9375, 0.0625, 0.25];
            let of_master = with_master.then(|| master.part_mut(at));
            let moments = (m.part_mut(at), v.part_mut(at));
            check!(c.adamw(w.part_mut(at), of_master, moments, g.part(at), factor.of(), (constants, step)));
        }
        let narrow = if with_master { 1.01 } else { 3.03 };
        c.close("w", &w, if c.number.narrow { narrow } else { 0.3 });
        c.close("the master", &master, 0.3);
        c.close("m", &m, 0.2);
        c.close("v", &v, 0.2);
    }
}

/// Checks three steps of blocks that are alone in a row, cut short, or several; moments as they are decoded.
pub(crate) fn steps_of_adamw_8bit<D: SideKernels>(c: &mut Side<D>) {
    let factor = c.wide([1, 1, 1, 0], |_| 0.5);
    let small = WINDOWS.into_iter().flat_map(|at| [(ALL, at, 4), (ALL, at, 8)]);
    let large = ([3, 600, 600, 0], [0, 0, 3, 600], 256);
    let cases = small.chain([large]).enumerate().map(|(i, case)| (case, i % 2 == 1));
    for ((all, at, block), with_master) in cases {
        let mut w = c.of(all, draw(1));
        let first = w.read();
        let (mut master, [_, _, rows, cols]) = (c.wide(all, |i| first[i]), at);
        let mut zeros = |n: usize| {
            let cols = cols.div_ceil(n);
            c.wide([rows, cols, cols, 0], |_| 0.0)
        };
        let [mut m, mut m_units, mut v, mut v_units] = [4, block, 4, block].map(&mut zeros);
        for step in 1..=3 {
            let g = c.wide(all, draw(9 + step as u64));
            let constants = ([0.125, 0.875, 0.9375, 0.0625, 0.25], [step, block]);
            let of_master = with_master.then(|| master.part_mut(at));
            let states = [m.to(), m_units.to(), v.to(), v_units.to()];
            check!(c.adamw_8bit(w.part_mut(at), of_master, states, g.part(at), factor.of(), constants));
        }
        let narrow = if with_master { 1.01 } else { 3.03 };
        c.close("w", &w, if c.number.narrow { narrow } else { 0.3 });
        c.close("the master", &master, 0.3);
        for (name, codes, units, kind) in
            [("m", &m, &m_units, CodeKind::Signed), ("v", &v, &v_units, CodeKind::Unsigned)]
        {
            let [codes, units] = [codes, units].map(super::SideMatrix::read);
            let value = |i: usize| {
                let column = i % cols;
                let index = |n: usize| (i / cols) * cols.div_ceil(n) + column / n;
                units[index(block)] * f64::decoded(codes[index(4)].codes()[column % 4], kind)
            };
            let decoded = c.wide([rows, cols, cols, 0], value);
            c.close(name, &decoded, 0.3);
        }
    }
}

/// Checks three steps, with values of all signs and 0. The constants are exact in f32.
pub(crate) fn steps_of_lion<D: SideKernels>(c: &mut Side<D>) {
    let factor = c.wide([1, 1, 1, 0], |_| 0.5);
    for (at, with_master) in WINDOWS.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let (mut w, mut master) = (c.of(ALL, whole(1)), c.wide(ALL, whole(1)));
        let mut m = c.wide(ALL, |_| 0.0);
        for step in 1..=3 {
            let g = c.wide(ALL, whole(2 + step));
            let of_master = with_master.then(|| master.part_mut(at));
            let constants = [0.125, 0.875, 0.75, 0.0];
            check!(c.lion(w.part_mut(at), of_master, m.part_mut(at), g.part(at), factor.of(), constants));
        }
        c.close("w", &w, if c.number.narrow { 3.03 } else { 0.3 });
        c.close("the master", &master, 0.3);
        c.close("m", &m, 0.2);
    }
}

/// Checks two steps of a momentum and its scaled copy, in contiguous matrices and windows.
pub(crate) fn momenta<D: SideKernels>(c: &mut Side<D>) {
    let factor = c.of([1, 1, 1, 0], |_| 0.5);
    for at in WINDOWS {
        let [mut m, mut to, mut y] = [(); 3].map(|()| c.of(ALL, |_| 0.0));
        for step in 1..=2 {
            let g = c.of(ALL, draw(3 + step));
            check!(c.momentum(to.part_mut(at), m.part_mut(at), g.part(at), factor.of(), 0.875));
        }
        check!(c.scale(y.part_mut(at), to.part(at), factor.of(), 3.0));
        for (name, seen) in [("m", &m), ("the direction", &to), ("the scaled copy", &y)] {
            c.close(name, seen, if c.number.narrow { 2.0 } else { 0.3 });
        }
    }
}
