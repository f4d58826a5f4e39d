//! The world: starts the ranks, runs the same function on each, reports the first failure.
mod ends;
mod running;

#[cfg(any(test, feature = "mutants"))]
use crate::mutants::Trial;
use crate::process::Processes;
use crate::threads::watch::Watch;
use crate::trace::Traced;
use crate::{Axis, CommError, FlightRecorder, Grid, RankRecord, Result, Trace, TraceRun};
use algorithms::Link;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Counts, on every rank, the waits for other ranks, for [`Mesh::take_waits`](crate::Mesh::take_waits).
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
    pub(super) fn trace(&self, watch: &Watch) {
        let Some((trace, name)) = &self.trace else { return };
        let ranks = (0..self.size()).map(|rank| watch.record(rank).take_events()).collect();
        trace.add(TraceRun { name: name.clone(), ranks });
    }
    pub(super) fn records(&self) -> Vec<Arc<RankRecord>> {
        let settings = self.trace.as_ref().map(|(trace, _)| trace.settings());
        let (start, traced) = settings.unwrap_or_else(|| (Instant::now(), Traced::Never));
        let record = |rank| RankRecord::new(rank, start, traced).counting_waits(self.counts_waits);
        (0..self.size()).map(|rank| Arc::new(record(rank))).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
