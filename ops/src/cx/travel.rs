//! The hops of a context: made from the tokens of all context ranks, and from those that their caches hold.
use super::hops::{Hop, Hops, TokenStretch};
use crate::PassContext;
use kernels::{Indexed, Kernels, Mask, Segment, Span};
use std::ops::Range;
use std::rc::Rc;

/// Appends a stretch to segments, joining it to the last one if it follows it. The number of a segment's
/// sequence is its part.
fn append(all: &mut Vec<Segment>, row: usize, of: TokenStretch) {
    let follows = |last: &&mut Segment| {
        let Segment { row: first, len, position, sequence } = **last;
        (sequence, position + len, first + len) == (of.part, of.position, row)
    };
    match all.last_mut().filter(follows) {
        Some(last) => last.len += of.len,
        None => all.push(Segment { row, len: of.len, position: of.position, sequence: of.part }),
    }
}

/// Returns the segments of one sequence, from a list in the order of sequences.
fn of_sequence(all: &[Segment], sequence: usize) -> &[Segment] {
    let [from, to] = [sequence, sequence + 1].map(|end| all.partition_point(|of| of.sequence < end));
    &all[from..to]
}

/// Returns the parts of `keys` that one of the queries sees, each once, in the order of their rows.
fn seen(mask: Mask, queries: &[Segment], keys: &[Segment]) -> Vec<Segment> {
    let mut stretches = Vec::new();
    for key in keys {
        let of = of_sequence(queries, key.sequence).iter();
        let mut ranges: Vec<_> = of.flat_map(|&query| mask.visible(&Span { query, key: *key })).collect();
        ranges.sort_unstable_by_key(|of| of.start);
        let mut end = 0;
        for of in ranges {
            let from = of.start.max(end);
            end = end.max(of.end);
            if from < of.end {
                let (part, position, len) = (key.sequence, key.position + from, of.end - from);
                append(&mut stretches, key.row + from, TokenStretch { part, rank: 0, position, len });
            }
        }
    }
    stretches
}

/// Returns the pairs of queries and keys of the same sequence that the mask lets through.
fn pairs(mask: Mask, queries: &[Segment], keys: &[Segment]) -> Vec<Span> {
    let of = |&query: &Segment| of_sequence(keys, query.sequence).iter().map(move |&key| Span { query, key });
    queries.iter().flat_map(of).filter(|span| mask.pairs(span) > 0).collect()
}

