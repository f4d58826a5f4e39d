//! The optimizer's step against its formula.
use crate::proof::{Matrix, draw, matrix, read};
use kernels::Kernels;
use tensor::{CodeKind, Coded, Cpu};

/// Three steps of rows of 300 elements in blocks of 256 and of 8, by the formulas of the papers and the
/// nearest of all codes. Kills: a unit of another block, of its first element or of the step before; moments
/// that are used as rounded; a code in another's place; a row that must end in a whole block.
#[test]
fn steps_with_codes_equal_the_formulas() {
    for block in [8, 256] {
        let (cpu, mut w): (Cpu<f64>, Matrix<f64>) = (Cpu::default(), draw(1, 2, 300));
        let zeros = |n: usize| matrix::<f64>(2, 300usize.div_ceil(n), |_| 0.0);
        let [mut m, mut m_units, mut v, mut v_units] = [4, block, 4, block].map(zeros);
        let mut theirs: Vec<_> = read(&w).into_iter().map(|w| [w, 0.0, 0.0]).collect();
        for step in 1..=3 {
            let (g, scale): (Matrix<f64>, _) = (draw(step as u64, 2, 300), matrix(1, 1, |_| 0.5));
            let states = [&mut m, &mut m_units, &mut v, &mut v_units].map(|of| of.view_mut());
            let constants = ([0.1, 0.9, 0.95, 0.01, 0.2], [step, block]);
            cpu.adamw_8bit(w.view_mut(), None, states, g.view(), scale.view(), constants);
            for ([w, m, v], g) in theirs.iter_mut().zip(read(&g)) {
                (*m, *v) = (0.9 * *m + 0.1 * 0.5 * g, 0.95 * *v + 0.05 * 0.25 * g * g);
                let [first, second] =
                    [*m / (1.0 - 0.9f64.powi(step as i32)), *v / (1.0 - 0.95f64.powi(step as i32))];
                *w -= 0.1 * 0.2 * *w + 0.1 * first / (second.sqrt() + 0.01);
            }
            let seen = read(&w).into_iter().zip(&theirs);
            seen.for_each(|(seen, [w, ..])| assert!((seen - w).abs() < 1e-9, "{block} {step}: {seen} {w}"));
            for (of, kind) in [(1, CodeKind::Signed), (2, CodeKind::Unsigned)] {
                let (codes, units) = if of == 1 { (&m, &m_units) } else { (&v, &v_units) };
                let (codes, units) = (read(codes), read(units));
                for (at, all) in theirs.chunks_mut(300).enumerate().flat_map(|(row, all)| {
                    all.chunks_mut(block).enumerate().map(move |(i, all)| ([row, i], all))
                }) {
                    let largest = all.iter().map(|all| all[of].abs()).fold(0.0, f64::max);
                    let unit = largest / f64::decoded(254, kind);
                    let seen = units[at[0] * 300usize.div_ceil(block) + at[1]];
                    assert!((seen - unit).abs() <= 1e-9 * unit, "{seen} {unit}");
                    for (i, all) in all.iter_mut().enumerate() {
                        let code = codes[at[0] * 75 + (at[1] * block + i) / 4].codes()[i % 4];
                        let near = |code: u8| (f64::decoded(code, kind) * unit - all[of]).abs();
                        let nearest = (0..255).map(near).fold(f64::MAX, f64::min);
                        assert!(near(code) <= nearest * (1.0 + 1e-6) + 4.5 * unit, "{kind:?} {at:?} {i}");
                        all[of] = f64::decoded(code, kind) * unit;
                    }
                }
            }
        }
    }
}

/// Three steps by the formulas of the papers, in doubles. Kills: a moment with the other's decay or corrected
/// by another step, a factor that scales the step instead of the gradient, decay of what was moved, ε inside
/// the root.
#[test]
fn steps_equal_the_formulas() {
    let (cpu, mut w): (Cpu<f64>, Matrix<f64>) = (Cpu::default(), draw(1, 3, 5));
    let [mut m, mut v] = [(); 2].map(|()| matrix(3, 5, |_| 0.0));
    let (mut theirs, factor) = (read(&w).into_iter().map(|w| (w, 0.0, 0.0)).collect::<Vec<_>>(), 0.3);
    for step in 1..=3 {
        let (g, lr): (Matrix<f64>, _) = (draw(1 + step as u64, 3, 5), 0.1 / step as f64);
        let constants = [lr, 0.9, 0.95, 0.01, 0.2];
        let (moments, scale) = ((m.view_mut(), v.view_mut()), matrix(1, 1, |_| factor));
        cpu.adamw(w.view_mut(), None, moments, g.view(), scale.view(), (constants, step));
        for ((w, m, v), g) in theirs.iter_mut().zip(read(&g)) {
            let g = factor * g;
            (*m, *v) = (0.9 * *m + 0.1 * g, 0.95 * *v + 0.05 * g * g);
            let [first, second] =
                [*m / (1.0 - 0.9f64.powi(step as i32)), *v / (1.0 - 0.95f64.powi(step as i32))];
            *w -= lr * 0.2 * *w + lr * first / (second.sqrt() + 0.01);
        }
        for (seen, (wanted, ..)) in read(&w).into_iter().zip(&theirs) {
            assert!((seen - wanted).abs() < 1e-14, "step {step}: {seen}, wanted {wanted}");
        }
    }
    let (before, g): (_, Matrix<f64>) = (read(&w), draw(8, 3, 5));
    let (kept, scale) = (read(&m), matrix(1, 1, |_| factor));
    cpu.lion(w.view_mut(), None, m.view_mut(), g.view(), scale.view(), [0.5, 0.9, 0.95, 0.2]);
    for (((w, m), (w0, m0)), g) in
        read(&w).into_iter().zip(read(&m)).zip(before.into_iter().zip(kept)).zip(read(&g))
    {
        let g = factor * g;
        let wanted = [w0 - 0.5 * 0.2 * w0 - 0.5 * (0.9 * m0 + 0.1 * g).signum(), 0.95 * m0 + 0.05 * g];
        assert!((w - wanted[0]).abs() < 1e-14 && (m - wanted[1]).abs() < 1e-14, "{w} {m}, wanted {wanted:?}");
    }
    let (before, g): (_, Matrix<f64>) = (read(&w), draw(9, 3, 5));
    cpu.sgd(w.view_mut(), None, g.view(), matrix(1, 1, |_| factor).view(), [0.5, 0.25]);
    let wanted = before.into_iter().zip(read(&g)).map(|(w, g)| w - 0.5 * (0.25 * w + factor * g));
    assert!(read(&w).into_iter().zip(wanted).all(|(seen, wanted)| (seen - wanted).abs() < 1e-15));
    let (kept, mut to, scale) = (read(&m), matrix(3, 5, |_| 0.0), matrix(1, 1, |_| factor));
    cpu.momentum(to.view_mut(), m.view_mut(), g.view(), scale.view(), 0.75);
    for (((to, m), kept), g) in read(&to).into_iter().zip(read(&m)).zip(kept).zip(read(&g)) {
        let wanted = 0.75 * kept + 0.25 * factor * g;
        assert!((m - wanted).abs() < 1e-15 && (to - 0.75 * wanted - 0.25 * factor * g).abs() < 1e-15);
    }
    let before = read(&to);
    cpu.scale(to.view_mut(), g.view(), scale.view(), 3.0);
    let wanted = read(&g).into_iter().map(|g| 3.0 * factor * g);
    assert!(read(&to).into_iter().zip(wanted).all(|(seen, wanted)| (seen - wanted).abs() < 1e-15));
    assert_ne!(read(&to), before);
}
