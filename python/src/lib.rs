//! The field of proofs for Python: what PyTorch programs compute when they are proven.
//!
//! Each function takes contiguous buffers of 64-bit words: canonical representatives of elements; −1 stands
//! for a mask's minus infinity, −2 for its least finite number. Arithmetic and functions are those of the
//! crates `tensor` and `kernels`.
mod buffers;
mod constants;
mod counts;
mod functions;
mod known;
mod products;

use buffers::{Residues, broken, finite, read, same, word, write};
use pyo3::prelude::*;
use tensor::{F61, Scalar, mix};

/// Elements of the prime field of 2^61 − 1, as 64-bit words.
#[pymodule]
mod _field {
    #[pymodule_export]
    use super::{accumulate, constants::constants, draw, functions::Functions, products::product, rotary};
    #[pymodule_export]
    const P: u64 = tensor::F61::P;
}

/// out[at] += x, for each element of x.
#[pyfunction]
fn accumulate(py: Python<'_>, out: Residues, at: Residues, x: Residues) -> PyResult<()> {
    let out = write(py, &out)?;
    same(&[read(py, &at)?.len(), read(py, &x)?.len()])?;
    for (at, x) in read(py, &at)?.iter().zip(read(py, &x)?) {
        let out = out.get(at.get() as usize).ok_or_else(|| broken("an index lies outside"))?;
        out.set(word(finite(out.get())? + finite(x.get())?));
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
    if width < 2 {
        return Err(broken("positions have less than two features"));
    }
    let pairs = write(py, &cos)?.iter().zip(write(py, &sin)?);
    for (at, (cos, sin)) in pairs.enumerate() {
        let (x, y) = F61::rotary(at / (width / 2), at % (width / 2), width, &base.into());
        cos.set(word(x));
        sin.set(word(y));
    }
    Ok(())
}
