//! Peak rates of the machine, for comparison with kernels: multiply-adds without memory, memory that is read,
//! memory that is rewritten in place, threads that meet. Callers measure the time.
use super::simd::widest;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::yield_now;

/// Independent chains of multiply-adds: more than any core executes at once.
const VECTORS: usize = 12;
/// Floats of a cache line.
const LINE: usize = 16;
/// Floats that are read before any of them is written: as many as registers hold.
const BLOCK: usize = 128;

/// Does `rounds` rounds of multiply-adds of f32 in registers alone, with the widest vectors there are.
/// Returns the FLOPs done, two for each.
pub fn multiply_adds(rounds: usize) -> u64 {
    2 * rounds as u64 * black_box(chains(rounds)).len() as u64
}

/// True if the CPU has an instruction that multiplies pairs of bf16.
pub(super) fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Does `rounds` rounds of multiply-adds of bf16 into f32 in registers alone, by `vdpbf16ps`. Returns the
/// FLOPs done, four for each lane; `None` if the CPU has no such instruction.
pub fn bf16_multiply_adds(rounds: usize) -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    if has_bf16() {
        // SAFETY: the features were detected.
        return Some(4 * rounds as u64 * black_box(unsafe { pairs(rounds) }).len() as u64);
    }
    let _ = rounds;
    None
}

/// Cache line of one thread, with the line beside it that some machines fetch too: it holds the number of
/// meetings that the thread has reached.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct MeetingLine(AtomicUsize);

/// Meets the other threads `times` times. Each thread writes to its own line, and reads those of the others
/// until they hold the same number. If `yields`, or after a long wait, a waiting thread yields its core.
pub fn meet(lines: &[MeetingLine], me: usize, times: usize, yields: bool) {
    for time in 1..=times {
        lines[me].0.store(time, Ordering::Release);
        for line in lines {
            let mut looked = 0;
            while line.0.load(Ordering::Acquire) < time {
                looked += 1;
                if yields || looked >= 10_000 { yield_now() } else { spin_loop() }
            }
        }
    }
}

/// Reads all of `x` and returns its sum. It reads four streams: with one, a core waits for memory that it
/// could have requested before.
pub fn read(x: &[f32]) -> f32 {
    widest(
        #[inline(always)]
        || {
            let (streams, rest) = x.split_at(4 * quarter(x.len()));
            let (ab, cd) = streams.split_at(streams.len() / 2);
            let [(a, b), (c, d)] = [ab, cd].map(|half| half.split_at(half.len() / 2));
            let mut sums = [[0.0; LINE]; 4];
            let [a, b, c, d] = [a, b, c, d].map(|x| x.chunks_exact(LINE));
            for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
                for (sums, x) in sums.iter_mut().zip([a, b, c, d]) {
                    sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                }
            }
            sums.iter().flatten().chain(rest).sum()
        },
    )
}

/// Reads all of `x` through 1, 2 or 4 windows of equal length, and rewrites it in place: each window becomes
/// their mean. Blocks are read together and written together, which is faster than one line after the other.
pub fn rewrite(x: &mut [f32], windows: usize) {
    let each = x.len() / windows;
    assert!(each * windows == x.len(), "{windows} windows of {each} floats, wanted {} floats", x.len());
    widest(
        #[inline(always)]
        || match windows {
            1 => means::<1>(x),
            2 => means::<2>(x),
            4 => means::<4>(x),
            _ => panic!("{windows} windows, wanted 1, 2 or 4"),
        },
    );
}

/// Replaces each of `N` windows of `x` with their mean.
#[inline(always)]
fn means<const N: usize>(x: &mut [f32]) {
    let each = x.len() / N;
    let whole = each / BLOCK * BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        mean::<N, BLOCK>(x, at);
    }
    for at in whole..each {
        mean::<N, 1>(x, at);
    }
}

/// Replaces `LEN` floats of each window, from `at` on, with their mean.
#[inline(always)]
fn mean<const N: usize, const LEN: usize>(x: &mut [f32], at: usize) {
    let each = x.len() / N;
    let mut mean = [0.0; LEN];
    for window in x.chunks_exact(each) {
        for (mean, x) in mean.iter_mut().zip(&window[at..at + LEN]) {
            *mean += x / N as f32;
        }
    }
    for window in x.chunks_exact_mut(each) {
        window[at..at + LEN].copy_from_slice(&mean);
    }
}

/// Returns a quarter of `len` floats, in whole lines.
fn quarter(len: usize) -> usize {
    len / (4 * LINE) * LINE
}

/// Values of the chains after `rounds` rounds of x = x/2 + 1; chain i begins with i.
fn chains(rounds: usize) -> Vec<f32> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx512f") {
            // SAFETY: the feature was detected.
            return unsafe { avx512(rounds) };
        }
        if has!("avx2") && has!("fma") {
            // SAFETY: the features were detected.
            return unsafe { avx2(rounds) };
        }
    }
    plain(rounds)
}

/// Runs the chains in vectors of four floats, as every 64-bit machine has them.
fn plain(rounds: usize) -> Vec<f32> {
    let (half, one): (f32, f32) = black_box((0.5, 1.0));
    let mut x: [[f32; 4]; VECTORS] = std::array::from_fn(|v| std::array::from_fn(|i| (4 * v + i) as f32));
    for _ in 0..rounds {
        for x in x.as_flattened_mut() {
            // Without a fused instruction, `mul_add` would be a call.
            *x = if cfg!(target_arch = "aarch64") { x.mul_add(half, one) } else { *x * half + one };
        }
    }
    x.concat()
}

