//! Distance between two runs of one tensor, and of each from the truth.
use super::judge::Finding;
use super::source::FileSet;
use crate::roundoff::unit;
use parallel::{Error as Failure, Result};
use serde::Serialize;
use tensor::dtype::Dtype;
use tensor::quoted::quoted;
use tensor::safetensors::Matrix;

/// Distance between two runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunDistance {
    /// Number of elements that differ.
    pub differ: usize,
    /// Number of elements.
    pub of: usize,
    /// The largest difference; infinite if one value is not finite, `None` if tensors are not of floats.
    pub largest: Option<f64>,
    /// Root mean square of the differences, over that of A.
    pub relative: Option<f64>,
}

/// Error of one run against the truth, with sizes of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Error {
    /// Mean of the errors.
    pub mean: f64,
    /// The largest error; infinite if only one of run and truth is finite.
    pub largest: f64,
    /// Mean absolute value of the truth.
    #[serde(skip)]
    pub mean_size: f64,
    /// Largest absolute value of the truth.
    #[serde(skip)]
    pub largest_size: f64,
    /// Unit roundoff of the run's dtype: half the distance from 1 to the next number.
    #[serde(skip)]
    pub unit: f64,
}

/// An element and its values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Index in each dimension.
    pub at: Vec<usize>,
    /// Sequence of its row and the position in it, if the file records them.
    pub token: Option<[usize; 2]>,
    /// Value in A.
    pub a: f64,
    /// Value in B.
    pub b: f64,
    /// Value in the truth.
    pub truth: Option<f64>,
}

/// A tensor that both runs have, in one shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "tensor")]
pub struct TensorDiff {
    /// Name of its file without `.safetensors`.
    pub file: String,
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Verdict; `None` if there is no truth of it.
    pub verdict: Option<Finding>,
    /// Distance between A and B.
    pub apart: RunDistance,
    /// The error of A against the truth.
    pub a: Option<Error>,
    /// The error of B against the truth.
    pub b: Option<Error>,
    /// The element at which the run further from the truth is furthest from it; without a truth, at which A
    /// and B are furthest apart.
    pub worst: Option<Worst>,
}

/// Largest ratio of the truth's unit roundoff to that of the runs: a truth needs 8 more binary digits.
const FINER: f64 = 1.0 / 256.0;

/// Measures one tensor that both runs have in one shape; the truth, if given, has the same shape.
pub(super) fn tensor(name: &str, a: &FileSet, b: &FileSet, truth: Option<&FileSet>) -> Result<TensorDiff> {
    let shape = a.shape(name).to_vec();
    let mut compared = TensorDiff { file: a.name.clone(), name: name.into(), shape, ..TensorDiff::default() };
    let (Some(x), Some(y)) = (a.tensors.flat(name), b.tensors.flat(name)) else {
        compared.apart = exact(name, a, b);
        return Ok(compared);
    };
    let (apart, furthest) = apart(&x, &y);
    let mut furthest = furthest.filter(|_| apart.differ > 0);
    compared.apart = apart;
    let judge = truth.map(|truth| finer(name, [a.dtype(&x), b.dtype(&y)], truth)).transpose()?;
    if let Some(t) = &judge {
        let [(own_a, worst_a), (own_b, worst_b)] = [(a, &x), (b, &y)].map(|(run, x)| own(run, x, t));
        if apart.differ > 0 {
            let b_is_further = own_b.largest / own_b.unit > own_a.largest / own_a.unit;
            furthest = if b_is_further { worst_b } else { worst_a };
        }
        (compared.a, compared.b) = (Some(own_a), Some(own_b));
    }
    let rows = a.rows.as_ref().or(b.rows.as_ref());
    compared.worst = furthest.map(|i| {
        let index = index(i, &compared.shape);
        let token = rows.filter(|r| compared.shape.first() == Some(&r.len())).map(|rows| rows[index[0]]);
        Worst { token, at: index, a: x.get(0, i), b: y.get(0, i), truth: judge.map(|t| t.get(0, i)) }
    });
    Ok(compared)
}

/// Returns the truth of a tensor, if it is precise enough.
fn finer<'a>(name: &str, runs: [Dtype; 2], truth: &'a FileSet) -> Result<Matrix<'a>> {
    let dtype = truth.tensors.info(name).expect("it is there").dtype;
    let finest = if unit(runs[0]) < unit(runs[1]) { runs[0] } else { runs[1] };
    truth.tensors.flat(name).filter(|t| unit(t.dtype()) <= FINER * unit(finest)).ok_or_else(|| {
        Failure::new(format!(
            "{} is {dtype} in the truth and {finest} in a run; the truth needs more digits, \
             as train --dtype f64 --dump writes them",
            quoted(name)
        ))
    })
}

/// Compares tensors that are not of floats: bytes are equal or not.
fn exact(name: &str, a: &FileSet, b: &FileSet) -> RunDistance {
    let [(kind, _, x), (other, _, y)] = [a, b].map(|of| of.tensors.whole(name).expect("it is there"));
    let size = kind.bitsize() / 8;
    let total = x.len() / size;
    let pairs = x.chunks(size).zip(y.chunks(size));
    let differ = if kind == other { pairs.filter(|(x, y)| x != y).count() } else { total };
    RunDistance { differ, of: total, largest: None, relative: None }
}

