//! Functions that are no polynomials, under one key, with what is known of their results.
//!
//! A program may take the exponential of a logarithm, or the square of a root, by ways that differ. What is
//! known of such values is kept by value: the exponential of a logarithm or of a sum with one, the square of
//! a root.
use crate::buffers::{Residues, broken, each, element, read, same, word, write};
use pyo3::prelude::*;
use std::collections::{HashMap, HashSet};
use tensor::{F61, Key, Scalar, mix};

/// The keyed functions of one run.
#[pyclass]
pub(crate) struct Functions {
    key: Key,
    shift: F61,
    known: HashMap<(u64, i64), i64>,
    arguments: HashMap<u64, (HashSet<i64>, f64)>, // of each function, and the sum of their degrees
}

/// The number of a name, in place of a tag of the field's own functions.
fn tag(name: &str) -> u64 {
    name.bytes().fold(0x6571_7569_7061_7274, |hash, byte| mix(hash ^ u64::from(byte)))
}

#[pymethods]
impl Functions {
    /// Makes functions with this key. A maximum, which may only shift exponents, is the `shift`.
    #[new]
    fn new(key: u64, shift: u64) -> Self {
        Self { key: Key(key), shift: F61::new(shift), known: HashMap::new(), arguments: HashMap::new() }
    }
    /// out = a function of x by its name: a keyed hash. The arguments have at most this
    /// degree; they are not counted if it is negative.
    fn named(&mut self, py: Python<'_>, name: &str, x: Residues, out: Residues, degree: f64) -> PyResult<()> {
        self.count(py, tag(name), &x, degree)?;
        let _key = self.key.enter();
        let of = |x: F61| match name {
            "sigmoid" => x.sigmoid(),
            "normal_cdf" => x.normal_cdf(),
            "normal_pdf" => x.normal_pdf(),
            "step" => x.step(),
            "rsqrt" => x.rsqrt(),
            _ => x.hashed(tag(name)),
        };
        each(py, &x, &out, |x| {
            if x == F61::NEG_INF { Err(broken("a function of a mask's minus infinity")) } else { Ok(of(x)) }
        })
    }
    /// out = e^x, 0 for minus infinity. Returns true if one of these was known.
    fn exp(&mut self, py: Python<'_>, x: Residues, out: Residues, degree: f64) -> PyResult<bool> {
        self.count(py, tag("exp"), &x, degree)?;
        let (_key, of, mut any) = (self.key.enter(), tag("exp"), false);
        each(py, &x, &out, |x| match self.known.get(&(of, word(x))) {
            Some(known) => {
                any = true;
                element(*known)
            }
            None if x == F61::NEG_INF => Ok(F61::ZERO),
            None => Ok(F61::exp_sub(x + self.shift, self.shift)),
        })?;
        Ok(any)
    }
    /// out = ln x. The exponentials of the results are known.
    fn log(&mut self, py: Python<'_>, x: Residues, out: Residues, degree: f64) -> PyResult<()> {
        self.count(py, tag("exp"), &x, degree)?;
        let _key = self.key.enter();
        each(py, &x, &out, |x| {
            if x == F61::NEG_INF {
                Err(broken("a function of a mask's minus infinity"))
            } else {
                Ok(F61::lse(self.shift, x) - self.shift)
            }
        })?;
        self.learns(py, "exp", out, x)
    }
    /// Learns what a function is of these arguments.
    fn learns(&mut self, py: Python<'_>, name: &str, x: Residues, is: Residues) -> PyResult<()> {
        let (x, is, of) = (read(py, &x)?, read(py, &is)?, tag(name));
        same(&[x.len(), is.len()])?;
        self.known.extend(x.iter().zip(is).map(|(x, is)| ((of, x.get()), is.get())));
        Ok(())
    }
    /// out = what is known of a function of x. Returns true if it is known of all; else out is undefined.
    fn knows(&self, py: Python<'_>, name: &str, x: Residues, out: Residues) -> PyResult<bool> {
        let (x, out, of) = (read(py, &x)?, write(py, &out)?, tag(name));
        same(&[x.len(), out.len()])?;
        Ok(x.iter()
            .zip(out)
            .all(|(x, out)| self.known.get(&(of, x.get())).map(|known| out.set(*known)).is_some()))
    }
    /// Returns n·S, summed over all functions: n is the number of a function's arguments that differ, S the
    /// sum of their degrees.
    fn pairs(&self) -> f64 {
        self.arguments.values().map(|(arguments, degrees)| arguments.len() as f64 * degrees).sum()
    }
}

impl Functions {
    fn count(&mut self, py: Python<'_>, of: u64, x: &Residues, degree: f64) -> PyResult<()> {
        if degree < 0.0 {
            return Ok(());
        }
        let (arguments, degrees) = self.arguments.entry(of).or_default();
        for x in read(py, x)? {
            *degrees += if arguments.insert(x.get()) { degree } else { 0.0 };
        }
        Ok(())
    }
}
