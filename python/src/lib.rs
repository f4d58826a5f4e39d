//! The field of proofs for Python: what PyTorch programs compute when they are proven.
//!
//! Each function takes contiguous buffers of 64-bit words: canonical representatives of elements, or −1,
//! which stands for a mask's minus infinity. Arithmetic and functions are those of the crates `tensor` and
//! `kernels`.
mod buffers;
mod functions;
mod products;

use buffers::{Residues, broken, each, finite, pairs, read, word, write};
use pyo3::prelude::*;
use tensor::{F61, Scalar, mix};

/// Elements of the prime field of 2^61 − 1, as 64-bit words.
#[pymodule]
mod _field {
    #[pymodule_export]
    use super::{
        accumulate, add, constants, draw, functions::Functions, inverse, multiply, products::product, rotary,
        subtract, sums,
    };
    #[pymodule_export]
    const P: u64 = tensor::F61::P;
}

/// out = a + b; minus infinity, if one of them is.
#[pyfunction]
fn add(py: Python<'_>, a: Residues, b: Residues, out: Residues) -> PyResult<()> {
    pairs(py, [&a, &b, &out], |a, b| match (a == F61::NEG_INF, b == F61::NEG_INF) {
        (false, false) => Ok(a + b),
        _ => Ok(F61::NEG_INF),
    })
}

/// out = a − b; minus infinity, if a is.
#[pyfunction]
fn subtract(py: Python<'_>, a: Residues, b: Residues, out: Residues) -> PyResult<()> {
    pairs(py, [&a, &b, &out], |a, b| match (a == F61::NEG_INF, b == F61::NEG_INF) {
        (false, false) => Ok(a - b),
        (true, false) => Ok(a),
        _ => Err(broken("minus infinity is subtracted")),
    })
}

/// out = a·b; minus infinity, if one of them is and the other is not 0.
#[pyfunction]
fn multiply(py: Python<'_>, a: Residues, b: Residues, out: Residues) -> PyResult<()> {
    pairs(py, [&a, &b, &out], |a, b| match (a == F61::NEG_INF, b == F61::NEG_INF) {
        (false, false) => Ok(a * b),
        _ if a == F61::ZERO || b == F61::ZERO => Err(broken("minus infinity is multiplied by 0")),
        _ => Ok(F61::NEG_INF),
    })
}

/// out = 1/x.
#[pyfunction]
fn inverse(py: Python<'_>, x: Residues, out: Residues) -> PyResult<()> {
    each(py, &x, &out, |x| match x {
        F61::ZERO => Err(broken("a division by 0")),
        F61::NEG_INF => Ok(F61::ZERO),
        x => Ok(x.inv()),
    })
}

/// out = the sums of rows of x, of n elements each.
#[pyfunction]
fn sums(py: Python<'_>, x: Residues, out: Residues, n: usize) -> PyResult<()> {
    let x = read(py, &x)?;
    for (row, out) in write(py, &out)?.iter().enumerate() {
        let mut sum = F61::ZERO;
        for x in &x[row * n..(row + 1) * n] {
            sum += finite(x.get())?;
        }
        out.set(word(sum));
    }
    Ok(())
}

/// out[at] += x, for each element of x.
#[pyfunction]
fn accumulate(py: Python<'_>, out: Residues, at: Residues, x: Residues) -> PyResult<()> {
    let out = write(py, &out)?;
    for (at, x) in read(py, &at)?.iter().zip(read(py, &x)?) {
        let out = out.get(at.get() as usize).ok_or_else(|| broken("an index lies outside"))?;
        out.set(word(finite(out.get())? + finite(x.get())?));
    }
    Ok(())
}

/// out = the elements of floats, each a fraction over a power of two. Minus infinity, and what is as good as
/// that in a mask, become minus infinity.
#[pyfunction]
fn constants(py: Python<'_>, x: pyo3::buffer::PyBuffer<f64>, out: Residues) -> PyResult<()> {
    const LEAST: f64 = -1e30;
    for (x, out) in read(py, &x)?.iter().zip(write(py, &out)?) {
        out.set(word(match x.get() {
            x if x < LEAST => F61::NEG_INF,
            x if x.is_normal() || x == 0.0 => F61::from_f64(x),
            x => return Err(broken(&format!("the constant {x} has no place in the field"))),
        }));
    }
    Ok(())
}

/// out = uniform elements, by a seed.
#[pyfunction]
fn draw(py: Python<'_>, seed: u64, out: Residues) -> PyResult<()> {
    let _key = tensor::Key(seed).enter();
    for (at, out) in write(py, &out)?.iter().enumerate() {
        out.set(word(F61::sample(mix(seed ^ mix(at as u64)) >> 3, 1.0)));
    }
    Ok(())
}

/// cos, sin = the keyed pairs that stand for the cosine and sine of each position, one for each two of
/// `width` features: [positions, width / 2], by rows.
#[pyfunction]
fn rotary(py: Python<'_>, key: u64, width: usize, base: f64, cos: Residues, sin: Residues) -> PyResult<()> {
    let _key = tensor::Key(key).enter();
    let pairs = write(py, &cos)?.iter().zip(write(py, &sin)?);
    for (at, (cos, sin)) in pairs.enumerate() {
        let (x, y) = F61::rotary(at / (width / 2), at % (width / 2), width, &base.into());
        cos.set(word(x));
        sin.set(word(y));
    }
    Ok(())
}
