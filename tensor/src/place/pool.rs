//! Pool of free memory, kept together with its count of owners: a tensor that is created and dropped takes
//! nothing from the system, not even memory for that count.
//!
//! A place owns its pool, and memory in use owns its place. Free memory owns no place: pool and place would
//! keep each other alive.
use crate::{Category, OutOfMemory, Place, limits};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Free memory of a place, by size in bytes. Entries stay when memory is taken from them, so that putting it
/// back allocates nothing.
pub struct Pool<P: Place>(Mutex<BTreeMap<usize, Vec<Arc<Memory<P>>>>>);

impl<P: Place> Default for Pool<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Size in bytes from which a fresh piece is exactly as large as requested.
const LARGE: usize = 1 << 20;
/// Limit of a pool: the memory reserved is at most 1/`SPARE` above the peak of memory held, on places that
/// give large pieces back.
const SPARE: usize = 64;
/// Smallest size of a piece in bytes, and smallest difference between sizes.
const LEAST: usize = 64;

/// Returns the size of a fresh piece for `len` bytes, and the largest size that is taken from the pool. Sizes
/// below [`LARGE`] are an eighth apart, so that lengths that grow token by token find free memory; a large
/// piece may be an eighth larger than its use, so that lengths that vary find one, too.
fn room(len: usize) -> [usize; 2] {
    if len >= LARGE {
        return [len, len.saturating_add(len / 8)];
    }
    let len = len.max(LEAST);
    let size = len.next_multiple_of((1 << (len.ilog2() - 3)).max(LEAST));
    [size, size]
}

