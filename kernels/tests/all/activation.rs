//! Activations: values and gradients against formulas, exactly.
use crate::proof::{Matrix, assert_close, assert_derivative, draw, filled, matrix, read, under_two_keys};
use kernels::{Activation, CpuScalar, Kernels};
use tensor::{Cpu, Dual, F61, Scalar};

const ALL: [Activation; 3] = [Activation::Gelu, Activation::GeluTanh, Activation::Relu];

fn forward<S: CpuScalar>(x: &Matrix<S>, f: Activation) -> Matrix<S>
where
    Cpu<S>: Kernels<Elem = S, Wide = Cpu<S>>,
{
    let mut h = filled(x.rows(), x.cols(), S::ZERO);
    Cpu::<S>::default().activate(h.view_mut(), x.view(), f);
    h
}

fn backward<S: CpuScalar>(x: &Matrix<S>, dh: &Matrix<S>, f: Activation) -> Matrix<S>
where
    Cpu<S>: Kernels<Elem = S, Wide = Cpu<S>>,
{
    let mut dx = filled(x.rows(), x.cols(), S::ZERO);
    Cpu::<S>::default().activate_backward(dx.view_mut(), x.view(), dh.view(), f);
    dx
}

/// Kills: one function for another, a square for the cube, a sigmoid of x.
#[test]
fn activations_equal_their_formulas_exactly() {
    under_two_keys(|| {
        let x = draw::<F61>(1, 3, 5);
        let (a, b) = F61::gelu_constants();
        let formulas: [&dyn Fn(F61) -> F61; 3] =
            [&|x| x * x.normal_cdf(), &|x| x * (a * x + a * b * x.pow(3)).sigmoid(), &|x| x * x.step()];
        for (f, formula) in ALL.into_iter().zip(formulas) {
            let wanted: Vec<F61> = read(&x).into_iter().map(formula).collect();
            assert_eq!(read(&forward(&x, f)), wanted, "{f:?}");
        }
    });
}

/// Kills: a gate taken for a constant, b for 3b, a chain rule without its a, dh forgotten.
#[test]
fn activation_backward_equals_the_derivative_exactly() {
    under_two_keys(|| {
        for f in ALL {
            let (x, dh) = (draw::<F61>(1, 3, 5), draw(2, 3, 5));
            let moving = draw::<Dual<F61>>(1, 3, 5);
            assert_derivative(&dh, &forward(&moving, f), &[(&moving, &backward(&x, &dh, f))]);
        }
    });
}

/// Against `GeLU` by its integral's values and by tanh, and the plain `ReLU`.
/// Kills: a wrong constant, and what the field cannot see: a gate that opens on the wrong side.
#[test]
fn activations_equal_the_formulas_of_their_papers_in_floats() {
    let x = matrix(1, 4, |i| [-2.0, 0.0, 1.0, 3.0][i]);
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = |x: f64| 0.5 * x * (1.0 + (c * (x + 0.044_715 * x.powi(3))).tanh());
    let gelu = [-2.0 * 0.022_750_131_948_179_2, 0.0, 0.841_344_746_068_543, 3.0 * 0.998_650_101_968_37];
    let wanted = [gelu, [-2.0, 0.0, 1.0, 3.0].map(tanh), [0.0, 0.0, 1.0, 3.0]];
    for (f, wanted) in ALL.into_iter().zip(wanted) {
        for (seen, wanted) in read(&forward(&x, f)).into_iter().zip(wanted) {
            assert!((seen - wanted).abs() < 1e-14, "{f:?}: {seen}, wanted {wanted}");
        }
    }
    let slopes = read(&backward(&x, &filled(1, 4, 2.0), Activation::Relu));
    assert_eq!(slopes, [0.0, 0.0, 2.0, 2.0]);
}

/// Over the whole range that f32's exponential covers. Kills: a cube or a gate that overflows to no number.
#[test]
fn single_precision_equals_double() {
    let value = |i: usize| (i as f64 - 500.0) * 0.25;
    let (x, wide) = (matrix(1, 1001, |i| value(i) as f32), matrix(1, 1001, value));
    for f in ALL {
        assert_close(&forward(&x, f), &forward(&wide, f), 1e-6);
        let (dh, wide_dh) = (filled(1, 1001, 1.0), filled(1, 1001, 1.0));
        assert_close(&backward(&x, &dh, f), &backward(&wide, &wide_dh, f), 2e-6);
    }
}
