//! One call of a rank; it displays as a sentence with the place in the code.
pub(crate) mod windows;

use crate::call::windows::{Join, join_of, joined, joins, share};
use crate::static_name::{StaticName, lasting};
use crate::{Axes, Ranks, Tag};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use tensor::{Device, Scalar, Tensor};

tensor::listed! {
    /// Operation of the ranks of a group.
    Op {
        /// Every rank gets the reduction over all ranks.
        AllReduce = "all_reduce",
        /// Every rank gets the data of all ranks, in rank order.
        AllGather = "all_gather",
        /// Every rank gets its block of the sum.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the data of one rank.
        Broadcast = "broadcast",
        /// One rank gets the data of all ranks, in rank order.
        Gather = "gather",
        /// Every rank gets its block of one rank's data.
        Scatter = "scatter",
        /// Every rank gets its block of every rank's data.
        AllToAll = "all_to_all",
        /// No rank goes on before all have entered.
        Barrier = "barrier",
        /// Message to one rank.
        Send = "send",
        /// Message from one rank.
        Receive = "receive",
    }
}

impl Op {
    /// Number of latencies paid in this operation among `n` ranks: the messages that follow each other in the
    /// algorithm with the least traffic.
    pub(crate) fn latencies(self, n: usize) -> usize {
        match self {
            Op::AllReduce => 2 * (n - 1),
            Op::Barrier => n.next_power_of_two().ilog2() as usize,
            Op::Send => 1,
            Op::Receive => 0, // counted by the sender
            _ => n - 1,
        }
    }
}

tensor::listed! {
    /// Operation that reduces addends to one value.
    Reduce {
        /// Sum.
        Sum = "sum",
        /// Stabiliser ([`tensor::Scalar::stab`]): the maximum for floats.
        Stab = "stab",
    }
}

/// Sizes of blocks that are not equal parts of the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Counts {
    /// One list, equal on all ranks: rank `i` has, or gets, the `i`th number of rows.
    Of(Arc<[usize]>),
    /// Two lists of this rank: rows given to each rank, and rows taken from each rank.
    Between(Arc<[usize]>, Arc<[usize]>),
    /// Number of columns, equal on all ranks: blocks lie side by side, and only the first columns are kept.
    Columns(usize),
}

/// One call of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) reduce: Option<Reduce>,
    /// The root, receiver or sender, as a rank of the world.
    pub(crate) peer: Option<usize>,
    /// The root, receiver or sender, as a rank of the group; 0 if there is none.
    pub(crate) root: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) counts: Option<Counts>,
    pub(crate) elem: Elem,
    /// Group of the call.
    #[serde(skip, default = "unknown_group")]
    pub(crate) over: Ranks,
    #[serde(skip)]
    pub(crate) label: Option<Arc<str>>,
    #[serde(skip, default = "Location::caller")]
    pub(crate) at: &'static Location<'static>,
    /// Tag, if the call is a message.
    pub(crate) tag: Option<Tag>,
    /// Sentence of the call, if a rank of another process made it.
    pub(crate) reported: Option<Arc<str>>,
    /// Number of the call on its rank if ranks are processes, else 0.
    #[serde(skip)]
    pub(crate) number: usize,
    /// Number of an all-reduce in its group if ranks are processes, else 0.
    #[serde(skip)]
    pub(crate) sum: usize,
}

/// Placeholder for the group of another process' call, whose sentence names the group.
fn unknown_group() -> Ranks {
    Ranks::all(Axes::default())
}

/// Record of a call that a rank made; it displays as a sentence with the place in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// The operation.
    pub op: Op,
    /// The group.
    pub over: Ranks,
    /// Rows and columns of this rank's tensor.
    pub shape: [usize; 2],
    /// Bytes of this rank's tensor.
    pub bytes: usize,
    /// Label of the group: a parameter, a loss.
    pub label: Option<Arc<str>>,
    /// Peer of a message, as a rank of the world, and its tag.
    pub message: Option<(usize, Tag)>,
    /// Place of the call in the code.
    pub at: &'static Location<'static>,
    /// The whole call as a sentence.
    pub words: String,
}

