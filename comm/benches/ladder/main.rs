//! The ladder of one all-reduce: a sum of f32 over two and four thread ranks, rung by rung, from a lock and a
//! barrier to the crate's own call. Run it with `cargo bench -p comm --bench ladder`. Chapter: speed.
//!
//! Each rung's sum is checked before it is timed. Rungs take turns, and each reports its best burst of calls.
//! A burst ends when its last rank ends.
mod rungs;

use comm::{Axis, CommError, Group, RankError, Reduce, Trace, World};
use kernels::machine;
use rungs::{AllReduce, Epochs, Locked, Shown, Work};
use std::sync::Barrier;
use std::time::Instant;
use tensor::{Category, Cpu, Tensor};

const TURNS: usize = 5;
/// Bytes that all ranks together reduce in one burst. A burst has from 1 to [`CALLS`] calls.
const BURST: usize = 28 << 20;
const CALLS: usize = 500;
/// Bursts per turn, after one warm-up burst.
const BURSTS: usize = 5;

/// A way to run an all-reduce.
enum Way {
    /// A rung written by hand, made for a number of ranks and a number of elements.
    Hand(fn(usize, usize) -> Box<dyn AllReduce>),
    /// The crate's own all-reduce; its runs are traced or not.
    Group { traced: bool },
    /// No all-reduce: each rank reads and writes the same number of bytes once, in its own memory, in as many
    /// windows as there are ranks.
    Bound,
}

const LADDER: [(&str, Way); 9] = [
    ("a total under a lock", Way::Hand(|ranks, len| Box::new(Locked::new(ranks, len)))),
    (
        "shared windows, one rank adds",
        Way::Hand(|n, _| Box::new(Shown::new(n, Barrier::new(n), Work::OneAdds))),
    ),
    (
        "a part each, others' parts read",
        Way::Hand(|n, _| Box::new(Shown::new(n, Barrier::new(n), Work::ShareThenRead))),
    ),
    (
        "a part each, written to all",
        Way::Hand(|n, _| Box::new(Shown::new(n, Barrier::new(n), Work::ShareToAll))),
    ),
    ("spinning", Way::Hand(|n, _| Box::new(Shown::new(n, Epochs::new(n), Work::ShareToAll)))),
    (
        "by blocks, widest vectors",
        Way::Hand(|n, _| Box::new(Shown::new(n, Epochs::new(n), Work::ShareInBlocks))),
    ),
    ("the crate's, with its checks", Way::Group { traced: false }),
    ("the crate's, traced", Way::Group { traced: true }),
    ("memory limit", Way::Bound),
];

fn main() -> Result<(), RankError> {
    for ranks in [2, 4] {
        println!("\n{ranks} ranks, µs a call\n\n{:32}{:>10}{:>10}", "rung", "4 KiB", "4 MiB");
        let mut best = [[f64::INFINITY; 2]; LADDER.len()];
        for _ in 0..TURNS {
            for ((_, way), best) in LADDER.iter().zip(&mut best) {
                for (best, bytes) in best.iter_mut().zip([4 << 10, 4 << 20]) {
                    *best = best.min(seconds(way, ranks, bytes)?);
                }
            }
        }
        for ((name, _), [small, large]) in LADDER.iter().zip(best) {
            println!("{name:32}{:>10.2}{:>10.1}", small * 1e6, large * 1e6);
        }
    }
    Ok(())
}

/// Returns the time of one call, in seconds, in the best burst of one world.
fn seconds(way: &Way, ranks: usize, bytes: usize) -> Result<f64, RankError> {
    let (len, calls) = (bytes / size_of::<f32>(), (BURST / (bytes * ranks)).clamp(1, CALLS));
    let world = World::threads(&[(Axis::Tp, ranks)]).expect("a small world");
    let (trace, hand) = (
        Trace::new(),
        match way {
            Way::Hand(make) => Some(make(ranks, len)),
            _ => None,
        },
    );
    let world = if let Way::Group { traced: true } = way { world.traced(&trace, "ladder") } else { world };
    let bursts = world.run(|device: Cpu<f32>, mesh| {
        let group = mesh.group(Axis::Tp);
        let value = |i: usize| (i % 7 + group.rank()) as f32;
        let mut x = Tensor::from_fn(&device, Category::Buffers, 1, len, value);
        let call = |x: &mut Tensor<Cpu<f32>>| match (&hand, way) {
            (Some(hand), _) => hand.sum(group.rank(), x.view_mut().flat()),
            (None, Way::Bound) => {
                machine::rewrite(std::hint::black_box(x.view_mut()).flat(), ranks);
                Ok(())
            }
            (None, _) => group.all_reduce(x, Reduce::Sum),
        };
        call(&mut x)?;
        check(way, &x, ranks);
        x.write(&mut |_| 0.0); // zeros, because repeated sums would grow
        (0..=BURSTS).map(|_| burst(group, calls, || call(&mut x))).collect::<comm::Result<Vec<_>>>()
    })?;
    let last = |burst: usize| bursts.iter().map(|rank| rank[burst]).fold(0.0, f64::max);
    Ok((1..=BURSTS).map(last).fold(f64::INFINITY, f64::min))
}

/// Returns the mean time of one call on this rank, in seconds, over `calls` calls back to back.
fn burst(
    group: &Group<tensor::Host>,
    calls: usize,
    mut call: impl FnMut() -> Result<(), CommError>,
) -> Result<f64, CommError> {
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}

fn check(way: &Way, x: &Tensor<Cpu<f32>>, ranks: usize) {
    if let Way::Bound = way {
        return;
    }
    let sum = |i: usize| (0..ranks).map(|rank| (i % 7 + rank) as f32).sum::<f32>();
    let seen = x.read().expect("the host has values");
    assert!(seen.into_iter().eq((0..x.len()).map(sum)), "the sum is not that of all ranks");
}
