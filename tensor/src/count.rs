//! Checked arithmetic on counts: products and sums of sizes, bytes and operations never wrap.
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A count that overflows 64 bits. The code that counts unwinds with this value, up to
/// [`Overflow::caught`] or to the end of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} overflow 64 bits")]
pub struct Overflow(&'static str);

impl Overflow {
    /// Runs `work` and returns its result, unless one of its counts overflows.
    ///
    /// # Errors
    /// Names the count that overflowed.
    pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Self> {
        caught(work)
    }
}

/// Runs `work` and returns its result, or the `E` that it unwinds with; any other panic continues.
pub(crate) fn caught<T, E: 'static>(work: impl FnOnce() -> T) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| match payload.downcast() {
        Ok(expected) => *expected,
        Err(panic) => resume_unwind(panic),
    })
}

/// Product of sizes. `what` names the counted things in the plural: "the bytes of a matrix".
///
/// # Panics
/// With [`Overflow`], without a message on standard error, if the product overflows 64 bits.
#[inline]
pub fn product(what: &'static str, factors: &[usize]) -> usize {
    counted(what, factors.iter().try_fold(1usize, |product, factor| product.checked_mul(*factor)))
}

/// Sum of sizes.
///
/// # Panics
/// As [`product`].
#[inline]
pub fn sum(what: &'static str, addends: impl IntoIterator<Item = usize>) -> usize {
    counted(what, addends.into_iter().try_fold(0usize, usize::checked_add))
}

#[inline]
fn counted(what: &'static str, count: Option<usize>) -> usize {
    count.unwrap_or_else(|| resume_unwind(Box::new(Overflow(what))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Category, Cpu, Device, Meter, Tensor};

    fn uncountable<T: std::fmt::Debug>(work: impl FnOnce() -> T) -> String {
        Overflow::caught(work).unwrap_err().to_string()
    }

    /// Kills: a product or a sum that wraps or saturates, another panic taken for a count.
    #[test]
    fn what_64_bits_do_not_hold_is_no_count() {
        assert_eq!((product("x", &[1 << 32, 1 << 31, 1]), sum("x", [usize::MAX, 0])), (1 << 63, usize::MAX));
        assert_eq!(uncountable(|| product("the x", &[1 << 32, 1 << 32])), "the x overflow 64 bits");
        assert!(uncountable(|| sum("y", [usize::MAX, 1])).starts_with("y overflow 64 bits"));
    }

    /// Kills: a matrix, a meter's bytes or its operations that wrap.
    #[test]
    fn matrices_and_meters_count_no_further() {
        let cpu = Cpu::<f32>::default();
        assert!(
            uncountable(|| Tensor::empty(&cpu, Category::Buffers, 1 << 33, 1 << 31).len()).contains("matrix")
        );
        assert!(uncountable(|| Tensor::empty(&cpu, Category::Buffers, 1, 1 << 62).len()).contains("matrix"));
        assert_eq!(cpu.meter().now(Category::Buffers), 0);
        let meter = Meter::default();
        meter.hold(Category::Weights, usize::MAX);
        assert!(uncountable(|| meter.hold(Category::Buffers, 1)).contains("bytes"));
        meter.work(&[2, 1 << 62, 1]);
        assert!(uncountable(|| meter.work(&[1 << 63])).contains("operations"));
        assert!(uncountable(|| meter.work(&[1 << 32, 1 << 32])).contains("operations"));
    }
}
