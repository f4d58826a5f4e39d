//! Lists of tokens as kernels read them: integers at the kernels' place, created once for all calls on the
//! same tokens.
use crate::{Segment, Span};
use std::cell::OnceCell;
use tensor::{Index, Place};

/// Entry of a list that kernels read: `WORDS` integers below 2^32.
pub trait Indexable: Copy {
    /// Number of integers.
    const WORDS: usize;
    /// Returns the integers.
    fn words(self) -> impl Iterator<Item = u32>;
    /// Creates the entry from its integers.
    fn of(words: &[u32]) -> Self;
}

impl Indexable for Segment {
    const WORDS: usize = 4;
    fn words(self) -> impl Iterator<Item = u32> {
        [self.row, self.len, self.position, self.sequence].into_iter().map(|n| n as u32)
    }
    #[inline(always)]
    fn of(words: &[u32]) -> Self {
        let [row, len, position, sequence] = [0, 1, 2, 3].map(|i| words[i] as usize);
        Self { row, len, position, sequence }
    }
}

impl Indexable for Span {
    const WORDS: usize = 8;
    fn words(self) -> impl Iterator<Item = u32> {
        self.query.words().chain(self.key.words())
    }
    #[inline(always)]
    fn of(words: &[u32]) -> Self {
        let (query, key) = words.split_at(Segment::WORDS);
        Self { query: Segment::of(query), key: Segment::of(key) }
    }
}

/// Entries of an index that holds nothing else.
#[inline(always)]
pub(crate) fn entries<T: Indexable>(words: &[u32]) -> impl Iterator<Item = T> + Clone {
    words.chunks_exact(T::WORDS).map(T::of)
}

/// A list, and the index that kernels read: created on first use, and kept until the list changes.
pub struct Indexed<T, P: Place> {
    list: Vec<T>,
    index: OnceCell<Index<P>>,
}

impl<T, P: Place> Default for Indexed<T, P> {
    fn default() -> Self {
        Self { list: Vec::new(), index: OnceCell::new() }
    }
}

impl<T: Indexable, P: Place> From<Vec<T>> for Indexed<T, P> {
    fn from(list: Vec<T>) -> Self {
        Self { list, index: OnceCell::new() }
    }
}

impl<T: Indexable, P: Place> Indexed<T, P> {
    /// Returns the entries.
    pub fn list(&self) -> &[T] {
        &self.list
    }
    /// Returns the entries, to be changed; kernels then get a new index.
    pub fn change(&mut self) -> &mut Vec<T> {
        self.index.take();
        &mut self.list
    }
    /// Returns the entries, one after the other, where kernels of this place read them.
    ///
    /// # Panics
    /// With [`OutOfMemory`](tensor::OutOfMemory), if there is no memory for them.
    pub fn on(&self, place: &P) -> &Index<P> {
        let words = || self.list.iter().flat_map(|entry| entry.words());
        self.index.get_or_init(|| Index::new(place, self.list.len() * T::WORDS, words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Host;

    /// Kills: a number in another's place, an index that outlives a change of its list.
    #[test]
    fn entries_are_read_as_they_were_written() {
        let part = |n: usize| Segment { row: n, len: n + 1, position: n + 2, sequence: n + 3 };
        let span = |n| Span { query: part(n), key: part(n + 10) };
        let (place, mut spans) = (Host::default(), Indexed::from(vec![span(1), span(100)]));
        let read = |spans: &Indexed<_, _>| entries::<Span>(spans.on(&place).words()).collect::<Vec<_>>();
        assert_eq!(read(&spans), [span(1), span(100)]);
        spans.change().push(span(7));
        assert_eq!((read(&spans), spans.list().len()), (vec![span(1), span(100), span(7)], 3));
        assert_eq!(spans.on(&place).words()[..8], [1, 2, 3, 4, 11, 12, 13, 14]);
    }
}
