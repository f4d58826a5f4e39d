//! Report on the tensors of two runs that differ, and, with the same run in f64, whether by rounding or
//! by a bug.
//!
//! Two orders of the same sums give different bits, so a split run on floats always differs from the unsplit
//! one. The *truth*, the same run in f64, shows the rounding error of each run in each tensor, and one run's
//! error predicts the other's. `judge.rs` has the rule.
use super::judge::{self, Finding};
use super::measure::{self, TensorDiff};
use super::source::{FileSet, Unmatched, like, open};
use parallel::{Result, bail};
use std::path::Path;
use tensor::quoted::displayed;

/// Comparison of all tensors of two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffReport {
    /// Tensors of both runs, in program order.
    pub tensors: Vec<TensorDiff>,
    /// Tensors that only one run has, that have two shapes, or that have no truth.
    pub unmatched: Vec<Unmatched>,
    /// True if there was a truth.
    pub judged: bool,
}

impl DiffReport {
    /// Returns true if all tensors are matched, and each is equal or, with a truth, within rounding.
    pub fn is_fine(&self) -> bool {
        let fine = |t: &TensorDiff| t.verdict.map_or(t.apart.differ == 0, Finding::is_fine);
        self.unmatched.is_empty() && self.tensors.iter().all(fine)
    }
    /// Returns the first tensor with a bug, in program order, and the tensor before it.
    pub fn first_bug(&self) -> Option<(&TensorDiff, Option<&TensorDiff>)> {
        let index = self.tensors.iter().position(|t| t.verdict.is_some_and(|v| !v.is_fine()))?;
        Some((&self.tensors[index], index.checked_sub(1).map(|before| &self.tensors[before])))
    }
}

/// Compares the tensors of two runs, and judges them by the truth of both, if there is one.
///
/// # Errors
/// If a path is not a folder or file of tensors, the runs have no tensor in common, or the truth is not more
/// precise than the runs.
pub fn diff(a: &Path, b: &Path, truth: Option<&Path>) -> Result<DiffReport> {
    let left = open(a)?;
    let right = open(b)?;
    let truth = truth.map(open).transpose()?;
    let mut report = DiffReport { tensors: Vec::new(), unmatched: Vec::new(), judged: truth.is_some() };
    for one in &left {
        let like = |run| like(run, &one.name, left.len());
        compare(one, like(&right), truth.as_deref().and_then(like), &mut report)?;
    }
    for other in &right {
        let one = like(&left, &other.name, right.len());
        for name in other.order.iter().filter(|name| one.is_none_or(|one| one.tensors.info(name).is_none())) {
            report.unmatched.push(other.lacks(name, "A lacks it"));
        }
    }
    if report.tensors.is_empty() {
        let [a, b] = [a, b].map(Path::display);
        bail!("{a} and {b} have no tensor of one name and shape in common; there is nothing to compare");
    }
    judge::all(&mut report.tensors);
    Ok(report)
}

/// Compares the tensors of one file of each run.
fn compare(a: &FileSet, b: Option<&FileSet>, truth: Option<&FileSet>, report: &mut DiffReport) -> Result<()> {
    for name in &a.order {
        let Some(b) = b.filter(|b| b.tensors.info(name).is_some()) else {
            report.unmatched.push(a.lacks(name, "B lacks it"));
            continue;
        };
        let [shape, other] = [a, b].map(|run| run.shape(name));
        if shape != other {
            let why = format!("its shape is {} in A and {} in B", dimensions(shape), dimensions(other));
            report.unmatched.push(a.lacks(name, &why));
            continue;
        }
        let judge = truth.filter(|t| t.tensors.info(name).is_some_and(|info| info.shape == shape));
        if report.judged && judge.is_none() {
            let why = truth.and_then(|t| t.tensors.info(name)).map_or("the truth lacks it".into(), |of| {
                format!("its shape is {}, and {} in the truth", dimensions(shape), dimensions(&of.shape))
            });
            report.unmatched.push(a.lacks(name, &why));
        }
        report.tensors.push(measure::tensor(name, a, b, judge)?);
    }
    Ok(())
}

/// Formats a shape for a message, cut to a length: a file may have any number of dimensions.
pub fn dimensions(shape: &[usize]) -> String {
    displayed(&format!("{shape:?}"))
}
