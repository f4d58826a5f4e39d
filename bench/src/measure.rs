//! Measures this machine for `price` and `plan`. Training steps with a profile give the seconds of each
//! kernel, the same steps on the meta device its operations and bytes; bursts of calls give the links.
//!
//! ```text
//! rate     Σ operations / Σ seconds, or Σ bytes / Σ seconds      of a kernel's calls of about the same size
//! launch   seconds from the end of a kernel to the next, in steps of one rank: the least of nine in ten
//! ```
use super::all_reduce::bursts;
use super::machine::{Cores, Hardware, Probe, cores};
use super::scale::Scale;
use crate::pass::{RATE, batch, least};
use comm::{Axis, Op, Reduce, Tag, World};
use kernels::{Heads, timed_meta_of};
use layers::{Blocks, Experts, Pattern, Rates, Shape};
use ops::{ADAMW, EvenValues};
use parallel::dtype::RunDevice;
use parallel::{Batch, BuildContext, Layout, Network, Result, Trainer, budget, session};
use plan::Machine;
use plan::machine::{KernelRates, Level, Sourced};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tensor::{
    Away, Bf16, Category, Clock, Cpu, Device, KernelKind, KernelWork, Profile, ProfileEntry, Scalar, Store,
    Tensor, Work,
};

/// Source of all measured numbers.
const SOURCE: &str = "measured by equipart machine --measure";

/// Sizes of what is measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasureScale {
    /// Widths of the models, each with as many tokens of a sequence.
    pub widths: &'static [usize],
    /// Number of turns, of which the best time of each kernel counts.
    pub turns: usize,
    /// Divisor of the sizes of calls and probes.
    pub divisor: usize,
}

impl MeasureScale {
    /// The usual sizes: less than a minute.
    pub const FULL: Self = Self { widths: &[32, 64, 128, 256], turns: 5, divisor: 1 };
    /// Sizes just large enough to run all of the code.
    pub const TINY: Self = Self { widths: &[8], turns: 1, divisor: 1024 };
}

/// Measures this machine; `watch` receives the current activity.
///
/// # Errors
/// If a rank fails.
pub fn machine(of: &MeasureScale, watch: &dyn Fn(&str)) -> Result<Machine> {
    let probe = |probe: Probe| probe.seconds(&Scale { divisor: of.divisor, ..Scale::FULL });
    watch("links");
    let links = links(of)?;
    let moved = |store: &Store| moved(store, (16 << 20) / of.divisor, of.turns);
    let (host, file) = (moved(&Store::host()), moved(&Store::file(std::env::temp_dir())));
    let cores = cores(usize::MAX);
    watch("peaks");
    let peak = 1.0 / probe(Probe::Peak { cores: 1 });
    let bf16 = 1.0 / probe(Probe::PeakBf16 { cores: 1 });
    let (mut kernels, split): (_, Layout) = (KernelTimes::default(), "cp=2".parse()?);
    // everything takes turns, so that a slow moment of the machine is not one kernel's
    for turn in 1..=of.turns {
        let mut number = 0..;
        for (&width, of_width) in of.widths.iter().map(|width| (width, shapes(*width))) {
            watch(&format!("kernels, turn {turn} of {}, {width} features", of.turns));
            for shape in of_width {
                let mut next = || number.next().expect("endless");
                kernels.step::<Cpu<f32>>(next(), &Layout::UNSPLIT, shape)?;
                kernels.step::<Cpu<f32>>(next(), &split, shape)?;
                kernels.step::<Cpu<Bf16>>(next(), &Layout::UNSPLIT, shape)?;
                kernels.step::<Cpu<f64>>(next(), &Layout::UNSPLIT, shape)?;
            }
        }
    }
    Ok(Machine {
        about: format!("this machine ({})", Cores.name()),
        memory: Sourced {
            value: budget::free().map_or(8e9, |bytes| bytes as f64 / cores as f64),
            source:
                "free memory when it was measured, shared by a rank on each core; 8 GB if it is not known"
                    .into(),
        },
        peak: [("f32", peak), ("bf16", bf16)].map(|(dtype, rate)| (dtype.into(), known(rate))).into(),
        launch: known(kernels.launch()),
        kernels: kernels.rates(),
        overlap: Sourced { value: 0.001, source: "ranks pass data on the cores that compute".into() },
        host: known(host),
        file: known(file),
        cores: Some(cores),
        levels: vec![links],
    })
}

