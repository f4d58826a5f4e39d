//! Indices for kernels; token ids, a type of their own, checked once when they enter.
use crate::cpu::{slice, slice_mut};
use crate::place::pool::Owner;
use crate::{Category, Host, Place, count};
use std::borrow::Borrow;
use std::iter::repeat;
use std::ops::Range;

/// Target that is ignored: its row adds nothing to the loss, nor to the number of tokens of the mean.
pub const IGNORED: u32 = u32::MAX;

/// Integers at a place, where kernels read them. Clones share memory.
#[derive(Clone)]
pub struct Index<P: Place> {
    memory: Owner<P>,
    len: usize,
    room: usize,
}

impl<P: Place> Index<P> {
    /// Creates an index of `len` integers.
    ///
    /// # Panics
    /// With [`OutOfMemory`](crate::OutOfMemory), if there is no memory for them.
    pub fn new(place: &P, len: usize, numbers: impl IntoIterator<Item = u32>) -> Self {
        Self::with_room(place, [len, len], numbers)
    }
    /// Creates an index of `sizes[0]` integers in memory that has room for `sizes[1]`, of which only the
    /// former count as held: for lists whose length varies.
    ///
    /// # Panics
    /// With [`OutOfMemory`](crate::OutOfMemory), if there is no memory for them.
    pub fn with_room(place: &P, sizes: [usize; 2], numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut index = Self::fresh(place, sizes);
        index.put(numbers);
        index
    }
    /// Creates an index of `len` integers of unspecified value, for kernels that write all of them.
    ///
    /// # Panics
    /// With [`OutOfMemory`](crate::OutOfMemory), if there is no memory for them.
    pub fn empty(place: &P, len: usize) -> Self {
        let mut index = Self::fresh(place, [len, len]);
        if cfg!(debug_assertions) {
            index.put(repeat(u32::MAX)); // exposes a read before the write
        }
        index
    }
    fn fresh(place: &P, [len, room]: [usize; 2]) -> Self {
        let bytes = [len, room].map(|n| count::product("the bytes of an index", &[n, size_of::<u32>()]));
        Self { memory: Owner::new(place, Category::Buffers, bytes), len, room }
    }
    fn put(&mut self, numbers: impl IntoIterator<Item = u32>) {
        let mut numbers = numbers.into_iter();
        P::put(self.memory.raw_mut().expect("the only owner"), self.len, |_, to: &mut [u32]| {
            to.iter_mut().zip(&mut numbers).for_each(|(to, number)| *to = number);
        });
    }
    /// Replaces the contents of `words` with the integers; returns `false` on the meta device, which has
    /// none.
    #[must_use]
    pub fn read_into(&self, words: &mut Vec<u32>) -> bool {
        words.clear();
        self.place().meter().came(self.len * size_of::<u32>());
        P::get(self.memory.raw(), self.len, words)
    }
    /// Returns a copy of some of the integers; of unspecified ones on the meta device.
    #[must_use]
    pub fn part(&self, of: Range<usize>) -> Self {
        let mut words = Vec::new();
        if !self.read_into(&mut words) {
            words.resize(self.len, 0);
        }
        Self::new(self.place(), of.len(), words[of].iter().copied())
    }
    /// Number of integers.
    pub fn len(&self) -> usize {
        self.len
    }
    /// True if there are no integers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Number of integers that there was room for when the index was created.
    pub fn room(&self) -> usize {
        self.room
    }
    /// Place of the integers.
    pub fn place(&self) -> &P {
        self.memory.place()
    }
    /// Address of the first integer, for a kernel to read.
    pub fn ptr(&self) -> P::Ptr {
        P::ptr(self.memory.raw())
    }
}

impl Index<Host> {
    /// Returns the integers.
    pub fn words(&self) -> &[u32] {
        slice(self.memory.raw(), self.len)
    }
    /// Returns the integers, for a kernel to write.
    ///
    /// # Panics
    /// If the memory is shared.
    pub fn words_mut(&mut self) -> &mut [u32] {
        slice_mut(self.memory.raw_mut().expect("cannot write a shared index"), self.len)
    }
}

