//! The world: starts the ranks, runs the same function on each, reports the first failure.
mod ends;

use self::ends::{EndReport, Reported};
use super::engines;
use super::panics::catch;
use super::watch::Watch;
use crate::flight::LastCalls;
#[cfg(any(test, feature = "mutants"))]
use crate::mutants::{OnTrial, Trial};
use crate::processes::{Order, Processes, ReportingEngines, StandIn};
use crate::shared::SharedPlace;
use crate::sync::{Mutex, lock};
use crate::trace::Traced;
use crate::{
    Axis, CommError, Engines, FlightRecorder, Grid, Link, Mesh, RankRecord, Result, TimeUse, Trace, TraceRun,
};
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};
#[cfg(any(test, feature = "mutants"))]
use tensor::Host;
use tensor::quoted::sentence;
use tensor::{Device, Key};

const MOST_RANKS: usize = 1024;
const STACK: usize = 8 << 20; // bytes, as the main thread has; allocated as it is used

/// Ranks as threads of this process, or as processes, one rank each.
#[derive(Clone, Debug)]
pub struct World {
    grid: Arc<Grid>,
    limit: Duration,
    links: Vec<(Axis, Link)>,
    trace: Option<(Trace, String)>,
    counts_waits: bool,
    stuck: Option<StuckReport>,
    #[cfg(any(test, feature = "mutants"))]
    trial: Option<Trial>,
    memory: Option<usize>,             // bytes that each rank may hold
    processes: Option<Arc<Processes>>, // one for each rank; `None` if all are threads of this one
}

/// Report on ranks that do not end ([`World::when_stuck`]).
#[derive(Clone)]
pub struct StuckReport(Arc<RankReport>);
type RankReport = dyn Fn(&RankError, &[usize]) + Send + Sync;

impl StuckReport {
    /// Makes a report that calls this function with the failure and the ranks that still run.
    pub fn new(report: impl Fn(&RankError, &[usize]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }
}

impl fmt::Debug for StuckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stuck")
    }
}

/// The failure that ended a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {reason}")]
pub struct RankError {
    /// The rank that failed first; the others failed because it did.
    pub rank: usize,
    /// Its error, or its panic with the source location.
    pub reason: String,
    /// The last calls of every rank.
    pub calls: FlightRecorder,
    /// The rank whose process tells of the failure, if another process does.
    pub told_by: Option<usize>,
}

impl World {
    /// Default time that a rank waits for others: one minute.
    pub const LIMIT: Duration = Duration::from_mins(1);