impl CallRecord {
    /// Returns true if `what` is the label of the group.
    #[must_use]
    pub fn is_for(&self, what: &str) -> bool {
        self.label.as_deref() == Some(what)
    }
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl From<&Call> for CallRecord {
    fn from(call: &Call) -> Self {
        let (bytes, words) = (call.elements() * call.elem.size, call.to_string());
        let (over, label) = (call.over.clone(), call.label.clone());
        let message = call.peer.zip(call.tag);
        Self { op: call.op, over, shape: [call.rows, call.cols], bytes, label, message, at: call.at, words }
    }
}

/// Type of the elements.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Elem {
    #[serde(deserialize_with = "lasting")]
    pub(crate) name: StaticName,
    /// Bytes per element.
    pub(crate) size: usize,
    /// Id of the type, to detect ranks whose types differ.
    pub(crate) id: usize,
    /// Reduction of this type in host memory; none for plain values.
    #[serde(serialize_with = "joins", deserialize_with = "joined")]
    pub(crate) join: Option<Join>,
}

impl Elem {
    /// Returns the description of a dtype.
    #[inline]
    pub(crate) fn of<S: Scalar>() -> Self {
        Self { name: S::NAME, size: size_of::<S>(), id: const { fnv(S::NAME) }, join: Some(join_of::<S>()) }
    }
}

/// A hash of a name. Source: Fowler, Noll, Vo, FNV-1a.
const fn fnv(name: &str) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut i = 0;
    while i < name.len() {
        hash = (hash ^ name.as_bytes()[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    hash as usize
}

impl Call {
    /// Queue of a message: messages of one kind from one rank to another arrive in order, and wait for no
    /// other kind.
    pub(crate) fn lane(&self) -> &'static str {
        self.tag.map_or("", |tag| tag.what)
    }
    /// Returns true for a message from one rank to another.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.op, Op::Send | Op::Receive)
    }
    /// Number of elements of this rank's tensor.
    pub(crate) fn elements(&self) -> usize {
        self.rows * self.cols
    }
    /// Number of elements that `rank` of `ranks` gives.
    pub(crate) fn gives(&self, ranks: usize, rank: usize) -> usize {
        match self.op {
            Op::Scatter if rank == self.root => ranks * self.elements(),
            Op::Scatter | Op::Receive => 0,
            _ => self.elements(),
        }
    }
    /// Returns the counts if they are one list, equal on all ranks.
    pub(crate) fn common_counts(&self) -> Option<&Arc<[usize]>> {
        match &self.counts {
            Some(Counts::Of(counts)) => Some(counts),
            _ => None,
        }
    }
    /// Start and length, in elements, of the block of `rank` of `ranks`: by these counts of rows, or an equal
    /// part of all `elements`.
    pub(crate) fn block(
        &self,
        counts: Option<&Arc<[usize]>>,
        ranks: usize,
        rank: usize,
        elements: usize,
    ) -> [usize; 2] {
        match counts {
            None => [rank * (elements / ranks), elements / ranks],
            Some(counts) => [counts[..rank].iter().sum::<usize>() * self.cols, counts[rank] * self.cols],
        }
    }
    /// Number of elements that `rank` of `ranks` takes.
    pub(crate) fn takes(&self, ranks: usize, rank: usize) -> usize {
        let rows = |counts: &[usize]| counts.iter().sum::<usize>() * self.cols;
        match (self.op, &self.counts) {
            (Op::AllGather, Some(Counts::Columns(n))) => self.rows * n,
            (Op::AllGather, Some(Counts::Of(counts))) | (Op::AllToAll, Some(Counts::Between(_, counts))) => {
                rows(counts)
            }
            (Op::AllGather, _) => ranks * self.elements(),
            (Op::ReduceScatter, Some(Counts::Of(counts))) => rows(&counts[rank..=rank]),
            (Op::ReduceScatter, _) => self.elements() / ranks,
            (Op::Gather, _) if rank == self.root => ranks * self.elements(),
            (Op::Gather | Op::Send, _) => 0,
            _ => self.elements(),
        }
    }
    /// Range of the elements that rank `to` takes of those that rank `from` gives. This call is rank
    /// `from`'s.
    pub(crate) fn wanted(&self, ranks: usize, from: usize, to: usize) -> Range<usize> {
        let elements = self.elements();
        let block = |counts: Option<&Arc<[usize]>>| {
            let [at, len] = self.block(counts, ranks, to, elements);
            at..at + len
        };
        let wants = match (self.op, &self.counts) {
            (Op::AllGather, Some(Counts::Of(counts))) => return 0..counts[from] * self.cols,
            (Op::AllToAll, Some(Counts::Between(give, _))) => return block(Some(give)),
            (Op::AllToAll | Op::ReduceScatter, _) => return block(self.common_counts()),
            (Op::Scatter, _) if from == self.root => return to * elements..(to + 1) * elements,
            (Op::Send | Op::Gather, _) => to == self.root,
            (Op::Broadcast, _) => from == self.root,
            (Op::AllReduce, _) => return self.adds(ranks, to),
            (Op::AllGather, _) => true,
            (Op::Scatter | Op::Barrier | Op::Receive, _) => false,
        };
        if wants { 0..elements } else { 0..0 }
    }
    /// True if ranks that are processes send each other all addends of an all-reduce. That takes one message
    /// where shares take two, and few more bytes: none among two ranks.
    pub(crate) fn adds_all(&self, ranks: usize) -> bool {
        const MOST: usize = 512; // more bytes that a rank sends
        (ranks - 1) * (ranks - 2) * self.elements() * self.elem.size / ranks <= MOST
    }
    /// Range of the elements of an all-reduce that a rank adds up if ranks are processes.
    pub(crate) fn adds(&self, ranks: usize, rank: usize) -> Range<usize> {
        let elements = self.elements();
        if self.adds_all(ranks) { 0..elements } else { share(rank, ranks, elements) }
    }
    /// Values that must be equal on all ranks of a call; label and place may differ.
    pub(crate) fn key(&self) -> [usize; 3] {
        let reduce = self.reduce.map_or(0, |r| r as usize + 1);
        let peer = self.peer.map_or(0, |p| p + 1);
        let what = peer << 16 | reduce << 8 | self.op as usize;
        let rows = match &self.counts {
            // any number of values per rank
            None if self.op == Op::AllGather && self.elem.join.is_none() => usize::MAX,
            None => self.rows,
            Some(Counts::Of(counts)) => {
                counts.iter().fold(1 << 63, |key, &n| tensor::mix((key ^ n) as u64) as usize)
            }
            Some(Counts::Between(..)) => usize::MAX,
            Some(Counts::Columns(n)) => tensor::mix((self.rows ^ n << 32) as u64) as usize,
        };
        [what, rows, self.cols ^ self.elem.id]
    }
    /// Returns true if a send and a receive that met agree on shape and tag.
    pub(crate) fn passes(&self, other: &Call) -> bool {
        (self.rows, self.cols, self.tag) == (other.rows, other.cols, other.tag)
    }
    /// Returns true if two ranks with equal keys agree on what they pass to each other, seen from rank `me`.
    pub(crate) fn fits(&self, me: usize, other: &Call, peer: usize) -> bool {
        match (&self.counts, &other.counts) {
            (Some(Counts::Between(give, take)), Some(Counts::Between(their_give, their_take))) => {
                give[peer] == their_take[me] && take[peer] == their_give[me]
            }
            (mine, theirs) => mine == theirs,
        }
    }
}

