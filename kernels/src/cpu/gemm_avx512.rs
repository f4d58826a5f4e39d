//! C[M,N] (+)= A[M,K]·B[K,N] for f32 with AVX-512: both factors packed, so that every transposition runs alike.
//!
//! Registers hold 12×32 of C. Loops, outermost first: M by 2052, K by 512 (A packed once), N by 256 (B packed, stays in L2),
//! M by 12 (a panel of A stays in L1), N by 32.
#[allow(clippy::wildcard_imports)] // two dozen intrinsics
use std::arch::x86_64::*;
use std::cell::RefCell;

const MR: usize = 12;
const NR: usize = 32;
const KC: usize = 512;
const NC: usize = 256;
const MC: usize = 171 * MR; // so that packing takes at most 4.7 MB a thread, whatever the shapes

/// A strided factor.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    pub at: *const f32,
    pub row: usize,
    pub col: usize,
}

thread_local! { static PACKED: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) }; }

/// # Safety
/// The windows are valid, `c` (row-major, stride `ldc`) overlaps neither factor, and the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn product(
    [m, n, k]: [usize; 3],
    c: *mut f32,
    ldc: usize,
    a: Factor,
    b: Factor,
    add: bool,
) {
    PACKED.with_borrow_mut(|(pa, pb)| {
        pa.resize(pa.len().max(m.min(MC).next_multiple_of(MR) * KC.min(k) + 64), 0.0);
        pb.resize(pb.len().max(NC * KC.min(k) + 64), 0.0);
        // SAFETY: aligned inside the 64 spare elements; the caller's promise covers the rest.
        unsafe {
            let (pa, pb) = (
                pa.as_mut_ptr().add(pa.as_ptr().align_offset(64)),
                pb.as_mut_ptr().add(pb.as_ptr().align_offset(64)),
            );
            for (first, p) in (0..m).step_by(MC).flat_map(|first| (0..k).step_by(KC).map(move |p| (first, p)))
            {
                let (mc, kc) = (MC.min(m - first), KC.min(k - p));
                let rows = Factor { at: a.at.add(first * a.row + p * a.col), row: a.col, col: a.row };
                pack_panels::<MR>(pa, rows, kc, mc);
                for j in (0..n).step_by(NC) {
                    let nc = NC.min(n - j);
                    pack_panels::<NR>(pb, Factor { at: b.at.add(p * b.row + j * b.col), ..b }, kc, nc);
                    for (i, jr) in
                        (0..mc).step_by(MR).flat_map(|i| (0..nc).step_by(NR).map(move |jr| (i, jr)))
                    {
                        let at = c.add((first + i) * ldc + j + jr);
                        let (pa, pb) = (pa.add(i * kc), pb.add(jr * kc));
                        tile(MR.min(mc - i), kc, pa, pb, at, ldc, NR.min(nc - jr), add || p > 0);
                    }
                }
            }
        }
    });
}

/// 16×16, in four rounds of shuffles.
#[allow(clippy::large_types_passed_by_value)] // they are registers
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(r: [__m512; 16]) -> [__m512; 16] {
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

/// Panels of `W` columns each, one after the other.
#[target_feature(enable = "avx512f")]
unsafe fn pack_panels<const W: usize>(to: *mut f32, from: Factor, k: usize, width: usize) {
    const TOGETHER: usize = 4;
    let whole = if from.col == 1 { width / W * W } else { 0 };
    // SAFETY: the caller's windows.
    unsafe {
        for first in (0..whole).step_by(W * TOGETHER) {
            let last = whole.min(first + W * TOGETHER);
            for p in 0..k {
                let row = from.at.add(p * from.row);
                // Prefetches may point anywhere.
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(8 * from.row + first).cast());
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(8 * from.row + first + 16).cast());
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(8 * from.row + first + 32).cast());
                for w in (first..last).step_by(W) {
                    *to.add(w * k + p * W).cast::<[f32; W]>() = *row.add(w).cast::<[f32; W]>();
                }
            }
        }
        for w in (whole..width).step_by(W) {
            pack::<W>(to.add(w * k), Factor { at: from.at.add(w * from.col), ..from }, k, W.min(width - w));
        }
    }
}

