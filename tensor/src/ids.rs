//! Whole numbers for kernels; token ids among them, a type of their own, checked once where they enter.
use crate::cpu::{slice, slice_mut};
use crate::pool::Owner;
use crate::{Category, Host, Place, count};
use std::borrow::Borrow;
use std::iter::repeat;

/// A target that does not count: its row adds nothing to the loss, nor to the number of tokens it is a mean over.
pub const IGNORED: u32 = u32::MAX;

/// Whole numbers at a place, where kernels read them. Clones share memory.
#[derive(Clone)]
pub struct Index<P: Place> {
    memory: Owner<P>,
    len: usize,
    room: usize,
}

impl<P: Place> Index<P> {
    /// So many numbers, from where they come.
    ///
    /// # Panics
    /// With [`Fault`](crate::Fault), if there is no memory for them.
    pub fn new(place: &P, len: usize, numbers: impl IntoIterator<Item = u32>) -> Self {
        Self::with_room(place, [len, len], numbers)
    }
    /// So many numbers, in memory that has room for the second number of them, though only those that there are count as held: for
    /// lists whose length varies.
    ///
    /// # Panics
    /// With [`Fault`](crate::Fault), if there is no memory for them.
    pub fn with_room(place: &P, sizes: [usize; 2], numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut index = Self::fresh(place, sizes);
        index.put(numbers);
        index
    }
    /// Contents unsaid: for so many numbers that a kernel writes, all of them.
    ///
    /// # Panics
    /// With [`Fault`](crate::Fault), if there is no memory for them.
    pub fn empty(place: &P, len: usize) -> Self {
        let mut index = Self::fresh(place, [len, len]);
        if cfg!(debug_assertions) {
            index.put(repeat(u32::MAX)); // a read before a write shows
        }
        index
    }
    fn fresh(place: &P, [len, room]: [usize; 2]) -> Self {
        let bytes = [len, room].map(|n| count::product("the bytes of an index", &[n, size_of::<u32>()]));
        Self { memory: Owner::new(place, Category::Buffers, bytes), len, room }
    }
    fn put(&mut self, numbers: impl IntoIterator<Item = u32>) {
        let (mut numbers, memory) = (numbers.into_iter(), self.memory.raw_mut().expect("the only owner"));
        P::put(memory, self.len, |_, to: &mut [u32]| {
            to.iter_mut().zip(&mut numbers).for_each(|(to, number)| *to = number);
        });
    }
    /// Puts the numbers in place of what is in `words`; on a place that has none it says so, by `false`.
    #[must_use]
    pub fn read_into(&self, words: &mut Vec<u32>) -> bool {
        words.clear();
        self.place().meter().came(self.len * size_of::<u32>());
        P::get(self.memory.raw(), self.len, words)
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }
    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// How many there was room for when it was made.
    pub fn room(&self) -> usize {
        self.room
    }
    /// Where they lie.
    pub fn place(&self) -> &P {
        self.memory.place()
    }
    /// Where they begin, for a kernel to read.
    pub fn ptr(&self) -> P::Ptr {
        P::ptr(self.memory.raw())
    }
}

impl Index<Host> {
    /// The numbers.
    pub fn words(&self) -> &[u32] {
        slice(self.memory.raw(), self.len)
    }
    /// The numbers, for a kernel to write.
    ///
    /// # Panics
    /// If another owner could see the change.
    pub fn words_mut(&mut self) -> &mut [u32] {
        slice_mut(self.memory.raw_mut().expect("a shared index is not written"), self.len)
    }
}

/// Token ids at a place, each below the vocabulary they were checked against. Clones share memory.
#[derive(Clone)]
pub struct Ids<P: Place> {
    index: Index<P>,
    vocabulary: usize,
}

/// An id that is not in the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token id {id} at position {at} is not in the vocabulary of {vocabulary} (ids go from 0 to {})", vocabulary - 1)]
pub struct IdsError {
    /// The id.
    pub id: u32,
    /// Where it stands.
    pub at: usize,
    /// How many ids there are.
    pub vocabulary: usize,
}

