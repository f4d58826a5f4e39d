//! C[M,N] (+)= A[M,K]·B[K,N] for f32 with AVX-512. B is packed, so that every transposition runs alike,
//! except for few rows of A; A is read in place if it is row-major, else packed.
//!
//! Registers hold 8×48 of C: 24 sums, for which a step loads 8 elements of A and 3 vectors of B. Loops,
//! outermost first: M by 2048, K by 512 (or 256; A packed once), N by 288 (or 528; B packed, stays in L2), M
//! by 8 (8 rows of A stay in L1), N by 48, K. Half of each cache is left to other users of the core.
use super::factor::{Factor, Sums, aligned};
use super::micro_avx512::{Ahead, MR, NR, NV, PORTIONS, Panel, tile, together};
#[allow(clippy::wildcard_imports)] // two dozen intrinsics
use std::arch::x86_64::*;
use std::cell::RefCell;

/// Rows and columns of a packed block of B if A is read in place: large, so that C is read and written
/// seldom.
const DIRECT: [usize; 2] = [512, 6 * NV * NR];
/// Rows and columns of a packed block of B if A is packed: packed elements are reused often while in cache.
pub(super) const PACKED: [usize; 2] = [256, 11 * NV * NR];
/// Number of rows of A below which they share a block of B too little: the next block is prefetched in
/// portions, since all at once would delay the lines of B that a tile itself needs.
const FEW: usize = 1024;
const GROUP: usize = 8 * MR; // rows of A that are packed together, on first use
const MC: usize = 2048; // so that packing takes at most 2.7 MB per thread, for all shapes

thread_local! { static MEMORY: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) }; }

/// Right factor of a product.
#[derive(Clone, Copy)]
pub(super) enum RightFactor {
    /// Unpacked: blocks are packed one by one.
    Strided(Factor<f32>),
    /// In panels of `NR` columns: address of the first panel's rows, and elements from one panel to the next.
    Panels { first: *const f32, apart: usize },
}

