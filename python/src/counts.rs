//! Arguments of the keyed functions of a run, each counted once: what the bound on the probability of error
//! is worked out from.
use crate::buffers::{Residues, element, read, word};
use pyo3::prelude::*;
use std::collections::HashMap;
use tensor::{F61, Scalar};

/// Numbers of what is counted, but hashes nothing: inverses, exponents by themselves, and those in sigmoids.
pub(crate) const INVERSE: u64 = 0;
pub(crate) const EXPONENTS: [u64; 2] = [1, 2];

/// The arguments of each function, with their degrees.
#[derive(Default)]
pub(crate) struct ArgumentCounts {
    arguments: HashMap<u64, HashMap<i64, f64>>,
    inverted: f64,
}

impl ArgumentCounts {
    /// Counts the arguments of a function, which have at most this degree; nothing, if it is negative.
    ///
    /// # Errors
    /// If they are not contiguous.
    pub(crate) fn add(&mut self, py: Python<'_>, of: u64, x: &Residues, degree: f64) -> PyResult<()> {
        if degree >= 0.0 {
            let arguments = self.arguments.entry(of).or_default();
            for x in read(py, x)? {
                if arguments.insert(x.get(), degree).is_none() && of == INVERSE {
                    self.inverted += degree;
                }
            }
        }
        Ok(())
    }
    /// Returns the number of sigmoids whose arguments have exponentials beside them.
    pub(crate) fn shared(&self) -> usize {
        let [Some(alone), Some(in_sigmoids)] = EXPONENTS.map(|of| self.arguments.get(&of)) else { return 0 };
        let known = |x: &i64| alone.contains_key(x);
        let is_shared = |x: &&i64| known(x) || element(**x).is_ok_and(|x| known(&word(F61::ZERO - x)));
        in_sigmoids.keys().filter(is_shared).count()
    }
    /// Returns the sum of the degrees of all elements that are inverted.
    pub(crate) fn inverted(&self) -> f64 {
        self.inverted
    }
    /// Returns n·S, summed over all functions: n is the number of a function's arguments that differ, S the
    /// sum of their degrees.
    pub(crate) fn pairs(&self) -> f64 {
        let functions = self.arguments.iter().filter(|(of, _)| **of > EXPONENTS[1]);
        functions.map(|(_, of)| of.len() as f64 * of.values().sum::<f64>()).sum()
    }
    /// Returns all arguments, to carry them to another process.
    pub(crate) fn carried(&self) -> Vec<(u64, Vec<(i64, f64)>)> {
        let of = |of: &HashMap<i64, f64>| of.iter().map(|(x, degree)| (*x, *degree)).collect();
        self.arguments.iter().map(|(function, arguments)| (*function, of(arguments))).collect()
    }
    /// Counts the arguments of another process, too.
    pub(crate) fn extend(&mut self, carried: Vec<(u64, Vec<(i64, f64)>)>) {
        for (function, arguments) in carried {
            self.arguments.entry(function).or_default().extend(arguments);
        }
    }
}
