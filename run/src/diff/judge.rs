//! The rule: is a tensor's difference rounding, or a bug?
//!
//! For a tensor that differs, let `e` be the errors of a run against the truth, `c` the truth, `u` the unit
//! roundoff of the run's dtype. Errors count in units of `u`, so runs in different dtypes compare. Let
//! `lesser` be the lesser of A's and B's. A run departs from the truth if
//!
//! ```text
//! mean |e|  >  4·u · max(lesser mean |e|/u,  4·mean |c|,  usual · mean |c|)      many elements are off, or
//! max  |e|  > 32·u · max(lesser max  |e|/u,  4·max  |c|)                        a few are far off
//! ```
//!
//! where `usual` is the median of the lesser relative errors of the file's tensors: the rounding of one run
//! predicts that of the other, and a small tensor with a tiny error in one run is judged by the other
//! tensors. Means, not mean squares: an optimizer that divides by a root makes a few elements with tiny
//! gradients err a thousandfold.
use super::measure::{Error, TensorDiff};
use serde::Serialize;

/// Allowed ratio of a mean error to the other run's, as in every proof of rounding here.
pub const TIMES: f64 = 4.0;
/// Allowed ratio of the largest error to the other run's largest.
pub const OUTLIER: f64 = 32.0;
/// Number of roundings of a tensor's size that are allowed even if the other run has no error.
pub const FLOOR: f64 = 4.0;

/// Fraction of a tensor's size (or of the median tensor of its file, if that is larger) from which an error
/// is not rounding: the fourth root of the unit roundoff, where three quarters of the digits are wrong. For
/// f32 that is 1/64. The rule compares runs, so this bound finds errors that both have.
pub fn far(unit: f64) -> f64 {
    unit.powf(0.25)
}

/// Verdict on a tensor's difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Equal: no element differs.
    Equal,
    /// A and B are as close to the truth as rounding allows.
    Rounding,
    /// A departs from the truth, B does not.
    BugInA,
    /// B departs from the truth, A does not.
    BugInB,
    /// Both depart: both have a bug, or the truth is that of another run.
    BugInBoth,
    /// Values of a dtype that does not round differ.
    Exact,
}

impl Finding {
    /// Returns true if the tensor has no bug.
    pub fn is_fine(self) -> bool {
        matches!(self, Self::Equal | Self::Rounding)
    }
}

/// Judges every tensor that is equal, that does not round, or that has a truth.
pub(super) fn all(tensors: &mut [TensorDiff]) {
    let files: Vec<String> = tensors.iter().map(|t| t.file.clone()).collect();
    for file in files.chunk_by(|a, b| a == b).map(|same| &same[0]) {
        let both = |t: &TensorDiff| t.a.zip(t.b).filter(|_| t.file == *file);
        let of_file: Vec<_> = tensors.iter().filter_map(both).collect();
        let usual = middle(of_file.iter().map(|(a, b)| relative(a).min(relative(b))));
        let size = middle(of_file.iter().map(|(a, _)| a.mean_size));
        for tensor in tensors.iter_mut().filter(|t| t.file == *file) {
            tensor.verdict = verdict(tensor, usual, size);
        }
    }
}

/// The mean error in units of roundoff, as a fraction of the tensor's mean size.
fn relative(e: &Error) -> f64 {
    if e.mean == 0.0 { 0.0 } else { e.mean / e.unit / e.mean_size }
}

/// The median; 0 if there are no values.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.filter(|x| x.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn verdict(tensor: &TensorDiff, usual: f64, size: f64) -> Option<Finding> {
    let broken = tensor.a.zip(tensor.b).is_some_and(|(a, b)| a.largest.min(b.largest).is_infinite());
    if tensor.apart.differ == 0 && !broken {
        return Some(Finding::Equal);
    }
    if tensor.apart.largest.is_none() {
        return Some(Finding::Exact);
    }
    let (a, b) = tensor.a.zip(tensor.b)?;
    let far = |e: &Error| e.mean > far(e.unit) * e.mean_size.max(size);
    Some(match (departs(&a, &b, usual), departs(&b, &a, usual)) {
        (true, false) if !far(&b) => Finding::BugInA,
        (false, true) if !far(&a) => Finding::BugInB,
        (false, false) if !far(&a) && !far(&b) => Finding::Rounding,
        _ => Finding::BugInBoth,
    })
}

/// Returns true if a run's errors are larger than the other run's errors predict.
fn departs(e: &Error, other: &Error, usual: f64) -> bool {
    let mean = (other.mean / other.unit).max(FLOOR.max(usual) * e.mean_size);
    let largest = (other.largest / other.unit).max(FLOOR * e.largest_size);
    e.largest.is_infinite() || e.mean > TIMES * e.unit * mean || e.largest > OUTLIER * e.unit * largest
}