    /// Makes a world split along these axes, given in any order; axes left out have size 1. The ranks are pp
    /// × dp × cp × tp; if ep and etp are given, the ranks of a stage are also edp × ep × etp.
    ///
    /// # Errors
    /// An axis of size 0 or given twice; edp, which follows from the others; an ep·etp that does not divide
    /// dp·cp·tp; more than 1024 ranks.
    pub fn threads(sizes: &[(Axis, usize)]) -> Result<Self> {
        let grid = Arc::new(Grid::new(sizes, MOST_RANKS)?);
        Ok(Self {
            grid,
            limit: Self::LIMIT,
            links: Vec::new(),
            trace: None,
            counts_waits: false,
            stuck: None,
            #[cfg(any(test, feature = "mutants"))]
            trial: None,
            memory: None,
            processes: None,
        })
    }
    /// Sets the order in which the axes nest, innermost first: along the first one, consecutive ranks form a
    /// group. Every split axis of pp, dp, cp and tp is named once; the default is tp.cp.dp.pp. Experts nest
    /// in the same order: etp where tp is, edp where dp is; ep where it is named, or else next to etp,
    /// outside it. Source: Megatron-LM, `megatron/core/parallel_state.py`, `RankGenerator`.
    ///
    /// # Errors
    /// [`CommError::BadWorld`](crate::CommError::BadWorld) if an axis is named twice, a split one is not
    /// named, or pp is not last and cuts expert ranks apart.
    pub fn order(self, order: &[Axis]) -> Result<Self> {
        Ok(Self { grid: Arc::new(self.grid.nested(order)?), ..self })
    }
    /// Sets the time that a rank waits for others in one call before it gives up; one minute by default.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
    /// Limits the bytes that each rank holds, in all categories together. A rank that asks for more fails
    /// with an error that names the request.
    #[must_use]
    pub fn memory_limit(self, bytes: usize) -> Self {
        Self { memory: Some(bytes), ..self }
    }
    /// Sets a slow link between the ranks along an axis. A message takes as long as it would over this link;
    /// a collective takes as long as the algorithm with the least traffic, which is the ring for an
    /// all-reduce. Between two ranks, in one direction, one transfer goes after the other, whatever calls and
    /// groups they belong to. A group whose ranks differ along several axes has the longest latency and the
    /// least bandwidth of their links.
    #[must_use]
    pub fn link(mut self, axis: Axis, link: Link) -> Self {
        self.links.retain(|(other, _)| *other != axis);
        self.links.push((axis, link));
        self
    }
    /// Adds to a trace, under this name, what every rank does in a run and when.
    #[must_use]
    pub fn traced(self, trace: &Trace, name: impl Into<String>) -> Self {
        Self { trace: Some((trace.clone(), name.into())), ..self }
    }
    /// Counts, on every rank, the waits for other ranks, for [`Mesh::take_waits`].
    #[must_use]
    pub fn counting_waits(self) -> Self {
        Self { counts_waits: true, ..self }
    }
    /// Puts runs on trial: their calls are listed, or one of them goes wrong.
    #[cfg(any(test, feature = "mutants"))]
    #[must_use]
    pub fn on_trial(self, trial: &Trial) -> Self {
        Self { trial: Some(trial.clone()), ..self }
    }
    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.grid.ranks()
    }
    /// Sets the report on a failed run whose ranks do not all end. Ranks that wait or call a collective end
    /// at once. A rank that computes on for ever cannot be ended from outside, and `run` returns only when it
    /// has ended. The report is called once, ten seconds after the failure, or after the limit if that is
    /// shorter. It reports, or ends the process.
    #[must_use]
    pub fn when_stuck(self, stuck: StuckReport) -> Self {
        Self { stuck: Some(stuck), ..self }
    }
    /// Makes these processes the ranks, one each: [`World::run`] runs this process' rank.
    ///
    /// # Errors
    /// [`CommError::BadWorld`] if there are more or fewer processes than ranks.
    pub fn over(self, processes: &Arc<Processes>) -> Result<Self> {
        let (ranks, there) = (self.size(), processes.ranks());
        if ranks != there {
            let why = format!(
                "a world of {ranks} ranks needs {ranks} processes, one for each rank; there are {there}"
            );
            return Err(CommError::BadWorld(why));
        }
        Ok(Self { processes: Some(processes.clone()), ..self })
    }
    /// The processes of the ranks, if each rank is one.
    pub fn processes(&self) -> Option<&Arc<Processes>> {
        self.processes.as_ref()
    }
    /// Runs `f` on every rank of this process, each with its own device, under the calling thread's [`Key`].
    /// Returns the results by rank. A world can be run again.
    ///
    /// # Errors
    /// If the place cannot host this many ranks, or the first failure of a rank, by error or panic. The
    /// failure fails every rank that waits or calls a collective later, so the run ends. All processes return
    /// the same failure.
    pub fn run<D: Device<Place: SharedPlace>, T: Send, E: Display>(
        &self,
        f: impl Fn(D, Mesh<D::Place>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, RankError> {
        let slots: Vec<Mutex<Option<T>>> = (0..self.size()).map(|_| Mutex::new(None)).collect();
        self.run_erased::<D>(&|rank, device, mesh| {
            let made = f(device, mesh).map_err(|error| error.to_string())?;
            *lock(&slots[rank]) = Some(made);
            Ok(())
        })?;
        Ok(slots.into_iter().filter_map(|slot| lock(&slot).take()).collect())
    }
    /// [`World::run`] for one type of program, so that threads and stand-ins are compiled once for each
    /// device.
    fn run_erased<D: Device<Place: SharedPlace>>(
        &self,
        f: &(dyn Fn(usize, D, Mesh<D::Place>) -> Result<(), String> + Sync),
    ) -> Result<(), RankError> {
        let place = D::Place::of_world(self.size(), self.limit).map_err(|reason| RankError {
            rank: 0,
            reason,
            calls: FlightRecorder::default(),
            told_by: None,
        })?;
        let (watch, processes) = (Watch::new(self.records(), self.limit), self.processes.as_deref());
        #[cfg(any(test, feature = "mutants"))] // trials are many and short, and run beside each other
        let watch = if self.trial.is_some() { watch.on_shared_cores() } else { watch };
        let watch = Arc::new(if processes.is_some() { watch.on_shared_cores() } else { watch });
        let order = self.processes.as_ref().map(|processes| {
            let watch = watch.clone();
            Order::new(processes, self.limit, move || watch.alive())
        });
        let order = order.as_ref();
        let world =
            engines::AllEngines::new((place.clone(), order.cloned()), &self.grid, &self.links, &watch);
        let world = world.shared();
        let key = Key::current();
        let (ends, ended) = channel();
        let reported = Mutex::new(Reported::new());
        self.processes.clone().inspect(|processes| {
            let (own, told) = (processes.rank(), processes.clone());
            processes.begin(watch.record(own), self.limit);
            watch.tell_by(own, move |members, wait| told.tell_wait(members, wait));
        });
        let body = |rank: usize, ends: Sender<usize>| {
            let (_key, _end) = (key.map(Key::enter), EndReport(rank, ends));
            if let Some(processes) = processes.filter(|processes| processes.rank() != rank) {
                let found = |reason: &str| watch.fail(rank, reason);
                let waits = |wait| watch.told(rank, wait);
                let stand_in = StandIn::new(rank, (&place, &*world), watch.record(rank), (&found, &waits));
                return on_rank(&watch, rank, || {
                    let Some(((of, reason), calls)) = stand_in.run(processes)? else { return Ok(None) };
                    lock(&reported).insert(rank, ((of, reason.clone()), calls));
                    watch.blame(rank, &CommError::Dead { rank: of, reason: reason.clone() });
                    Err(reason)
                });
            }
            let outcome = on_rank(&watch, rank, || {
                let device = D::on(&place.of_rank(rank)).clone();
                self.memory.inspect(|&bytes| device.meter().limit(bytes));
                f(rank, device, self.mesh::<D>((rank, order), &place, &watch, &world)).map(Some)
            });
            order.inspect(|order| order.end());
            if let Some(processes) = processes {
                let calls = LastCalls::of(watch.record(rank), watch.waited(rank));
                let failure = watch.failure().map(|(of, reason)| ((*of, sentence(reason)), calls));
                failure.clone().inspect(|failure| drop(lock(&reported).insert(rank, failure.clone())));
                processes.end(failure.as_ref());
            }
            outcome
        };
        let body = &body;
        let outcomes: Vec<Result<Option<()>, String>> = scope(|threads| {
            let start = |rank: usize| {
                let thread = Builder::new().name(format!("rank {rank}")).stack_size(STACK);
                let ends = ends.clone();
                let started = thread.spawn_scoped(threads, move || body(rank, ends));
                started.map_err(|error| {
                    let reason = format!("its thread did not start: {error}");
                    watch.fail(rank, &reason);
                    reason
                })
            };
            let ranks: Vec<_> = (0..self.size()).map(start).collect();
            let started = ranks.iter().enumerate().filter(|(_, started)| started.is_ok());
            let mut running: BTreeSet<_> = started.map(|(rank, _)| rank).collect();
            order.inspect(|order| {
                let end = EndReport(self.size(), ends.clone()); // after the ranks, which the order outlasts
                running.insert(self.size());
                threads.spawn(|| {
                    let _end = end;
                    order.follow();
                });
            });
            self.listen(&watch, running, &ended);
            let ended =
                ranks.into_iter().map(|rank| rank?.join().unwrap_or_else(|bug| resume_unwind(bug))).collect();
            order.inspect(|order| order.ended());
            ended
        });
        let reported = reported.into_inner().unwrap_or_else(PoisonError::into_inner);
        let same = reported.values().map(|(failure, _)| failure).min(); // in all processes
        if let Some((rank, reason)) = same.or(watch.failure()) {
            let own = outcomes[*rank].as_ref().err().filter(|_| processes.is_none()).unwrap_or(reason);
            return Err(self.failure(&watch, (*rank, own), &BTreeSet::new(), &reported));
        }
        self.trace(&watch);
        Ok(())
    }
    fn trace(&self, watch: &Watch) {
        let Some((trace, name)) = &self.trace else { return };
        let ranks = (0..self.size()).map(|rank| watch.record(rank).take_events()).collect();
        trace.add(TraceRun { name: name.clone(), ranks });
    }
    fn records(&self) -> Vec<Arc<RankRecord>> {
        let settings = self.trace.as_ref().map(|(trace, _)| trace.settings());
        let (start, traced) = settings.unwrap_or_else(|| (Instant::now(), Traced::Never));
        let record = |rank| RankRecord::new(rank, start, traced).counting_waits(self.counts_waits);
        (0..self.size()).map(|rank| Arc::new(record(rank))).collect()
    }
    fn mesh<D: Device<Place: SharedPlace>>(
        &self,
        (rank, order): (usize, Option<&Arc<Order>>),
        place: &D::Place,
        watch: &Arc<Watch>,
        world: &Arc<dyn Engines<D::Place>>,
    ) -> Mesh<D::Place> {
        let record = watch.record(rank).clone();
        let engines = match self.processes.as_ref().zip(order) {
            None => world.clone(),
            Some(processes) => {
                let watch = watch.clone();
                let fails = move |on: usize, call: String, error: &CommError| {
                    watch.blame(rank, error);
                    watch.gave_up(rank, on, call);
                };
                ReportingEngines::engines(place, world, processes, self.limit, fails)
            }
        };
        #[cfg(any(test, feature = "mutants"))]
        let engines = match &self.trial {
            None => engines,
            Some(trial) => on_trial::<D>(trial, rank, &record, &self.grid, world),
        };
        Mesh::new(self.grid.clone(), rank, record, engines)
    }
}

/// Returns the engines of a world on trial. Mutants touch memory, so they are for the host only.
#[cfg(any(test, feature = "mutants"))]
fn on_trial<D: Device<Place: SharedPlace>>(
    trial: &Trial,
    rank: usize,
    record: &Arc<RankRecord>,
    grid: &Arc<Grid>,
    world: &Arc<dyn Engines<D::Place>>,
) -> Arc<dyn Engines<D::Place>> {
    use std::any::Any;
    let world = (world as &dyn Any).downcast_ref().expect("a world on trial is on the host");
    let on_trial: Arc<dyn Engines<Host>> =
        Arc::new(OnTrial::<D::Elem>::new(trial, rank, record, grid, world));
    (&on_trial as &dyn Any).downcast_ref().cloned().expect("as above")
}

/// Runs one rank, and reports its end to all that watch.
fn on_rank<T, E: Display>(watch: &Watch, rank: usize, f: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let (record, begun) = (watch.record(rank), Instant::now());
    let ended = catch(|| {
        let returned = f().map_err(|error| error.to_string())?;
        record.nothing_open().map(|()| returned).map_err(|error| error.to_string())
    });
    record.spent(|| TimeUse::Span(format!("rank {rank}")), begun);
    let outcome = ended.as_ref().map_or_else(|panic| Some(&panic.message), |outcome| outcome.as_ref().err());
    match outcome {
        None => watch.finish(rank),
        Some(reason) => watch.fail(rank, reason),
    }
    ended.unwrap_or_else(|panic| Err(panic.report()))
}

#[cfg(all(test, not(loom)))]
mod tests;
