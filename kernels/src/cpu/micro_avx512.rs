//! Up to 8×48 of C from rows of A and panels of B with AVX-512: the innermost loop of the products of f32 and
//! of bf16.
use super::factor::{Factor, Sums};
use std::arch::asm;
#[allow(clippy::wildcard_imports)] // two dozen intrinsics
use std::arch::x86_64::*;
use std::hint::black_box;

/// Rows of C, and of a panel of A, that are computed together.
pub(super) const MR: usize = 8;
/// Columns of a panel of B: one vector.
pub(super) const NR: usize = 16;
/// Largest number of panels that are computed together.
pub(super) const NV: usize = 3;
/// Number of portions in which a tile prefetches the next block, if tiles are few.
pub(super) const PORTIONS: usize = 4;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Cache lines of the block of a factor that will be packed next: prefetched little by little while the
/// current block is computed. Each line is a vector.
pub(super) struct Ahead {
    at: *const u8,
    apart: usize, // bytes
    runs: usize,
    run: usize, // lines per run
    line: usize,
    share: usize, // lines that are fetched together
}

impl Ahead {
    /// Prefetches nothing.
    pub(super) fn none() -> Self {
        Self { at: std::ptr::null(), apart: 0, runs: 0, run: 0, line: 0, share: 0 }
    }
    /// Prefetches a block of `k` rows and `n` columns.
    pub(super) fn of<S>(block: Factor<S>, [k, n]: [usize; 2]) -> Self {
        let (apart, runs, run) = if block.col == 1 { (block.row, k, n) } else { (block.col, n, k) };
        let [apart, run] = [apart, run].map(|numbers| numbers * size_of::<S>());
        Self { at: block.at.cast(), apart, runs, run: run.div_ceil(LINE), line: 0, share: 0 }
    }
    /// Splits the lines into `portions` portions.
    pub(super) fn deal(&mut self, portions: usize) {
        self.share = (self.runs * self.run).div_ceil(portions);
    }
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn fetch(&mut self) {
        for _ in 0..self.share {
            if self.runs == 0 {
                return;
            }
            // Prefetches may point anywhere.
            _mm_prefetch::<_MM_HINT_T1>(self.at.wrapping_add(LINE * self.line).cast());
            self.line += 1;
            if self.line == self.run {
                (self.at, self.runs, self.line) = (self.at.wrapping_add(self.apart), self.runs - 1, 0);
            }
        }
    }
}

/// Splits columns of C into groups that are computed together: the first column and the number of columns of
/// each. Of 4 remaining panels, 2 and 2 are faster than 3 and 1.
pub(super) fn together(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = (n - from).div_ceil(NR);
        let cols = (n - from).min(NR * left.div_ceil(left.div_ceil(NV).max(1)));
        from += cols;
        (cols > 0).then_some((from - cols, cols))
    })
}

/// A panel of B: address of its rows, and elements to the next panel; for unpacked B, elements from row to
/// row.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub at: *const f32,
    pub apart: usize,
}

/// Computes up to 8×48 of C from rows of A and up to three panels of B. Element (r, p) of A is
/// `a[r * ld + p * NEXT]`. With `PAIRS`, an element of A or B is two of bf16, for two steps of K. With
/// `AS_IT_LIES`, B is not in panels: its rows are rows in memory.
///
/// # Safety
/// A and B have `k` such steps, C has `rows` rows and `cols` columns; the CPU has AVX-512F, and for pairs
/// AVX512-BF16.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tile<
    const NEXT: usize,
    const PORTIONED: bool,
    const PAIRS: bool,
    const AS_IT_LIES: bool,
>(
    [rows, cols, k]: [usize; 3],
    a: (*const f32, usize),
    b: Panel,
    c: Sums<f32>,
    next: &mut Ahead,
) {
    assert!(!AS_IT_LIES || cols.is_multiple_of(NR), "{cols} columns, wanted a multiple of {NR}");
    macro_rules! sizes {
        ($($r:literal $v:literal),*) => {
            match (rows, cols.div_ceil(NR)) {
                // SAFETY: the caller's promise, for this many rows and panels.
                $(($r, $v) => unsafe {
                    micro::<$r, $v, NEXT, PORTIONED, PAIRS, AS_IT_LIES>([cols, k], a, b, c, next)
                },)*
                (_, panels) => unreachable!("a tile of {rows} rows and {panels} panels"),
            }
        };
    }
    sizes!(8 3, 8 2, 8 1, 7 3, 7 2, 7 1, 6 3, 6 2, 6 1, 5 3, 5 2, 5 1,
        4 3, 4 2, 4 1, 3 3, 3 2, 3 1, 2 3, 2 2, 2 1, 1 3, 1 2, 1 1);
}

