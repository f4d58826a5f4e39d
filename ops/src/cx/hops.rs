//! Hops of a ring: which keys each member sends to each other, and which of its queries see them. A member is
//! `block` consecutive context ranks, which have exchanged heads for tokens, or one rank. Keys that no query
//! of a member sees do not travel to it.
use kernels::{Indexed, Segment, Span};
use std::ops::Range;
use tensor::Place;

/// Consecutive tokens of one sequence on one context rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenStretch {
    /// Index of the sequence's part in the call.
    pub part: usize,
    /// The context rank.
    pub rank: usize,
    /// Position of the first token in its sequence.
    pub position: usize,
    /// Number of tokens.
    pub len: usize,
}

/// One hop on one member: hop `h` sends this member's keys to the `h`th after it, and receives those of the
/// `h`th before it. Hop 0 is its own.
pub struct Hop<P: Place> {
    /// Member that the keys go to.
    pub to: usize,
    /// Member whose keys arrive.
    pub from: usize,
    /// Rows of this member's keys that go there.
    pub give: Vec<Range<usize>>,
    /// Number of keys that arrive.
    pub take: usize,
    /// This member's queries, and the keys that arrived, which they see.
    pub spans: Indexed<Span, P>,
}

/// All hops of a member, and its tokens' rows.
pub struct Hops<P: Place> {
    /// Hops, the member's own first; empty in a call in which queries travel and keys do not.
    pub list: Vec<Hop<P>>,
    /// Number of queries of each member.
    pub queries: Vec<usize>,
    /// Rows of this member's new keys, and their positions in its cache.
    pub stored: Indexed<Segment, P>,
    /// The queries of all members, one member after the other, and the keys that this member holds, if
    /// queries travel.
    pub shared: Indexed<Span, P>,
}
