//! Runs a closure with the widest vector instructions of the machine, detected at run time. Loops over a
//! `Scalar` inside it are compiled for them, if everything they call is inlined and the closure is in
//! argument position: `widest(#[inline(always)] || body)`.
use super::matrices::In;
use std::array::from_fn;
use tensor::Scalar;

/// Runs `f` compiled for AVX-512, AVX2 or the baseline, whichever is the widest this machine has.
#[inline]
pub fn widest<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        let avx2_too = has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2");
        if avx2_too && has!("avx512f") && has!("avx512vl") && has!("avx512dq") && has!("avx512bw") {
            // SAFETY: the features were detected.
            return unsafe { avx512(f) };
        }
        if avx2_too {
            // SAFETY: the features were detected.
            return unsafe { avx2(f) };
        }
    }
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,bmi1,bmi2")]
fn avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2")]
fn avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Prefetches whole rows, one after the other, before parts of them are read in another order.
#[inline]
pub(super) fn fetch<S: Scalar>(rows: In<S>) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..rows.rows()).flat_map(|i| rows.row(i).chunks((64 / size_of::<S>()).max(1))) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and a prefetch changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = rows;
}

const LANES: usize = 32;

/// Σ f(x, y, …) over the widened elements of rows of one length, in lanes: the sum vectorises on floats and
/// has the same value in the field.
#[inline(always)]
pub(super) fn sum<S: Scalar, const N: usize>(
    rows: [&[S]; N],
    f: impl Fn([S::Wide; N]) -> S::Wide,
) -> S::Wide {
    fold(rows, S::Wide::ZERO, f, |a, b| a + b)
}

/// Stabiliser of the row, in lanes.
#[inline(always)]
pub(super) fn stab<S: Scalar>(x: &[S]) -> S::Wide {
    fold([x], S::Wide::NEG_INF, |[x]| x, S::Wide::stab)
}

/// Σ x·y.
#[inline(always)]
pub(super) fn dot<S: Scalar>(x: &[S], y: &[S]) -> S::Wide {
    sum([x, y], |[x, y]| x * y)
}

#[inline(always)]
fn fold<S: Scalar, const N: usize>(
    rows: [&[S]; N],
    neutral: S::Wide,
    f: impl Fn([S::Wide; N]) -> S::Wide,
    join: impl Fn(S::Wide, S::Wide) -> S::Wide,
) -> S::Wide {
    let len = rows[0].len();
    let mut lanes = [neutral; LANES];
    let whole = len / LANES * LANES;
    let rows = rows.map(|row| &row[..len]);
    let mut rest = neutral;
    for i in whole..len {
        rest = join(rest, f(from_fn(|n| rows[n][i].widen())));
    }
    for at in (0..whole).step_by(LANES) {
        let block: [&[S; LANES]; N] = from_fn(|n| rows[n][at..at + LANES].as_array().expect("so many"));
        for (lane, acc) in lanes.iter_mut().enumerate() {
            *acc = join(*acc, f(from_fn(|n| block[n][lane].widen())));
        }
    }
    tree(lanes, rest, join)
}

#[inline(always)]
fn tree<S: Scalar>(mut lanes: [S; LANES], rest: S, join: impl Fn(S, S) -> S) -> S {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    join(rest, lanes[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same body for each kind of machine that this one can stand for: none is skipped where it could
    /// run. Kills: a body that is another one where vectors are narrower.
    #[test]
    fn all_widths_compute_the_same() {
        let x: Vec<f32> = (0..100).map(|i| i as f32 / 8.0 - 6.0).collect();
        let body = || x.iter().map(|&x| x.sigmoid() * x).collect::<Vec<f32>>();
        let plain = body();
        let close = |seen: Vec<f32>| {
            assert_eq!(seen.len(), plain.len());
            for (s, p) in seen.iter().zip(&plain) {
                assert!((s - p).abs() <= 1e-6 * p.abs().max(1.0), "{s} {p}");
            }
        };
        close(widest(body));
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            // SAFETY: the features were detected; those for bits come with these.
            close(unsafe { avx2(body) });
        }
    }

    /// Kills: a lost remainder, a lost lane.
    #[test]
    fn lanes_lose_nothing() {
        for n in [0, 1, 31, 32, 33, 64, 100] {
            let x: Vec<f64> = (1..=n).map(f64::from).collect();
            let (n, total) = (f64::from(n), x.iter().sum::<f64>());
            assert_eq!(sum([&x], |[x]| x), total);
            assert_eq!(dot(&x, &x), n * (n + 1.0) * (2.0 * n + 1.0) / 6.0);
            assert_eq!(stab(&x), if n == 0.0 { f64::NEG_INFINITY } else { n });
        }
    }
}
