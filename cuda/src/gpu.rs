//! A GPU as a place: one rank's use of a card, with a memory pool, a meter and a profile.
use crate::card::{Argument, Card, KernelName, LaunchConfig};
use crate::cards::Cards;
use crate::driver::CudaError;
use bytemuck::AnyBitPattern;
use std::sync::Arc;
use tensor::{Meter, Place, PlaceError, Pool, Profile};

/// One rank's use of a card, shared or its own. Freed memory is kept for reuse, so that a steady state
/// allocates none from the driver.
#[derive(Clone)]
pub struct Gpu(Arc<RankMemory>);

struct RankMemory {
    meter: Meter,
    profile: Profile,
    pool: Pool<Gpu>,
    home: Arc<Home>,
}

/// The card that a rank computes on. If each rank has its own card, `cards` holds those of all ranks: they
/// fail together.
struct Home {
    card: Arc<Card>,
    cards: Option<Arc<Cards>>,
}

impl Home {
    /// Checks everything that was launched with other ranks.
    ///
    /// # Panics
    /// With [`PlaceError`], if any of it failed.
    fn well(&self) {
        if let Some(why) = self.cards.as_ref().and_then(|cards| cards.well().err()) {
            PlaceError(why).unwind()
        }
    }
}

impl Gpu {
    /// Returns one rank's use of a card.
    pub fn of(card: &Arc<Card>) -> Self {
        Self::at(card.clone(), None)
    }
    /// Returns one rank's use of a card; `cards` holds those of all ranks if each has its own.
    pub(crate) fn at(card: Arc<Card>, cards: Option<Arc<Cards>>) -> Self {
        Self(Arc::new(RankMemory {
            meter: Meter::default(),
            profile: Profile::default(),
            pool: Pool::default(),
            home: Arc::new(Home { card, cards }),
        }))
    }
    /// Returns the card.
    pub fn card(&self) -> &Arc<Card> {
        &self.0.home.card
    }
    /// Returns the cards of all ranks, if each rank has its own.
    pub(crate) fn cards(&self) -> Option<&Arc<Cards>> {
        self.0.home.cards.as_ref()
    }
    /// Launches a kernel.
    ///
    /// # Panics
    /// With [`PlaceError`], if the card has failed.
    pub(crate) fn launch(&self, kernel: KernelName, shape: LaunchConfig, arguments: &[&dyn Argument]) {
        well(self.card().launch(self.card().kernels.prepare(kernel, shape, arguments)));
    }
}

impl Default for Gpu {
    /// Returns a rank's use of the first card.
    ///
    /// # Panics
    /// With [`PlaceError`], if the card cannot be opened.
    fn default() -> Self {
        Self::of(&well(Card::open(0)))
    }
}

/// Unwraps the outcome of a driver call; a failure ends the rank.
pub(crate) fn well<T>(outcome: Result<T, CudaError>) -> T {
    outcome.unwrap_or_else(|error| PlaceError(error.to_string()).unwind())
}

/// An address in a card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPtr(pub(crate) u64);

/// A piece of a card's memory.
pub struct GpuBuffer {
    at: u64,
    bytes: usize,
    home: Arc<Home>,
}

/// Pinned memory of the host.
pub struct PinnedMemory {
    at: *mut u8,
    home: Arc<Home>,
}
// SAFETY: it owns its memory as a Vec would.
unsafe impl Send for PinnedMemory {}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.home.card.unpin(self.at);
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        self.home.card.free(self.at);
    }
}