#[cfg(test)]
mod tests {
    use super::super::RunDistance;
    use super::*;

    const F32: f64 = 1.0 / (1u64 << 24) as f64;
    const BF16: f64 = 1.0 / 256.0;

    /// A tensor of mean size 1 and largest 10 that differs, with these errors (mean, largest, unit).
    fn tensor(a: (f64, f64, f64), b: (f64, f64, f64)) -> TensorDiff {
        let own = |(mean, largest, unit)| {
            Some(Error {
                mean: mean * unit,
                largest: largest * unit,
                mean_size: 1.0,
                largest_size: 10.0,
                unit,
            })
        };
        let apart = RunDistance { differ: 1, of: 9, largest: Some(1.0), relative: Some(1.0) };
        let (file, name) = ("weights".to_owned(), "w".to_owned());
        TensorDiff { file, name, shape: vec![9], verdict: None, apart, a: own(a), b: own(b), worst: None }
    }

    /// Errors in units of roundoff. Kills: a floor that is missing or too high, other tensors that are
    /// ignored, f32 bounds for 16 bits, the coarser run reported as wrong, a bound that is not the other
    /// run's, a far error of both or of one run that passes.
    #[test]
    fn one_runs_rounding_predicts_the_others() {
        use Finding::{BugInA, BugInB, BugInBoth, Rounding};
        let cases = [
            ((10.0, 100.0, F32), (39.0, 3100.0, F32), 0.0, Rounding),
            ((10.0, 100.0, F32), (41.0, 3100.0, F32), 0.0, BugInB),
            ((41.0, 100.0, F32), (10.0, 3100.0, F32), 0.0, BugInA),
            ((10.0, 100.0, F32), (39.0, 3300.0, F32), 0.0, BugInB),
            ((0.0, 0.0, F32), (15.0, 1200.0, F32), 0.0, Rounding),
            ((0.0, 0.0, F32), (17.0, 100.0, F32), 0.0, BugInB),
            ((0.0, 0.0, F32), (17.0, 100.0, F32), 5.0, Rounding),
            ((0.0, 0.0, F32), (1.0, 1300.0, F32), 5.0, BugInB),
            ((10.0, 100.0, F32), (10.0, 100.0, BF16), 0.0, Rounding),
            ((10.0, 100.0, BF16), (50.0, 100.0, F32), 0.0, BugInB),
            ((41.0, 100.0, F32), (10.0, 3300.0, F32), 0.0, BugInBoth),
            ((3e5, 1e6, F32), (3e5, 1e6, F32), 0.0, BugInBoth),
            ((2e5, 1e6, F32), (2e5, 1e6, F32), 0.0, Rounding),
            ((3e5, 1e6, F32), (9e7, 1e8, F32), 0.0, BugInBoth),
            ((3e5, 1e6, F32), (2e5, 1e6, F32), 0.0, BugInBoth),
            ((2e5, 1e6, F32), (3e5, 1e6, F32), 0.0, BugInBoth),
        ];
        for (a, b, usual, wanted) in cases {
            assert_eq!(verdict(&tensor(a, b), usual, 0.0), Some(wanted), "{a:?} {b:?} {usual}");
        }
        let small = tensor((3e5, 1e6, F32), (3e5, 1e6, F32));
        assert_eq!(verdict(&small, 0.0, 2.0), Some(Rounding), "next to nothing beside its neighbours");
    }

    /// Kills: an infinity in both that is reported as equal, a difference without a truth that is judged.
    #[test]
    fn what_is_equal_is_so_unless_both_are_broken() {
        let equal = |t: TensorDiff| TensorDiff { apart: RunDistance { differ: 0, ..t.apart }, ..t };
        let inf = f64::INFINITY;
        assert_eq!(verdict(&equal(tensor((3e5, 1e6, F32), (3e5, 1e6, F32))), 0.0, 0.0), Some(Finding::Equal));
        assert_eq!(
            verdict(&equal(tensor((inf, inf, F32), (inf, inf, F32))), 0.0, 0.0),
            Some(Finding::BugInBoth)
        );
        assert_eq!(verdict(&tensor((1.0, 1.0, F32), (inf, inf, F32)), 0.0, 0.0), Some(Finding::BugInB));
        let untold = TensorDiff { a: None, b: None, ..tensor((1.0, 1.0, F32), (1.0, 1.0, F32)) };
        assert_eq!(verdict(&untold, 0.0, 0.0), None);
    }
}