impl<P: Place> Pool<P> {
    fn shelves(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<Arc<Memory<P>>>>> {
        self.0.lock().expect("nothing panics under this lock")
    }
    /// Takes the smallest free piece of `least` to `most` bytes.
    fn take(&self, [least, most]: [usize; 2]) -> Option<Arc<Memory<P>>> {
        self.shelves().range_mut(least..=most).find_map(|(_, pieces)| pieces.pop())
    }
    /// Gives a free piece that is up to an eighth smaller than `size` bytes back to the system: the new piece
    /// of `size` bytes will be found in its place. Returns the bytes given back.
    fn release_smaller(&self, size: usize) -> usize {
        let least = if size >= LARGE { size - size / 8 } else { size };
        let smaller = self.shelves().range_mut(least..size).rev().find_map(|(_, pieces)| pieces.pop());
        smaller.map_or(0, |memory| memory.size)
    }
    /// Gives free large pieces back to the system, the largest first, until they have `bytes` bytes. Returns
    /// the bytes given back.
    fn shrink(&self, bytes: usize) -> usize {
        let mut shelves = self.shelves();
        let mut given = 0;
        for (size, pieces) in shelves.range_mut(LARGE..).rev() {
            while given < bytes && pieces.pop().is_some() {
                given += size;
            }
        }
        given
    }
    fn put(&self, memory: Arc<Memory<P>>) {
        self.shelves().entry(memory.size).or_default().push(memory);
    }
    /// Gives all free memory back to the system. Returns the bytes given back.
    fn empty(&self) -> usize {
        let mut shelves = self.shelves();
        let bytes = shelves.iter().map(|(size, pieces)| size * pieces.len()).sum();
        shelves.clear();
        bytes
    }
}

/// Memory, in use or free.
pub(crate) struct Memory<P: Place> {
    raw: P::Buffer,
    size: usize,    // bytes of the piece
    metered: usize, // bytes requested
    category: Category,
    place: Option<P>, // none while it is free
}

impl<P: Place> Memory<P> {
    /// Ends a use: the memory is no longer metered. Returns the place, if the memory was in use.
    fn end(&mut self) -> Option<P> {
        let place = self.place.take()?;
        place.meter().release(self.category, self.metered);
        Some(place)
    }
}

impl<P: Place> Drop for Memory<P> {
    /// Returns the memory to the system: if the last two owners drop at the same time, neither of them finds
    /// that it is the last.
    fn drop(&mut self) {
        if let Some(place) = self.end() {
            place.meter().unreserve(self.size);
        }
    }
}

/// Owner of memory in use, which may have other owners. The last one returns it to the pool.
#[derive(Clone)]
pub(crate) struct Owner<P: Place>(Option<Arc<Memory<P>>>); // none only while it drops

impl<P: Place> Owner<P> {
    /// Takes memory for `bytes` bytes, with their former contents, in a piece that has room for `most`, and
    /// becomes its only owner. The memory is metered from now on, as `bytes` bytes.
    ///
    /// # Panics
    /// With [`OutOfMemory`], if the meter's limit or the system allows no more.
    pub(crate) fn new(place: &P, category: Category, [bytes, most]: [usize; 2]) -> Self {
        let held = place.meter().hold(category, bytes);
        let rooms @ [size, _] = room(most.max(bytes));
        let mut memory = place.pool().take(rooms).unwrap_or_else(|| {
            let meter = place.meter();
            meter.unreserve(place.pool().release_smaller(size));
            if !P::SLOW_TO_ALLOCATE {
                let held = meter.peaks_of_all().total;
                let most = held + held / SPARE;
                meter.unreserve(place.pool().shrink((meter.reserved() + size).saturating_sub(most)));
            }
            let fresh = place.alloc(size).or_else(|| {
                meter.unreserve(place.pool().empty());
                place.alloc(size)
            });
            let Some(raw) = fresh else {
                meter.release(category, bytes);
                let fault = OutOfMemory { category, asked: bytes, held, limit: None };
                limits::note(&fault);
                fault.unwind()
            };
            meter.reserve(size);
            Arc::new(Memory { raw, size, metered: bytes, category, place: None })
        });
        let unique = Arc::get_mut(&mut memory).expect("what rests has one owner");
        (unique.metered, unique.category, unique.place) = (bytes, category, Some(place.clone()));
        Self(Some(memory))
    }
    fn memory(&self) -> &Arc<Memory<P>> {
        self.0.as_ref().expect("in use")
    }
    /// The memory, to read.
    pub(crate) fn raw(&self) -> &P::Buffer {
        &self.memory().raw
    }
    /// The memory, to write; `None` if it is shared.
    pub(crate) fn raw_mut(&mut self) -> Option<&mut P::Buffer> {
        Some(&mut Arc::get_mut(self.0.as_mut().expect("in use"))?.raw)
    }
    /// True if there is another owner.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(self.memory()) > 1
    }
    /// Place of the memory.
    pub(crate) fn place(&self) -> &P {
        self.memory().place.as_ref().expect("in use")
    }
}