impl Place for Gpu {
    type Ptr = GpuPtr;
    type Buffer = GpuBuffer;
    type Pinned = PinnedMemory;
    const SLOW_TO_ALLOCATE: bool = true; // freeing memory waits for the card
    fn alloc(&self, bytes: usize) -> Option<GpuBuffer> {
        let home = self.0.home.clone();
        well(home.card.alloc(bytes)).map(|at| GpuBuffer { at, bytes, home })
    }
    fn ptr(buffer: &GpuBuffer) -> GpuPtr {
        GpuPtr(buffer.at)
    }
    fn offset(GpuPtr(at): GpuPtr, bytes: usize) -> GpuPtr {
        GpuPtr(at.wrapping_add(bytes as u64))
    }
    fn put<S: AnyBitPattern>(buffer: &mut GpuBuffer, len: usize, mut numbers: impl FnMut(usize, &mut [S])) {
        const TOGETHER: usize = 1 << 17;
        assert!(len <= buffer.bytes / size_of::<S>(), "{len} elements do not fit in {} bytes", buffer.bytes);
        let mut room = vec![S::zeroed(); len.min(TOGETHER)];
        for from in (0..len).step_by(TOGETHER) {
            let some = &mut room[..TOGETHER.min(len - from)];
            numbers(from, some);
            // SAFETY: elements without padding are bytes. The call returns when it has read them.
            let bytes = unsafe { std::slice::from_raw_parts(some.as_ptr().cast(), size_of_val(some)) };
            well(buffer.home.card.put(buffer.at + (from * size_of::<S>()) as u64, bytes));
        }
    }
    fn get<S: AnyBitPattern>(buffer: &GpuBuffer, len: usize, numbers: &mut Vec<S>) -> bool {
        assert!(len <= buffer.bytes / size_of::<S>(), "{len} elements do not fit in {} bytes", buffer.bytes);
        let first = numbers.len();
        numbers.resize(first + len, S::zeroed());
        let new = &mut numbers[first..];
        // SAFETY: any bytes are valid elements of this type.
        let bytes = unsafe { std::slice::from_raw_parts_mut(new.as_mut_ptr().cast(), size_of_val(new)) };
        well(buffer.home.card.get(buffer.at, bytes));
        buffer.home.well();
        true
    }
    fn pin(&self, bytes: usize) -> Option<PinnedMemory> {
        let home = self.0.home.clone();
        well(home.card.pin(bytes)).map(|at| PinnedMemory { at, home })
    }
    fn copy_out(from: &GpuBuffer, to: &mut PinnedMemory, bytes: usize) {
        well(from.home.card.copy_beside(bytes, to.at, from.at, false));
    }
    fn copy_in(from: &PinnedMemory, to: &mut GpuBuffer, bytes: usize) {
        well(to.home.card.copy_beside(bytes, from.at, to.at, true));
    }
    fn pool(&self) -> &Pool<Self> {
        &self.0.pool
    }
    fn meter(&self) -> &Meter {
        &self.0.meter
    }
    fn settle(&self) {
        well(self.card().settle());
        self.0.home.well();
    }
    fn profile(&self) -> Option<&Profile> {
        Some(&self.0.profile)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cuda, twin};
    use tensor::{Away, Category, Device, Store, Tensor};

    /// Kills: a copy between the card and its host that goes the other way or copies other bytes, pinned
    /// memory that two matrices share.
    #[test]
    fn state_off_a_card_comes_back_as_it_left() {
        if let Err(reason) = twin::install() {
            return twin::skipped(&reason);
        }
        let device = Cuda::<f32>::default();
        for store in [Store::host(), Store::file(std::env::temp_dir())] {
            let mut all = [[3, 5], [2, 7]].map(|shape| Away::new(&store, &device, shape));
            let of = |n: usize, [rows, cols]: [usize; 2]| {
                Tensor::from_fn(&device, Category::Optimizer, rows, cols, |i| (100 * n + i) as f32)
            };
            assert_eq!(all[0].load().read().unwrap(), [0.0; 15]);
            let [a, b] = &mut all;
            let leaving = [a.begin_store(of(1, [3, 5])), b.begin_store(of(2, [2, 7]))];
            drop(leaving.map(tensor::Move::wait));
            b.begin_load();
            assert_eq!(a.load().read(), of(1, [3, 5]).read());
            assert_eq!(b.load().read(), of(2, [2, 7]).read());
            assert_eq!(device.meter().away(), 4 * 29);
        }
    }
}