/// `k` rows of `width ≤ W` elements to contiguous rows of `W`, padded with zeros.
#[target_feature(enable = "avx512f")]
unsafe fn pack<const W: usize>(to: *mut f32, from: Factor, k: usize, width: usize) {
    // SAFETY: the caller's windows.
    unsafe {
        if width == W && from.col == 1 {
            for p in 0..k {
                *to.add(p * W).cast::<[f32; W]>() = *from.at.add(p * from.row).cast::<[f32; W]>();
            }
        } else if from.row == 1 {
            let whole = k / 16 * 16;
            for p in (0..whole).step_by(16) {
                for w in (0..width).step_by(16) {
                    let mut block = [_mm512_setzero_ps(); 16];
                    let rows = 16.min(width - w);
                    for (r, v) in block[..rows].iter_mut().enumerate() {
                        *v = _mm512_loadu_ps(from.at.add((w + r) * from.col + p));
                    }
                    // Lanes past `W` are overwritten by the next row, or lie in spare room.
                    for (s, v) in transpose(block).into_iter().enumerate() {
                        _mm512_storeu_ps(to.add((p + s) * W + w), v);
                    }
                }
            }
            for p in whole..k {
                for w in 0..width {
                    *to.add(p * W + w) = *from.at.add(w * from.col + p);
                }
            }
            for w in width..W {
                for p in whole..k {
                    *to.add(p * W + w) = 0.0;
                }
            }
        } else {
            for p in 0..k {
                for w in 0..W {
                    *to.add(p * W + w) =
                        if w < width { *from.at.add(p * from.row + w * from.col) } else { 0.0 };
                }
            }
        }
    }
}

/// Up to 12×32 of C from one panel of A and one of B.
#[allow(clippy::too_many_arguments)] // a kernel's edge
#[target_feature(enable = "avx512f")]
unsafe fn tile(
    rows: usize,
    k: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    cols: usize,
    add: bool,
) {
    macro_rules! by_rows {
        ($($r:literal)*) => {
            match rows {
                // SAFETY: the caller's promise, for this many rows.
                $($r => unsafe { micro::<$r>(k, a, b, c, ldc, cols, add) },)*
                _ => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[target_feature(enable = "avx512f")]
unsafe fn micro<const R: usize>(
    k: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    cols: usize,
    add: bool,
) {
    // SAFETY: panels are packed with these widths; writes to C are masked to `cols`.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 2]; R];
        let masks = [mask(cols), mask(cols.saturating_sub(16))];
        for r in 0..R {
            _mm_prefetch::<_MM_HINT_T0>(c.add(r * ldc).cast());
            _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(r * ldc + 16).cast());
        }
        for p in 0..k {
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(p * NR + 8 * NR).cast());
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(p * NR + 8 * NR + 16).cast());
            let (b0, b1) = (_mm512_load_ps(b.add(p * NR)), _mm512_load_ps(b.add(p * NR + 16)));
            for r in 0..R {
                let x = _mm512_set1_ps(*a.add(p * MR + r));
                acc[r][0] = _mm512_fmadd_ps(x, b0, acc[r][0]);
                acc[r][1] = _mm512_fmadd_ps(x, b1, acc[r][1]);
            }
        }
        for r in 0..R {
            for v in 0..2 {
                let at = c.wrapping_add(r * ldc + 16 * v);
                let before = if add { _mm512_maskz_loadu_ps(masks[v], at) } else { _mm512_setzero_ps() };
                _mm512_mask_storeu_ps(at, masks[v], _mm512_add_ps(acc[r][v], before));
            }
        }
    }
}

fn mask(cols: usize) -> u16 {
    if cols >= 16 { u16::MAX } else { (1 << cols) - 1 }
}
