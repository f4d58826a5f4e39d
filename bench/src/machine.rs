//! Hardware that figures are measured on, and its limits, measured beside the figures.
use super::model;
use super::pass::least;
use super::scale::Scale;
use crate::pass::BenchPass;
use kernels::{Kernels, Write, machine};
use layers::counted;
use parallel::dtype::RunDevice;
use parallel::{Layout, Network, Result};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Instant;
use tensor::{Bf16, Category, Cpu, F61, Key, Scalar, Tensor, limits};

/// Hardware that figures are measured on.
pub trait Hardware {
    /// Its device type for f32.
    type F32: RunDevice;
    /// Its device type for bf16.
    type Bf16: RunDevice;
    /// True for the host; some figures exist only there.
    const HOST: bool;
    /// Number of calls before a wait for the last of them: 1 if a call has finished its work when it returns.
    const CALLS: usize;

    /// Name of the hardware.
    fn name(&self) -> String;
    /// Number of processors for this number of ranks.
    fn cores(&self, ranks: usize) -> usize;
    /// Best seconds of a probe; sizes may be smaller by the factor `divisor`.
    ///
    /// # Errors
    /// If the probe fails.
    fn seconds(&self, probe: Probe, divisor: usize) -> Result<f64>;
}

/// The cores of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Cores;

impl Hardware for Cores {
    type F32 = Cpu<f32>;
    type Bf16 = Cpu<Bf16>;
    const HOST: bool = true;
    const CALLS: usize = 1;

    /// The processor's name and its number of cores: from /proc/cpuinfo on Linux; elsewhere, the
    /// architecture's name.
    fn name(&self) -> String {
        let reported = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = reported.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
        format!("{name}, {}", counted(cores(usize::MAX), "core"))
    }
    fn cores(&self, ranks: usize) -> usize {
        cores(ranks)
    }
    fn seconds(&self, probe: Probe, divisor: usize) -> Result<f64> {
        Ok(probe.seconds(&Scale { divisor, ..Scale::FULL }))
    }
}

/// An operation that bounds work. Several processors, cores or cards, do it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// A floating point operation: on a core, multiply-adds in registers alone; on a card, in its fastest
    /// product.
    Peak {
        /// Number of processors.
        cores: usize,
    },
    /// A floating point operation in bf16: on a core, pairs of multiply-adds, or those of f32 if they are
    /// faster.
    PeakBf16 {
        /// Number of processors.
        cores: usize,
    },
    /// A byte read from more memory than caches hold; on a card, a byte that a copy reads or writes.
    Read {
        /// Number of processors.
        cores: usize,
    },
    /// A multiply-add in the field, in products that fit in caches.
    Field {
        /// Number of processors.
        cores: usize,
    },
    /// Private bytes that each processor reads, and writes in place.
    Rewrite {
        /// Number of processors.
        cores: usize,
        /// Bytes of each processor.
        bytes: usize,
    },
    /// Bytes that each processor reads, and writes elsewhere.
    Copy {
        /// Number of processors.
        cores: usize,
        /// Bytes of each processor.
        bytes: usize,
    },
    /// A pass over the batch under a layout, in f32: the limit of the same pass under another layout.
    Pass {
        /// The pass.
        pass: BenchPass,
        /// The layout.
        layout: &'static str,
    },
    /// A synchronization: each thread writes a cache line, and reads those of the others.
    Meet {
        /// Number of threads.
        threads: usize,
    },
}

/// Lower bound of a work: probes, each with its number of occurrences. The work takes at least the longest of
/// them.
pub(super) type Bound = Vec<(Probe, f64)>;

/// The best seconds of each probe so far.
#[derive(Default)]
pub(super) struct ProbeTimes(BTreeMap<Probe, f64>);

/// Number of trials of a probe in a turn.
const TRIALS: usize = 7;
/// More bytes than caches hold, for each core.
const BEYOND_CACHES: usize = 128 << 20;
/// The most windows through which memory is rewritten.
const WINDOWS: usize = 4;
/// Rows and columns of a product in the field that fits in caches.
const FIELD: usize = 128;

/// Number of cores for this number of ranks.
pub(super) fn cores(ranks: usize) -> usize {
    ranks.min(std::thread::available_parallelism().map_or(1, usize::from))
}

impl ProbeTimes {
    /// Measures each of these probes once.
    pub(super) fn probe<H: Hardware>(&mut self, on: &H, bound: &Bound, scale: &Scale) -> Result<()> {
        for (probe, _) in bound {
            let seconds = match *probe {
                Probe::Pass { pass, layout } => {
                    model::seconds::<H::F32>(&Network::default(), pass, &layout.parse()?, scale)?
                }
                probe => on.seconds(probe, scale.divisor)?,
            };
            let best = self.0.entry(*probe).or_insert(f64::INFINITY);
            *best = best.min(seconds);
        }
        Ok(())
    }
    /// Lower bound in seconds, from probes that were measured.
    pub(super) fn least(&self, bound: &Bound) -> f64 {
        bound.iter().map(|(probe, times)| self.0[probe] * times).fold(0.0, f64::max)
    }
}

impl Probe {
    /// Best seconds of a few trials on the host.
    pub(super) fn seconds(self, scale: &Scale) -> f64 {
        match self {
            Self::Peak { cores } => peak(cores, scale.of(4 << 20)),
            Self::PeakBf16 { cores } => peak_bf16(cores, scale.of(4 << 20)),
            Self::Read { cores } => read(cores, scale.of(BEYOND_CACHES)),
            Self::Field { cores } => field(cores, scale.of(FIELD)),
            Self::Rewrite { cores, bytes } => rewrite(cores, bytes, scale),
            Self::Copy { cores, bytes } => copy(cores, bytes, scale),
            Self::Meet { threads } => meet(threads, scale),
            Self::Pass { .. } => unreachable!("a pass is measured as the figures are"),
        }
    }
}

