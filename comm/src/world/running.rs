//! A run of a world in this process: its ranks are threads, or one of them is, and stand-ins make the calls
//! of those in other processes.
use super::ends::{EndReport, Reported};
use super::{RankError, STACK, World};
#[cfg(any(test, feature = "mutants"))]
use crate::mutants::{OnTrial, Trial};
use crate::panics::catch;
use crate::process::{Order, Processes, ReportingEngines, StandIn};
use crate::shared::SharedPlace;
use crate::sync::{Mutex, lock};
use crate::threads::engines::AllEngines;
use crate::threads::watch::Watch;
use crate::{CommError, Engines, FlightRecorder, Mesh, TimeUse};
#[cfg(any(test, feature = "mutants"))]
use crate::{Grid, RankRecord};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, scope};
use std::time::Instant;
#[cfg(any(test, feature = "mutants"))]
use tensor::Host;
use tensor::quoted::sentence;
use tensor::{Device, Key, limits};

impl World {
    /// Runs `f` on every rank of this process, each with its own device, under the calling thread's
    /// [`Key`](tensor::Key). Returns the results by rank. A world can be run again.
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
        let run = WorldRun::new(self, place);
        let outcomes = run.threads::<D>(f);
        run.judged(&outcomes)
    }
}

/// The program of a rank.
pub(super) type RankProgram<'a, D> =
    dyn Fn(usize, D, Mesh<<D as Device>::Place>) -> std::result::Result<(), String> + Sync + 'a;
/// The end of a rank: nothing if another process has its program, or the reason of its failure.
pub(super) type RankOutcome = std::result::Result<Option<()>, String>;

/// A run of a world.
pub(super) struct WorldRun<'a, P: SharedPlace> {
    of: &'a World,
    place: P,
    engines: Arc<dyn Engines<P>>,
    watch: Arc<Watch>,
    order: Option<Arc<Order>>,
    reported: Mutex<Reported>,
    key: Option<Key>,
}

