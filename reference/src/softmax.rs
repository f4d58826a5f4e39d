//! Softmax and log-sum-exp of one row, in a form that is valid for every dtype.
//!
//! ```text
//! m = stab(x₀, stab(x₁, …))      max on floats; whatever it is, it cancels
//! l = Σ exp(xⱼ − m)
//! softmax(x)ᵢ = exp(xᵢ − m) / l,   log Σ exp(x) = m + ln l
//! ```
use tensor::Scalar;

/// `X[N]` → its softmax `[N]`.
pub(crate) fn softmax<S: Scalar>(x: &[S]) -> Vec<S> {
    let (m, l) = stabilised_sum(x);
    let share = l.inv();
    x.iter().map(|&x| S::exp_sub(x, m) * share).collect()
}

/// `X[N]` → log Σ exp(xⱼ).
pub(crate) fn log_sum_exp<S: Scalar>(x: &[S]) -> S {
    let (m, l) = stabilised_sum(x);
    S::lse(m, l)
}

/// The stabiliser `m` of a row, and Σ exp(xⱼ − m).
fn stabilised_sum<S: Scalar>(x: &[S]) -> (S, S) {
    let m = x.iter().fold(S::NEG_INF, |m, &x| S::stab(m, x));
    (m, x.iter().fold(S::ZERO, |l, &x| l + S::exp_sub(x, m)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, draw, under_two_keys};
    use tensor::F61;

    /// Kills: a missing or wrong stabiliser (overflow), a missing normalisation.
    #[test]
    fn softmax_equals_its_definition_in_std_floats() {
        let x = [0.3, -1.7, 2.0, 0.0];
        let total: f64 = x.iter().map(|x| f64::exp(*x)).sum();
        assert_close(&softmax(&x), &x.map(|x| x.exp() / total), 1e-15);
        assert_close(
            &[log_sum_exp(&x), log_sum_exp(&[1000.0, 1000.0])],
            &[total.ln(), 1000.0 + 2f64.ln()],
            1e-12,
        );
        assert_close(&softmax(&[900.0, 900.0, -900.0]), &[0.5, 0.5, 0.0], 0.0);
        assert_close(&softmax(&[-9000.0, -900.0, -900.0]), &[0.0, 0.5, 0.5], 0.0);
    }

    /// Kills: a stabiliser that does not cancel: the field detects every wrong shift.
    #[test]
    fn softmax_sums_to_one_and_ignores_order_exactly() {
        under_two_keys(|| {
            for n in 1..6 {
                let x: Vec<F61> = draw(n, n as usize);
                let reversed: Vec<F61> = x.iter().rev().copied().collect();
                assert_eq!(softmax(&x).into_iter().fold(F61::ZERO, |a, p| a + p), F61::ONE);
                assert!(softmax(&x).iter().eq(softmax(&reversed).iter().rev()));
                assert_eq!(log_sum_exp(&x), log_sum_exp(&reversed));
            }
            let one: Vec<F61> = draw(9, 1);
            assert_eq!(log_sum_exp(&one), one[0]);
        });
    }
}