/// A measured number.
fn known(value: f64) -> Sourced {
    Sourced { value, source: SOURCE.into() }
}

/// Small models with, together, almost every kernel.
fn shapes(width: usize) -> [Shape; 2] {
    let dim = (width / 4).min(64);
    let heads = Heads::new(width / dim, width / dim / 2, dim);
    let of =
        |shape: Shape| Shape { width, heads, hidden: 4 * width, vocabulary: 4 * width, blocks: 2, ..shape };
    let dropout = Rates { embedding: 0.1, attention: 0.0, residual: 0.1 };
    let experts = Experts { count: 4, chosen: 2, hidden: width, forced: true, ..Experts::MIXTRAL };
    let pattern = Pattern { dense: Blocks::FIRST, ..Pattern::NONE };
    [of(Shape { experts: Some(experts), pattern, ..Shape::LLAMA }), of(Shape { dropout, ..Shape::GPT2 })]
}

/// The kernels of a shape-only rank.
#[derive(Default)]
struct Notes(Mutex<Vec<KernelWork>>);

impl Notes {
    fn take(&self) -> Vec<KernelWork> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Clock for Notes {
    fn kernel(&self, work: &KernelWork) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(*work);
    }
}

/// Operations, bytes and seconds of a kernel's call, or the means of several.
type Timed = [f64; 3];