fn peak(cores: usize, rounds: usize) -> f64 {
    at_once(cores, |_| (), |()| machine::multiply_adds(rounds))
        / (rounds as f64 * machine::multiply_adds(1) as f64)
}

fn peak_bf16(cores: usize, rounds: usize) -> f64 {
    let wide = peak(cores, rounds);
    let Some(flops) = machine::bf16_multiply_adds(1) else { return wide };
    wide.min(
        at_once(cores, |_| (), |()| machine::bf16_multiply_adds(rounds)) / (rounds as f64 * flops as f64),
    )
}

/// Allocates memory as ranks do: in large pages.
fn memory(bytes: usize) -> Tensor<Cpu<f32>> {
    Tensor::from_fn(&Cpu::default(), Category::Buffers, 1, bytes.div_ceil(4), |_| 1.0)
}

fn read(cores: usize, bytes: usize) -> f64 {
    at_once(cores, |_| memory(bytes), |x| machine::read(x.view().row(0))) / bytes as f64
}

fn copy(cores: usize, bytes: usize, scale: &Scale) -> f64 {
    let times = (scale.of(BEYOND_CACHES) / bytes).clamp(1, 1000);
    let copies = |(from, to): &mut (Tensor<Cpu<f32>>, Tensor<Cpu<f32>>)| {
        for _ in 0..times {
            Cpu::<f32>::default().copy(to.view_mut(), from.view());
        }
    };
    at_once(cores, |_| (memory(bytes), memory(bytes)), copies) / times as f64
}

fn field(cores: usize, n: usize) -> f64 {
    let matrices = |_| {
        let (key, cpu) = (Key(1).enter(), Cpu::<F61>::default());
        let matrix =
            |salt| Tensor::from_fn(&cpu, Category::Buffers, n, n, |i| F61::sample(i as u64 ^ salt, 1.0));
        let matrices = [1 << 20, 2 << 20, 3 << 20].map(matrix);
        (key, cpu, matrices)
    };
    let product = |(_, cpu, [a, b, c]): &mut (_, Cpu<F61>, [Tensor<_>; 3])| {
        cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set);
    };
    at_once(cores, matrices, product) / (n * n * n) as f64
}

/// The best of several ways: through one window, two, or four of the same memory. The fastest number depends
/// on the machine and on the size.
fn rewrite(cores: usize, bytes: usize, scale: &Scale) -> f64 {
    let times = (scale.of(64 << 20) / bytes).max(1);
    let way = |windows: usize| {
        let pass = |x: &mut Tensor<Cpu<f32>>| {
            for _ in 0..times {
                machine::rewrite(std::hint::black_box(x.view_mut()).flat(), windows);
            }
        };
        at_once(cores, |_| memory(4 * bytes.div_ceil(4 * WINDOWS) * WINDOWS), pass) / times as f64
    };
    [1, 2, WINDOWS].map(way).into_iter().fold(f64::INFINITY, f64::min)
}

fn meet(threads: usize, scale: &Scale) -> f64 {
    let enough = cores(threads) == threads;
    let times = scale.of(if enough { 1 << 16 } else { 1 << 12 });
    let lines = || (0..threads).map(|_| machine::MeetingLine::default()).collect::<Vec<_>>();
    // Each trial has lines of its own, so none needs a reset.
    let lines: Vec<Vec<_>> = (0..=TRIALS).map(|_| lines()).collect();
    let meetings = |(me, trial): &mut (usize, usize)| {
        *trial += 1;
        // with fewer cores than threads, a spinning thread would keep the others from running
        machine::meet(&lines[*trial - 1], *me, times, !enough);
    };
    at_once(threads, |me| (me, 0), meetings) / times as f64
}

/// The least time of a few trials, after one warm-up, in which all threads do the same work at once: from the
/// moment that all are ready until the last has finished.
fn at_once<T, R>(
    threads: usize,
    prepare: impl Fn(usize) -> T + Sync,
    work: impl Fn(&mut T) -> R + Sync,
) -> f64 {
    let ready = Barrier::new(threads);
    let one = |me: usize| {
        let mut state = prepare(me);
        let trial = |_| {
            ready.wait();
            let start = Instant::now();
            std::hint::black_box(work(&mut state));
            start.elapsed().as_secs_f64()
        };
        (0..=TRIALS).map(trial).collect::<Vec<_>>()
    };
    let one = &one;
    let seconds: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|me| limits::scoped(scope, move || one(me))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a probe panics for nothing")).collect()
    });
    least(&seconds)
}

/// Lower bound: the products and the attention of the pass, as priced, at the peak of this number of
/// processors.
pub(super) fn bound(pass: BenchPass, layout: &Layout, cores: usize, scale: &Scale) -> Result<Bound> {
    Ok(vec![(Probe::Peak { cores }, model::flops(pass, layout, scale)? / cores as f64)])
}

/// Lower bound: one processor reads all weights that a token needs: the head's, one row of the embedding's
/// table, and the experts that the token is dispatched to.
pub(super) fn decode_bound<D: RunDevice>(scale: &Scale) -> Result<Bound> {
    Ok(vec![(Probe::Read { cores: 1 }, model::weights_read::<D>(scale.shape)?)])
}
