//! Norms: values and gradients, exactly.
use crate::proof::{
    Matrix, assert_close, assert_derivative, draw, filled, less, matrix, read, under_two_keys,
};
use kernels::{CpuScalar, Kernels};
use tensor::{Cpu, Dual, F61, Scalar};

const EPS: f64 = 0.25;

fn forward<S: CpuScalar>(rows: usize, cols: usize) -> [Matrix<S>; 2]
where
    Cpu<S>: Kernels<Elem = S, Wide = Cpu<S>>,
{
    let [mut y, mut stats] = [cols, 2].map(|cols| filled(rows, cols, S::ZERO));
    let (x, [gain, bias]) = (draw::<S>(1, rows, cols), [2, 3].map(|seed| draw(seed, 1, cols)));
    Cpu::<S>::default().layer_norm(y.view_mut(), stats.view_mut(), x.view(), gain.view(), bias.view(), EPS);
    [y, stats]
}

/// dx, and what was added to dgain and dbias; with `skip`, what is added to dx.
fn backward<S: CpuScalar>(rows: usize, cols: usize, skip: Option<&Matrix<S>>) -> [Matrix<S>; 3]
where
    Cpu<S>: Kernels<Elem = S, Wide = Cpu<S>>,
{
    let [_, stats] = forward::<S>(rows, cols);
    let (x, gain, dy) = (draw::<S>(1, rows, cols), draw(2, 1, cols), draw(4, rows, cols));
    let before = [6, 7].map(|seed| draw(seed, 1, cols));
    let (mut dx, [mut dgain, mut dbias]) = (filled(rows, cols, S::ZERO), [6, 7].map(|s| draw(s, 1, cols)));
    Cpu::<S>::default().layer_norm_backward(
        dx.view_mut(),
        [dgain.view_mut(), dbias.view_mut()],
        x.view(),
        stats.view(),
        gain.view(),
        dy.view(),
        skip.map(Matrix::view),
    );
    [dx, less(&dgain, &before[0]), less(&dbias, &before[1])]
}

const SHAPES: [[usize; 2]; 5] = [[3, 5], [1, 1], [2, 33], [4, 64], [0, 3]];

/// Kills: a mean square for the variance, ε outside the root, a bias under the gain, stats exchanged.
#[test]
fn layer_norm_equals_the_formula_exactly() {
    under_two_keys(|| {
        for [rows, cols] in SHAPES {
            let (x, gain, bias) = (draw::<F61>(1, rows, cols), draw(2, 1, cols), draw(3, 1, cols));
            let (mut wanted, mut stats) = (Vec::new(), Vec::new());
            for i in 0..rows {
                let count = F61::from_usize(cols).inv();
                let x = x.view().row(i);
                let mean = x.iter().fold(F61::ZERO, |sum, &x| sum + x) * count;
                let variance = x.iter().fold(F61::ZERO, |sum, &x| sum + x * x) * count - mean * mean;
                let r = (variance + F61::from_f64(EPS)).rsqrt();
                let y = |j: usize| (x[j] - mean) * r * gain.view().at(0, j) + bias.view().at(0, j);
                wanted.extend((0..cols).map(y));
                stats.extend([mean, r]);
            }
            assert_eq!(forward::<F61>(rows, cols).map(|t| read(&t)), [wanted, stats], "{rows}x{cols}");
        }
    });
}

/// Kills: a mean or r taken for constants, a power of r lost, 1/n forgotten, `=` for `+=`.
#[test]
fn layer_norm_backward_equals_the_derivative_exactly() {
    under_two_keys(|| {
        for [rows, cols] in SHAPES.into_iter().filter(|[rows, _]| *rows > 0) {
            let [y, _] = forward::<Dual<F61>>(rows, cols);
            let [dx, dgain, dbias] = backward(rows, cols, None);
            let [x, gain, bias] = [(1, rows), (2, 1), (3, 1)].map(|(seed, rows)| draw(seed, rows, cols));
            let inputs = [(&x, &dx), (&gain, &dgain), (&bias, &dbias)];
            assert_derivative(&draw(4, rows, cols), &y, &inputs);
        }
    });
}

/// Kills: a residual path's gradient that is lost, or goes into the gain's.
#[test]
fn the_skip_is_added_and_nothing_else() {
    let _key = tensor::Key(1).enter();
    let skip = draw::<F61>(5, 3, 4);
    let ([with, dgain, dbias], without) = (backward(3, 4, Some(&skip)), backward(3, 4, None));
    let sum = matrix(3, 4, |i| read(&without[0])[i] + read(&skip)[i]);
    assert_eq!([with, dgain, dbias].map(|t| read(&t)), [&sum, &without[1], &without[2]].map(read));
}

/// Kills: a variance that cancels, a loop that differs by its vectors.
#[test]
fn single_precision_equals_double() {
    for [rows, cols] in [[3, 5], [2, 700]] {
        for (single, double) in forward::<f32>(rows, cols).iter().zip(&forward(rows, cols)) {
            assert_close(single, double, 1e-5);
        }
        for (single, double) in backward::<f32>(rows, cols, None).iter().zip(&backward(rows, cols, None)) {
            assert_close(single, double, 1e-5);
        }
    }
}

/// A mean a thousand times the deviation. Kills: a difference of two large sums for the sum of differences.
#[test]
fn a_large_mean_does_not_swallow_the_variance() {
    fn both<S: CpuScalar>() -> [Matrix<S>; 3]
    where
        Cpu<S>: Kernels<Elem = S, Wide = Cpu<S>>,
    {
        let row = |scale: f64| move |i: usize| S::from_f64(scale * [3.0, -1.0, 2.0, 0.0][i]);
        let (x, gain) = (matrix(1, 4, |i| S::from_usize(8192 + i)), filled(1, 4, S::ONE));
        let [mut y, mut dx, mut dgain, mut dbias] = [(); 4].map(|()| filled(1, 4, S::ZERO));
        let (mut stats, dy, cpu) = (filled(1, 2, S::ZERO), matrix(1, 4, row(0.1)), Cpu::<S>::default());
        cpu.layer_norm(y.view_mut(), stats.view_mut(), x.view(), gain.view(), gain.view(), 0.0);
        let gradients = [dgain.view_mut(), dbias.view_mut()];
        let (x, stats, gain) = (x.view(), stats.view(), gain.view());
        cpu.layer_norm_backward(dx.view_mut(), gradients, x, stats, gain, dy.view(), None);
        [y, dx, dgain]
    }
    for (single, double) in both::<f32>().iter().zip(&both::<f64>()) {
        assert_close(single, double, 1e-6);
    }
}
