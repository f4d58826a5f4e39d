//! The optimizer's step against its formula.
use crate::proof::{Matrix, draw, matrix, read};
use kernels::Kernels;
use tensor::Cpu;

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