impl<P: Place> Drop for Owner<P> {
    fn drop(&mut self) {
        let Some(mut memory) = self.0.take() else { return };
        let Some(place) = Arc::get_mut(&mut memory).and_then(Memory::end) else { return };
        place.pool().put(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Device, Index, Tensor, TokenIds};

    fn number(cpu: &Cpu<f32>, x: f32) -> Tensor<Cpu<f32>> {
        Tensor::from_fn(cpu, Category::Weights, 1, 20, |_| x)
    }

    /// Kills: memory that rests while it has an owner, or is given to two.
    #[test]
    fn memory_rests_when_its_last_owner_drops_and_is_given_to_one() {
        let cpu = Cpu::<f32>::default();
        let first = number(&cpu, 1.0);
        drop(first.clone());
        let (second, third) = (number(&cpu, 2.0), number(&cpu, 3.0));
        assert_eq!([&first, &second, &third].map(|t| t.read().unwrap()[19]), [1.0, 2.0, 3.0]);
        let (place, reserved) = (second.view().raw(), cpu.meter().reserved());
        drop(second);
        let fourth = number(&cpu, 4.0);
        assert_eq!((fourth.view().raw(), cpu.meter().reserved()), (place, reserved));
        assert_eq!([&first, &third].map(|t| t.read().unwrap()[19]), [1.0, 3.0]);
    }

    /// Kills: memory that rests and is still metered, that is metered as what it was before, or by how much
    /// it has room.
    #[test]
    fn memory_is_metered_as_what_it_is_used_for() {
        let cpu = Cpu::<f32>::default();
        drop(Tensor::empty(&cpu, Category::Weights, 1, 17));
        let ids = TokenIds::new(cpu.place(), &[1, 2, 3], 4).unwrap();
        let scratch = Tensor::empty(&cpu, Category::Buffers, 1, 18);
        let now = |category| cpu.meter().now(category);
        assert_eq!((now(Category::Weights), now(Category::Buffers)), (0, 3 * 4 + 18 * 4));
        drop((ids, scratch));
        assert_eq!((now(Category::Weights), now(Category::Buffers)), (0, 0));
        let ids = TokenIds::new(cpu.place(), &[3], 4).unwrap();
        assert_eq!((ids.len(), ids.index().words(), now(Category::Buffers)), (1, &[3][..], 4));
    }

    /// Kills: room that is metered, or that what is made after it does not have; a room that another shape
    /// keeps.
    #[test]
    fn memory_with_room_is_found_by_whatever_fits_in_it() {
        let cpu = Cpu::<f32>::default();
        let with = |rows| Tensor::with_room(&cpu, Category::Activations, [rows, 100], 7);
        let mut reserved = None;
        for rows in [2, 100, 1, 99, 50] {
            let (x, index) = (with(rows), Index::with_room(cpu.place(), [rows, 700], 0..));
            let y = x.along(3);
            assert_eq!(
                (x.rooms(), y.rooms(), index.room(), index.len()),
                ([rows, 100], [rows, 100], 700, rows)
            );
            assert_eq!(cpu.meter().now(Category::Activations), 4 * 10 * rows);
            let now = cpu.meter().reserved();
            assert_eq!(*reserved.get_or_insert(now), now, "{rows} rows");
            assert_eq!((x.clone().first_rows(1).rooms(), x.reshaped(7, rows).rooms()), ([1, 1], [7, 7]));
        }
        assert_eq!(Tensor::with_room(&cpu, Category::Buffers, [3, 0], 1).len(), 3, "less room than rows");
    }

    /// Rows that vary, as with experts: 1 M numbers and up to an eighth more. Kills: a large piece that only
    /// its own size finds, so that every new size takes memory for ever; a piece taken that is much too
    /// large.
    #[test]
    fn memory_of_varying_sizes_is_bounded() {
        let cpu = Cpu::<f32>::default();
        for rows in (0..100).map(|i| 1024 + i * 37 % 128) {
            drop(Tensor::empty(&cpu, Category::Activations, rows, 1024));
        }
        let most = 4 * 1024 * (1024 + 127);
        assert!(cpu.meter().reserved() <= most, "{} of {most}", cpu.meter().reserved());
        drop(Tensor::empty(&cpu, Category::Activations, 512, 1024));
        assert_eq!(
            cpu.meter().reserved(),
            4 * 512 * 1024,
            "a fresh piece, for which the larger one is given back"
        );
        assert_eq!(
            [1, 65, 1000, 1028, LARGE, LARGE + 1].map(room),
            [
                [64; 2],
                [128; 2],
                [1024; 2],
                [1152; 2],
                [LARGE, LARGE + LARGE / 8],
                [LARGE + 1, LARGE + 1 + LARGE / 8]
            ]
        );
    }

    /// As when a table and the weights of a block are gathered in turn. Kills: large pieces that rest while
    /// others of another size are taken, without bound; small ones given back for nothing; pieces given back
    /// that the peak has room for.
    #[test]
    fn what_rests_keeps_the_pool_near_the_peak() {
        let cpu = Cpu::<f32>::default();
        drop(number(&cpu, 1.0));
        let large = |pieces: usize, rows| {
            let all: Vec<_> =
                (0..pieces).map(|_| Tensor::empty(&cpu, Category::Buffers, rows, 1 << 18)).collect();
            drop(all);
        };
        large(1, 64);
        large(3, 20);
        let peak = 64 << 20;
        assert_eq!(cpu.meter().peaks_of_all().total, peak);
        assert!(cpu.meter().reserved() <= peak + peak / SPARE, "{} of {peak}", cpu.meter().reserved());
        let (shelves, least) = (cpu.place().pool().shelves(), 20 << 20);
        assert_eq!(
            (shelves[&128].len(), shelves[&least].len()),
            (1, 3),
            "the small one and what was last taken rest"
        );
    }

    /// Every size of a fresh piece up to the large ones, and the next. Kills: a piece at rest that is taken
    /// for more bytes than it has room for, a fresh one that is too small, or larger than an eighth more.
    #[test]
    fn a_piece_has_room_for_what_it_is_taken_for() {
        let mut size = LEAST;
        while size < 2 * LARGE {
            let cpu = Cpu::<f32>::default();
            let takes = |bytes| Owner::new(cpu.place(), Category::Buffers, [bytes; 2]).memory().size;
            assert_eq!([takes(size), takes(size)], [size; 2], "it fits, and is found again");
            let next = takes(size + 1);
            assert!(next > size && next <= size + (size / 8).max(LEAST), "{next} for {size} + 1");
            size = if next < LARGE { next } else { size + size / 8 };
        }
    }

    /// As when each of the last two owners sees the other. Kills: memory unmetered twice or never, or counted
    /// as reserved when the system has it back.
    #[test]
    fn the_last_two_owners_may_let_go_at_the_same_time() {
        let cpu = Cpu::<f32>::default();
        let owner = Owner::new(cpu.place(), Category::Weights, [128; 2]);
        let other = owner.0.clone();
        drop(owner);
        assert_eq!((cpu.meter().now(Category::Weights), cpu.meter().reserved()), (128, 128));
        drop(other);
        assert_eq!((cpu.meter().now(Category::Weights), cpu.meter().reserved()), (0, 0));
    }

    /// Kills: memory at rest that owns the place, whose pool owns it.
    #[test]
    fn what_rests_keeps_no_place() {
        let cpu = Cpu::<f32>::default();
        drop(number(&cpu, 1.0));
        let memory = {
            let at_rest = cpu.place().pool().shelves();
            Arc::downgrade(at_rest.values().flatten().next().expect("it rests"))
        };
        drop(cpu);
        assert_eq!(memory.strong_count(), 0, "it went with the place");
    }

    /// Kills: bytes that are refused and stay metered, a limit that what is held already meets, a fault that
    /// names another category, or other bytes; a category without a limit.
    #[test]
    fn memory_ends_at_the_limit() {
        let cpu = Cpu::<f32>::default();
        cpu.meter().limit(100);
        let held = number(&cpu, 1.0);
        let fault =
            OutOfMemory::caught(|| Tensor::empty(&cpu, Category::Activations, 1, 6).len()).unwrap_err();
        let wanted = OutOfMemory { category: Category::Activations, asked: 24, held: 80, limit: Some(100) };
        assert_eq!((fault, cpu.meter().now(Category::Activations)), (wanted, 0));
        assert_eq!(
            fault.to_string(),
            "24 more bytes of activations do not fit beside the 80 held: the limit is 100"
        );
        assert_eq!(Tensor::empty(&cpu, Category::Activations, 1, 5).len(), 5);
        for &category in Category::ALL {
            let fault = OutOfMemory::caught(|| Tensor::empty(&cpu, category, 1, 7).len()).unwrap_err();
            assert_eq!(fault, OutOfMemory { category, asked: 28, ..wanted });
            let words = format!(
                "28 more bytes of {} do not fit beside the 80 held: the limit is 100",
                category.name()
            );
            assert_eq!(fault.to_string(), words);
        }
        drop(held);
        let huge = OutOfMemory::caught(|| {
            Tensor::empty(&Cpu::<f32>::default(), Category::Weights, 1 << 30, 1 << 28)
        });
        assert!(huge.err().unwrap().to_string().ends_with("the system has no more"));
    }
}
