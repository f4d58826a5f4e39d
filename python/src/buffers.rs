//! Buffers of words that Python lends.
use pyo3::buffer::{Element, PyBuffer, ReadOnlyCell};
use pyo3::exceptions::{PyArithmeticError, PyValueError};
use pyo3::{PyErr, PyResult, Python};
use std::cell::Cell;
use tensor::{F61, Scalar};

/// A contiguous buffer of words.
pub(crate) type Residues = PyBuffer<i64>;

/// Returns the error of arithmetic that has no result.
pub(crate) fn broken(what: &str) -> PyErr {
    PyArithmeticError::new_err(what.to_string())
}

/// Returns the elements of a buffer, to read.
///
/// # Errors
/// If they are not contiguous.
pub(crate) fn read<'a, T: Element>(
    py: Python<'a>,
    buffer: &'a PyBuffer<T>,
) -> PyResult<&'a [ReadOnlyCell<T>]> {
    buffer.as_slice(py).ok_or_else(|| PyValueError::new_err("wanted a contiguous buffer"))
}

/// Returns the elements of a buffer, to write.
///
/// # Errors
/// If they are not contiguous, or may not be written.
pub(crate) fn write<'a>(py: Python<'a>, buffer: &'a Residues) -> PyResult<&'a [Cell<i64>]> {
    buffer.as_mut_slice(py).ok_or_else(|| PyValueError::new_err("wanted a contiguous buffer to write"))
}

/// Returns the least finite number of a mask: as good as minus infinity beside others, and equal to itself.
pub(crate) fn least() -> F61 {
    F61::from_canonical(u64::MAX - 1)
}

/// Returns true for a mask's minus infinity and its least number, which are no elements.
pub(crate) fn is_mark(x: F61) -> bool {
    x.canonical() >= least().canonical()
}

/// Returns the element of a word, or the mark that it stands for.
///
/// # Errors
/// If the word is no element.
pub(crate) fn element(word: i64) -> PyResult<F61> {
    match word {
        -1 => Ok(F61::NEG_INF),
        -2 => Ok(least()),
        word if (0..F61::P as i64).contains(&word) => Ok(F61::from_canonical(word as u64)),
        word => Err(PyValueError::new_err(format!("{word} is no element of the field"))),
    }
}

/// Returns the element of a word.
///
/// # Errors
/// If the word is minus infinity, or no element.
pub(crate) fn finite(word: i64) -> PyResult<F61> {
    let element = element(word)?;
    if is_mark(element) { Err(broken("a mask's minus infinity")) } else { Ok(element) }
}

/// Returns the word of an element.
pub(crate) fn word(element: F61) -> i64 {
    element.canonical() as i64
}

/// out = f(x), for each element.
///
/// # Errors
/// Those of `f`; if the buffers have other sizes.
pub(crate) fn each(
    py: Python<'_>,
    x: &Residues,
    out: &Residues,
    mut f: impl FnMut(F61) -> PyResult<F61>,
) -> PyResult<()> {
    let (x, out) = (read(py, x)?, write(py, out)?);
    same(&[x.len(), out.len()])?;
    x.iter().zip(out).try_for_each(|(x, out)| {
        out.set(word(f(element(x.get())?)?));
        Ok(())
    })
}

/// out = f(a, b), for each pair of elements.
///
/// # Errors
/// Those of `f`; if the buffers have other sizes.
pub(crate) fn pairs(
    py: Python<'_>,
    [a, b, out]: [&Residues; 3],
    mut f: impl FnMut(F61, F61) -> PyResult<F61>,
) -> PyResult<()> {
    let (a, b, out) = (read(py, a)?, read(py, b)?, write(py, out)?);
    same(&[a.len(), b.len(), out.len()])?;
    a.iter().zip(b).zip(out).try_for_each(|((a, b), out)| {
        out.set(word(f(element(a.get())?, element(b.get())?)?));
        Ok(())
    })
}

/// Checks that all buffers have the same number of elements.
///
/// # Errors
/// If they do not.
pub(crate) fn same(lengths: &[usize]) -> PyResult<()> {
    let equal = lengths.iter().all(|length| *length == lengths[0]);
    equal.then_some(()).ok_or_else(|| PyValueError::new_err(format!("buffers of {lengths:?} elements")))
}

/// Returns the inverses of elements, 0 for minus infinity: that of the product of all, times the others.
///
/// # Errors
/// If one is 0.
pub(crate) fn inverses(x: &[ReadOnlyCell<i64>]) -> PyResult<Vec<F61>> {
    let (mut all, mut out) = (F61::ONE, Vec::with_capacity(x.len()));
    for x in x {
        out.push(all);
        match element(x.get())? {
            F61::ZERO => return Err(broken("a division by 0")),
            x if is_mark(x) => {}
            x => all = all * x,
        }
    }
    let mut rest = all.inv();
    for (x, before) in x.iter().zip(&mut out).rev() {
        let x = element(x.get())?;
        *before = if is_mark(x) { F61::ZERO } else { rest * *before };
        rest = if is_mark(x) { rest } else { rest * x };
    }
    Ok(out)
}
