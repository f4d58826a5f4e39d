//! Knowledge of results, which follows from that of their parts; values of the functions.
use super::{Functions, is_upper, tag};
use crate::buffers::{Residues, broken, is_mark, least, pairs};
use crate::known::{Fact, KnownProduct, MaximumOf};
use pyo3::prelude::*;
use std::sync::Arc;
use tensor::{F61, Scalar};

impl Functions {
    pub(super) fn sum(&mut self, py: Python<'_>, [a, b, out]: [&Residues; 3], sign: i64) -> PyResult<()> {
        pairs(py, [a, b, out], |a, b| match (is_mark(a), is_mark(b)) {
            (false, false) => {
                let sum = if sign < 0 { a - b } else { a + b };
                self.learn_sum(a, b, sign, sum);
                Ok(sum)
            }
            (true, true) if sign > 0 => Ok(if a == least() { b } else { a }),
            (true, true) if (a, b) == (least(), least()) => Ok(F61::ZERO),
            (true, _) if b != F61::NEG_INF => Ok(a),
            (false, true) if sign > 0 => Ok(b),
            _ => Err(broken("a mask's minus infinity is subtracted")),
        })
    }
    /// Learns of a sum, or of a difference, what follows from what is known of its parts.
    pub(super) fn learn_sum(&mut self, a: F61, b: F61, sign: i64, sum: F61) {
        let [of_a, of_b] = [a, b].map(|x| self.known.of(x));
        if of_a.is_none() && of_b.is_none() {
            return;
        }
        let exponential = |of: Option<&Fact>| of.and_then(|of| of.exponential.clone());
        let exponentials = match (exponential(of_a), exponential(of_b)) {
            (None, None) => None,
            (a_is, b_is) => {
                let b_is = b_is.unwrap_or_else(|| KnownProduct::exp(b));
                Some(a_is.unwrap_or_else(|| KnownProduct::exp(a)).times(&b_is, sign))
            }
        };
        let factor = match (self.known.factor(a), self.known.factor(b)) {
            (Some(a), Some(b)) => Some(a.common(&b)),
            (Some(is), None) if b == F61::ZERO => Some(is),
            (None, Some(is)) if a == F61::ZERO => Some(is),
            _ => None,
        };
        let [a_is, b_is] = [a, b].map(|x| x == F61::ZERO || self.known.is_positive(x));
        if sign > 0 && a_is && b_is && sum != F61::ZERO {
            self.known.entry(sum).is_positive = true;
        }
        self.known.learn_exponential(sum, exponentials.unwrap_or_default());
        if let Some(is) = factor {
            self.known.learn_factor(sum, is);
        }
    }
    /// a·b, and what is known of it.
    pub(super) fn product(&mut self, a: F61, b: F61) -> F61 {
        let product = a * b;
        let [of_a, of_b] = [a, b].map(|x| self.known.of(x));
        if of_a.is_none() && of_b.is_none() {
            return product;
        }
        let squares = [of_a, of_b].map(|of| of.and_then(|of| of.square).map(F61::new));
        let both_known = of_a.is_some() && of_b.is_some();
        match squares {
            [Some(square), _] if a == b => return square,
            [None, None] => {}
            [of_a, of_b] => {
                let square = of_a.unwrap_or(a * a) * of_b.unwrap_or(b * b);
                self.known.entry(product).square = Some(square.canonical());
            }
        }
        if !both_known {
            return product;
        }
        if self.known.is_positive(a) && self.known.is_positive(b) {
            self.known.entry(product).is_positive = true;
        }
        if let (Some(a), Some(b)) = (self.known.factor(a), self.known.factor(b)) {
            self.known.learn_factor(product, a.times(&b, 1));
        }
        product
    }
    /// e^x, where nothing is known of x.
    pub(super) fn e(&self, x: F61) -> F61 {
        if self.parity && is_upper(x) { F61::exp_sub(F61::ZERO, -x) } else { F61::exp_sub(x, F61::ZERO) }
    }
    pub(super) fn value(&self, product: &KnownProduct) -> F61 {
        let power = |(a, k): &(u64, i64)| {
            let power = F61::new(*a).pow(k.unsigned_abs() as usize);
            if *k < 0 { power.inv() } else { power }
        };
        product.powers.iter().fold(self.e(F61::new(product.exponent)), |all, of| all * power(of))
    }
    /// ln a, where nothing is known of a.
    pub(super) fn ln(&self, a: F61) -> F61 {
        let inverse = a.inv();
        if self.parity && inverse.canonical() < a.canonical() {
            return -F61::lse(F61::ZERO, inverse);
        }
        F61::lse(F61::ZERO, a)
    }
    /// All factors of an element: those that are known, and what is left. 1 + e^x is e^x·(1 + e^−x), written
    /// in one of these ways.
    pub(super) fn factored(&self, x: F61) -> KnownProduct {
        let (mut all, mut rest) = (KnownProduct::default(), x);
        for _ in 0..2 {
            if let Some(known) = self.known.factor(rest) {
                rest = rest * self.value(&known).inv();
                all = all.times(&known, 1);
            }
        }
        let of_two = self.known.factor(rest - F61::ONE).filter(|is| is.powers.is_empty());
        if of_two.is_some_and(|is| is_upper(F61::new(is.exponent))) {
            let exponential = rest - F61::ONE;
            rest = rest * exponential.inv();
            all = all.times(&KnownProduct::atom(exponential), 1);
        }
        all.times(&KnownProduct::atom(rest), 1)
    }
    /// An element that stands for a logarithm from now on: that of its exponential.
    pub(super) fn logarithm(&mut self, x: F61) -> F61 {
        if self.known.exponential(x).is_none() {
            let value = self.e(x);
            self.known.learn_factor(value, KnownProduct::exp(x));
            self.known.learn_exponential(x, KnownProduct::atom(value));
        }
        x
    }
    /// The maximum of several elements, by their words in order.
    pub(super) fn maximum(&mut self, all: Vec<u64>) -> F61 {
        let hash = all.iter().fold(F61::ZERO, |sum, x| sum + F61::new(*x).hashed(tag("below")));
        let maximum = hash.hashed(tag("maximum"));
        let log = self.ln(maximum);
        self.known.learn_exponential(log, KnownProduct::atom(maximum));
        self.known.entry(log).below = Some(Arc::new(MaximumOf { all }));
        log
    }
}
