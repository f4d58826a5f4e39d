//! The tokens of a call: which rows and positions each sequence has, and what its queries may look at. Kernels read all of
//! this as device indices, which are made once a microbatch.
use kernels::{Indexed, Segment, Span};
use tensor::{Index, Place};

/// Tokens, one sequence after the other.
pub struct Tokens<P: Place> {
    first: usize, // number of the first sequence in the step
    queries: Indexed<Segment, P>,
    spans: Indexed<Span, P>,
    memory: Indexed<Span, P>,
    memory_lengths: Vec<usize>, // one for each sequence, or none
    pub(crate) of_ranks: Vec<usize>,
}

impl<P: Place> Default for Tokens<P> {
    fn default() -> Self {
        let (queries, spans, memory) = (Indexed::default(), Indexed::default(), Indexed::default());
        Self { first: 0, queries, spans, memory, memory_lengths: Vec::new(), of_ranks: Vec::new() }
    }
}

impl<P: Place> Tokens<P> {
    /// Begins anew, with sequences of these lengths.
    pub(crate) fn begin(&mut self, lengths: impl Iterator<Item = usize>) {
        let first = |(sequence, len)| Segment { row: 0, len, position: 0, sequence };
        self.deal(lengths.enumerate().map(first));
    }
    /// Begins anew, with these parts of sequences, one after the other.
    pub(crate) fn deal(&mut self, parts: impl Iterator<Item = Segment>) {
        let tokens = self.queries.change();
        tokens.clear();
        tokens.extend(parts);
        self.first = 0;
        self.memory_lengths.clear();
        self.of_ranks.clear();
        self.place(None);
    }
    /// Numbers sequences from this one of the step's.
    pub(crate) fn number_from(&mut self, first: usize) {
        let by = first as isize - self.first as isize;
        self.first = first;
        let spans = self.spans.change().iter_mut().chain(self.memory.change());
        let spans = spans.flat_map(|s| [&mut s.query, &mut s.key]);
        spans.chain(self.queries.change()).for_each(|t| t.sequence = t.sequence.wrapping_add_signed(by));
    }
    /// Gives each sequence a memory of so many tokens.
    pub(crate) fn remember(&mut self, lengths: &[usize]) {
        assert_eq!(lengths.len(), self.list().len(), "a memory for each sequence");
        assert!(lengths.iter().all(|n| *n > 0), "a memory without tokens");
        self.memory_lengths = lengths.to_vec();
        self.place_memory();
    }
    /// Puts each sequence's queries before its memory.
    fn place_memory(&mut self) {
        let mut row = 0;
        let memory = self.memory.change();
        memory.clear();
        for (query, &len) in self.queries.list().iter().zip(&self.memory_lengths) {
            let key = Segment { row, len, position: 0, sequence: query.sequence };
            row += len;
            if query.len > 0 {
                memory.push(Span { query: *query, key });
            }
        }
    }
    /// Goes on to the next tokens of the same sequences.
    pub(crate) fn advance(&mut self, lengths: &[usize], capacity: Option<usize>) {
        assert_eq!(lengths.len(), self.list().len(), "the same sequences go on");
        self.of_ranks.clear();
        for (tokens, &len) in self.queries.change().iter_mut().zip(lengths) {
            (tokens.position, tokens.len) = (tokens.position + tokens.len, len);
        }
        self.place(capacity);
    }
    /// Gives each sequence's tokens their rows, and the keys they may look at: their own, or those of a cache that has
    /// `capacity` rows for each sequence.
    pub(crate) fn place(&mut self, capacity: Option<usize>) {
        let (mut row, spans) = (0, self.spans.change());
        spans.clear();
        for (b, query) in self.queries.change().iter_mut().enumerate() {
            query.row = row;
            row += query.len;
            let key = match capacity {
                None => *query,
                Some(capacity) => {
                    let len = query.position + query.len;
                    assert!(len <= capacity, "{len} tokens in a cache of {capacity}");
                    Segment { row: b * capacity, len, position: 0, sequence: query.sequence }
                }
            };
            if query.len > 0 {
                spans.push(Span { query: *query, key });
            }
        }
        self.place_memory();
    }
    /// Each sequence's tokens.
    pub fn list(&self) -> &[Segment] {
        self.queries.list()
    }
    /// The tokens, where kernels read them.
    pub(crate) fn on(&self, place: &P) -> &Index<P> {
        self.queries.on(place)
    }
    /// Which queries see which keys.
    pub(crate) fn spans(&self) -> &Indexed<Span, P> {
        &self.spans
    }
    /// Each sequence's tokens, and its memory's.
    pub(crate) fn memory(&self) -> &Indexed<Span, P> {
        &self.memory
    }
}
