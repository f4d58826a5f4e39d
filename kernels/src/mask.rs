//! Attention masks: by position, by row of a span, by tiles of rows, and the number of visible pairs.
use shape::Window;
use std::ops::Range;

/// Queries of one sequence and the keys that they may see: their rows, and their positions in the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Rows of the queries.
    pub query: Segment,
    /// Rows of the keys and values.
    pub key: Segment,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Row of the first token.
    pub row: usize,
    /// Number of tokens.
    pub len: usize,
    /// Position of the first token in its sequence.
    pub position: usize,
    /// Number of the sequence in the step, by which dropout distinguishes sequences.
    pub sequence: usize,
}

/// Mask: the keys of its sequence that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All keys: an encoder, or the memory of a cross-attention.
    All,
    /// Keys at positions up to the query's own.
    Causal,
    /// The last `size` of the causal keys (the query's own among them), and the first `sinks` of them.
    /// Source: Beltagy et al., "Longformer", §3.1, arXiv:2004.05150; Xiao et al., "attention sinks", §3.2,
    /// arXiv:2309.17453.
    Window {
        /// Number of positions back, the query's own included.
        size: usize,
        /// Number of keys at the start that stay visible.
        sinks: usize,
    },
}

impl Mask {
    /// Returns the mask of a model's block with this window, or without one.
    pub fn of(window: Option<Window>) -> Self {
        window.map_or(Self::Causal, |Window { size, sinks }| Self::Window { size, sinks })
    }
    /// True if the query at position `query` sees the key at position `key`.
    #[inline(always)]
    pub fn sees(self, query: usize, key: usize) -> bool {
        match self {
            Mask::All => true,
            Mask::Causal => key <= query,
            Mask::Window { size, sinks } => key <= query && (query - key < size || key < sinks),
        }
    }
    /// Counts the pairs of a span's queries and keys that see each other, in constant time.
    pub fn pairs(self, span: &Span) -> usize {
        let first_key = span.key.position;
        match self {
            Mask::All => span.query.len * span.key.len,
            Mask::Causal => before(span, 0, first_key),
            Mask::Window { size, sinks } => {
                before(span, 0, first_key) - before(span, size, first_key.max(sinks))
            }
        }
    }
    /// Returns the ranges of the span's keys that at least one of its queries sees.
    pub fn visible(self, span: &Span) -> impl Iterator<Item = Range<usize>> + use<> {
        let blocks =
            (span.query.len > 0).then(|| self.blocks(span, 0..span.query.len, [span.key.len.max(1), 1]));
        blocks.into_iter().flatten()
    }
    /// Returns the span's keys that its query `i` sees.
    #[inline(always)]
    pub(crate) fn seen(self, span: &Span, i: usize) -> VisibleKeys {
        let end = span.query.position + i + 1;
        let row = |position: usize| position.saturating_sub(span.key.position).min(span.key.len);
        match self {
            Mask::All => VisibleKeys { sinks: 0, from: 0, to: span.key.len },
            Mask::Causal => VisibleKeys { sinks: 0, from: 0, to: row(end) },
            Mask::Window { size, sinks } => {
                VisibleKeys { sinks: row(sinks), from: row(end.saturating_sub(size)), to: row(end) }.joined()
            }
        }
    }
    /// Returns the span's keys that at least one of these queries sees, in tiles of at most `most` keys,
    /// which begin at multiples of `align`: a tile may also hold some keys before them that no query sees.
    #[inline(always)]
    pub(crate) fn blocks(
        self,
        span: &Span,
        queries: Range<usize>,
        [most, align]: [usize; 2],
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let [first, last] = [queries.start, queries.end - 1].map(|query| self.seen(span, query));
        let VisibleKeys { sinks, from, to } =
            VisibleKeys { from: first.from / align * align, ..last }.joined();
        let cut = move |r: Range<usize>| r.clone().step_by(most).map(move |at| at..r.end.min(at + most));
        cut(0..sinks).chain(cut(from..to))
    }
}

/// Counts pairs whose key is at `first_key` or after it, and `back` positions or more before its query.
fn before(span: &Span, back: usize, first_key: usize) -> usize {
    let Span { query, key } = *span;
    let most = (key.position + key.len).saturating_sub(first_key) as i128;
    // Query i has min(first + i, most) such keys, and none if that is negative.
    let first = query.position as i128 + 1 - back as i128 - first_key as i128;
    let sum_below = |end: i128| {
        let rising = end.clamp(0, most + 1); // 0 + 1 + … + most, then most each
        rising * (rising - 1) / 2 + (end - rising).max(0) * most
    };
    (sum_below(first + query.len as i128) - sum_below(first)) as usize
}

/// Rows of visible keys: `..sinks` and `from..to`; a gap lies between them if `sinks` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VisibleKeys {
    sinks: usize,
    from: usize,
    to: usize,
}