/// Token ids at a place, each below the vocabulary they were checked against. Clones share memory.
#[derive(Clone)]
pub struct TokenIds<P: Place> {
    index: Index<P>,
    vocabulary: usize,
}

/// Error for an id outside the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token id {id} at position {at} is not in the vocabulary of {vocabulary} (ids go from 0 to {})", vocabulary - 1)]
pub struct IdsError {
    /// The id.
    pub id: u32,
    /// Position of the id in the list.
    pub at: usize,
    /// Number of ids in the vocabulary.
    pub vocabulary: usize,
}

impl<P: Place> TokenIds<P> {
    /// Copies ids to a place.
    ///
    /// # Errors
    /// If one of them is not below `vocabulary`.
    pub fn new(
        place: &P,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
    ) -> Result<Self, IdsError> {
        Self::checked(place, ids, vocabulary, |id| (id as usize) < vocabulary)
    }
    /// Copies targets to a place; [`IGNORED`] is allowed.
    ///
    /// # Errors
    /// If another target is not below `vocabulary`.
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
    /// Returns a copy of some of the ids.
    #[must_use]
    pub fn part(&self, of: Range<usize>) -> Self {
        Self { index: self.index.part(of), vocabulary: self.vocabulary }
    }
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.index.len()
    }
    /// True if there are no ids.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
    /// Number of different ids in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    /// Index of the ids, for kernels to read.
    pub fn index(&self) -> &Index<P> {
        &self.index
    }
    /// Place of the ids.
    pub fn place(&self) -> &P {
        self.index.place()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Device, MetaPlace};

    /// Kills: memory that is not metered, a read of more or fewer words than there are, or that is not
    /// counted.
    #[test]
    fn an_index_is_written_in_place_and_read_as_it_was_written() {
        let (cpu, mut words) = (Cpu::<f32>::default(), vec![9; 9]);
        let mut index = Index::empty(cpu.place(), 3);
        index.words_mut().copy_from_slice(&[5, 0, u32::MAX]);
        assert!(index.read_into(&mut words));
        assert_eq!((&words[..], index.words()), (&[5, 0, u32::MAX][..], &words[..]));
        assert_eq!((cpu.meter().now(Category::Buffers), cpu.meter().brought()), (12, 12));
        let nowhere = MetaPlace::default();
        let index = Index::empty(&nowhere, 3);
        assert!(!index.read_into(&mut words) && words.is_empty());
        assert_eq!(nowhere.meter().now(Category::Buffers), 12);
    }

    /// Kills: numbers that change under another owner.
    #[test]
    #[should_panic(expected = "cannot write a shared index")]
    fn a_shared_index_is_not_written() {
        let mut index = Index::new(&Host::default(), 2, [1, 2]);
        let _other = index.clone();
        index.words_mut()[0] = 3;
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        let cpu = Cpu::<f32>::default();
        let why = TokenIds::new(cpu.place(), &[0, 9, 10], 10).err().unwrap().to_string();
        assert_eq!(why, "token id 10 at position 2 is not in the vocabulary of 10 (ids go from 0 to 9)");
        let ids = TokenIds::new(cpu.place(), &[0, 9], 10).unwrap();
        assert_eq!((ids.len(), ids.index().words(), cpu.meter().now(Category::Buffers)), (2, &[0, 9][..], 8));
        drop(ids);
        assert_eq!(cpu.meter().now(Category::Buffers), 0);
        let why = TokenIds::targets(cpu.place(), &[9, 10], 10).err().unwrap().to_string();
        assert_eq!(why, "token id 10 at position 1 is not in the vocabulary of 10 (ids go from 0 to 9)");
        assert!(
            TokenIds::new(cpu.place(), &[IGNORED], 10).is_err()
                && TokenIds::targets(cpu.place(), &[IGNORED - 1], 10).is_err()
        );
        assert_eq!(TokenIds::targets(cpu.place(), &[3, IGNORED], 10).unwrap().len(), 2);
    }
}
