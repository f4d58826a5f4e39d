//! Forwards of a model on pinned cores, and the kernels that they consist of.
use super::pins::pin;
use crate::event::Observer;
use crate::records;
use comm::{Axis, CallClock, GhostCall, Reduce, TimeUse, Trace};
use layers::{Builder, Design};
use models::Model;
use models::generate::all_logits_peak;
use ops::{LayerCounts, PassContext};
use parallel::measure::median;
use parallel::{BuildContext, Layout, Network, Result, Stages, bail, budget, session};
use plan::share::{ParallelKernel, SharedModel};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tensor::{Category, Clock, Cpu, Device, Host, KernelWork, Tensor, TokenIds};

/// Forwards before the first that is timed: in all, the seconds that a processor needs to get up to speed.
const WARM: f64 = 0.1;
/// Forwards whose kernels are timed.
const TIMED: usize = 20;
/// Tokens of a sequence, at most.
const SEQUENCE: usize = 64;
/// The most tensor ranks for which a kernel's parallel part is looked for.
const RANKS: usize = 64;

/// Line of a process that has warmed up.
pub(super) const READY: &str = r#"{"ready":true}"#;

/// Line of a process that runs forwards.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ForwardLine {
    /// The timed forwards begin.
    Ready(bool),
    /// The timed forwards took so long together.
    Seconds(f64),
}

records!(ForwardLine: "forwards");

/// Work of a forward: a model, and a number of tokens in sequences of equal length, or nearly so.
pub struct Forward {
    pub(super) model: Model,
    tokens: usize,
    /// Tokens of each expert: one without tokens runs no kernels.
    counts: LayerCounts,
}

/// Returns the layout on this many cores: a tensor rank on each.
///
/// # Errors
/// If the model does not fit it.
pub(super) fn layout(model: &Model, cores: usize) -> Result<Layout> {
    let layout = Layout::new(&[(Axis::Tp, cores)])?;
    layout.fits(Design::from(model.config.shape).inferring())?;
    Ok(layout)
}