/// sum + x·y, of 16 elements or of 16 pairs.
///
/// # Safety
/// For pairs the CPU has AVX512-BF16. The instruction is inline assembly, since this code is not compiled for
/// that feature.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn multiply_add<const PAIRS: bool>(x: __m512, y: __m512, mut sum: __m512) -> __m512 {
    if !PAIRS {
        return _mm512_fmadd_ps(x, y, sum);
    }
    // SAFETY: registers alone; the CPU is as the caller says.
    unsafe {
        asm!(
            "vdpbf16ps {sum}, {y}, {x}",
            sum = inout(zmm_reg) sum, x = in(zmm_reg) x, y = in(zmm_reg) y,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Innermost loop, with few instructions besides the multiply-adds: loads of A and B, and every fourth step
/// one for each pointer. The CPU's own prefetching brings the panels from L2.
#[allow(clippy::too_many_lines, reason = "one loop, whose registers no call may touch")]
#[target_feature(enable = "avx512f")]
unsafe fn micro<
    const R: usize,
    const V: usize,
    const NEXT: usize,
    const PORTIONED: bool,
    const PAIRS: bool,
    const AS_IT_LIES: bool,
>(
    [cols, k]: [usize; 2],
    (a, ld): (*const f32, usize),
    b: Panel,
    c: Sums<f32>,
    next: &mut Ahead,
) {
    const STEPS: usize = 4;
    const EARLY: usize = 16; // rows of unpacked B that are prefetched ahead
    // SAFETY: rows and panels are as the caller says; writes to C are masked to its columns.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); V]; R];
        // An instruction reaches three rows or panels from one pointer. The strides are hidden from the
        // compiler, which would compute each address anew.
        let (ld, apart, [mut a0, mut a3, mut a6]) = black_box((
            size_of::<f32>() * ld,
            size_of::<f32>() * b.apart,
            [0, 3, 6].map(|r| a.wrapping_add(r * ld)),
        ));
        let mut b = b.at;
        macro_rules! step {
            ($p:literal) => {
                let at = if AS_IT_LIES { b.wrapping_byte_add($p * apart) } else { b.wrapping_add($p * NR) };
                let from = |v| if AS_IT_LIES { at.wrapping_add(v * NR) } else { at.wrapping_byte_add(v * apart) };
                let panels: [_; V] = std::array::from_fn(|v| _mm512_loadu_ps(from(v)));
                if AS_IT_LIES {
                    for v in 0..V {
                        _mm_prefetch::<_MM_HINT_T0>(from(v).wrapping_byte_add(EARLY * apart).cast());
                    }
                }
                step!($p, panels, 0 a0 0, 1 a0 1, 2 a0 2, 3 a3 0, 4 a3 1, 5 a3 2, 6 a6 0, 7 a6 1);
            };
            ($p:literal, $b:ident, $($r:literal $at:ident $beyond:literal),*) => { $(if const { $r < R } {
                let x = _mm512_set1_ps(*$at.wrapping_byte_add($beyond * ld).wrapping_add($p * NEXT));
                for v in 0..V {
                    acc[$r][v] = multiply_add::<PAIRS>(x, $b[v], acc[$r][v]);
                }
            })* };
        }
        macro_rules! go_on {
            ($steps:expr) => {
                a0 = a0.wrapping_add($steps * NEXT);
                a3 = a3.wrapping_add($steps * NEXT);
                a6 = a6.wrapping_add($steps * NEXT);
                b = if AS_IT_LIES {
                    b.wrapping_byte_add($steps * apart)
                } else {
                    b.wrapping_add($steps * NR)
                };
            };
        }
        let (steps, mut row) = (k / STEPS, c.at);
        macro_rules! steps {
            ($range:expr) => {
                for i in $range {
                    if i < R {
                        // Prefetches a row of C, which is needed after the last step.
                        for v in 0..V {
                            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(NR * v).cast());
                        }
                        row = row.wrapping_add(c.ld);
                    }
                    step!(0);
                    step!(1);
                    step!(2);
                    step!(3);
                    go_on!(STEPS);
                }
            };
        }
        if PORTIONED {
            let portion = steps.div_ceil(PORTIONS).max(1);
            for first in (0..steps).step_by(portion) {
                next.fetch();
                steps!(first..steps.min(first + portion));
            }
        } else {
            next.fetch();
            steps!(0..steps);
        }
        for _ in 0..k % STEPS {
            step!(0);
            go_on!(1);
        }
        for r in 0..R {
            for v in 0..V {
                let (at, mask) = (c.at.wrapping_add(r * c.ld + NR * v), mask(cols - NR * v));
                let before = if c.add { _mm512_maskz_loadu_ps(mask, at) } else { _mm512_setzero_ps() };
                _mm512_mask_storeu_ps(at, mask, _mm512_add_ps(acc[r][v], before));
            }
        }
    }
}

fn mask(cols: usize) -> u16 {
    if cols >= 16 { u16::MAX } else { (1 << cols) - 1 }
}
