//! Products of bf16: C (+)= A·B for any strides. Sums are kept in f32; a result in bf16 is rounded once, at the end.
//!
//! | file | holds |
//! |---|---|
//! | `blocks.rs` | the loops over blocks, the sums beside a result in bf16, and their rounding |
//! | `avx512.rs` | blocks in panels, of pairs for `vdpbf16ps` or widened for f32's multiply-adds |
//! | `portable.rs` | blocks widened as they lie, for the library's product of f32 |
//! | `few_avx512.rs` | few rows: what counts is how fast the other factor comes from memory |
//!
//! Some processors do four operations a lane with `vdpbf16ps` in the time of two of f32, some in twice that time or more: it
//! is measured, once a process.
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod few_avx512;
mod portable;
#[cfg(test)]
mod tests;

use super::factor::{Factor, Sums, factor, sums};
use super::matrices::{In, Out};
use super::simd::widest;
use super::{few, machine};
use crate::Write;
use std::sync::OnceLock;
use std::time::Instant;
use tensor::{Bf16, Scalar};

/// A way to multiply blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Pairs of bf16, by the CPU's own instruction for them.
    Pairs,
    /// Widened to f32 while they are packed.
    Widened,
    /// Widened to f32, and multiplied by the library.
    Library,
}

/// Products of so many rows or fewer go through the other factor as it lies.
const FEW: usize = 8;
/// `vdpbf16ps` at more than so many times the rate of f32's multiply-adds is worth it: at the same it still loads half as
/// much. Rates are multiples of each other, so that noise does not decide.
const WORTH: f64 = 0.7;

impl Way {
    /// Those that run on this machine.
    pub fn all() -> impl Iterator<Item = Self> {
        let runs = |way: &Self| match way {
            Way::Pairs => machine::has_bf16() && has_avx512(),
            Way::Widened => has_avx512(),
            Way::Library => true,
        };
        [Way::Pairs, Way::Widened, Way::Library].into_iter().filter(runs)
    }
    /// The fastest on this machine, measured when it is first asked for, in less than a millisecond.
    pub fn best() -> Self {
        static BEST: OnceLock<Way> = OnceLock::new();
        *BEST.get_or_init(|| {
            Self::all().find(|&way| way != Way::Pairs || worth_it()).expect("the library runs everywhere")
        })
    }
}

/// Whether the machine has vectors of 512 bits, and masks for their halves of words.
fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether pairs are multiplied fast enough: the best of several tries, in turns, of some microseconds each.
fn worth_it() -> bool {
    const TRIES: usize = 20;
    const ROUNDS: usize = 1000;
    let rate = |work: &dyn Fn() -> u64| {
        let start = Instant::now();
        work() as f64 / start.elapsed().as_secs_f64().max(1e-9)
    };
    let best = (0..TRIES).fold([0.0f64; 2], |best, _| {
        let pairs = rate(&|| machine::bf16_multiply_adds(ROUNDS).unwrap_or(0));
        [best[0].max(pairs), best[1].max(rate(&|| machine::multiply_adds(ROUNDS)))]
    });
    best[0] > WORTH * best[1]
}

/// C (+)= A·B.
///
/// # Panics
/// If the shapes do not fit, or the numbers of C's rows do not lie together.
pub fn product<C: Scalar<Wide = f32>>(c: Out<C>, a: In<Bf16>, b: In<Bf16>, write: Write) {
    product_by(Way::best(), c, a, b, write);
}

/// C (+)= A·B in one of the ways: for measurements and tests, which compare them.
///
/// # Panics
/// As [`product`] does, and if the way does not run here.
pub fn product_by<C: Scalar<Wide = f32>>(way: Way, mut c: Out<C>, a: In<Bf16>, b: In<Bf16>, write: Write) {
    let size = [c.rows(), c.cols(), a.cols()];
    assert!(a.rows() == size[0] && b.cols() == size[1] && b.rows() == size[2], "matrices that do not fit");
    assert!(c.col_stride() == 1, "a product is written by rows");
    assert!(Way::all().any(|runs| runs == way), "{way:?} does not run on this machine");
    if size[2] == 0 {
        return (0..if write == Write::Set { size[0] } else { 0 }).for_each(|i| c.row(i).fill(C::ZERO));
    }
    let (to, a, b) = (sums(&c, write), factor(&a), factor(&b));
    // SAFETY: valid windows of fitting sizes; C is borrowed mutably, so it overlaps neither factor; the way runs here.
    unsafe {
        if size[0] <= FEW && (b.col == 1 || b.row == 1 && (a.col == 1 || way != Way::Library)) {
            return few_rows(way, size, to, a, b);
        }
        match way {
            #[cfg(target_arch = "x86_64")]
            Way::Pairs => blocks::product::<avx512::Avx512<true>, C>(size, to, a, b),
            #[cfg(target_arch = "x86_64")]
            Way::Widened => blocks::product::<avx512::Avx512<false>, C>(size, to, a, b),
            _ => blocks::product::<portable::Library, C>(size, to, a, b),
        }
    }
}

/// The product of few rows: the other factor is read once, as it lies.
///
/// # Safety
/// The windows are valid, C overlaps neither factor, B lies by rows or by columns, and the CPU has what the way needs.
unsafe fn few_rows<C: Scalar<Wide = f32>>(
    way: Way,
    size: [usize; 3],
    c: Sums<C>,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    let ([m, n, k], rows) = (size, b.col == 1);
    // SAFETY: the caller's, and memory that there is as much of as is asked for here.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if way != Way::Library {
            let room = (few_avx512::left_len(m, k), few_avx512::sums_ld(n));
            return blocks::few([m, n], room, c, |left, sums| match (way == Way::Pairs, rows) {
                (true, true) => few_avx512::by_rows::<true, 4>(size, left, sums, a, b),
                (true, false) => few_avx512::by_columns::<true>(size, left, sums, a, b),
                (false, true) => few_avx512::by_rows::<false, 8>(size, left, sums, a, b),
                (false, false) => few_avx512::by_columns::<false>(size, left, sums, a, b),
            });
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (way, k);
        blocks::few([m, n], (0, n), c, |_, at| {
            let sum = if rows { few::by_rows::<_, few::Plain> } else { few::by_columns };
            widest(
                #[inline(always)]
                || sum(size, Sums { at, ld: n, add: false }, a, b),
            );
        });
    }
}
