//! What figures are measured on, and what it does at most, measured beside what is compared with it.
use super::scale::Scale;
use kernels::{Kernels, Write, machine};
use layers::counted;
use parallel::Result;
use parallel::number::Runs;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Instant;
use tensor::{Bf16, Category, Cpu, F61, Key, Scalar, Tensor};

/// What figures are measured on.
pub trait Hardware {
    /// Its devices of f32.
    type F32: Runs;
    /// Its devices of bf16.
    type Bf16: Runs;
    /// Whether it is the host, where some figures are at home alone.
    const HOST: bool;
    /// How many calls are made before the last of them is waited for: one, where a call has done its work when it returns.
    const CALLS: usize;

    /// What it is.
    fn name(&self) -> String;
    /// Processors that so many ranks have.
    fn cores(&self, ranks: usize) -> usize;
    /// What a probe takes at best, in seconds; sizes may be so much smaller.
    ///
    /// # Errors
    /// If it fails.
    fn seconds(&self, probe: Probe, smaller: usize) -> Result<f64>;
}

/// The cores of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Cores;

impl Hardware for Cores {
    type F32 = Cpu<f32>;
    type Bf16 = Cpu<Bf16>;
    const HOST: bool = true;
    const CALLS: usize = 1;

    /// The processor's name, and how many cores of it there are: as Linux tells it, elsewhere its architecture.
    fn name(&self) -> String {
        let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = told.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
        format!("{name}, {}", counted(cores(usize::MAX), "core"))
    }
    fn cores(&self, ranks: usize) -> usize {
        cores(ranks)
    }
    fn seconds(&self, probe: Probe, smaller: usize) -> Result<f64> {
        Ok(probe.seconds(&Scale { smaller, ..Scale::FULL }))
    }
}

/// Something that bounds a work. Where several processors do it, they do it at once: cores, or cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// A floating point operation: of a core, multiply-adds in registers alone; of a card, in its fastest product.
    Peak {
        /// How many processors.
        cores: usize,
    },
    /// The same on bf16: of a core, pairs of multiply-adds, or f32's, whichever is faster.
    PeakBf16 {
        /// How many processors.
        cores: usize,
    },
    /// A byte that is read, of more memory than caches hold; of a card, one that a copy reads or writes.
    Read {
        /// How many processors.
        cores: usize,
    },
    /// A multiply-add in the field, in products that caches hold.
    Field {
        /// How many processors.
        cores: usize,
    },
    /// Bytes of its own that each processor reads, and writes where they lie.
    Rewrite {
        /// How many processors.
        cores: usize,
        /// Of each.
        bytes: usize,
    },
    /// Bytes that each processor reads, and writes elsewhere.
    Copy {
        /// How many processors.
        cores: usize,
        /// Of each.
        bytes: usize,
    },
    /// A meeting: each of the threads writes a line of memory, and reads those of the others.
    Meet {
        /// How many.
        threads: usize,
    },
}

/// What bounds a work: probes, and how often each is in it. The work takes as long as the longest of them, at least.
pub(super) type Bound = Vec<(Probe, f64)>;

/// The machine at its best so far: seconds by probe.
#[derive(Default)]
pub(super) struct Machine(BTreeMap<Probe, f64>);

/// How often a probe is taken in a turn.
const TRIALS: usize = 7;
/// More bytes than caches hold, on each core.
const BEYOND_CACHES: usize = 128 << 20;
/// Windows through which memory is rewritten, at most.
const WINDOWS: usize = 4;
/// Rows and columns of a product in the field that caches hold.
const FIELD: usize = 128;

/// Cores that so many ranks can have.
pub(super) fn cores(ranks: usize) -> usize {
    ranks.min(std::thread::available_parallelism().map_or(1, usize::from))
}

impl Machine {
    /// Takes each of these probes once.
    pub(super) fn probe(&mut self, on: &impl Hardware, bound: &Bound, scale: &Scale) -> Result<()> {
        for (probe, _) in bound {
            let best = self.0.entry(*probe).or_insert(f64::INFINITY);
            *best = best.min(on.seconds(*probe, scale.smaller)?);
        }
        Ok(())
    }
    /// The least seconds of a work that is so bounded, whose probes have been taken.
    pub(super) fn least(&self, bound: &Bound) -> f64 {
        bound.iter().map(|(probe, times)| self.0[probe] * times).fold(0.0, f64::max)
    }
}

impl Probe {
    /// The best of a few trials on the host, in seconds.
    pub(super) fn seconds(self, scale: &Scale) -> f64 {
        match self {
            Self::Peak { cores } => peak(cores, scale.of(4 << 20)),
            Self::PeakBf16 { cores } => peak_bf16(cores, scale.of(4 << 20)),
            Self::Read { cores } => read(cores, scale.of(BEYOND_CACHES)),
            Self::Field { cores } => field(cores, scale.of(FIELD)),
            Self::Rewrite { cores, bytes } => rewrite(cores, bytes, scale),
            Self::Copy { cores, bytes } => copy(cores, bytes, scale),
            Self::Meet { threads } => meet(threads, scale),
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

/// As ranks have it: in large pages.
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
        let all = [1 << 20, 2 << 20, 3 << 20].map(matrix);
        (key, cpu, all)
    };
    let product = |(_, cpu, [a, b, c]): &mut (_, Cpu<F61>, [Tensor<_>; 3])| {
        cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set);
    };
    at_once(cores, matrices, product) / (n * n * n) as f64
}

/// The best of several ways: through one window, two, or four of the same memory. Which one memory takes best is not the
/// same everywhere, nor at all sizes.
fn rewrite(cores: usize, bytes: usize, scale: &Scale) -> f64 {
    let (each, times) = (bytes.div_ceil(4 * WINDOWS), (scale.of(64 << 20) / bytes).max(1));
    let way = |windows: usize| {
        let all = |x: &mut Tensor<Cpu<f32>>| {
            for _ in 0..times {
                machine::rewrite(std::hint::black_box(x.view_mut()).flat(), windows);
            }
        };
        at_once(cores, |_| memory(4 * each * WINDOWS), all) / times as f64
    };
    [1, 2, WINDOWS].map(way).into_iter().fold(f64::INFINITY, f64::min)
}

fn meet(threads: usize, scale: &Scale) -> f64 {
    let enough = cores(threads) == threads;
    let (times, lines) = (scale.of(if enough { 1 << 16 } else { 1 << 12 }), || {
        (0..threads).map(|_| machine::MeetingLine::default()).collect::<Vec<_>>()
    });
    // Each trial has lines of its own, so that none needs to be set back.
    let lines: Vec<Vec<_>> = (0..=TRIALS).map(|_| lines()).collect();
    let meetings = |(me, trial): &mut (usize, usize)| {
        *trial += 1;
        machine::meet(&lines[*trial - 1], *me, times, !enough); // whoever keeps a core from the others cannot wait for them
    };
    at_once(threads, |me| (me, 0), meetings) / times as f64
}

/// The least time, of a few trials after one to warm up, that as many threads take to do the same at once: from when
/// all are ready until the last has done it.
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
        let threads: Vec<_> = (0..threads).map(|me| scope.spawn(move || one(me))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a probe panics for nothing")).collect()
    });
    least(&seconds)
}

/// Of the times of all ranks, one for each try: when the last rank was done, in the best try after the first, which
/// warms up.
pub(super) fn least(ranks: &[Vec<f64>]) -> f64 {
    let tries = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let last = |try_: usize| ranks.iter().map(|rank| rank[try_]).fold(0.0, f64::max);
    (1..tries).map(last).fold(f64::INFINITY, f64::min)
}
