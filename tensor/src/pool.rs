//! Where memory rests between two uses, together with what its owners share: so a tensor that comes and goes takes
//! nothing from the system, not even the place of its count of owners.
//!
//! A device owns its pool, and what is in use owns the device. What rests owns no device: pool and device would keep
//! each other.
use crate::count;
use crate::device::Device;
use crate::meter::Category;
use std::collections::HashMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex};

/// What of a device's memory is not in use.
pub struct Pool<D: Device> {
    numbers: Shelf<D, Numbers>,
    tokens: Shelf<D, Tokens>,
}

impl<D: Device> Default for Pool<D> {
    fn default() -> Self {
        Self { numbers: Shelf(Mutex::default()), tokens: Shelf(Mutex::default()) }
    }
}

/// Memory of one kind at rest, by size. Places stay when memory is taken from them, so that putting it back needs none.
pub(crate) struct Shelf<D: Device, K: Kind<D>>(Mutex<HashMap<usize, Resting<D, K>>>);
type Resting<D, K> = Vec<Arc<Memory<D, K>>>;

impl<D: Device, K: Kind<D>> Shelf<D, K> {
    fn take(&self, size: usize) -> Option<Arc<Memory<D, K>>> {
        self.0.lock().expect("nothing panics under this lock").get_mut(&size)?.pop()
    }
    fn put(&self, memory: Arc<Memory<D, K>>) {
        self.0.lock().expect("nothing panics under this lock").entry(memory.size).or_default().push(memory);
    }
}

/// A kind of memory: for numbers, or for token ids.
pub(crate) trait Kind<D: Device>: Sized + 'static {
    /// The memory itself.
    type Raw: Send + Sync;
    /// Of one element.
    const BYTES: usize;
    fn shelf(pool: &Pool<D>) -> &Shelf<D, Self>;
    fn alloc(device: &D, size: usize) -> Self::Raw;
}

pub(crate) struct Numbers;
impl<D: Device> Kind<D> for Numbers {
    type Raw = D::Buffer;
    const BYTES: usize = size_of::<D::Elem>();
    fn shelf(pool: &Pool<D>) -> &Shelf<D, Self> {
        &pool.numbers
    }
    fn alloc(device: &D, size: usize) -> D::Buffer {
        device.alloc(size)
    }
}

pub(crate) struct Tokens;
impl<D: Device> Kind<D> for Tokens {
    type Raw = D::Index;
    const BYTES: usize = size_of::<u32>();
    fn shelf(pool: &Pool<D>) -> &Shelf<D, Self> {
        &pool.tokens
    }
    fn alloc(device: &D, size: usize) -> D::Index {
        device.alloc_index(size)
    }
}

/// Memory, in use or at rest.
pub(crate) struct Memory<D: Device, K: Kind<D>> {
    raw: K::Raw,
    size: usize,    // elements it has room for
    metered: usize, // bytes
    category: Category,
    device: Option<D>, // none while it rests
}

impl<D: Device, K: Kind<D>> Memory<D, K> {
    /// Ends a use: no longer metered. Gives the device, if it was in use.
    fn end(&mut self) -> Option<D> {
        let device = self.device.take()?;
        device.meter().release(self.category, self.metered);
        Some(device)
    }
}

impl<D: Device, K: Kind<D>> Drop for Memory<D, K> {
    /// Where the last two owners let go at the same time, neither sees that it is the last: then it goes to the system.
    fn drop(&mut self) {
        if let Some(device) = self.end() {
            device.meter().unreserve(self.size * K::BYTES);
        }
    }
}

/// An owner of memory in use, of which there may be others. The last one puts it to rest.
pub(crate) struct Owner<D: Device, K: Kind<D>>(Option<Arc<Memory<D, K>>>); // none only while it drops

