//! The world: starts the ranks, runs the same function on each, reports the first failure.
use super::engine::Threads;
use super::panics::caught;
use super::watch::Watch;
use crate::axis::Axis;
use crate::error::Result;
use crate::grid::Grid;
use crate::mesh::Mesh;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{Builder, scope};
use std::time::Duration;
use tensor::{Cpu, Key, Scalar};

const MOST_RANKS: usize = 1024;
const STACK: usize = 8 << 20; // bytes, as the main thread has; taken as it is used
const LIMIT: Duration = Duration::from_mins(1);

/// Ranks as threads of this process.
#[derive(Clone, Debug)]
pub struct World {
    grid: Grid,
    limit: Duration,
}

/// The failure that ended a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {reason}")]
pub struct RankError {
    /// The rank that failed first; the others failed because it did.
    pub rank: usize,
    /// Its error, or its panic with its place.
    pub reason: String,
}

impl World {
    /// A world split along these axes, in whatever order they are given; axes left out have size 1.
    ///
    /// # Errors
    /// An axis of size 0 or given twice; more than 1024 ranks.
    pub fn threads(sizes: &[(Axis, usize)]) -> Result<Self> {
        Ok(Self { grid: Grid::new(sizes, MOST_RANKS)?, limit: LIMIT })
    }
    /// How long a rank waits for others in one call before it gives up; one minute unless said.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
    /// How many ranks.
    pub fn size(&self) -> usize {
        self.grid.ranks()
    }
    /// Runs `f` on every rank, each with a device of its own, under the calling thread's [`Key`]; what they return, by
    /// rank. It may be run again.
    ///
    /// # Errors
    /// The failure, by error or panic, that came first. It fails every rank that waits or calls a collective later, so
    /// the run ends.
    pub fn run<S: Scalar, T: Send, E: Display>(
        &self,
        f: impl Fn(Cpu<S>, Mesh<Cpu<S>>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, RankError> {
        let watch = Arc::new(Watch::new(self.size(), self.limit));
        let key = Key::current();
        let body = |rank: usize, mesh| {
            let _key = key.map(Key::enter);
            let outcome = caught(|| f(Cpu::default(), mesh).map_err(|error| error.to_string()));
            let outcome = outcome.and_then(|returned| returned);
            match &outcome {
                Ok(_) => watch.finish(rank),
                Err(reason) => watch.fail(rank, reason),
            }
            outcome
        };
        let body = &body;
        let mut outcomes: Vec<Result<T, String>> = scope(|threads| {
            let start = |(rank, mesh)| {
                let thread = Builder::new().name(format!("rank {rank}")).stack_size(STACK);
                let started = thread.spawn_scoped(threads, move || body(rank, mesh));
                started.map_err(|error| {
                    let reason = format!("no thread for it: {error}");
                    watch.fail(rank, &reason);
                    reason
                })
            };
            let ranks: Vec<_> = self.meshes(&watch).into_iter().enumerate().map(start).collect();
            ranks.into_iter().map(|rank| rank?.join().unwrap_or_else(|bug| resume_unwind(bug))).collect()
        });
        match watch.failure() {
            None => Ok(outcomes.into_iter().flatten().collect()),
            Some((rank, reason)) => {
                let own = outcomes.swap_remove(*rank).err();
                Err(RankError { rank: *rank, reason: own.unwrap_or_else(|| reason.clone()) })
            }
        }
    }
    fn meshes<S: Scalar>(&self, watch: &Arc<Watch>) -> Vec<Mesh<Cpu<S>>> {
        let mut engines = BTreeMap::new();
        let mesh = |rank| {
            Mesh::new(&self.grid, rank, |axis, members| {
                engines
                    .entry((axis, members[0]))
                    .or_insert_with(|| Arc::new(Threads::new(members, watch)))
                    .clone()
            })
        };
        (0..self.size()).map(mesh).collect()
    }
}
