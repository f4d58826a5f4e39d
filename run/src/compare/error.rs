//! Error of a row's values against f64, as a multiple of the unsplit run's own error.
//!
//! In f64 the unsplit run is the truth: its error is 0 and has no multiples. A run that sums in another order
//! still rounds differently, so one rounding of the largest value takes the place of that error. A correct
//! row may have an error of many roundings: the field finds every difference that is not rounding. An error
//! alone makes a row wrong only if it is not finite, or if all of the truth is 0 and the row is not.
use crate::roundoff::unit;
use tensor::dtype::Storable;

/// The largest error; infinite if a value is not finite.
pub(super) fn largest(x: &[f64], truth: &[f64]) -> f64 {
    let error =
        |(a, b): (&f64, &f64)| if a.is_finite() && b.is_finite() { (a - b).abs() } else { f64::INFINITY };
    x.iter().zip(truth).map(error).fold(0.0, f64::max)
}

/// Unit of the errors of all rows, in dtype `E`: the unsplit run's error, or, if that is 0, one rounding of
/// the largest value.
pub(super) fn own<E: Storable>(unsplit: f64, truth: &[f64]) -> f64 {
    let rounding = || unit(E::DTYPE) * largest(truth, &vec![0.0; truth.len()]);
    if unsplit > 0.0 { unsplit } else { rounding() }
}

/// The error as a multiple of `own`: 1 if both are 0; infinite if only `own` is 0, or if either is not
/// finite.
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

    /// Kills: a multiple of an error of 0, which no correct row of f64 has; a NaN error that passes; a unit
    /// of another dtype; the largest value of one sign only.
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
