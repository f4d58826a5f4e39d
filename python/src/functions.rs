//! Functions that are no polynomials, under one key, and arithmetic that keeps what is known of results.
//!
//! The exponential e^x is a keyed hash of x, with e^−x = 1/e^x. What a logarithm is of is known of it by its
//! value, and of sums with it, so exponentials of them are exact; a factor of exponentials, their sums and
//! inverses is known, too, so the logarithm of a product of these is the sum of logarithms. A maximum is the
//! logarithm of a keyed hash of the set of elements that it is over.
mod algebra;

use crate::buffers::{
    Residues, broken, each, element, inverses, is_mark, least, pairs, read, same, word, write,
};
use crate::counts::{ArgumentCounts, EXPONENTS, INVERSE};
use crate::known::{Fact, KnownElements, KnownProduct, MaximumOf};
use pyo3::prelude::*;
use std::sync::Arc;
use tensor::{F61, Key, Scalar, mix};

/// Whole numbers below this are their own steps: no drawn element is likely to be one.
const SMALL: u64 = 1 << 24;

/// The keyed functions of one run.
#[pyclass]
pub(crate) struct Functions {
    key: Key,
    parity: bool,
    known: KnownElements,
    arguments: ArgumentCounts,
}

/// Knowledge of an element, as Python carries it to another process: its word, its exponential and a
/// factor (exponent, powers), its square, its step, its sign, and what it is the
/// maximum of.
type Carried = (u64, [Option<(u64, Vec<(u64, i64)>)>; 2], [Option<u64>; 2], bool, Option<Vec<u64>>);