/// Distance between two values; 0 for two NaNs and for equal infinities.
fn distance(x: f64, y: f64) -> f64 {
    if x == y || x.is_nan() && y.is_nan() {
        0.0
    } else if x.is_finite() && y.is_finite() {
        (x - y).abs()
    } else {
        f64::INFINITY
    }
}

/// Pairs of values at the same index of two tensors of one shape, in order.
fn both(x: &Matrix<'_>, y: &Matrix<'_>) -> impl Iterator<Item = (f64, f64)> {
    const TOGETHER: usize = 4096;
    let some = |of: &Matrix<'_>, from: usize| {
        let mut some = vec![0.0; TOGETHER.min(of.cols() - from)];
        of.row(0, from, &mut some);
        some
    };
    (0..x.cols()).step_by(TOGETHER).flat_map(move |from| some(x, from).into_iter().zip(some(y, from)))
}

/// Distance between A and B, and the index of the element at which they are furthest apart.
fn apart(a: &Matrix<'_>, b: &Matrix<'_>) -> (RunDistance, Option<usize>) {
    let (mut differ, mut squares, mut size) = (0, 0.0, 0.0);
    let mut most = Most::default();
    for (i, (x, y)) in both(a, b).enumerate() {
        let apart = distance(x, y);
        differ += usize::from(apart > 0.0);
        squares += apart * apart;
        size += if x.is_finite() { x * x } else { 0.0 };
        most.see(i, apart);
    }
    let relative = if squares == 0.0 { 0.0 } else { (squares / size).sqrt() };
    (RunDistance { differ, of: a.cols(), largest: Some(most.value), relative: Some(relative) }, most.at)
}

/// Error of a run against the truth, and the index of the element with the largest error.
fn own(section: &FileSet, run: &Matrix<'_>, truth: &Matrix<'_>) -> (Error, Option<usize>) {
    let (mut sum, mut size) = (0.0, 0.0);
    let mut most = Most::default();
    let mut largest = Most::default();
    for (i, (x, t)) in both(run, truth).enumerate() {
        let error = distance(x, t);
        sum += error;
        most.see(i, error);
        if t.is_finite() {
            size += t.abs();
            largest.see(i, t.abs());
        }
    }
    let count = run.cols().max(1) as f64;
    let mean_size = size / count;
    // A sum in f32 of bf16 values is no more accurate than the values.
    let unit = unit(section.dtype(run));
    (Error { mean: sum / count, largest: most.value, mean_size, largest_size: largest.value, unit }, most.at)
}

/// The largest value so far, and its first index.
#[derive(Default)]
struct Most {
    value: f64,
    at: Option<usize>,
}

impl Most {
    fn see(&mut self, at: usize, value: f64) {
        if value > self.value || self.at.is_none() {
            *self = Self { value, at: Some(at) };
        }
    }
}

/// Index of the `i`th element in a tensor of this shape.
fn index(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (at, n) in at.iter_mut().zip(shape).rev() {
        (*at, i) = (i % n, i / n);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tensor::safetensors::{File, Writer};

    /// Kills: NaN that is far from NaN, or close to a number; infinities of two signs taken as equal.
    #[test]
    fn no_number_is_far_from_a_number_only() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        for (x, y, wanted) in [
            (1.0, 3.5, 2.5),
            (nan, nan, 0.0),
            (nan, 1.0, inf),
            (inf, inf, 0.0),
            (inf, -inf, inf),
            (2.0, inf, inf),
        ] {
            assert_eq!((distance(x, y), distance(y, x)), (wanted, wanted), "{x} {y}");
        }
    }

    /// Kills: chunks that overlap, end too early, or are indexed from their own start.
    #[test]
    fn long_tensors_are_compared_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let (path, len) = (folder.path().join("x"), 3 * 4096 + 5);
        let header = ["x", "y"].map(|name| (name, Dtype::F64, vec![len]));
        let mut writer = Writer::create(&path, &BTreeMap::new(), &header).unwrap();
        let x: Vec<f64> = (0..len).map(|i| i as f64).collect();
        let mut y = x.clone();
        (y[5000], y[len - 1]) = (5000.5, 0.0);
        writer.tensor("x", &x).unwrap();
        writer.tensor("y", &y).unwrap();
        writer.finish().unwrap();
        let file = File::open(&path).unwrap();
        let [x, y] = ["x", "y"].map(|name| file.matrix(name, [1, len]).unwrap());
        let (apart, at) = apart(&x, &y);
        assert_eq!((apart.differ, apart.of, apart.largest), (2, len, Some((len - 1) as f64)));
        assert_eq!(at, Some(len - 1));
    }

    /// Kills: dimensions in another order.
    #[test]
    fn places_are_row_major() {
        assert_eq!(index(17, &[2, 3, 4]), [1, 1, 1]);
        assert_eq!((index(0, &[]), index(5, &[6])), (vec![], vec![5]));
    }
}