impl VisibleKeys {
    /// Merges the sinks with the other keys if they touch.
    #[inline(always)]
    fn joined(self) -> Self {
        if self.from <= self.sinks { Self { sinks: 0, from: 0, to: self.to } } else { self }
    }
    /// Returns the same rows in a tile of keys, counted from its start.
    #[inline(always)]
    pub(crate) fn within(self, block: &Range<usize>) -> Self {
        let row = |at: usize| at.clamp(block.start, block.end) - block.start;
        Self { sinks: row(self.sinks), from: row(self.from), to: row(self.to) }
    }
    /// True if no key is visible.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.sinks == 0 && self.from >= self.to
    }
    /// Overwrites the entries of hidden keys.
    #[inline(always)]
    pub(crate) fn hide<S: Copy>(self, row: &mut [S], hidden: S) {
        row[self.sinks..self.from].fill(hidden);
        row[self.to..].fill(hidden);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    /// Every mask on spans whose queries begin before, among and after their keys.
    fn cases() -> impl Iterator<Item = (Mask, Span)> {
        let windows = [(1, 0), (2, 0), (3, 2), (4, 9), (50, 1), (usize::MAX, usize::MAX)];
        let windows = windows.map(|(size, sinks)| Mask::Window { size, sinks });
        let masks = [Mask::All, Mask::Causal].into_iter().chain(windows);
        let ends = [(0, 0), (0, 1), (0, 9), (2, 1), (3, 5), (7, 4), (20, 3)];
        let tokens = ends.map(|(position, len)| Segment { row: 40, len, position, sequence: 0 });
        let spans = tokens.into_iter().flat_map(move |query| tokens.map(|key| Span { query, key }));
        let spans: Vec<Span> = spans.collect();
        masks.flat_map(move |mask| spans.clone().into_iter().map(move |span| (mask, span)))
    }

    fn sees(mask: Mask, span: &Span, i: usize, key: usize) -> bool {
        mask.sees(span.query.position + i, span.key.position + key)
    }

    /// Kills: a diagonal counted twice or not, sinks that are in the window, too, counted again, a sum that
    /// forgets that a sequence has a begin.
    #[test]
    fn pairs_equal_pairs_counted_one_by_one() {
        for (mask, span) in cases() {
            let seen = |i| (0..span.key.len).filter(|&key| sees(mask, &span, i, key)).count();
            let counted: usize = (0..span.query.len).map(seen).sum();
            assert_eq!(mask.pairs(&span), counted, "{mask:?} {span:?}");
        }
    }

    /// A price asks for sequences of any length. Kills: a walk over queries and keys, of years.
    #[test]
    fn pairs_of_two_billion_queries_take_no_time() {
        let len = 1 << 31;
        let tokens = |position| Segment { row: 0, len, position, sequence: 0 };
        let span = Span { query: tokens(len), key: tokens(0) };
        let window = Mask::Window { size: len, sinks: 0 };
        assert_eq!(window.pairs(&span), (len - 1) * (len / 2));
    }

    /// Kills: a bound that is off by one, positions taken for rows, sinks hidden with what lies before the
    /// window.
    #[test]
    fn what_is_not_hidden_is_what_is_seen() {
        for (mask, span) in cases() {
            for (i, start) in (0..span.query.len).flat_map(|i| (0..span.key.len).map(move |start| (i, start)))
            {
                for block in [start..start + 1, start..span.key.len, start..span.key.len.min(start + 3)] {
                    let mut row: Vec<Option<usize>> = block.clone().map(Some).collect();
                    let seen = mask.seen(&span, i).within(&block);
                    seen.hide(&mut row, None);
                    let wanted: Vec<Option<usize>> =
                        block.clone().map(|key| Some(key).filter(|&key| sees(mask, &span, i, key))).collect();
                    assert_eq!(row, wanted, "{mask:?} {span:?}, query {i}, {block:?}");
                    assert_eq!(seen.is_empty(), wanted.iter().all(Option::is_none), "{seen:?} of {wanted:?}");
                }
            }
        }
    }

    /// Kills: keys lost or taken twice, and keys visited that no query sees (but for those that an alignment
    /// takes along): a window's speed.
    #[test]
    fn blocks_hold_what_is_seen_once_and_nothing_else() {
        for (mask, span) in cases() {
            for (first, n) in (0..span.query.len).flat_map(|first| [(first, 1), (first, 2), (first, 5)]) {
                let queries = first..span.query.len.min(first + n);
                for [most, align] in [[1, 1], [3, 1], [100, 1], [3, 3], [4, 2], [100, 5]] {
                    let blocks: Vec<Range<usize>> =
                        mask.blocks(&span, queries.clone(), [most, align]).collect();
                    assert!(blocks.iter().all(|b| !b.is_empty() && b.len() <= most), "{blocks:?}");
                    assert!(blocks.iter().all(|b| b.start.is_multiple_of(align)), "{blocks:?}");
                    let visited: Vec<usize> = blocks.iter().cloned().flatten().collect();
                    assert!(visited.is_sorted_by(|a, b| a < b), "{blocks:?}");
                    let seen = |key: &usize| queries.clone().any(|i| sees(mask, &span, i, *key));
                    let wanted: Vec<usize> = (0..span.key.len).filter(seen).collect();
                    let unseen = visited.iter().filter(|v| !wanted.contains(v)).count();
                    assert_eq!(
                        visited.len(),
                        wanted.len() + unseen,
                        "{mask:?} {span:?}, queries {queries:?}"
                    );
                    assert!(unseen < align, "{unseen} keys too many by {align}");
                }
            }
        }
    }
}
