//! Numbers of a program, which are written with few digits, as fractions, or as roots of fractions.
use crate::buffers::{Residues, broken, least, read, same, word, write};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use tensor::{F61, Key, Scalar, mix};

/// Below this a number of a mask is as good as minus infinity.
const MASKED: f64 = -1e8;

/// Below this, whole numbers have a place in single precision.
const SINGLE_WHOLES: f64 = 16_777_216.0;

/// How a float was written, by the digits that it holds.
struct Written {
    /// The most digits of a decimal fraction.
    digits: usize,
    /// The largest relative error.
    error: f64,
    /// The largest product of numerator and denominator.
    most: f64,
    /// The same of its square.
    most_of_square: f64,
}

const SINGLE: Written = Written { digits: 6, error: 1.2e-7, most: 1e5, most_of_square: 1e4 };
const DOUBLE: Written = Written { digits: 12, error: 5e-16, most: 1e10, most_of_square: 1e6 };

/// out = the elements of floats, of single precision or of double: of a decimal of few digits, a fraction of
/// small numbers or the root of one, as it was meant; else of the fraction over a power of two that it is.
#[pyfunction]
pub(crate) fn constants(py: Python<'_>, x: PyBuffer<f64>, out: Residues, single: bool) -> PyResult<()> {
    let written = if single { SINGLE } else { DOUBLE };
    same(&[read(py, &x)?.len(), write(py, &out)?.len()])?;
    for (x, out) in read(py, &x)?.iter().zip(write(py, &out)?) {
        out.set(word(match x.get() {
            f64::NEG_INFINITY => F61::NEG_INF,
            x if x < MASKED => least(),
            0.0 => F61::ZERO,
            x if x.is_normal() => {
                let size = written.read(x.abs());
                if x < 0.0 { -size } else { size }
            }
            x => return Err(broken(&format!("the constant {x} has no place in the field"))),
        }));
    }
    Ok(())
}

impl Written {
    fn read(&self, x: f64) -> F61 {
        if x.fract() == 0.0 && x < SINGLE_WHOLES {
            return F61::from_f64(x);
        }
        self.decimal(x)
            .or_else(|| fraction(x, self.error, self.most).map(|[p, q]| F61::new(p) * F61::new(q).inv()))
            .or_else(|| fraction(x * x, 3.0 * self.error, self.most_of_square).map(root))
            .unwrap_or_else(|| {
                let was_single = self.digits > SINGLE.digits && f64::from(x as f32) == x;
                if was_single { SINGLE.read(x) } else { F61::from_f64(x) }
            })
    }
    /// A decimal of few digits, times a power of ten.
    fn decimal(&self, x: f64) -> Option<F61> {
        let text = if self.digits == SINGLE.digits { format!("{:e}", x as f32) } else { format!("{x:e}") };
        let (digits, power) = text.split_once('e')?;
        let after = digits.split_once('.').map_or(0, |(_, after)| after.len());
        let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
        let power = power.parse::<i64>().ok()? - after as i64;
        let ten = F61::from_usize(10).pow(power.unsigned_abs() as usize);
        let digits = F61::new(digits.parse().ok().filter(|_| digits.len() <= self.digits)?);
        Some(if power < 0 { digits * ten.inv() } else { digits * ten })
    }
}

/// The first convergent of x that is as near as rounding, if its numbers are small.
fn fraction(x: f64, error: f64, most: f64) -> Option<[u64; 2]> {
    let ([mut p, mut q], [mut before_p, mut before_q], mut rest) = ([x.floor(), 1.0], [1.0, 0.0], x);
    while (p / q - x).abs() > error * x {
        rest = 1.0 / (rest - rest.floor());
        let whole = rest.floor();
        ([p, before_p], [q, before_q]) = ([whole * p + before_p, p], [whole * q + before_q, q]);
        if p * q > most || !rest.is_finite() {
            return None;
        }
    }
    (p * q <= most && p > 0.0).then_some([p as u64, q as u64])
}

/// The positive root of p/q: of each prime the root in the field if it has one, else a hash. That of q/p is
/// its inverse.
fn root([p, q]: [u64; 2]) -> F61 {
    if p < q {
        return root([q, p]).inv();
    }
    let (mut left, mut out) = (p * q, F61::new(q).inv());
    for prime in (2..).take_while(|prime| prime * prime <= p * q) {
        while left % (prime * prime) == 0 {
            (left, out) = (left / (prime * prime), out * F61::new(prime));
        }
        if left % prime == 0 {
            (left, out) = (left / prime, out * root_of_prime(prime));
        }
    }
    if left > 1 { out * root_of_prime(left) } else { out }
}

fn root_of_prime(prime: u64) -> F61 {
    let root = F61::new(prime).pow((F61::P as usize + 1) / 4);
    if root * root == F61::new(prime) {
        return root;
    }
    let _key = Key(mix(prime)).enter();
    F61::new(prime).rsqrt()
}