#[cfg(test)]
impl Call {
    /// A barrier over the tensor axis, for tests.
    #[track_caller]
    pub(crate) fn barrier() -> Self {
        let elem = Elem::of::<f32>();
        Self {
            op: Op::Barrier,
            reduce: None,
            peer: None,
            root: 0,
            rows: 0,
            cols: 0,
            counts: None,
            elem,
            over: Ranks::all(crate::axis::Axis::Tp),
            label: None,
            at: Location::caller(),
            tag: None,
            reported: None,
            number: 0,
            sum: 0,
        }
    }
}

impl Call {
    /// Panics if the tensor that the call writes has another owner.
    pub(crate) fn writes<D: Device>(&self, tensor: &Tensor<D>) {
        let why = "writes a tensor with two owners: drop the other before the call, or give the call a copy";
        assert!(!tensor.is_shared(), "{self} {why}");
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reported) = &self.reported {
            return f.write_str(reported);
        }
        f.write_str(self.op.name())?;
        match (self.reduce, self.peer) {
            (Some(reduce), _) => write!(f, "({reduce})")?,
            (None, Some(to)) if matches!(self.op, Op::Send | Op::Gather) => write!(f, "(to rank {to})")?,
            (None, Some(from)) => write!(f, "(from rank {from})")?,
            (None, None) => {}
        }
        write!(f, " over {}", self.over)?;
        match &self.counts {
            _ if self.op == Op::Barrier => {}
            None | Some(Counts::Columns(_)) => {
                write!(f, " of {}x{} {}", self.rows, self.cols, self.elem.name)?;
            }
            Some(Counts::Of(counts)) => write!(f, " of {counts:?}x{} {}", self.cols, self.elem.name)?,
            Some(Counts::Between(give, take)) => {
                write!(f, " of {give:?}x{} for {take:?}x{} {}", self.cols, self.cols, self.elem.name)?;
            }
        }
        if let Some(tag) = self.tag {
            write!(f, " as {tag}")?;
        }
        if let Some(label) = &self.label {
            write!(f, " for {label}")?;
        }
        write!(f, " at {}:{}", self.at.file(), self.at.line())
    }
}

#[cfg(test)]
mod tests;
