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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommError, Op, Reduce};
    use tensor::{Category, F61, Tensor};

    #[test]
    fn results_come_by_rank_and_worlds_run_again() {
        let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
        for _ in 0..2 {
            let ran = world.run(|_: Cpu<f32>, mesh| {
                let name = std::thread::current().name().unwrap_or_default().to_string();
                Ok::<_, CommError>((mesh.rank(), mesh.size(), name))
            });
            let expected = (0..3).map(|rank| (rank, 3, format!("rank {rank}")));
            assert!(ran.unwrap().into_iter().eq(expected));
        }
    }

    /// Kills: a rank without the caller's key, or with another.
    #[test]
    fn ranks_inherit_the_key() {
        let world = World::threads(&[(Axis::Dp, 3)]).unwrap();
        let keys = || world.run(|_: Cpu<F61>, _| Ok::<_, CommError>(Key::current())).unwrap();
        assert_eq!(keys(), [None; 3]);
        let _key = Key(7).enter();
        assert_eq!(keys(), [Some(Key(7)); 3]);
    }

    #[test]
    fn errors_of_any_kind_come_with_their_rank() {
        let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
        let ran = world.run(|_: Cpu<f32>, mesh| if mesh.rank() == 2 { Err("disk on fire") } else { Ok(()) });
        assert_eq!(ran.unwrap_err().to_string(), "rank 2: disk on fire");
        let ran =
            world.run(|_: Cpu<f32>, _| -> Result<(), String> { std::panic::resume_unwind(Box::new(7)) });
        assert_eq!(ran.unwrap_err().reason, "panicked anew, without a place");
    }

    #[test]
    fn a_world_may_hold_as_many_ranks_as_it_says() {
        let ran = World::threads(&[(Axis::Dp, 8), (Axis::Tp, 16)]).unwrap().run(|device: Cpu<F61>, mesh| {
            let mut one = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| F61::ONE);
            for (_, group) in mesh.axes() {
                group.all_reduce(&mut one, Reduce::Sum)?;
            }
            Ok::<_, CommError>(one.read().unwrap()[0])
        });
        assert_eq!(ran.unwrap(), [F61::new(128); 128]);
        assert!(World::threads(&[(Axis::Dp, 1025)]).is_err());
    }

    #[test]
    fn a_world_of_one_says_nothing() {
        let ran = World::threads(&[]).unwrap().run(|device: Cpu<F61>, mesh| {
            let mut x = Tensor::from_fn(&device, Category::Buffers, 2, 3, F61::from_usize);
            for (_, group) in mesh.axes() {
                group.all_reduce(&mut x, Reduce::Stab)?;
                group.broadcast(&mut x, 0)?;
                group.barrier()?;
                x = group.reduce_scatter(&group.all_gather(&x)?)?;
            }
            assert!(x.read().unwrap().into_iter().eq((0..6).map(F61::from_usize)));
            assert_eq!(mesh.ledger().get(Axis::Tp, Op::AllReduce).calls, 0);
            Ok::<_, CommError>(mesh.ledger().iter().count())
        });
        assert_eq!(ran.unwrap(), [0]);
    }
}
