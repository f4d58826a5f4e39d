//! Calls take no memory of their own in a steady state, whatever their arguments.
use crate::counting::taken;
use crate::tag::TAG;
use crate::{Axis, CommError, Reduce, World};
use tensor::{Category, Cpu, Tensor};

/// Kills: a list of peers, a label or a message copied at each call.
#[test]
fn calls_take_no_memory() {
    let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
    let ran = world.run(|device: Cpu<f32>, mesh| {
        let group = mesh.group(Axis::Tp).named("blocks.0");
        let block = group.consecutive(2)?;
        let mut x = Tensor::from_fn(&device, Category::Buffers, 10, 100, |_| 0.0);
        let mut fewest = usize::MAX;
        for _ in 0..100 {
            let before = taken();
            group.all_reduce(&mut x, Reduce::Sum)?;
            block.all_reduce(&mut x, Reduce::Sum)?;
            group.broadcast(&mut x, 2)?;
            group.barrier()?;
            if mesh.rank() == 0 {
                group.send(1, &x, TAG)?;
            }
            fewest = fewest.min(taken() - before); // a long wait is announced, which takes some
            if mesh.rank() == 1 {
                group.receive(&device, 0, 10, 100, TAG)?;
            }
        }
        Ok::<_, CommError>(fewest)
    });
    assert_eq!(ran.unwrap(), [0; 4]);
}

/// Counts are others in every round. Kills: a list of counts made at each call, at once or started; one that
/// is given to another call while a peer, or the record, still has it.
#[test]
fn calls_with_counts_take_no_memory_beyond_their_result() {
    const RANKS: usize = 3;
    let world = World::threads(&[(Axis::Tp, RANKS)]).unwrap();
    let ran = world.run(|device: Cpu<f32>, mesh| {
        let (group, me) = (mesh.group(Axis::Tp), mesh.rank());
        let make = |rows| Tensor::from_fn(&device, Category::Buffers, rows, 4, |_| 1.0f32);
        let bare = || {
            let before = taken();
            drop(Tensor::<Cpu<f32>>::empty(&device, Category::Buffers, 6, 4));
            taken() - before
        };
        let mut fewest = [usize::MAX; 6];
        for round in 0..200 {
            let counts: [usize; RANKS] = std::array::from_fn(|rank| (rank + round) % RANKS + 1);
            // Rank i has 1 + (i + j + round) mod 3 rows for rank j, and as many from it.
            let between: [usize; RANKS] = std::array::from_fn(|peer| (me + peer + round) % RANKS + 1);
            let (block, all) = (make(counts[me]), make(6));
            let calls: [&dyn Fn() -> crate::Result<Tensor<Cpu<f32>>>; 6] = [
                &|| group.all_gather_v(&block, &counts),
                &|| group.start_all_gather_v(block.clone(), &counts)?.wait(),
                &|| group.reduce_scatter_v(&all, &counts),
                &|| group.start_reduce_scatter_v(all.clone(), &counts)?.wait(),
                &|| group.all_to_all_v(&all, &between, &between),
                &|| group.start_all_to_all_v(all.clone(), [&between; 2], 0)?.wait(),
            ];
            for (fewest, call) in fewest.iter_mut().zip(calls) {
                let before = taken();
                drop(call()?);
                *fewest = (*fewest).min((taken() - before).saturating_sub(bare()));
            }
        }
        Ok::<_, CommError>(fewest)
    });
    assert_eq!(ran.unwrap(), [[0; 6]; RANKS]);
}
