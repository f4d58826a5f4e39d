//! Calls that give no new tensor take no memory.
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
        let block = group.blocks(2)?;
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