impl Forward {
    /// Makes a forward whose experts all run.
    pub fn new(model: Model, tokens: usize) -> Self {
        Self { model, tokens, counts: LayerCounts::default() }
    }
    /// Counts the tokens of each expert in a forward.
    ///
    /// # Errors
    /// If the forward fails.
    pub(super) fn counted(self) -> Result<Self> {
        let counts = self.on(&Layout::UNSPLIT, &Network::default(), |_, forward| forward())?;
        Ok(Self { counts: counts.into_iter().collect(), ..self })
    }
    fn sequences(&self) -> Vec<usize> {
        let longest = SEQUENCE.min(self.model.config.positions).min(self.tokens);
        let rest = self.tokens % longest;
        [vec![longest; self.tokens / longest], vec![rest; usize::from(rest > 0)]].concat()
    }
    /// Checks that the machine has the memory for unsplit forwards on so many cores at once.
    ///
    /// # Errors
    /// If it has not.
    pub(super) fn fits(&self, label: &str, cores: usize) -> Result<()> {
        let peak =
            all_logits_peak::<Cpu<f32>>(&self.model.config.shape, &Layout::UNSPLIT, &self.sequences())?;
        budget::fits::<Host>(format_args!("forwards of {label}"), [cores; 2], peak.all * cores as u128)
    }
    /// Runs forwards on these cores, each rank pinned to its own: some to warm up, then the timed ones. Tells
    /// when those begin, and the seconds that they take together.
    ///
    /// # Errors
    /// If the model does not fit as many ranks, or a core cannot be used.
    pub fn tell(&self, cores: &[usize], forwards: usize, observer: &Observer) -> Result<()> {
        let seconds = self.on(&layout(&self.model, cores.len())?, &Network::default(), |at, forward| {
            pin(cores[at.mesh.rank()])?;
            warm_up(at, forward)?;
            at.mesh.barrier()?;
            if at.mesh.rank() == 0 {
                observer.record(&ForwardLine::Ready(true))?;
                observer.say(READY)?;
            }
            at.mesh.barrier()?;
            let start = Instant::now();
            (0..forwards).try_for_each(|_| forward().map(drop))?;
            Ok(start.elapsed().as_secs_f64())
        })?;
        let seconds = seconds.into_iter().fold(0.0, f64::max);
        observer.record(&ForwardLine::Seconds(seconds))?;
        observer.say(&seconds.to_string())
    }
    fn on<T: Send>(
        &self,
        layout: &Layout,
        network: &Network,
        work: impl Fn(&BuildContext<Cpu<f32>>, &mut dyn FnMut() -> Result<LayerCounts>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let shape = self.model.config.shape;
        let lengths = self.sequences();
        let world = network.world(layout, "forwards")?;
        session::run((layout, &world), self.model.values(), |at: BuildContext<Cpu<f32>>| {
            let mut stages = Stages::new(&at, shape)?;
            let ids: Vec<u32> = (0..self.tokens).map(|i| (i % shape.vocabulary) as u32).collect();
            let mut forward = || {
                let cx = PassContext::infer(lengths.clone()).sharded(at.tokens);
                let ids = TokenIds::new(at.device.place(), &ids, shape.vocabulary)?;
                stages.logits(&cx, ids, false).map(|_| cx.take_counts())
            };
            work(&at, &mut forward)
        })
    }
    /// Returns the number of cores that each kernel of a forward can use, from the shapes under all numbers
    /// of tensor ranks that fit.
    ///
    /// # Errors
    /// If the number of bytes overflows 64 bits.
    pub(super) fn parallel(&self) -> Result<Vec<f64>> {
        let (kernels, _) = self.shapes(1)?;
        let mut parallel = vec![1.0_f64; kernels.len()];
        for ranks in (2..=RANKS).filter(|ranks| layout(&self.model, *ranks).is_ok()) {
            let (parts, _) = self.shapes(ranks)?;
            let alike = alike(&kernels, &parts);
            parallel.iter_mut().zip(alike).for_each(|(kernel, part)| *kernel = kernel.max(part));
        }
        Ok(parallel)
    }
    /// Returns the kernels of a forward: their seconds on one of the cores, measured, and the cores that they
    /// can use. Time outside kernels that a forward of one token has, too, is serial; the rest grows with the
    /// matrices, as that of fresh memory does, and counts for all kernels alike.
    ///
    /// # Errors
    /// If a core cannot be used.
    pub(super) fn kernels(&self, core: usize, parallel: &[f64]) -> Result<SharedModel> {
        let whole = self.measured(core)?;
        let outside = |(whole, kernels): &(f64, Vec<f64>)| (whole - kernels.iter().sum::<f64>()).max(0.0);
        let one = Self::new(self.model.clone(), 1).counted()?;
        let serial = outside(&one.measured(core)?).min(outside(&whole));
        let (whole, work) = whole;
        let slower = (whole - serial) / work.iter().sum::<f64>();
        let kernel =
            |(work, parallel): (f64, &f64)| ParallelKernel { work: work * slower, parallel: *parallel };
        Ok(SharedModel { serial, kernels: work.into_iter().zip(parallel).map(kernel).collect() })
    }
    /// Measures a forward on one core: its seconds, and those of each of its kernels, medians.
    fn measured(&self, core: usize) -> Result<(f64, Vec<f64>)> {
        let trace = Trace::new();
        let network = Network { trace: Some(trace.clone()), ..Network::default() }.profiling(1);
        let took = self.on(&Layout::UNSPLIT, &network, |at, forward| {
            pin(core)?;
            warm_up(at, &mut *forward)?;
            let whole = timed(TIMED, forward)?;
            let _profile = at.mesh.profile(at.device.place());
            (0..TIMED).try_for_each(|_| forward().map(drop))?;
            Ok(whole)
        })?;
        let (kernels, _) = self.shapes(1)?;
        let events = &trace.runs()[0].ranks[0];
        let seen = events.iter().filter_map(|event| match event.what {
            TimeUse::Kernel { name, .. } => Some((name, event.took().as_secs_f64())),
            _ => None,
        });
        let mut seconds = vec![Vec::new(); kernels.len()];
        for (i, (name, took)) in seen.enumerate() {
            let index = i % kernels.len();
            if name != kernels[index].name {
                bail!("kernel {i} of the forwards is {name}, not {}", kernels[index].name);
            }
            seconds[index].push(took);
        }
        Ok((took[0], seconds.into_iter().map(|times| median(times).unwrap_or(0.0)).collect()))
    }
    /// Returns the seconds that the ranks on these cores spend on the calls of a forward, measured without
    /// its kernels: each as an all-reduce that sends as many bytes.
    ///
    /// # Errors
    /// If a core cannot be used.
    pub(super) fn calls(&self, cores: &[usize]) -> Result<f64> {
        let ranks = cores.len();
        let (_, calls) = self.shapes(ranks)?;
        let elements = |sent: &usize| (sent * ranks).div_ceil(2 * (ranks - 1).max(1) * size_of::<f32>());
        let took = layout(&self.model, ranks)?.world()?.run(|device: Cpu<f32>, mesh| {
            pin(cores[mesh.rank()])?;
            let zeros = |n| Tensor::from_fn(&device, Category::Buffers, 1, n, |_| 0.0);
            let mut buffers: Vec<_> = calls.iter().map(elements).map(zeros).collect();
            let mut once = || {
                buffers.iter_mut().try_for_each(|x| Ok(mesh.group(Axis::Tp).all_reduce(x, Reduce::Sum)?))
            };
            timed(TIMED, &mut once)
        })?;
        Ok(took.into_iter().fold(0.0, f64::max))
    }
    /// Returns the kernels of a forward of the first of so many tensor ranks, and the bytes that each of its
    /// calls sends, in order.
    fn shapes(&self, ranks: usize) -> Result<(Vec<KernelWork>, Vec<usize>)> {
        let layout = layout(&self.model, ranks)?;
        let seen = Arc::new(SeenWork::default());
        let shape = self.model.config.shape;
        let clock = (seen.clone() as Arc<dyn Clock>, seen.clone() as Arc<dyn CallClock>);
        session::timed::<Cpu<f32>, _>(&layout, (0, None), Some(clock), |at| {
            let builder = Builder { counts: Some(&self.counts), ..at.builder };
            let context = BuildContext { builder, ..at };
            let mut stages = Stages::new(&context, shape)?;
            seen.take(); // of the building
            let ids = TokenIds::new(context.device.place(), &vec![0; self.tokens], shape.vocabulary)?;
            stages.logits(&PassContext::infer(self.sequences()).sharded(context.tokens), ids, false).map(drop)
        })?;
        Ok(seen.take())
    }
}

/// Median of the seconds of some work, so many times.
fn timed<T>(times: usize, work: &mut dyn FnMut() -> Result<T>) -> Result<f64> {
    let once = |_| {
        let start = Instant::now();
        work().map(|_| start.elapsed().as_secs_f64())
    };
    Ok(median((0..times).map(once).collect::<Result<_>>()?).unwrap_or(0.0))
}

/// Runs forwards until the processors are up to speed, as many on every rank.
fn warm_up<T>(at: &BuildContext<Cpu<f32>>, forward: &mut dyn FnMut() -> Result<T>) -> Result<()> {
    let mut more = [(WARM / timed(1, forward)?.max(1e-6)).ceil() as usize];
    at.mesh.world().all_reduce_values(&mut more, usize::max)?;
    (0..more[0]).try_for_each(|_| forward().map(drop))
}

/// The kernels of a shape-only rank, and the bytes that its calls send.
#[derive(Default)]
struct SeenWork(Mutex<(Vec<KernelWork>, Vec<usize>)>);

impl SeenWork {
    fn see(&self) -> MutexGuard<'_, (Vec<KernelWork>, Vec<usize>)> {
        self.0.lock().expect("nothing panics under this lock")
    }
    fn take(&self) -> (Vec<KernelWork>, Vec<usize>) {
        std::mem::take(&mut *self.see())
    }
}

