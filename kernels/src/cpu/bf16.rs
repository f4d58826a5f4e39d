//! Products of bf16: C (+)= A·B for any strides. Sums are kept in f32; a bf16 result is rounded once, at the
//! end.
//!
//! | file | holds |
//! |---|---|
//! | `blocks.rs` | the loops over blocks, the separate sums of a bf16 result, and their rounding |
//! | `avx512.rs` | blocks in panels, of pairs for `vdpbf16ps` or widened for f32's multiply-adds |
//! | `portable.rs` | blocks of any float of 16 bits widened to f32, for the library's product of f32 |
//! | `few_avx512.rs` | few rows: limited by how fast the other factor is read from memory |
//!
//! `vdpbf16ps` does four operations per lane. Some processors do it in the time of two operations of f32,
//! others in twice that time or more, so its rate is measured once per process.
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod few_avx512;
pub(super) mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
use super::factor::{Factor, Sums};
use super::machine;
use super::matrices::{In, Out};
use crate::Write;
use std::sync::OnceLock;
use std::time::Instant;
use tensor::{Bf16, Scalar};

/// Way to multiply blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Pairs of bf16, by the CPU's own instruction for them.
    Pairs,
    /// Blocks widened to f32 while they are packed.
    Widened,
    /// Blocks widened to f32, and multiplied by the library.
    Library,
}

/// Rate of `vdpbf16ps` relative to f32's multiply-adds above which it is used: at the same rate it still
/// loads half as much. Real rates are multiples of each other, so that noise does not decide.
const WORTH: f64 = 0.7;

impl Way {
    /// Returns the ways that run on this machine.
    pub fn all() -> impl Iterator<Item = Self> {
        let runs = |way: &Self| match way {
            Way::Pairs => machine::has_bf16() && has_avx512(),
            Way::Widened => has_avx512(),
            Way::Library => true,
        };
        [Way::Pairs, Way::Widened, Way::Library].into_iter().filter(runs)
    }
    /// Returns the fastest way on this machine, measured on first use, in less than a millisecond.
    pub fn best() -> Self {
        static BEST: OnceLock<Way> = OnceLock::new();
        *BEST.get_or_init(|| {
            Self::all().find(|&way| way != Way::Pairs || worth_it()).expect("the library runs everywhere")
        })
    }
}

/// True if the machine has vectors of 512 bits, and masks for 16-bit lanes.
fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// True if pairs are multiplied fast enough: the best of several alternating tries, of some microseconds
/// each.
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
/// If the shapes do not fit, or C's column stride is not 1.
pub fn product<C: Scalar<Wide = f32>>(c: Out<C>, a: In<Bf16>, b: In<Bf16>, write: Write) {
    product_by(Way::best(), c, a, b, write);
}

/// C (+)= A·B in the given way: for measurements and tests, which compare ways.
///
/// # Panics
/// As [`product`] does, and if the way does not run here.
pub fn product_by<C: Scalar<Wide = f32>>(way: Way, c: Out<C>, a: In<Bf16>, b: In<Bf16>, write: Write) {
    assert!(Way::all().any(|runs| runs == way), "{way:?} does not run on this machine");
    let Some((size, to, a, b)) = portable::parts(c, a, b, write) else { return };
    // SAFETY: valid windows of fitting sizes; C is borrowed mutably, so it overlaps neither factor; the way
    // runs here.
    unsafe {
        match way {
            Way::Library => portable::product(size, to, a, b),
            #[cfg(target_arch = "x86_64")]
            _ if size[0] <= portable::FEW && (b.col == 1 || b.row == 1) => few_rows(way, size, to, a, b),
            #[cfg(target_arch = "x86_64")]
            Way::Pairs => blocks::product::<avx512::Avx512<true>, _, C>(size, to, a, b),
            #[cfg(target_arch = "x86_64")]
            Way::Widened => blocks::product::<avx512::Avx512<false>, _, C>(size, to, a, b),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("it does not run here"),
        }
    }
}

/// Product of few rows: the other factor is read once, in place.
///
/// # Safety
/// The windows are valid, C overlaps neither factor, B is contiguous by rows or by columns, and the CPU has
/// the features that the way needs.
#[cfg(target_arch = "x86_64")]
unsafe fn few_rows<C: Scalar<Wide = f32>>(
    way: Way,
    size: [usize; 3],
    c: Sums<C>,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    let [m, n, k] = size;
    let rows = b.col == 1;
    let room = (few_avx512::left_len(m, k), few_avx512::sums_ld(n));
    // SAFETY: the caller's promise, and memory of the sizes requested here.
    unsafe {
        blocks::few([m, n], room, c, |left, sums| match (way == Way::Pairs, rows) {
            (true, true) => few_avx512::by_rows::<true, 4>(size, left, sums, a, b),
            (true, false) => few_avx512::by_columns::<true>(size, left, sums, a, b),
            (false, true) => few_avx512::by_rows::<false, 8>(size, left, sums, a, b),
            (false, false) => few_avx512::by_columns::<false>(size, left, sums, a, b),
        });
    }
}
