//! Loom models of how ranks meet, in all orders that the memory model allows and not only those that this
//! machine takes: `RUSTFLAGS="--cfg loom" cargo test --profile models -p comm --lib models`.
//!
//! A rank is a thread of the model; a window is memory that loom tracks. Loom ends the model if one rank
//! touches a window while another writes it, or if all ranks wait. Each rank writes its window before it
//! shows it and once more when the window is its own again, as a rank does that reuses or frees its memory.
//!
//! Loom's fences and wakes order more than the memory model says; `sync.rs` makes them weaker, so that the
//! accesses around them must do their own part. If a model has too many orders, only those with a bounded
//! number of preemptions are tried.
//! from its core so many times.
mod leaving;
mod meeting;
mod messages;
mod started;
mod waking;

use super::rendezvous::Rendezvous;
use super::watch::{PATIENT, Watch};
use crate::call::Call;
use crate::call::windows::AllWindows;
use crate::error::Result;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::{Tracked, fence};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread::spawn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `model` in every order, or in those with at most `preemptions` preemptions.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let (executions, start) = (Arc::new(AtomicUsize::new(0)), std::time::Instant::now());
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    let count = executions.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        fence(SeqCst); // the first fence makes what later fences synchronize on
        model();
    });
    println!("{} executions in {:.1} s", executions.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
}

/// Memory that a rank shows to its peers.
struct ShownWindow(UnsafeCell<usize>);
// SAFETY: loom ends the model where two ranks touch it and one of them writes.
unsafe impl Send for ShownWindow {}
// SAFETY: as above.
unsafe impl Sync for ShownWindow {}
impl ShownWindow {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    fn write(&self, value: usize) {
        // SAFETY: as above.
        self.0.with_mut(|place| unsafe { *place = value });
    }
    fn read(&self) -> usize {
        // SAFETY: as above.
        self.0.with(|place| unsafe { *place })
    }
    fn tracked(&self) -> Tracked {
        Tracked(&raw const self.0)
    }
}

/// Ranks, their windows, and their meeting place.
struct ModelRanks {
    watch: Arc<Watch>,
    place: Rendezvous,
    windows: Vec<ShownWindow>,
}
impl ModelRanks {
    /// Makes a world of `world` ranks, of which the first `members` form a group.
    fn new(members: usize, world: usize) -> Arc<Self> {
        let watch = Arc::new(Watch::alone(world, PATIENT));
        let place = Rendezvous::new((0..members).collect(), watch.clone(), None);
        Arc::new(Self { watch, place, windows: (0..members).map(|_| ShownWindow::new()).collect() })
    }
    /// Makes one collective of this rank: writes `value`, meets the others, reads theirs, and may write
    /// again.
    fn collective(&self, rank: usize, value: usize, call: &Call) -> Result<Vec<usize>> {
        let (mine, mut seen) = (&self.windows[rank], Vec::new());
        mine.write(value);
        let outcome =
            self.place.collective(rank, (&raw const *mine).cast_mut(), call, |windows: &AllWindows| {
                // SAFETY: all ranks show such windows, and the world outlives its ranks.
                seen = (0..self.windows.len())
                    .map(|peer| unsafe { &*windows.of::<ShownWindow>(peer) }.read())
                    .collect();
            });
        mine.write(usize::MAX);
        outcome.map(|()| seen)
    }
}

/// Runs these ranks, each a thread, the first on the calling one; returns when all have ended.
fn run<W: Send + Sync + 'static>(world: &Arc<W>, ranks: &[fn(&W)]) {
    let others: Vec<_> = ranks[1..]
        .iter()
        .map(|rank| {
            let (world, rank) = (world.clone(), *rank);
            spawn(move || rank(&world))
        })
        .collect();
    ranks[0](world);
    others.into_iter().for_each(|rank| rank.join().expect("a model that fails ends at once"));
}