impl<'a, P: SharedPlace> WorldRun<'a, P> {
    /// Prepares a run on a place of the world.
    pub(super) fn new(of: &'a World, place: P) -> Self {
        let watch = Watch::new(of.records(), of.limit);
        #[cfg(any(test, feature = "mutants"))] // trials are many and short, and run beside each other
        let watch = if of.trial.is_some() { watch.on_shared_cores() } else { watch };
        let watch = Arc::new(if of.processes.is_some() { watch.on_shared_cores() } else { watch });
        let order = of.processes.as_ref().map(|processes| {
            let watch = watch.clone();
            Order::new(processes, of.limit, move || watch.alive())
        });
        let engines = AllEngines::new((place.clone(), order.clone()), &of.grid, &of.links, &watch).shared();
        of.processes.clone().inspect(|processes| {
            let own = processes.rank();
            let told = processes.clone();
            processes.begin(watch.record(own), of.limit);
            watch.tell_by(own, move |members, wait| told.tell_wait(members, wait));
        });
        Self { of, place, engines, watch, order, reported: Mutex::new(Reported::new()), key: Key::current() }
    }
    /// Runs all ranks, and waits for their ends.
    pub(super) fn threads<D: Device<Place = P>>(&self, f: &RankProgram<D>) -> Vec<RankOutcome> {
        let (of, watch, order, (ends, ended)) = (self.of, &self.watch, self.order.as_ref(), channel());
        scope(|threads| {
            let start = |rank: usize| {
                let thread = Builder::new().name(format!("rank {rank}")).stack_size(STACK);
                let ends = ends.clone();
                thread.spawn_scoped(threads, move || self.rank::<D>(rank, ends, f)).map_err(|error| {
                    let reason = limits::no_thread(&error);
                    watch.fail(rank, &reason);
                    reason
                })
            };
            let ranks: Vec<_> = (0..of.size()).map(start).collect();
            let started = ranks.iter().enumerate().filter(|(_, started)| started.is_ok());
            let mut running: BTreeSet<_> = started.map(|(rank, _)| rank).collect();
            order.inspect(|order| {
                let end = EndReport(of.size(), ends.clone()); // after the ranks, which the order outlasts
                running.insert(of.size());
                limits::scoped(threads, || {
                    let _end = end;
                    order.follow();
                });
            });
            of.listen(watch, running, &ended);
            let ended =
                ranks.into_iter().map(|rank| rank?.join().unwrap_or_else(|bug| resume_unwind(bug))).collect();
            order.inspect(|order| order.ended());
            ended
        })
    }
    /// Runs a rank, or its stand-in if it is in another process.
    fn rank<D: Device<Place = P>>(
        &self,
        rank: usize,
        ends: Sender<usize>,
        f: &RankProgram<D>,
    ) -> RankOutcome {
        let _key = self.key.map(Key::enter);
        let _end = EndReport(rank, ends);
        let watch = &self.watch;
        let processes = self.of.processes.as_deref();
        if let Some(processes) = processes.filter(|processes| processes.rank() != rank) {
            return self.stand_in(rank, processes);
        }
        let outcome = on_rank(watch, rank, || {
            let device = D::on(&self.place.of_rank(rank)).clone();
            self.of.memory.inspect(|&bytes| device.meter().limit(bytes));
            f(rank, device, mesh::<D>(self, rank)).map(Some)
        });
        self.order.as_ref().inspect(|order| order.end());
        if let Some(processes) = processes {
            let calls = watch.record(rank).last_calls(watch.waited(rank));
            let failure = watch.failure().map(|(of, reason)| ((*of, sentence(reason)), calls));
            failure.clone().inspect(|failure| drop(lock(&self.reported).insert(rank, failure.clone())));
            processes.end(failure.as_ref());
        }
        outcome
    }
    /// Makes the calls of a rank of another process, until it ends.
    fn stand_in(&self, rank: usize, processes: &Processes) -> RankOutcome {
        let watch = &self.watch;
        let found = |reason: &str| watch.fail(rank, reason);
        let waits = |wait| watch.told(rank, wait);
        let engines = (&self.place, &*self.engines);
        let stand_in = StandIn::new(rank, engines, watch.record(rank), (&found, &waits));
        on_rank(watch, rank, || {
            let Some(((of, reason), calls)) = stand_in.run(processes)? else { return Ok(None) };
            lock(&self.reported).insert(rank, ((of, reason.clone()), calls));
            watch.blame(rank, &CommError::Dead { rank: of, reason: reason.clone() });
            Err(reason)
        })
    }
    /// Returns the failure of a run with these outcomes, the same in all processes; keeps its trace if it has
    /// none.
    pub(super) fn judged(self, outcomes: &[RankOutcome]) -> std::result::Result<(), RankError> {
        let reported = self.reported.into_inner().unwrap_or_else(PoisonError::into_inner);
        let same = reported.values().map(|(failure, _)| failure).min(); // in all processes
        if let Some((rank, reason)) = same.or(self.watch.failure()) {
            let threads = self.of.processes.is_none();
            let cause = outcomes[*rank].as_ref().err().filter(|_| threads).unwrap_or(reason);
            return Err(self.of.failure(&self.watch, (*rank, cause), &BTreeSet::new(), &reported));
        }
        self.of.trace(&self.watch);
        Ok(())
    }
}

/// Returns the mesh of a rank.
fn mesh<D: Device<Place: SharedPlace>>(run: &WorldRun<D::Place>, rank: usize) -> Mesh<D::Place> {
    let WorldRun { of, place, engines: world, watch, .. } = run;
    let record = watch.record(rank).clone();
    let engines = match of.processes.as_ref().zip(run.order.as_ref()) {
        None => world.clone(),
        Some(processes) => {
            let watch = watch.clone();
            let fails = move |on: usize, call: String, error: &CommError| {
                watch.blame(rank, error);
                watch.gave_up(rank, on, call);
            };
            ReportingEngines::engines(place, world, processes, of.limit, fails)
        }
    };
    #[cfg(any(test, feature = "mutants"))]
    let engines = match &of.trial {
        None => engines,
        Some(trial) => on_trial::<D>(trial, rank, &record, &of.grid, world),
    };
    Mesh::new(of.grid.clone(), rank, record, engines)
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
    let record = watch.record(rank);
    let begun = Instant::now();
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