impl<D: Device, K: Kind<D>> Clone for Owner<D, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Device, K: Kind<D>> Owner<D, K> {
    /// The only owner of memory for `len` elements, which hold what they held. Metered from now on.
    ///
    /// # Panics
    /// With [`Uncountable`](count::Uncountable), if 64 bits do not count its bytes.
    pub(crate) fn new(device: &D, category: Category, len: usize) -> Self {
        let metered = count::product("the bytes of a matrix", &[len, K::BYTES]);
        device.meter().hold(category, metered);
        let size = D::room(len);
        let rested = K::shelf(device.pool()).take(size);
        let mut memory = rested.unwrap_or_else(|| {
            device.meter().reserve(size * K::BYTES);
            let raw = K::alloc(device, size);
            Arc::new(Memory { raw, size, metered, category, device: None })
        });
        let own = Arc::get_mut(&mut memory).expect("what rests has one owner");
        (own.metered, own.category, own.device) = (metered, category, Some(device.clone()));
        Self(Some(memory))
    }
    fn memory(&self) -> &Arc<Memory<D, K>> {
        self.0.as_ref().expect("in use")
    }
    /// The memory, to read.
    pub(crate) fn raw(&self) -> &K::Raw {
        &self.memory().raw
    }
    /// The memory, to write; none if another owner could see the change.
    pub(crate) fn raw_mut(&mut self) -> Option<&mut K::Raw> {
        Some(&mut Arc::get_mut(self.0.as_mut().expect("in use"))?.raw)
    }
    /// Whether there is another owner.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(self.memory()) > 1
    }
    /// Where it lies.
    pub(crate) fn device(&self) -> &D {
        self.memory().device.as_ref().expect("in use")
    }
}

impl<D: Device, K: Kind<D>> Drop for Owner<D, K> {
    fn drop(&mut self) {
        let Some(mut memory) = self.0.take() else { return };
        let Some(device) = Arc::get_mut(&mut memory).and_then(Memory::end) else { return };
        K::shelf(device.pool()).put(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Ids, Tensor};

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
        let (place, reserved) = (second.view().ptr().raw(), cpu.meter().reserved());
        drop(second);
        let fourth = number(&cpu, 4.0);
        assert_eq!((fourth.view().ptr().raw(), cpu.meter().reserved()), (place, reserved));
        assert_eq!([&first, &third].map(|t| t.read().unwrap()[19]), [1.0, 3.0]);
    }

    /// Kills: memory that rests and is still metered, that is metered as what it was before, or by how much it has room.
    #[test]
    fn memory_is_metered_as_what_it_is_used_for() {
        let cpu = Cpu::<f32>::default();
        drop(Tensor::empty(&cpu, Category::Weights, 1, 17));
        let ids = Ids::new(&cpu, &[1, 2, 3], 4).unwrap();
        let scratch = Tensor::empty(&cpu, Category::Buffers, 1, 18);
        let now = |category| cpu.meter().now(category);
        assert_eq!((now(Category::Weights), now(Category::Buffers)), (0, 3 * 4 + 18 * 4));
        drop((ids, scratch));
        assert_eq!((now(Category::Weights), now(Category::Buffers)), (0, 0));
        let ids = Ids::new(&cpu, &[3], 4).unwrap();
        assert_eq!((ids.len(), &ids.index()[..], now(Category::Buffers)), (1, &[3][..], 4));
    }

    /// As when each of the last two owners sees the other. Kills: memory unmetered twice or never, or counted as reserved
    /// when the system has it back.
    #[test]
    fn the_last_two_owners_may_let_go_at_the_same_time() {
        let cpu = Cpu::<f32>::default();
        let owner = Owner::<_, Numbers>::new(&cpu, Category::Weights, 20);
        let other = owner.0.clone();
        drop(owner);
        assert_eq!((cpu.meter().now(Category::Weights), cpu.meter().reserved()), (20 * 4, 20 * 4));
        drop(other);
        assert_eq!((cpu.meter().now(Category::Weights), cpu.meter().reserved()), (0, 0));
    }

    /// Kills: memory at rest that owns the device, whose pool owns it.
    #[test]
    fn what_rests_keeps_no_device() {
        let cpu = Cpu::<f32>::default();
        drop(number(&cpu, 1.0));
        let memory = {
            let at_rest = cpu.pool().numbers.0.lock().unwrap();
            Arc::downgrade(at_rest.values().flatten().next().expect("it rests"))
        };
        drop(cpu);
        assert_eq!(memory.strong_count(), 0, "it went with the device");
    }
}
