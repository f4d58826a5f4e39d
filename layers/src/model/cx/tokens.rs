//! The tokens of a call: the rows and positions of each sequence, and the keys that its queries see. Kernels
//! read these as device indices, made once per microbatch.
use super::shards::TokenShards;
use kernels::{Indexed, Segment, Span};
use tensor::Place;

/// Tokens, one sequence after the other.
pub(crate) struct Tokens<P: Place> {
    first: usize, // number of the first sequence in the step
    pub(super) shards: TokenShards,
    // this call's part of each sequence on all ranks; rows counted over all ranks
    pub(super) parts: Vec<Segment>,
    pub(super) of: Vec<usize>, // index of the part, for each segment of queries
    pub(super) queries: Indexed<Segment, P>, // this rank's
    pub(super) spans: Indexed<Span, P>,
    pub(super) memory: Indexed<Span, P>,
    memory_lengths: Vec<usize>,      // one per sequence, or empty
    pub(super) of_ranks: Vec<usize>, // lengths of the parts of all data ranks, if set
    pub(super) parts_of: Vec<usize>, // number of parts of each data rank
}

impl<P: Place> Default for Tokens<P> {
    fn default() -> Self {
        let (queries, spans, memory) = (Indexed::default(), Indexed::default(), Indexed::default());
        let (shards, parts, of) = (TokenShards::WHOLE, Vec::new(), Vec::new());
        let (memory_lengths, of_ranks, parts_of) = (Vec::new(), Vec::new(), Vec::new());
        Self { first: 0, shards, parts, of, queries, spans, memory, memory_lengths, of_ranks, parts_of }
    }
}

impl<P: Place> Tokens<P> {
    /// Starts over, with sequences of these lengths.
    pub(crate) fn begin(&mut self, lengths: impl Iterator<Item = usize>) {
        let first = |(sequence, len)| Segment { row: 0, len, position: 0, sequence };
        self.deal(lengths.enumerate().map(first));
    }
    /// Starts over, with these parts of sequences, one after the other.
    pub(crate) fn deal(&mut self, parts: impl Iterator<Item = Segment>) {
        self.parts.clear();
        self.parts.extend(parts);
        self.first = 0;
        self.memory_lengths.clear();
        self.parts_of.clear();
        self.place(None);
    }
    /// Sets the lengths of the parts of each data rank.
    pub(crate) fn among<L: IntoIterator<Item = usize>>(&mut self, lengths: impl IntoIterator<Item = L>) {
        self.of_ranks.clear();
        self.parts_of.clear();
        for lengths in lengths {
            let before = self.of_ranks.len();
            self.of_ranks.extend(lengths);
            self.parts_of.push(self.of_ranks.len() - before);
        }
    }
    /// Numbers the sequences within the step, from `first` on.
    pub(crate) fn number_from(&mut self, first: usize) {
        let by = first as isize - self.first as isize;
        self.first = first;
        let spans = self.spans.change().iter_mut().chain(self.memory.change());
        let spans = spans.flat_map(|s| [&mut s.query, &mut s.key]);
        let all = spans.chain(self.queries.change()).chain(&mut self.parts);
        all.for_each(|t| t.sequence = t.sequence.wrapping_add_signed(by));
    }
    /// Gives each sequence a memory of this number of tokens.
    pub(crate) fn remember(&mut self, lengths: &[usize]) {
        assert_eq!(lengths.len(), self.parts.len(), "a memory needs one length per sequence");
        assert!(lengths.iter().all(|n| *n > 0), "a memory has no tokens");
        self.memory_lengths = lengths.to_vec();
        self.place_memory();
    }
    /// Pairs each sequence's queries with its memory.
    fn place_memory(&mut self) {
        let mut row = 0;
        let first = |&len: &usize| {
            row += len;
            row - len
        };
        let rows: Vec<usize> = self.memory_lengths.iter().map(first).collect();
        let memory = self.memory.change();
        memory.clear();
        for (query, &part) in self.queries.list().iter().zip(&self.of).filter(|(query, _)| query.len > 0) {
            if let Some(&len) = self.memory_lengths.get(part) {
                let key = Segment { row: rows[part], len, position: 0, sequence: query.sequence };
                memory.push(Span { query: *query, key });
            }
        }
    }
    /// Moves on to the next tokens of the same sequences.
    pub(crate) fn advance(&mut self, lengths: &[usize], capacity: Option<usize>) {
        assert_eq!(lengths.len(), self.parts.len(), "a call needs one length per sequence");
        self.parts_of.clear();
        for (part, &len) in self.parts.iter_mut().zip(lengths) {
            (part.position, part.len) = (part.position + part.len, len);
        }
        self.place(capacity);
    }
    /// Assigns rows to each sequence's tokens, and the keys that they see: the keys of all ranks in the order
    /// of the parts, or those of a cache with `capacity` rows for each sequence.
    pub(crate) fn place(&mut self, capacity: Option<usize>) {
        let (mut row, mut of_all) = (0, 0);
        let (queries, spans) = (self.queries.change(), self.spans.change());
        queries.clear();
        spans.clear();
        self.of.clear();
        for (b, part) in self.parts.iter_mut().enumerate() {
            part.row = of_all;
            of_all += part.len;
            let key = match capacity {
                None => *part,
                Some(capacity) => {
                    let len = part.position + part.len;
                    assert!(len <= capacity, "{len} tokens do not fit a cache of {capacity}");
                    Segment { row: b * capacity, len, position: 0, sequence: part.sequence }
                }
            };
            for own in self.shards.segments(*part) {
                let query = Segment { row, ..own };
                row += query.len;
                queries.push(query);
                self.of.push(b);
                if query.len > 0 {
                    spans.push(Span { query, key });
                }
            }
        }
        self.place_memory();
    }
}