impl RightFactor {
    /// True if products of `m` rows are faster without packing: few tiles of rows would read a packed block.
    /// With 16, 32 and 64 rows and a matrix of 512 x 512 they are 1.5, 1.2 and 1.1 times as fast; rows of B
    /// that are farther apart fall into few sets of a cache.
    fn is_read_as_it_lies(self, m: usize, n: usize) -> bool {
        match self {
            Self::Strided(b) => b.col == 1 && n.is_multiple_of(NR) && m <= if b.row <= 512 { 64 } else { 32 },
            Self::Panels { .. } => false,
        }
    }
}

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\].
///
/// # Safety
/// The windows are valid, C overlaps neither factor, and the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn product([m, n, k]: [usize; 3], c: Sums<f32>, a: Factor<f32>, b: RightFactor) {
    MEMORY.with_borrow_mut(|(pa, pb)| {
        let direct = a.col == 1;
        let [most_k, most_n] = if direct { DIRECT } else { PACKED };
        let few = direct && m < FEW;
        let as_it_lies = direct && b.is_read_as_it_lies(m, n);
        let packs_b = matches!(b, RightFactor::Strided(_)) && !as_it_lies;
        let pa = aligned(pa, if direct { 0 } else { m.min(MC).next_multiple_of(MR) * most_k.min(k) });
        let pb = aligned(pb, if packs_b { most_n * most_k.min(k) } else { 0 });
        // SAFETY: the memory is as large as all blocks; the caller's promise covers the rest.
        unsafe {
            for first in (0..m).step_by(MC) {
                let mc = MC.min(m - first);
                let blocks = (0..k).step_by(most_k).flat_map(|p| (0..n).step_by(most_n).map(move |j| (p, j)));
                for (p, j) in blocks {
                    let (kc, nc) = (most_k.min(k - p), most_n.min(n - j));
                    let (pb, apart, mut next) = match b {
                        RightFactor::Strided(b) => {
                            let (next_p, next_j) =
                                if j + most_n < n { (p, j + most_n) } else { (p + most_k, 0) };
                            let size = [most_k.min(k.saturating_sub(next_p)), most_n.min(n - next_j)];
                            let next = Ahead::of(b.from(next_p, next_j), size);
                            if as_it_lies {
                                (b.from(p, j).at, b.row, next)
                            } else {
                                pack_panels::<NR>(pb, b.from(p, j), kc, nc);
                                (pb.cast_const(), kc * NR, next)
                            }
                        }
                        RightFactor::Panels { first, apart } => {
                            (first.add(j / NR * apart + p * NR), apart, Ahead::none())
                        }
                    };
                    next.deal(mc.div_ceil(MR) * nc.div_ceil(NV * NR) * if few { PORTIONS } else { 1 });
                    let a = a.from(first, p);
                    let next = &mut next;
                    for i in (0..mc).step_by(MR) {
                        if !direct && j == 0 && i % GROUP == 0 {
                            pack_panels::<MR>(pa.add(i * kc), a.from(i, 0).t(), kc, GROUP.min(mc - i));
                        }
                        for (jr, cols) in together(nc) {
                            let at = c.at.add((first + i) * c.ld + j + jr);
                            let to = Sums { at, ld: c.ld, add: c.add || p > 0 };
                            let beyond = if as_it_lies { jr } else { jr / NR * apart };
                            let size = [MR.min(mc - i), cols, kc];
                            let pb = Panel { at: pb.add(beyond), apart };
                            let direct_a = (a.from(i, 0).at, a.row);
                            let packed_a = (pa.add(i * kc).cast_const(), 1);
                            match (direct, few) {
                                _ if as_it_lies => tile::<1, true, false, true>(size, direct_a, pb, to, next),
                                (true, true) => tile::<1, true, false, false>(size, direct_a, pb, to, next),
                                (true, false) => tile::<1, false, false, false>(size, direct_a, pb, to, next),
                                (false, _) => tile::<MR, false, false, false>(size, packed_a, pb, to, next),
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Transposes 16×16 elements, in four rounds of shuffles.
#[allow(clippy::large_types_passed_by_value)] // they are registers
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose(r: [__m512; 16]) -> [__m512; 16] {
    let (mut t, mut u, mut out) = (r, r, r);
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let pd = _mm512_castps_pd;
    for i in 0..4 {
        for h in 0..2 {
            let (a, b) = (pd(t[4 * i + h]), pd(t[4 * i + h + 2]));
            u[4 * i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[4 * i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for j in 0..4 {
        let [a, b, c, d] = [u[j], u[4 + j], u[8 + j], u[12 + j]];
        let (x0, x1) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (y0, y1) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        out[j] = _mm512_shuffle_f32x4::<0x88>(x0, y0);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(x1, y1);
        out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(x0, y0);
        out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(x1, y1);
    }
    out
}

/// Packs a factor of `k` rows and `width` columns into panels of `W` columns, one after the other.
///
/// # Safety
/// The windows are valid, `to` has room for ⌈width/W⌉ panels, and the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn pack_panels<const W: usize>(to: *mut f32, from: Factor<f32>, k: usize, width: usize) {
    const TOGETHER: usize = 64; // columns of a row: whole lines
    let whole = if from.col == 1 { width / W * W } else { 0 };
    // SAFETY: the caller's windows.
    unsafe {
        for first in (0..whole).step_by(TOGETHER) {
            let last = whole.min(first + TOGETHER);
            for p in 0..k {
                let row = from.at.add(p * from.row);
                for line in (first..first + TOGETHER).step_by(NR) {
                    // Prefetches may point anywhere.
                    _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(16 * from.row + line).cast());
                }
                for w in (first..last).step_by(W) {
                    *to.add(w * k + p * W).cast::<[f32; W]>() = *row.add(w).cast::<[f32; W]>();
                }
            }
        }
        for w in (whole..width).step_by(W) {
            let (to, from, width) = (to.add(w * k), from.from(0, w), W.min(width - w));
            let done = if W == NR && from.row == 1 { pack_columns(to, from, k, width) } else { 0 };
            for p in done..k {
                for w in 0..W {
                    *to.add(p * W + w) =
                        if w < width { *from.at.add(p * from.row + w * from.col) } else { 0.0 };
                }
            }
        }
    }
}

/// Packs the first rows of a panel of 16 contiguous columns, padded with zeros; returns the number of rows.
#[target_feature(enable = "avx512f")]
unsafe fn pack_columns(to: *mut f32, from: Factor<f32>, k: usize, width: usize) -> usize {
    let whole = k / 16 * 16;
    // SAFETY: the caller's windows.
    unsafe {
        for p in (0..whole).step_by(16) {
            let mut block = [_mm512_setzero_ps(); 16];
            for (w, v) in block[..width].iter_mut().enumerate() {
                *v = _mm512_loadu_ps(from.at.add(w * from.col + p));
            }
            for (s, v) in transpose(block).into_iter().enumerate() {
                _mm512_storeu_ps(to.add((p + s) * NR), v);
            }
        }
    }
    whole
}
