//! Few rows times a large matrix of bf16, on any machine: each of its numbers is read from memory once.
use super::super::gemm::Factor;
use super::super::widest;
use tensor::{Bf16, Scalar};

/// From how many places rows are read at a time.
const STREAMS: usize = 4;
/// Sums of a product of vectors, which are added at its end.
const LANES: usize = 32;

/// sums\[m,n\] = A\[m,k\]·B\[k,n\]; rows of B are rows in memory.
///
/// # Safety
/// The windows are valid, and `sums` has room.
pub(super) unsafe fn by_rows([m, n, k]: [usize; 3], sums: *mut f32, a: Factor<Bf16>, b: Factor<Bf16>) {
    let apart = k / STREAMS;
    widest(
        #[inline(always)]
        || {
            // SAFETY: rows and columns inside the caller's windows.
            unsafe {
                std::slice::from_raw_parts_mut(sums, m * n).fill(0.0);
                for p in 0..apart {
                    let places: [usize; STREAMS] = std::array::from_fn(|s| p + s * apart);
                    for i in 0..m {
                        add_rows(sums.add(i * n), places.map(|p| (a.from(i, p), b.from(p, 0))), n);
                    }
                }
                for p in apart * STREAMS..k {
                    for i in 0..m {
                        add_rows(sums.add(i * n), [(a.from(i, p), b.from(p, 0))], n);
                    }
                }
            }
        },
    );
}

/// y += Σ x·row.
///
/// # Safety
/// Rows are of `n` numbers.
#[inline(always)]
unsafe fn add_rows<const N: usize>(y: *mut f32, rows: [(Factor<Bf16>, Factor<Bf16>); N], n: usize) {
    // SAFETY: the caller's.
    unsafe {
        let x = rows.map(|(x, _)| (*x.at).widen());
        let rows = rows.map(|(_, row)| std::slice::from_raw_parts(row.at, n));
        for (j, y) in std::slice::from_raw_parts_mut(y, n).iter_mut().enumerate() {
            for s in 0..N {
                *y += x[s] * rows[s][j].widen();
            }
        }
    }
}

/// sums\[m,n\] = A\[m,k\]·B\[k,n\]; columns of B are rows in memory. `left` has room for A.
///
/// # Safety
/// The windows are valid, and `sums` and `left` have room.
pub(super) unsafe fn by_columns(
    [m, n, k]: [usize; 3],
    left: *mut f32,
    sums: *mut f32,
    a: Factor<Bf16>,
    b: Factor<Bf16>,
) {
    widest(
        #[inline(always)]
        || {
            // SAFETY: rows and columns inside the caller's windows.
            unsafe {
                for (i, p) in (0..m).flat_map(|i| (0..k).map(move |p| (i, p))) {
                    *left.add(i * k + p) = (*a.from(i, p).at).widen();
                }
                for (j, i) in (0..n).flat_map(|j| (0..m).map(move |i| (j, i))) {
                    let x = std::slice::from_raw_parts(left.add(i * k), k);
                    let y = std::slice::from_raw_parts(b.from(0, j).at, k);
                    *sums.add(i * n + j) = dot(x, y);
                }
            }
        },
    );
}

/// Σ x·y.
#[inline(always)]
fn dot(x: &[f32], y: &[Bf16]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let rest: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y.widen()).sum();
    for (x, y) in xs.zip(ys) {
        for l in 0..LANES {
            lanes[l] += x[l] * y[l].widen();
        }
    }
    lanes.iter().sum::<f32>() + rest
}