/// The number of a name, in place of a tag of the field's own functions.
fn tag(name: &str) -> u64 {
    name.bytes().fold(0x6571_7569_7061_7274, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Returns true for one of an element and its negative.
fn is_upper(x: F61) -> bool {
    x.canonical() > F61::P / 2
}

#[pymethods]
impl Functions {
    /// Makes functions with this key. With `parity`, those of −x follow from those of x.
    #[new]
    #[pyo3(signature = (key, parity=true))]
    fn new(key: u64, parity: bool) -> Self {
        Self { key: Key(key), parity, known: KnownElements::default(), arguments: ArgumentCounts::default() }
    }
    /// out = a + b; a mask's minus infinity stays.
    fn add(&mut self, py: Python<'_>, a: Residues, b: Residues, out: Residues) -> PyResult<()> {
        self.sum(py, [&a, &b, &out], 1)
    }
    /// out = a − b; a mask's minus infinity stays.
    fn subtract(&mut self, py: Python<'_>, a: Residues, b: Residues, out: Residues) -> PyResult<()> {
        self.sum(py, [&a, &b, &out], -1)
    }
    /// out = a·b; a mask's minus infinity stays, if the other factor is known to be positive. Returns true if
    /// a square was known.
    fn multiply(
        &mut self,
        py: Python<'_>,
        a: Residues,
        b: Residues,
        out: Residues,
        positive: bool,
    ) -> PyResult<bool> {
        let mut is_known = false;
        pairs(py, [&a, &b, &out], |a, b| match (is_mark(a), is_mark(b)) {
            (false, false) => {
                let product = self.product(a, b);
                is_known |= product != a * b;
                Ok(product)
            }
            (true, false) if a == least() && b == F61::ZERO => Ok(b),
            (false, true) if b == least() && a == F61::ZERO => Ok(a),
            (true, false) if positive && b != F61::ZERO => Ok(a),
            (false, true) if positive && a != F61::ZERO => Ok(b),
            _ => Err(broken("a mask's minus infinity is multiplied by what may be 0 or negative")),
        })?;
        Ok(is_known)
    }
    /// out = 1/x. The elements have at most this degree.
    fn inverse(&mut self, py: Python<'_>, x: Residues, out: Residues, degree: f64) -> PyResult<()> {
        self.arguments.add(py, INVERSE, &x, degree)?;
        let _key = self.key.enter();
        let mut inverses = inverses(read(py, &x)?)?.into_iter();
        each(py, &x, &out, |x| {
            let inverse = inverses.next().expect("one for each element");
            if self.known.factor(x).is_some() {
                let factors = KnownProduct::default().times(&self.factored(x), -1);
                self.known.learn_factor(inverse, factors);
            }
            if self.known.is_positive(x) {
                self.known.entry(inverse).is_positive = true;
            }
            Ok(inverse)
        })
    }
    /// out = the sums of rows of x, of n elements each.
    fn sums(&mut self, py: Python<'_>, x: Residues, out: Residues, n: usize) -> PyResult<()> {
        let x = read(py, &x)?;
        same(&[x.len(), n * write(py, &out)?.len()])?;
        for (row, out) in write(py, &out)?.iter().enumerate() {
            let row = x[row * n..(row + 1) * n].iter().map(|x| element(x.get()));
            let row = row.collect::<PyResult<Vec<_>>>()?;
            if row.iter().any(|x| is_mark(*x)) {
                return Err(broken("a sum over a mask's minus infinity"));
            }
            let sum = row.iter().fold(F61::ZERO, |sum, x| sum + *x);
            out.set(word(sum));
            if row.iter().any(|x| self.known.of(*x).is_some()) {
                row.iter().fold(F61::ZERO, |before, x| {
                    self.learn_sum(before, *x, 1, before + *x);
                    before + *x
                });
            }
        }
        Ok(())
    }
    /// out = a function of x by its name: a keyed hash. The arguments have at most this
    /// degree; they are not counted if it is negative.
    fn named(&mut self, py: Python<'_>, name: &str, x: Residues, out: Residues, degree: f64) -> PyResult<()> {
        self.arguments.add(py, tag(name), &x, degree)?;
        let _key = self.key.enter();
        let of = |x: F61| match name {
            "sigmoid" => x.sigmoid(),
            "normal_cdf" => x.normal_cdf(),
            "normal_pdf" => x.normal_pdf(),
            "step" => x.step(),
            "rsqrt" => x.rsqrt(),
            _ => x.hashed(tag(name)),
        };
        each(py, &x, &out, |x| match name {
            _ if is_mark(x) && name == "step" => Ok(F61::ZERO),
            _ if is_mark(x) => Err(broken("a function of a mask's minus infinity")),
            "step" if self.parity && (-x).canonical() < SMALL => Ok(F61::ZERO),
            "step" if self.parity && x.canonical() < SMALL => Ok(F61::ONE),
            "normal_cdf" | "step" if self.parity && is_upper(x) => Ok(F61::ONE - of(-x)),
            "normal_pdf" | "cos" if self.parity && is_upper(x) => Ok(of(-x)),
            "sin" if self.parity && is_upper(x) => Ok(-of(-x)),
            _ => Ok(of(x)),
        })
    }
    /// out = x where it is positive, else 0: a product with a step of x, which is known of it from then on.
    fn relu(&mut self, py: Python<'_>, x: Residues, step: Residues, out: Residues) -> PyResult<()> {
        pairs(py, [&x, &step, &out], |x, step| {
            if is_mark(x) || self.known.of(x).is_some_and(|of| of.step.is_some()) {
                return Ok(if is_mark(x) { F61::ZERO } else { x });
            }
            self.known.entry(x * step).step = Some(step.canonical());
            Ok(x * step)
        })
    }
    /// out = e^x, 0 for minus infinity; perhaps within a sigmoid. Returns the largest sum of powers of known
    /// exponentials.
    fn exp(
        &mut self,
        py: Python<'_>,
        x: Residues,
        out: Residues,
        degree: f64,
        in_sigmoid: bool,
    ) -> PyResult<i64> {
        self.arguments.add(py, tag("exp"), &x, degree)?;
        self.arguments.add(py, EXPONENTS[usize::from(in_sigmoid)], &x, 0.0)?;
        let _key = self.key.enter();
        let mut most = 0;
        each(py, &x, &out, |x| {
            if is_mark(x) {
                return Ok(F61::ZERO);
            }
            let product = self.known.exponential(x).cloned().unwrap_or_else(|| KnownProduct::exp(x));
            most = most.max(product.degree());
            let value = self.value(&product);
            self.known.learn_factor(value, product);
            self.known.entry(value).is_positive = true;
            Ok(value)
        })?;
        Ok(most)
    }
    /// out = ln x, minus infinity for 0. The exponentials of the results are known.
    fn log(&mut self, py: Python<'_>, x: Residues, out: Residues, degree: f64) -> PyResult<()> {
        self.arguments.add(py, tag("exp"), &x, degree)?;
        let _key = self.key.enter();
        each(py, &x, &out, |x| {
            match x {
                F61::ZERO => return Ok(F61::NEG_INF),
                x if is_mark(x) => return Err(broken("a function of a mask's minus infinity")),
                _ => {}
            }
            let factors = self.factored(x);
            let ln = |a: u64| match self
                .known
                .factor(F61::new(a))
                .filter(|is| is.powers.is_empty() && is.exponent != 0)
            {
                Some(is) => F61::new(is.exponent),
                None => self.ln(F61::new(a)),
            };
            let powers = factors.powers.iter().map(|(a, k)| F61::from_f64(*k as f64) * ln(*a));
            let log = powers.fold(F61::new(factors.exponent), |sum, log| sum + log);
            let of = if factors.powers.is_empty() { KnownProduct::atom(x) } else { factors };
            self.known.learn_exponential(log, of);
            Ok(log)
        })
    }
    /// out = the maxima of rows of x, of n elements each: of elements that are maxima, that of what these are
    /// over.
    fn maxima(&mut self, py: Python<'_>, x: Residues, out: Residues, n: usize) -> PyResult<()> {
        let _key = self.key.enter();
        let x = read(py, &x)?;
        same(&[x.len(), n * write(py, &out)?.len()])?;
        for (row, out) in write(py, &out)?.iter().enumerate() {
            let mut all: Vec<u64> = Vec::new();
            let mut of_marks = F61::NEG_INF;
            for x in &x[row * n..(row + 1) * n] {
                match element(x.get())? {
                    x if is_mark(x) => of_marks = if x == least() { x } else { of_marks },
                    x => match self.known.of(x).and_then(|of| of.below.as_ref()) {
                        Some(below) => all.extend(&below.all),
                        None => all.push(x.canonical()),
                    },
                }
            }
            all.sort_unstable();
            all.dedup();
            out.set(word(match *all {
                [] => of_marks,
                [x] => self.logarithm(F61::new(x)),
                _ => self.maximum(all),
            }));
        }
        Ok(())
    }
    /// out = 1 where a and b are equal, or one is the maximum of elements of which the other is the largest.
    fn equal(&self, py: Python<'_>, a: Residues, b: Residues, out: Residues) -> PyResult<()> {
        let largest = |x: F61| self.known.of(x)?.below.as_ref()?.all.last().copied().map(F61::new);
        pairs(py, [&a, &b, &out], |a, b| {
            let of = |a: F61, b: F61| largest(a) == Some(b) || largest(-a) == Some(-b);
            let equal = a == b || of(a, b) || of(b, a);
            Ok(if equal { F61::ONE } else { F61::ZERO })
        })
    }
    /// out = x, or the largest of what it is the maximum of.
    fn largest(&self, py: Python<'_>, x: Residues, out: Residues) -> PyResult<()> {
        let of = |x: F61| self.known.of(x)?.below.as_ref()?.all.last().copied().map(F61::new);
        each(py, &x, &out, |x| Ok(of(x).unwrap_or(x)))
    }
    /// Returns true if all elements are known to be positive, or are 0.
    fn are_positive(&self, py: Python<'_>, x: Residues) -> PyResult<bool> {
        let is_known = |x: F61| x == F61::ZERO || self.known.is_positive(x);
        Ok(read(py, &x)?.iter().all(|x| element(x.get()).is_ok_and(is_known)))
    }
    /// Learns that these are the squares of x, which are positive.
    fn learn_squares(&mut self, py: Python<'_>, x: Residues, is: Residues) -> PyResult<()> {
        let (x, is) = (read(py, &x)?, read(py, &is)?);
        same(&[x.len(), is.len()])?;
        for (x, is) in x.iter().zip(is) {
            let known = self.known.entry(element(x.get())?);
            (known.square, known.is_positive) = (Some(element(is.get())?.canonical()), true);
        }
        Ok(())
    }
    /// out = the step that each element is a product with, −1 where none is known.
    fn steps(&self, py: Python<'_>, x: Residues, out: Residues) -> PyResult<()> {
        each(py, &x, &out, |x| Ok(self.known.of(x).and_then(|of| of.step).map_or(F61::NEG_INF, F61::new)))
    }
    /// Returns what is known of elements, to carry it to another process.
    fn facts(&self, py: Python<'_>, x: Residues) -> PyResult<Vec<Carried>> {
        let of = |product: &Option<KnownProduct>| product.as_ref().map(|of| (of.exponent, of.powers.clone()));
        let known = read(py, &x)?.iter().filter_map(|x| {
            let x = element(x.get()).ok().filter(|x| !is_mark(*x))?;
            let Fact { exponential, factor, square, step, is_positive, below } = self.known.of(x)?;
            let below = below.as_ref().map(|below| below.all.clone());
            Some((x.canonical(), [of(exponential), of(factor)], [*square, *step], *is_positive, below))
        });
        Ok(known.collect())
    }
    /// Learns what another process knows.
    fn learn(&mut self, facts: Vec<Carried>) {
        for (x, products, [square, step], is_positive, below) in facts {
            let x = F61::new(x);
            let of = |(exponent, powers)| KnownProduct { exponent, powers };
            let [exponential, factor] = products.map(|product| product.map(of));
            self.known.learn_exponential(x, exponential.unwrap_or_default());
            if let Some(is) = factor {
                self.known.learn_factor(x, is);
            }
            let known = self.known.entry(x);
            (known.square, known.step) = (square.or(known.square), step.or(known.step));
            known.is_positive |= is_positive;
            known.below = below.map(|all| Arc::new(MaximumOf { all })).or(known.below.take());
        }
    }
    /// Returns the number of sigmoids whose arguments have exponentials beside them: others are drawn numbers
    /// of their own, and no quotients.
    fn shared(&self) -> usize {
        self.arguments.shared()
    }
    /// Returns the sum of the degrees of all elements that are inverted, each once.
    fn inverted(&self) -> f64 {
        self.arguments.inverted()
    }
    /// Returns n·S, summed over all functions: n is the number of a function's arguments that differ, S the
    /// sum of their degrees.
    fn pairs(&self) -> f64 {
        self.arguments.pairs()
    }
    /// Returns the arguments of all functions, with their degrees, to carry them to another process.
    fn counted(&self) -> Vec<(u64, Vec<(i64, f64)>)> {
        self.arguments.carried()
    }
    /// Counts the arguments of another process, too.
    fn add_counted(&mut self, counted: Vec<(u64, Vec<(i64, f64)>)>) {
        self.arguments.extend(counted);
    }
}