impl<D: Kernels> PassContext<D> {
    /// Returns the hops of members of `block` context ranks each, under a mask: made once for all layers.
    pub fn hops(&self, block: usize, mask: Mask) -> Rc<Hops<D::Place>> {
        let mut known = self.tokens.hops.borrow_mut();
        if let Some((_, hops)) = known.iter().find(|(of, _)| *of == (block, mask)) {
            return hops.clone();
        }
        let hops = Rc::new(self.hops_of(block, mask));
        known.push(((block, mask), hops.clone()));
        hops
    }
    fn hops_of(&self, block: usize, mask: Mask) -> Hops<D::Place> {
        let shards = self.tokens.shards;
        let [members, me] = [shards.context_ranks(), shards.context_rank()].map(|ranks| ranks / block);
        let queries: Vec<_> = (0..members).map(|member| self.queries_of(block, member)).collect();
        let (own, stored) = (self.keys_of(block, me), self.stored_by(block, me));
        let hop = |h: usize| {
            let [to, from] = [me + h, me + members - h].map(|member| member % members);
            if h == 0 {
                let spans = self.numbered(pairs(mask, &queries[me], &own));
                return Hop { to, from, give: Vec::new(), take: 0, spans };
            }
            let give = seen(mask, &queries[to], &own).iter().map(|of| of.row..of.row + of.len).collect();
            let mut take = 0;
            let mut arrived = seen(mask, &queries[me], &self.keys_of(block, from));
            for key in &mut arrived {
                key.row = take;
                take += key.len;
            }
            Hop { to, from, give, take, spans: self.numbered(pairs(mask, &queries[me], &arrived)) }
        };
        let number = |of: &Vec<Segment>| of.iter().map(|of| of.len).sum::<usize>();
        let counts = queries.iter().map(number).collect();
        if self.decodes() {
            let shared = self.numbered(shared(mask, &queries, &own));
            return Hops { list: Vec::new(), queries: counts, stored, shared };
        }
        Hops { list: (0..members).map(hop).collect(), queries: counts, stored, shared: Indexed::default() }
    }
    /// Replaces the parts of spans by the numbers of their sequences in the step.
    fn numbered(&self, mut spans: Vec<Span>) -> Indexed<Span, D::Place> {
        for of in spans.iter_mut().flat_map(|span| [&mut span.query, &mut span.key]) {
            of.sequence = self.parts()[of.sequence].sequence;
        }
        spans.into()
    }
    /// True if each sequence has at most one new token, whose query then travels to the keys in the caches of
    /// all ranks: fewer bytes than the keys.
    pub(crate) fn decodes(&self) -> bool {
        self.tokens.goes_on() && !self.pass().keeps && self.parts().iter().all(|part| part.len <= 1)
    }
    /// Returns a member's queries, by part and position.
    fn queries_of(&self, block: usize, member: usize) -> Vec<Segment> {
        let (mut segments, mut row) = (Vec::new(), 0);
        for &of in self.tokens.dealt.iter().filter(|of| of.rank / block == member) {
            append(&mut segments, row, of);
            row += of.len;
        }
        segments
    }
    /// Returns the keys of a member, by part and position: those of its queries, or all in its cache.
    fn keys_of(&self, block: usize, member: usize) -> Vec<Segment> {
        let Some(rows) = self.past().map(|past| past.room_of(block, member)) else {
            return self.queries_of(block, member);
        };
        let all = self.tokens.held.iter().chain(&self.tokens.dealt);
        let mut held: Vec<TokenStretch> = all.filter(|of| of.rank / block == member).copied().collect();
        held.sort_by_key(|of| of.part); // stable: earlier calls first
        let (mut keys, mut next) = (Vec::new(), (0, 0));
        for of in held {
            next = if next.0 == of.part { next } else { (of.part, 0) };
            append(&mut keys, of.part * rows + next.1, of);
            next.1 += of.len;
        }
        keys
    }
    /// Returns the rows of this call's keys, and their positions in the cache of a block.
    pub(crate) fn stored(&self) -> &Indexed<Segment, D::Place> {
        &self.tokens.stored
    }
    /// Returns the rows of a member's new keys, and their positions in its cache.
    fn stored_by(&self, block: usize, member: usize) -> Indexed<Segment, D::Place> {
        let Some(rows) = self.past().map(|past| past.room_of(block, member)) else {
            return Indexed::default();
        };
        let mut row = 0;
        let of_part = |part| {
            let stored = self.tokens.dealt.iter().filter(|of| of.part == part && of.rank / block == member);
            let len: usize = stored.map(|of| of.len).sum();
            row += len;
            let held = self.tokens.held_by(part, member * block..(member + 1) * block);
            Segment { row: row - len, len, position: part * rows + held, sequence: part }
        };
        (0..self.parts().len()).map(of_part).collect::<Vec<_>>().into()
    }
    /// Returns the rows of a rank's tokens among the queries of this rank's member, of `block` ranks.
    pub(crate) fn rows_in_member(&self, block: usize, rank: usize) -> impl Iterator<Item = Range<usize>> {
        let member = self.tokens.shards.context_rank() / block;
        let mut row = 0;
        let rows = self.tokens.dealt.iter().filter(move |of| of.rank / block == member).map(move |of| {
            row += of.len;
            (of.rank % block, row - of.len..row)
        });
        rows.filter(move |(of, _)| *of == rank).map(|(_, rows)| rows)
    }
}

