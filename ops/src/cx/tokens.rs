//! The tokens of a call: the rows and positions of each sequence, and the keys that its queries see. Kernels
//! read these as device indices, made once per microbatch.
use super::hops::{Hops, TokenStretch};
use super::shards::TokenShards;
use kernels::{Indexed, Mask, Segment, Span};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use tensor::Place;

/// Tokens, one sequence after the other.
pub(crate) struct Tokens<P: Place> {
    first: usize, // number of the first sequence in the step
    pub(super) shards: TokenShards,
    // this call's part of each sequence on all ranks; rows counted over all ranks
    pub(super) parts: Vec<Segment>,
    pub(super) dealt: Vec<TokenStretch>, // of all context ranks, by part and position
    pub(super) held: Vec<TokenStretch>,  // of earlier calls, if context ranks share a cache
    holders: Vec<usize>,                 // tokens in these caches, by part and context rank
    continued: bool,                     // the call goes on where the last one ended
    pub(super) hops: RefCell<Vec<((usize, Mask), Rc<Hops<P>>)>>, // made on first use
    pub(super) of: Vec<usize>,           // index of the part, for each segment of queries
    pub(super) queries: Indexed<Segment, P>, // this rank's
    pub(super) spans: Indexed<Span, P>,
    pub(super) stored: Indexed<Segment, P>, // rows of all ranks' new keys, their positions in the cache
    pub(super) memory: Indexed<Span, P>,
    memory_lengths: Vec<usize>,      // one per sequence, or empty
    pub(super) of_ranks: Vec<usize>, // lengths of the parts of all data ranks, if set
    pub(super) parts_of: Vec<usize>, // number of parts of each data rank
    pub(super) numbers: RefCell<Option<Rc<Vec<TokenRuns>>>>, // of all ranks' tokens, made on first use
}

/// Token numbers, in runs of consecutive ones.
pub(super) type TokenRuns = Vec<Range<usize>>;

