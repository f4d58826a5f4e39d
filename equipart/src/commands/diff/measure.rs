//! How far one tensor of two runs is apart, and how far each is from the truth.
use super::judge::Finding;
use super::source::Section;
use parallel::{Error as Failure, Result};
use serde::Serialize;
use tensor::quoted::quoted;
use tensor::safetensors::{Dtype, Matrix};

/// How far two runs are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Apart {
    /// Elements that are not the same number.
    pub differ: usize,
    /// Of so many.
    pub of: usize,
    /// The largest difference; infinite where only one is a finite number, none where tensors are not of floats.
    pub largest: Option<f64>,
    /// The root of the mean square of the differences, over that of A.
    pub relative: Option<f64>,
}

/// How far one run is from the truth. Sizes of the truth stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Error {
    /// The mean of the errors.
    pub mean: f64,
    /// The largest; infinite where only one of run and truth is a finite number.
    pub largest: f64,
    /// The mean size of the truth's elements.
    #[serde(skip)]
    pub mean_size: f64,
    /// The size of its largest.
    #[serde(skip)]
    pub largest_size: f64,
    /// The unit roundoff of the run's numbers: half the distance from 1 to the next.
    #[serde(skip)]
    pub unit: f64,
}

/// An element, and what stands there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Where, one number for each dimension.
    pub at: Vec<usize>,
    /// Which sequence its row is of, and the position in it, where the file says so.
    pub token: Option<[usize; 2]>,
    /// In A.
    pub a: f64,
    /// In B.
    pub b: f64,
    /// In the truth.
    pub truth: Option<f64>,
}

/// A tensor that both runs have, in one shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Compared {
    /// Its file's name, less `.safetensors`.
    pub file: String,
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What was found; none where there is no truth of it.
    pub verdict: Option<Finding>,
    /// How far A and B are apart.
    pub apart: Apart,
    /// The error of A against the truth.
    pub a: Option<Error>,
    /// The error of B against the truth.
    pub b: Option<Error>,
    /// Where the run that is further from the truth is furthest from it; without a truth, where A and B are furthest apart.
    pub worst: Option<Worst>,
}

/// Unit roundoff: half the distance from 1 to the next number.
pub fn unit(dtype: Dtype) -> f64 {
    let digits = match dtype {
        Dtype::F64 => 53,
        Dtype::F32 => 24,
        Dtype::F16 => 11,
        _ => 8, // BF16
    };
    0.5f64.powi(digits)
}

/// The truth must have so many more digits than what it judges: a factor of 256 between the units.
const FINER: f64 = 1.0 / 256.0;

/// Measures one tensor that both runs have in one shape. The truth has it in the same, if it is given.
pub(super) fn tensor(name: &str, a: &Section, b: &Section, truth: Option<&Section>) -> Result<Compared> {
    let (file, shape) = (a.name.clone(), a.shape(name).to_vec());
    let mut compared = Compared { file, name: name.to_owned(), shape, ..Compared::default() };
    let (Some(x), Some(y)) = (a.tensors.flat(name), b.tensors.flat(name)) else {
        compared.apart = exact(name, a, b);
        return Ok(compared);
    };
    let (apart, furthest) = apart(&x, &y);
    let mut furthest = furthest.filter(|_| apart.differ > 0);
    compared.apart = apart;
    let judge = truth.map(|truth| finer(name, [&x, &y], truth)).transpose()?;
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
        let at = index(i, &compared.shape);
        let token = rows.filter(|r| compared.shape.first() == Some(&r.len())).map(|rows| rows[at[0]]);
        Worst { token, at, a: x.get(0, i), b: y.get(0, i), truth: judge.map(|t| t.get(0, i)) }
    });
    Ok(compared)
}

/// The truth of a tensor, if it is precise enough to be one.
fn finer<'a>(name: &str, runs: [&Matrix<'_>; 2], truth: &'a Section) -> Result<Matrix<'a>> {
    let dtype = truth.info(name).expect("it is there").dtype;
    let finest = if unit(runs[0].dtype()) < unit(runs[1].dtype()) { runs[0] } else { runs[1] }.dtype();
    let matrix = truth.tensors.flat(name).filter(|t| unit(t.dtype()) <= FINER * unit(finest));
    matrix.ok_or_else(|| {
        Failure::new(format!(
            "{} is of {dtype} in the truth and of {finest} in a run; the truth needs more digits, \
             as train --number f64 --dump writes them",
            quoted(name)
        ))
    })
}

/// Tensors that are not of floats are equal or not.
fn exact(name: &str, a: &Section, b: &Section) -> Apart {
    let whole = |section: &Section| {
        let (dtype, _, bytes) = section.tensors.whole(name).expect("it is there");
        (dtype, bytes.to_vec())
    };
    let ((kind, x), (other, y)) = (whole(a), whole(b));
    let size = kind.bitsize() / 8;
    let (of, pairs) = (x.len() / size, x.chunks(size).zip(y.chunks(size)));
    let differ = if kind == other { pairs.filter(|(x, y)| x != y).count() } else { of };
    Apart { differ, of, largest: None, relative: None }
}

/// How far two numbers are apart. Two that are no numbers, or the same infinity, are not.
fn distance(x: f64, y: f64) -> f64 {
    if x == y || x.is_nan() && y.is_nan() {
        0.0
    } else if x.is_finite() && y.is_finite() {
        (x - y).abs()
    } else {
        f64::INFINITY
    }
}

/// The numbers of two tensors of one shape, those of the same place together, in their order.
fn both(x: &Matrix<'_>, y: &Matrix<'_>) -> impl Iterator<Item = (f64, f64)> {
    const TOGETHER: usize = 4096;
    let some = |of: &Matrix<'_>, from: usize| {
        let mut some = vec![0.0; TOGETHER.min(of.cols() - from)];
        of.row(0, from, &mut some);
        some
    };
    (0..x.cols()).step_by(TOGETHER).flat_map(move |from| some(x, from).into_iter().zip(some(y, from)))
}

/// How far A and B are apart, and the element where they are furthest.
fn apart(a: &Matrix<'_>, b: &Matrix<'_>) -> (Apart, Option<usize>) {
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
    (Apart { differ, of: a.cols(), largest: Some(most.value), relative: Some(relative) }, most.at)
}

/// How far a run is from the truth, and the element where it is furthest.
fn own(section: &Section, run: &Matrix<'_>, truth: &Matrix<'_>) -> (Error, Option<usize>) {
    let (mut sum, mut size) = (0.0, 0.0);
    let (mut most, mut largest) = (Most::default(), Most::default());
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
    let (mean, mean_size) = (sum / count, size / count);
    // What a run in bf16 sums in f32 is no better than what it sums.
    let unit = unit(if section.is_bf16 { Dtype::BF16 } else { run.dtype() });
    (Error { mean, largest: most.value, mean_size, largest_size: largest.value, unit }, most.at)
}

/// The largest of what was seen, and the first place where it was.
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

/// The place of the `i`th element in a tensor of this shape.
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

    /// Kills: NaN that is far from NaN, or near a number; infinities of two signs that are one.
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

    /// Kills: what is read at a time begins where the last began, ends too early, or is counted from there.
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