impl Clock for SeenWork {
    fn kernel(&self, work: &KernelWork) {
        self.see().0.push(*work);
    }
}

impl CallClock for SeenWork {
    fn call(&self, call: &GhostCall) {
        self.see().1.push(call.bytes);
    }
    fn start(&self, call: &GhostCall) -> usize {
        self.call(call);
        0
    }
    fn finish(&self, _: usize) {}
}

/// Returns, for each kernel of the whole model, how many times as much it does as its part on a rank: 1 if
/// the ranks have another number of kernels of its name.
fn alike(whole: &[KernelWork], part: &[KernelWork]) -> Vec<f64> {
    let by_name = |all: &[KernelWork]| {
        let mut by: BTreeMap<&str, Vec<KernelWork>> = BTreeMap::new();
        for kernel in all {
            by.entry(kernel.name).or_default().push(*kernel);
        }
        by
    };
    let (all, parts, mut seen) = (by_name(whole), by_name(part), BTreeMap::<&str, usize>::new());
    let amount =
        |kernel: &KernelWork| if kernel.flops > 0 { kernel.flops as f64 } else { kernel.bytes as f64 };
    let ratio = |kernel: &KernelWork| {
        let count = seen.entry(kernel.name).or_default();
        *count += 1;
        let found = parts.get(kernel.name).filter(|own| own.len() == all[kernel.name].len());
        found.map_or(1.0, |own| amount(kernel) / amount(&own[*count - 1]).max(1.0))
    };
    whole.iter().map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some experts have none of few tokens. Kills: kernels of experts without tokens that are looked for,
    /// or are taken for those of others.
    #[test]
    fn kernels_of_a_forward_are_those_of_experts_with_tokens() {
        let kernels = |tokens| {
            let of = Forward::new(Model::moe().unwrap(), tokens).counted().unwrap();
            assert!(!of.counts.is_empty());
            let (measured, _) = of.shapes(1).unwrap();
            let parallel = of.parallel().unwrap();
            assert_eq!(parallel.len(), measured.len());
            let trace = Trace::new();
            let network = Network { trace: Some(trace.clone()), ..Network::default() }.profiling(1);
            let once = |at: &BuildContext<Cpu<f32>>, forward: &mut dyn FnMut() -> Result<LayerCounts>| {
                let _profile = at.mesh.profile(at.device.place());
                forward()
            };
            of.on(&Layout::UNSPLIT, &network, once).unwrap();
            let events = trace.runs().swap_remove(0).ranks.swap_remove(0);
            let names = events.into_iter().filter_map(|event| match event.what {
                TimeUse::Kernel { name, .. } => Some(name),
                _ => None,
            });
            assert_eq!(names.collect::<Vec<_>>(), measured.iter().map(|of| of.name).collect::<Vec<_>>());
            measured.len()
        };
        let all = [1, 2, 4, 8, 12, 64].map(kernels);
        assert!(all.is_sorted() && all[0] < all[5], "{all:?}");
    }
}
