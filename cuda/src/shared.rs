//! Ranks that share a card: threads of this process, which meet as they do on the host. What they copy and add is launched on
//! the card's one stream, so it comes after all that either rank launched before, and nobody waits for the card.
use crate::card::{Card, arguments_of};
use crate::gpu::{Gpu, GpuPtr, well};
use crate::launches::each;
use comm::{Reduce, Reduction, Shared};

/// Ranks that a reduction takes: a kernel's parameters hold so many addresses.
pub const MOST_RANKS: usize = 256;

/// Where each rank's elements begin: `Ranks` of `reduce.cu`.
#[repr(C)]
struct Ranks {
    at: [u64; MOST_RANKS],
    count: u32,
}
arguments_of!(Ranks);

impl Ranks {
    fn of(addresses: impl Iterator<Item = u64>) -> Self {
        let mut ranks = Self { at: [0; MOST_RANKS], count: 0 };
        for address in addresses {
            ranks.at[ranks.count as usize] = address;
            ranks.count += 1;
        }
        ranks
    }
}

impl Shared for Gpu {
    fn of_rank(_: usize) -> Self {
        Self::default()
    }
    fn free_beside_the_host() -> Option<u64> {
        Some(well(Card::open(0).and_then(|card| card.memory()))[0] as u64)
    }
    fn raw(GpuPtr(at): GpuPtr) -> *mut () {
        at as *mut ()
    }
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        well(self.card().copy(from as u64, to as u64, bytes));
    }
    unsafe fn reduce(&self, reduction: &Reduction) {
        let (range, bytes) = (reduction.range(), if reduction.number() == "bf16" { 2 } else { 4 });
        let sources = || reduction.windows().map(|window| window as u64 + (range.start * bytes) as u64);
        let targets = match reduction.place() {
            None => Ranks::of(sources()),
            Some(to) => Ranks::of(std::iter::once(to as u64)),
        };
        let (len, stab) = (range.len() as u64, u32::from(reduction.how() == Reduce::Stab));
        let kernel = format!("reduce_{}", reduction.number());
        self.launch(&kernel, each(self, range.len()), &[&Ranks::of(sources()), &targets, &len, &stab]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cuda, twin};
    use comm::{Axis, CommError, InPlace, Tag, World};
    use tensor::{Bf16, Category, Cpu, Device, Scalar, Tensor};

    /// All that ranks do together, on numbers that differ by rank; what each has afterwards.
    fn together<D: kernels::Kernels<Place: Shared>>() -> Vec<Vec<D::Elem>> {
        let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
        let ran = world.run(|device: D, mesh| {
            let (group, rank) = (mesh.group(Axis::Tp), mesh.rank());
            let draw = |seed: usize, rows, cols| {
                let value = |i| D::Elem::sample(tensor::mix((seed * 1000 + rank * 100 + i) as u64), 1.0);
                Tensor::from_fn(&device, Category::Buffers, rows, cols, value)
            };
            let [mut sum, mut most, mut sent] = [1, 2, 3].map(|seed| draw(seed, 6, 7));
            group.all_reduce(&mut sum, Reduce::Sum)?;
            group.all_reduce(&mut most, Reduce::Stab)?;
            group.broadcast(&mut sent, 1)?;
            let started = group.start_together(InPlace::ReduceScatter, vec![draw(4, 6, 5)])?;
            let counts = [1, 3, 2];
            let mut all = vec![
                group.all_gather(&draw(5, 2, 3))?,
                group.all_gather_columns(&draw(6, 2, 3), 8)?,
                group.reduce_scatter(&draw(7, 6, 3))?,
                group.reduce_scatter_v(&draw(8, 6, 3), &counts)?,
                group.all_to_all(&draw(9, 6, 2))?,
                group.all_gather_v(&draw(10, counts[rank], 2), &counts)?,
            ];
            let next = group.start_send((rank + 1) % 3, draw(11, 1, 4), Tag::new("ring", 0))?;
            all.push(group.receive(&device, (rank + 2) % 3, 1, 4, Tag::new("ring", 0))?);
            next.wait()?;
            all.extend([sum, most, sent]);
            let own = started.wait()?.swap_remove(0).read().unwrap();
            let own = own[rank * 10..(rank + 1) * 10].iter().copied();
            Ok::<_, CommError>(all.iter().flat_map(|x| x.read().unwrap()).chain(own).collect::<Vec<_>>())
        });
        ran.unwrap()
    }

    /// Kills: another order of addends, a sum rounded after each, a window that is off by an element or a rank.
    #[test]
    fn ranks_on_one_card_have_what_ranks_on_the_host_have_bit_for_bit() {
        if let Err(reason) = twin::install() {
            return eprintln!("ranks on one card are skipped: {reason}");
        }
        assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>());
        assert_eq!(together::<Cuda<Bf16>>(), together::<Cpu<Bf16>>());
    }

    /// Kills: a failure of the driver that is a panic with a backtrace, or none at all.
    #[test]
    fn memory_that_a_card_has_not_ends_the_rank_with_a_sentence() {
        if let Err(reason) = twin::install() {
            return eprintln!("memory of a card is skipped: {reason}");
        }
        let world = World::threads(&[(Axis::Tp, 2)]).unwrap();
        let ran = world.run(|device: Cuda<f32>, mesh| {
            let rows = if mesh.rank() == 1 { 1 << 40 } else { 1 };
            let x = Tensor::empty(&device, Category::Weights, rows, 1);
            mesh.group(Axis::Tp).barrier()?;
            Ok::<_, CommError>(x.len())
        });
        let wanted =
            "4398046511104 more bytes of weights do not fit beside the 0 held: the system has no more";
        assert_eq!(ran.unwrap_err().reason, wanted);
        let device = Cuda::<f32>::default();
        assert!(device.place().card().settle().is_ok());
        let error = Card::open(1).err().map(|error| error.to_string());
        assert_eq!(error.unwrap(), "no GPU 1: there are 1, counted from 0");
    }
}
