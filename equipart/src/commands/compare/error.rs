//! How far a row's numbers are from those in f64, beside the unsplit run's own error.
//!
//! In f64 the unsplit run is the truth itself and errs by nothing, and nothing has a multiple. A run that adds up in another
//! order still rounds otherwise, so one rounding of the largest number takes the place of that error. A right row may err by
//! many: what is wrong, and not rounded, the field tells exactly. An error alone makes a row wrong only if it is no number,
//! or if all of the truth is 0 and it is not.
use crate::commands::diff::unit;
use parallel::dump::Number;
use tensor::safetensors::Storable;

/// The largest error; infinite if something is no number.
pub(super) fn largest(x: &[f64], truth: &[f64]) -> f64 {
    let error =
        |(a, b): (&f64, &f64)| if a.is_finite() && b.is_finite() { (a - b).abs() } else { f64::INFINITY };
    x.iter().zip(truth).map(error).fold(0.0, f64::max)
}

/// The error that those of all rows are multiples of, in numbers `E`, where the unsplit run errs by `unsplit`.
pub(super) fn own<E: Number>(unsplit: f64, truth: &[f64]) -> f64 {
    let rounding = || unit(E::Stored::DTYPE) * largest(truth, &vec![0.0; truth.len()]);
    if unsplit > 0.0 { unsplit } else { rounding() }
}

/// The multiple: 1 where neither errs; infinite where only this one does, or something is no number.
pub(super) fn ratio(error: f64, own: f64) -> f64 {
    match (error.is_finite() && own.is_finite(), own > 0.0) {
        (true, true) => error / own,
        (true, false) if error == 0.0 => 1.0,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Bf16;

    /// Kills: a multiple of an error of 0, which no right row of f64 passes; an error that is no number and passes; a unit of
    /// other numbers; the largest number of either sign.
    #[test]
    fn where_the_unsplit_run_does_not_err_a_rounding_is_the_unit() {
        let truth = [0.5, -4.0, 3.0];
        assert_eq!(own::<f64>(0.0, &truth), 4.0 / (1u64 << 53) as f64);
        assert_eq!(
            [own::<f32>(0.0, &truth), own::<Bf16>(0.0, &truth)],
            [4.0 / (1 << 24) as f64, 4.0 / 256.0]
        );
        assert_eq!(own::<f32>(0.125, &truth), 0.125);
        let of = |x: &[f64]| ratio(largest(x, &truth), own::<f64>(0.0, &truth));
        assert_eq!([of(&truth), of(&[0.5, -4.0, 3.0 + 4.0 * f64::EPSILON])], [0.0, 2.0]);
        assert!([f64::NAN, f64::INFINITY].iter().all(|x| of(&[*x, -4.0, 3.0]) == f64::INFINITY));
        assert!(ratio(1.0, own::<f64>(f64::INFINITY, &truth)).is_infinite());
        assert!(ratio(0.0, own::<f64>(0.0, &[f64::NAN])).is_infinite());
        assert_eq!(
            [ratio(0.0, own::<f64>(0.0, &[0.0])), ratio(1e-9, own::<f64>(0.0, &[0.0]))],
            [1.0, f64::INFINITY]
        );
    }
}