/// Returns the queries of all members, one member after the other, each with the keys in this member's cache
/// that it sees. These have consecutive rows in the order of their positions; the positions of the span are
/// any that the mask lets through, since nothing else depends on them.
fn shared(mask: Mask, queries: &[Vec<Segment>], keys: &[Segment]) -> Vec<Span> {
    let (mut spans, mut row) = (Vec::new(), 0);
    for &query in queries.iter().flatten() {
        let query = Segment { row, ..query };
        row += query.len;
        let mine = of_sequence(keys, query.sequence);
        let Some(first) = mine.first().map(|key| key.row) else { continue };
        let before = |position: usize| -> usize {
            mine.iter().map(|key| position.saturating_sub(key.position).min(key.len)).sum()
        };
        let end = query.position + 1;
        let (sinks, from) = match mask {
            Mask::All | Mask::Causal => (0, 0),
            Mask::Window { size, sinks } => (before(sinks), before(end.saturating_sub(size))),
        };
        // two spans even where their rows touch: keys between them may be on another member
        let ranges = [0..sinks, from.max(sinks)..before(query.position + 1)];
        for (of, position) in ranges.into_iter().zip([0, end]).filter(|(of, _)| !of.is_empty()) {
            let position = if position == 0 { 0 } else { position - of.len() };
            spans.push(Span {
                query,
                key: Segment { row: first + of.start, len: of.len(), position, ..query },
            });
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TokenShards, contiguous};
    use kernels::Meta;

    /// Contexts of all ranks in a generation: prompts of 7 and 2 tokens, then new tokens, at last of one
    /// sequence.
    fn generation(ranks: usize) -> Vec<PassContext<Meta<f32>>> {
        let of_rank = |rank| {
            let shards = TokenShards::new([1, ranks], contiguous).of_context_rank(rank);
            let mut cx = PassContext::infer([7, 2]).sharded(shards).with_cache(12);
            for lengths in [[1, 1], [1, 1], [2, 1], [1, 0]] {
                cx.advance(&lengths);
            }
            cx
        };
        (0..ranks).map(of_rank).collect()
    }

    /// Kills: a new token on a rank that holds more than another, on two ranks or on none; rows that two
    /// tokens have, or that lie in another sequence's room; a cache with room for all tokens on every rank.
    #[test]
    fn ranks_hold_as_many_keys_as_each_other_in_rows_of_their_own() {
        for ranks in [2, 3, 5] {
            let all = generation(ranks);
            for (part, tokens) in [12, 5].into_iter().enumerate() {
                let of_rank = |cx: &PassContext<Meta<f32>>, rank| -> Vec<Segment> {
                    of_sequence(&cx.keys_of(1, rank), part).to_vec()
                };
                let mut positions = Vec::new();
                for (rank, cx) in all.iter().enumerate() {
                    let keys = of_rank(cx, rank);
                    assert_eq!(keys, of_rank(&all[0], rank), "ranks agree on what rank {rank} holds");
                    let room = cx.past().unwrap().room_of(1, rank);
                    assert!(room <= 12usize.div_ceil(ranks), "{room} rows of {ranks} ranks");
                    let held: usize = keys.iter().map(|of| of.len).sum();
                    assert!(held.abs_diff(tokens / ranks) <= 1, "rank {rank} of {ranks} holds {held}");
                    assert!(held <= room, "{held} rows in a room of {room}");
                    let rows = keys.iter().flat_map(|of| of.row..of.row + of.len);
                    assert!(rows.eq(part * room..part * room + held), "{keys:?}");
                    positions.extend(keys.iter().flat_map(|of| of.position..of.position + of.len));
                }
                positions.sort_unstable();
                assert!(positions.into_iter().eq(0..tokens), "each token is held once");
            }
        }
    }

    /// Kills: keys of later tokens, of tokens that a window hides, or of none in the place of all; parts that
    /// do not add up to what one rank has; a key that is hidden because those between it and the next are on
    /// another rank.
    #[test]
    fn new_tokens_see_what_they_see_on_one_rank() {
        let window = |size: usize, sinks: usize| (Mask::Window { size, sinks }, 12.min(size + sinks));
        let windows = (1..13).flat_map(|size| (0..6).map(move |sinks| window(size, sinks)));
        for (mask, wanted) in [(Mask::Causal, 12), (Mask::All, 12)].into_iter().chain(windows) {
            for ranks in [2, 3, 5] {
                let seen = |cx: &PassContext<Meta<f32>>| -> usize {
                    let hops = cx.hops(1, mask);
                    assert!(hops.list.is_empty() && hops.queries.iter().sum::<usize>() == 1);
                    hops.shared.list().iter().map(|span| mask.pairs(span)).sum()
                };
                assert_eq!(generation(ranks).iter().map(seen).sum::<usize>(), wanted, "{mask:?}, {ranks}");
            }
        }
    }
}