/// Runs the chains in vectors of one kind: in each round a chain becomes `$step` of itself and the two
/// `$terms`.
#[cfg(target_arch = "x86_64")]
macro_rules! in_vectors {
    ($($name:ident $features:literal, $lanes:literal $load:ident $store:ident, $step:ident($terms:expr);)*) => {$(
        #[target_feature(enable = $features)]
        fn $name(rounds: usize) -> Vec<f32> {
            #[allow(clippy::wildcard_imports)] // those of one kind
            use std::arch::x86_64::*;
            let [a, b] = $terms;
            let mut values: Vec<f32> = (0..VECTORS * $lanes).map(|i| i as f32).collect();
            let mut x: [_; VECTORS] = std::array::from_fn(|v| {
                // SAFETY: vector v is the v-th `$lanes` of the values.
                unsafe { $load(values[v * $lanes..][..$lanes].as_ptr()) }
            });
            for _ in 0..rounds {
                for x in &mut x {
                    *x = $step(*x, a, b);
                }
            }
            for (x, to) in x.into_iter().zip(values.chunks_exact_mut($lanes)) {
                // SAFETY: as many floats as a vector has.
                unsafe { $store(to.as_mut_ptr(), x) };
            }
            values
        }
    )*};
}
// `pairs` are of bf16: in each round x = x + 1·1 + 1·½.
#[cfg(target_arch = "x86_64")]
in_vectors! {
    avx512 "avx512f", 16 _mm512_loadu_ps _mm512_storeu_ps,
        _mm512_fmadd_ps(black_box([0.5, 1.0]).map(|x| _mm512_set1_ps(x)));
    avx2 "avx2,fma", 8 _mm256_loadu_ps _mm256_storeu_ps,
        _mm256_fmadd_ps(black_box([0.5, 1.0]).map(|x| _mm256_set1_ps(x)));
    pairs "avx512f,avx512bf16", 16 _mm512_loadu_ps _mm512_storeu_ps,
        _mm512_dpbf16_ps(black_box([0x3F80_3F80, 0x3F80_3F00]).map(|pair| {
            // SAFETY: both are 512 bits, of which all are numbers.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair)) }
        }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All these are sums of few powers of two, so fused or not they are exact. Kills: operations that are
    /// counted and not done, a chain left out, a chain done for two.
    #[test]
    fn every_chain_goes_every_round() {
        for rounds in [0, 1, 15] {
            let halved = 0.5_f64.powi(rounds as i32);
            let wanted = |n: usize| {
                (0..n).map(|i| (i as f64 * halved + 2.0 * (1.0 - halved)) as f32).collect::<Vec<_>>()
            };
            let (fast, slow) = (chains(rounds), plain(rounds));
            assert_eq!((&fast, &slow), (&wanted(fast.len()), &wanted(VECTORS * 4)), "{rounds} rounds");
            assert_eq!(multiply_adds(rounds), (2 * rounds * fast.len()) as u64);
            #[cfg(target_arch = "x86_64")]
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                // SAFETY: the features were detected.
                assert_eq!(unsafe { avx2(rounds) }, wanted(VECTORS * 8));
            }
        }
    }

    /// Kills: operations that are counted and not done, half of a pair left out.
    #[test]
    fn every_chain_of_pairs_goes_every_round() {
        for rounds in [0, 1, 15] {
            let lanes = VECTORS * LINE;
            let counted = has_bf16().then_some((4 * rounds * lanes) as u64);
            assert_eq!(bf16_multiply_adds(rounds), counted);
            #[cfg(target_arch = "x86_64")]
            if has_bf16() {
                let wanted: Vec<_> = (0..lanes).map(|i| i as f32 + 1.5 * rounds as f32).collect();
                // SAFETY: the features were detected.
                assert_eq!(unsafe { pairs(rounds) }, wanted);
            }
        }
    }

    /// Kills: a rest that is not read or not written, an element that is read twice.
    #[test]
    fn all_of_the_memory_is_gone_through() {
        for n in [0, 1, 4 * LINE - 1, 4 * LINE, 2 * BLOCK + LINE + 5] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(read(&x), (n * n.saturating_sub(1) / 2) as f32);
            for (windows, add) in [(1, 0.0), (2, 1.0), (4, 1.5)] {
                let mean: Vec<_> = (0..n).map(|i| i as f32 / windows as f32 + add).collect();
                let mut memory = x.clone();
                memory.resize(n * windows, 2.0); // each window but the first is of twos
                rewrite(&mut memory, windows);
                assert_eq!(memory, mean.repeat(windows), "{windows} windows of {n}");
            }
        }
    }

    /// Kills: a thread that does not wait for the others, or that waits for more than came.
    #[test]
    fn nobody_is_ahead_by_more_than_a_meeting() {
        let (lines, came) = ([(); 3].map(|()| MeetingLine::default()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for me in 0..3 {
                let (lines, came) = (&lines, &came);
                scope.spawn(move || {
                    came.fetch_add(1, Ordering::SeqCst);
                    meet(lines, me, 1, true);
                    assert_eq!(came.load(Ordering::SeqCst), 3);
                    meet(lines, me, 5, false);
                });
            }
        });
        assert!(lines.iter().all(|line| line.0.load(Ordering::SeqCst) == 5));
    }
}