/// A kernel's name, the least seconds from the end of the one before to its start, and those to its end.
type RanKernel = (&'static str, [f64; 2]);

/// A training step whose kernels are timed.
struct StepKernels {
    alone: bool, // more ranks wait for each other
    noted: Vec<KernelWork>,
    ran: Vec<RanKernel>,
}

/// Times of kernels.
#[derive(Default)]
struct KernelTimes(Vec<StepKernels>);

impl KernelTimes {
    /// Times the kernels of a training step, the one of this number, once more.
    fn step<D: RunDevice>(&mut self, number: usize, layout: &Layout, shape: Shape) -> Result<()> {
        let batch = batch(&Scale { shape, batch: [4, shape.width.min(128)], ..Scale::FULL })?;
        if self.0.len() == number {
            let noted = notes::<D>(layout, shape, &batch)?;
            self.0.push(StepKernels { alone: layout.ranks() == 1, noted, ran: Vec::new() });
        }
        times::<D>(layout, shape, &batch, &mut self.0[number].ran)
    }
    /// Seconds before a kernel, of one in ten at most: others wait for memory, too, which is their own time.
    fn launch(&self) -> f64 {
        let waits = self.0.iter().filter(|step| step.alone).flat_map(|step| &step.ran);
        let mut waits: Vec<f64> = waits.map(|(_, [waited, _])| *waited).collect();
        waits.sort_by(f64::total_cmp);
        waits[waits.len() / 10]
    }
    /// Calls by kind, name and dtype.
    fn calls(&self) -> BTreeMap<(KernelKind, &'static str, &'static str), Vec<Timed>> {
        let (launch, mut calls) = (self.launch(), BTreeMap::<_, Vec<Timed>>::new());
        for StepKernels { alone, noted, ran } in &self.0 {
            let mut real: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for (name, [waited, took]) in ran {
                let waited = if *alone { waited - launch } else { 0.0 };
                real.entry(name).or_default().push(took + waited.max(0.0));
            }
            let mut works: BTreeMap<&str, Vec<&KernelWork>> = BTreeMap::new();
            for work in noted {
                works.entry(work.name).or_default().push(work);
            }
            for (name, works) in works {
                let Some(seconds) = real.get(name) else { continue };
                // a kernel that runs in parts is noted once
                let bytes: f64 = works.iter().map(|work| work.bytes as f64).sum();
                let (rate, parts) = (seconds.iter().sum::<f64>() / bytes, seconds.len() != works.len());
                for (i, work) in works.iter().enumerate() {
                    let took = if parts { work.bytes as f64 * rate } else { seconds[i] };
                    let key = (work.kind, name, work.dtype);
                    calls.entry(key).or_default().push([work.flops as f64, work.bytes as f64, took]);
                }
            }
        }
        calls
    }
    /// Rates of all kernels, of other kernels of their kinds, and of all others.
    fn rates(&self) -> BTreeMap<String, KernelRates> {
        let (mut found, mut kinds) = (BTreeMap::new(), BTreeMap::<&str, Vec<Timed>>::new());
        for ((kind, name, dtype), calls) in &self.calls() {
            let is_f32 = *dtype == f32::NAME;
            found.insert(if is_f32 { name.to_string() } else { format!("{name}/{dtype}") }, rates(calls));
            let computes = matches!(kind, KernelKind::Product | KernelKind::Attention);
            let of_kind = calls.iter().filter(|[flops, ..]| is_f32 && computes == (*flops > 0.0));
            let names = [kind.name()].into_iter().chain((*kind == KernelKind::ElementWise).then_some("*"));
            names.for_each(|name| kinds.entry(name).or_default().extend(of_kind.clone()));
        }
        for (kind, calls) in kinds {
            found.entry(kind.into()).or_insert_with(|| rates(&calls));
        }
        found
    }
}

/// Rates of these calls.
fn rates(calls: &[Timed]) -> KernelRates {
    let source = SOURCE.into();
    if calls.iter().all(|[flops, ..]| *flops == 0.0) {
        return KernelRates {
            bytes: table(calls.iter().map(|[_, bytes, took]| [*bytes, *took])),
            source,
            ..KernelRates::default()
        };
    }
    // bytes take no longer than the operations on them
    let fastest = calls.iter().map(|[_, bytes, took]| bytes / took).fold(0.0, f64::max);
    let operations = table(calls.iter().map(|[flops, _, took]| [*flops, *took]));
    KernelRates { operations, bytes: vec![[1.0, fastest]], source }
}

/// Rates by size: those of sizes within a factor of four are one row.
fn table(calls: impl Iterator<Item = [f64; 2]>) -> Vec<[f64; 2]> {
    let mut rows: BTreeMap<i32, [f64; 3]> = BTreeMap::new();
    for [size, took] in calls.filter(|[size, took]| *size > 0.0 && *took > 0.0) {
        let [sizes, seconds, count] = rows.entry((size.log2() / 2.0).floor() as i32).or_default();
        (*sizes, *seconds, *count) = (*sizes + size, *seconds + took, *count + 1.0);
    }
    let mut table: Vec<[f64; 2]> = Vec::new();
    for [sizes, seconds, count] in rows.into_values() {
        let size = sizes / count;
        // more work takes no less time
        let most = table.last().map_or(f64::INFINITY, |[before, rate]| rate * size / before * (1.0 - 1e-12));
        table.push([size, (sizes / seconds).min(most)]);
    }
    table
}

/// Kernels of rank 0 in the second training step of a shape-only program.
fn notes<D: RunDevice>(layout: &Layout, shape: Shape, batch: &Batch) -> Result<Vec<KernelWork>> {
    let notes = Arc::new(Notes::default());
    let device = timed_meta_of::<D>(Some(notes.clone()));
    let mesh = layout.ghost(0)?;
    let mut trainer = Trainer::new(&layout.place(&device, &mesh, &EvenValues), shape, (ADAMW, Some(1.0)))?;
    trainer.step(batch, RATE)?;
    notes.take();
    trainer.step(batch, RATE)?;
    Ok(notes.take())
}

/// Times the kernels of rank 0 in a training step, and keeps the least of all times so far.
fn times<D: RunDevice>(
    layout: &Layout,
    shape: Shape,
    batch: &Batch,
    best: &mut Vec<RanKernel>,
) -> Result<()> {
    let world = Network::default().world(layout, "a step")?;
    let mut ranks = session::run((layout, &world), &EvenValues, |at: BuildContext<D>| {
        let mut trainer = Trainer::new(&at, shape, (ADAMW, Some(1.0)))?;
        let mut steps = Vec::new();
        for _ in 0..3 {
            at.mesh.barrier()?;
            let mut free = Instant::now();
            at.device.profile().inspect(|profile| profile.begin(at.device.meter().flops()));
            trainer.step(batch, RATE)?;
            let worked = at.device.profile().map_or_else(Vec::new, Profile::end);
            let kernels = worked.into_iter().filter_map(|ProfileEntry { work, from, to }| {
                let Work::Kernel { name, .. } = work else { return None };
                let waited = from.duration_since(std::mem::replace(&mut free, to));
                Some((name, [waited, to - from].map(|time| time.as_secs_f64())))
            });
            steps.push(kernels.collect());
        }
        Ok(steps)
    })?;
    let later = ranks.swap_remove(0).split_off(1); // the first step allocates
    for step in later {
        let least = |known: &mut RanKernel, (_, of): &RanKernel| {
            known.1 = [known.1[0].min(of[0]), known.1[1].min(of[1])];
        };
        best.iter_mut().zip(&step).for_each(|(known, one)| least(known, one));
        if best.is_empty() {
            *best = step;
        }
    }
    Ok(())
}

/// Bytes per second of state that goes to a store and comes back.
fn moved(store: &Store, bytes: usize, turns: usize) -> f64 {
    let mut away = Away::new(store, &Cpu::<f32>::default(), [1, bytes / 4]);
    let mut turn = || {
        let began = Instant::now();
        let matrix = away.load();
        drop(away.begin_store(matrix).wait());
        began.elapsed().as_secs_f64()
    };
    turn(); // reserves the room
    2.0 * bytes as f64 / (0..turns).map(|_| turn()).fold(f64::INFINITY, f64::min)
}

/// Latency and bandwidths of calls between two ranks.
fn links(of: &MeasureScale) -> Result<Level> {
    let large = (1 << 17) / of.divisor.min(1 << 10);
    let (mut operations, mut latency) = (BTreeMap::new(), f64::INFINITY);
    for op in [Op::AllReduce, Op::AllGather, Op::ReduceScatter, Op::AllToAll, Op::Broadcast, Op::Send] {
        let best =
            |elements| (0..4 * of.turns).try_fold(f64::INFINITY, |best, _| Ok(call(op, elements)?.min(best)));
        let (few, many): (Result<f64>, Result<f64>) = (best(2), best(large));
        let (few, many) = (few?, many?);
        // an all-reduce waits twice
        latency = latency.min(if op == Op::AllReduce { few / 2.0 } else { few });
        operations.insert(op.name().to_string(), known(4.0 * large as f64 / (many - few).max(many / 2.0)));
    }
    let bandwidth = operations["send"].clone();
    Ok(Level { name: "threads".into(), ranks: None, latency: known(latency), bandwidth, operations })
}

/// Seconds of a call in which each of two ranks sends, as the ledger counts, this number of elements.
pub(super) fn call(op: Op, elements: usize) -> Result<f64> {
    let world = World::threads(&[(Axis::Tp, 2)])?;
    let calls = ((1 << 19) / elements).clamp(1, 1000);
    let times = world.run(|device: Cpu<f32>, mesh| {
        let group = mesh.group(Axis::Tp).named("burst");
        let zeros = |rows| Tensor::from_fn(&device, Category::Buffers, rows, elements, |_| 0.0);
        let (mut one, two, tag): (Tensor<Cpu<f32>>, Tensor<Cpu<f32>>, _) =
            (zeros(1), zeros(2), Tag::new("burst", 0));
        bursts(&group, device.place(), calls, || match op {
            Op::AllReduce => group.all_reduce(&mut one, Reduce::Sum),
            Op::AllGather => group.all_gather(&one).map(drop),
            Op::ReduceScatter => group.reduce_scatter(&two).map(drop),
            Op::AllToAll => group.all_to_all(&two).map(drop),
            Op::Broadcast => group.broadcast(&mut one, 0),
            _ if group.rank() == 0 => group.send(1, &one, tag),
            _ => group.receive(&device, 0, 1, elements, tag).map(drop),
        })
    })?;
    Ok(least(&times))
}
