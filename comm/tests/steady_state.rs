//! Calls that give no new tensor take no memory. A test of its own, because it counts through the allocator.
use comm::{Axis, CommError, Reduce, World};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tensor::{Category, Cpu, Tensor};

thread_local! { static TAKEN: Cell<usize> = const { Cell::new(0) }; }

struct Counting;
// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the caller's promises are the system's conditions.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}
#[global_allocator]
static COUNTING: Counting = Counting;

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
            let before = TAKEN.get();
            group.all_reduce(&mut x, Reduce::Sum)?;
            block.all_reduce(&mut x, Reduce::Sum)?;
            group.broadcast(&mut x, 2)?;
            group.barrier()?;
            if mesh.rank() == 0 {
                group.send(1, &x)?;
            }
            fewest = fewest.min(TAKEN.get() - before); // a long wait is announced, which takes some
            if mesh.rank() == 1 {
                group.receive(&device, 0, 10, 100)?;
            }
        }
        Ok::<_, CommError>(fewest)
    });
    assert_eq!(ran.unwrap(), [0; 4]);
}