impl<P: Place> Default for Tokens<P> {
    fn default() -> Self {
        Self {
            first: 0,
            shards: TokenShards::WHOLE,
            parts: Vec::new(),
            dealt: Vec::new(),
            held: Vec::new(),
            holders: Vec::new(),
            continued: false,
            hops: RefCell::default(),
            of: Vec::new(),
            queries: Indexed::default(),
            spans: Indexed::default(),
            stored: Indexed::default(),
            memory: Indexed::default(),
            memory_lengths: Vec::new(),
            of_ranks: Vec::new(),
            parts_of: Vec::new(),
            numbers: RefCell::default(),
        }
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
        self.numbers.take();
        self.held.clear();
        self.holders.clear();
        self.continued = false;
        self.place(None);
    }
    /// Sets the lengths of the parts of each data rank.
    pub(crate) fn among<L: IntoIterator<Item = usize>>(&mut self, lengths: impl IntoIterator<Item = L>) {
        self.of_ranks.clear();
        self.parts_of.clear();
        self.numbers.take();
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
        self.hops.get_mut().clear();
        let spans = self.spans.change().iter_mut().chain(self.memory.change());
        let spans = spans.flat_map(|s| [&mut s.query, &mut s.key]);
        let segments = spans.chain(self.queries.change()).chain(&mut self.parts);
        segments.for_each(|t| t.sequence = t.sequence.wrapping_add_signed(by));
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
        self.numbers.take();
        self.hold(None);
        self.continued = true;
        for (part, &len) in self.parts.iter_mut().zip(lengths) {
            (part.position, part.len) = (part.position + part.len, len);
        }
        self.place(capacity);
    }
    /// Counts the tokens of the last call, of these contexts or of `others`, as held in the ranks' caches.
    pub(crate) fn hold(&mut self, others: Option<&Self>) {
        let ranks = self.shards.context_ranks();
        if ranks == 1 {
            return;
        }
        if let Some(others) = others {
            self.held.clone_from(&others.held);
            self.holders.clone_from(&others.holders);
        }
        self.holders.resize(self.parts.len() * ranks, 0);
        for of in &others.map_or(&self.dealt, |others| &others.dealt)[..] {
            self.holders[of.part * ranks + of.rank] += of.len;
            self.held.push(*of);
        }
    }
    /// Number of tokens of a part that these context ranks hold from earlier calls.
    pub(super) fn held_by(&self, part: usize, ranks: Range<usize>) -> usize {
        let first = part * self.shards.context_ranks();
        self.holders.get(first + ranks.start..first + ranks.end).map_or(0, |held| held.iter().sum())
    }
    /// True if the call goes on where the last one ended.
    pub(crate) fn goes_on(&self) -> bool {
        self.continued
    }
    /// Returns the rows that each context rank needs for one sequence in its cache, if sequences grow to
    /// `capacity` tokens.
    pub(crate) fn rooms(&self, capacity: usize) -> Vec<usize> {
        let ranks = self.shards.context_ranks();
        let mut rooms = vec![capacity.div_ceil(ranks); ranks];
        for of in self.dealt.chunk_by(|a, b| a.part == b.part) {
            for (rank, room) in rooms.iter_mut().enumerate() {
                *room = (*room).max(of.iter().filter(|of| of.rank == rank).map(|of| of.len).sum());
            }
        }
        rooms
    }
    /// Deals this call's tokens over the context ranks. Tokens that go on go to the ranks that hold the
    /// fewest of their sequence, so that no cache needs more rows than another; ranks that hold as many take
    /// turns, sequence by sequence.
    fn share_out(&mut self) {
        let ranks = self.shards.context_ranks();
        self.dealt.clear();
        self.hops.get_mut().clear();
        for (part, of) in self.parts.iter().enumerate() {
            let (from, mut position) = (self.dealt.len(), of.position);
            if ranks > 1 && self.continued {
                let held = &self.holders[part * ranks..(part + 1) * ranks];
                let level = (held.iter().sum::<usize>() + of.len).div_ceil(ranks);
                let mut order: Vec<usize> = (0..ranks).collect();
                order.sort_unstable_by_key(|rank| (held[*rank], (rank + ranks - part % ranks) % ranks));
                for rank in order {
                    let len = level.saturating_sub(held[rank]).min(of.position + of.len - position);
                    self.dealt.extend((len > 0).then_some(TokenStretch { part, rank, position, len }));
                    position += len;
                }
                continue;
            }
            for rank in 0..ranks {
                let stretches = self.shards.stretches_of(rank, of.len).filter(|own| !own.is_empty());
                let first = of.position;
                self.dealt.extend(stretches.map(|own| TokenStretch {
                    part,
                    rank,
                    position: first + own.start,
                    len: own.len(),
                }));
            }
            self.dealt[from..].sort_unstable_by_key(|of| of.position);
        }
    }
    /// Assigns rows to each sequence's tokens, and the keys that they see: the keys of all ranks in the order
    /// of the parts, or those of a cache with `capacity` rows for each sequence.
    pub(crate) fn place(&mut self, capacity: Option<usize>) {
        self.share_out();
        let (mut row, mut of_all, mut dealt) = (0, 0, self.dealt.iter().peekable());
        let (queries, spans, stored) = (self.queries.change(), self.spans.change(), self.stored.change());
        queries.clear();
        spans.clear();
        stored.clear();
        self.of.clear();
        for (b, part) in self.parts.iter_mut().enumerate() {
            part.row = of_all;
            of_all += part.len;
            let in_cache = |capacity| Segment { position: b * capacity + part.position, ..*part };
            stored.extend(capacity.map(in_cache));
            let key = match capacity {
                None => *part,
                Some(capacity) => {
                    let len = part.position + part.len;
                    assert!(len <= capacity, "{len} tokens do not fit a cache of {capacity}");
                    Segment { row: b * capacity, len, position: 0, sequence: part.sequence }
                }
            };
            let first = queries.len();
            while let Some(own) = dealt.next_if(|of| of.part == b) {
                if own.rank == self.shards.context_rank() {
                    let query = Segment { row, len: own.len, position: own.position, ..*part };
                    row += query.len;
                    queries.push(query);
                    spans.push(Span { query, key });
                }
            }
            if queries.len() == first {
                queries.push(Segment { row, len: 0, ..*part });
            }
            self.of.resize(queries.len(), b);
        }
        self.place_memory();
    }
}