impl<P: Place> Ids<P> {
    /// Puts ids at a place, from where they lie or come from.
    ///
    /// # Errors
    /// If one is not below `vocabulary`.
    pub fn new(
        place: &P,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
    ) -> Result<Self, IdsError> {
        Self::checked(place, ids, vocabulary, |id| (id as usize) < vocabulary)
    }
    /// Puts targets at a place; [`IGNORED`] is one, too.
    ///
    /// # Errors
    /// If another is not below `vocabulary`.
    pub fn targets(
        place: &P,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
    ) -> Result<Self, IdsError> {
        Self::checked(place, ids, vocabulary, |id| id == IGNORED || (id as usize) < vocabulary)
    }
    fn checked(
        place: &P,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
        may: impl Fn(u32) -> bool,
    ) -> Result<Self, IdsError> {
        let each = || ids.clone().into_iter().map(|id| *id.borrow());
        if let Some((at, id)) = each().enumerate().find(|(_, id)| !may(*id)) {
            return Err(IdsError { id, at, vocabulary });
        }
        Ok(Self { index: Index::new(place, each().count(), each()), vocabulary })
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.index.len()
    }
    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
    /// How many different ids there could be.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    /// Where kernels read them.
    pub fn index(&self) -> &Index<P> {
        &self.index
    }
    /// Where they lie.
    pub fn place(&self) -> &P {
        self.index.place()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Device, Nowhere};

    /// Kills: memory that is not metered, a read of more or fewer words than there are, or that is not counted.
    #[test]
    fn an_index_is_written_in_place_and_read_as_it_was_written() {
        let (cpu, mut words) = (Cpu::<f32>::default(), vec![9; 9]);
        let mut index = Index::empty(cpu.place(), 3);
        index.words_mut().copy_from_slice(&[5, 0, u32::MAX]);
        assert!(index.read_into(&mut words));
        assert_eq!((&words[..], index.words()), (&[5, 0, u32::MAX][..], &words[..]));
        assert_eq!((cpu.meter().now(Category::Buffers), cpu.meter().brought()), (12, 12));
        let nowhere = Nowhere::default();
        let index = Index::empty(&nowhere, 3);
        assert!(!index.read_into(&mut words) && words.is_empty());
        assert_eq!(nowhere.meter().now(Category::Buffers), 12);
    }

    /// Kills: numbers that change under another owner.
    #[test]
    #[should_panic(expected = "a shared index is not written")]
    fn a_shared_index_is_not_written() {
        let mut index = Index::new(&Host::default(), 2, [1, 2]);
        let _other = index.clone();
        index.words_mut()[0] = 3;
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        let cpu = Cpu::<f32>::default();
        let why = Ids::new(cpu.place(), &[0, 9, 10], 10).err().unwrap().to_string();
        assert_eq!(why, "token id 10 at position 2 is not in the vocabulary of 10 (ids go from 0 to 9)");
        let ids = Ids::new(cpu.place(), &[0, 9], 10).unwrap();
        assert_eq!((ids.len(), ids.index().words(), cpu.meter().now(Category::Buffers)), (2, &[0, 9][..], 8));
        drop(ids);
        assert_eq!(cpu.meter().now(Category::Buffers), 0);
        let why = Ids::targets(cpu.place(), &[9, 10], 10).err().unwrap().to_string();
        assert_eq!(why, "token id 10 at position 1 is not in the vocabulary of 10 (ids go from 0 to 9)");
        assert!(
            Ids::new(cpu.place(), &[IGNORED], 10).is_err()
                && Ids::targets(cpu.place(), &[IGNORED - 1], 10).is_err()
        );
        assert_eq!(Ids::targets(cpu.place(), &[3, IGNORED], 10).unwrap().len(), 2);
    }
}
