//! A call that a run made, and the ways it can go wrong.
use crate::axis::{Axis, Ranks};
use crate::call::{Call, Counts, Op, Reduce};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

tensor::listed! {
    /// A way that a call goes wrong. Buffers that receive nothing hold zeros.
    Mutation {
        /// Nothing moves: a reduction gives the rank's own addend, a copy the rank's own part.
        Skip = "skip",
        /// Done twice: an in-place sum sums the sums, a sum to other memory is added twice, exchanged blocks
        /// are exchanged back.
        Repeat = "repeat",
        /// Average instead of sum.
        Average = "average",
        /// Sum instead of average: too large by a factor of the number of ranks. No program here averages, so
        /// the mutant scales a sum. (A scaled all-reduce equals a repeated one.)
        Sum = "sum",
        /// Over the group less its first rank.
        Part = "part",
        /// Over the ranks along another axis.
        Axis = "axis",
        /// Every rank acts as the next one: it gives and gets what the next rank should.
        Neighbour = "neighbour",
        /// Result of the last call of the same operation and shape; zeros if there was none.
        Stale = "stale",
        /// The last element from other ranks is missing: in every block, unless blocks are added.
        Tail = "tail",
    }
}

/// A mutation of one call, on every rank that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Number of the call, from 1; each rank counts its own calls over all its groups. The ranks of a group
    /// must make the call together: if some make another call of that number, all get an error that they
    /// disagree. If the ranks of a program count differently, [`Trial::at`](crate::mutants::Trial::at) finds
    /// the call that ranks make together.
    pub call: usize,
    /// The call's mutation.
    pub mutation: Mutation,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the mutant {} of call {}", self.mutation, self.call)
    }
}

/// A call that a run made.
#[derive(Clone, Debug)]
pub struct CallSite {
    /// Its number on its rank, from 1.
    pub call: usize,
    /// The operation.
    pub op: Op,
    /// The reduction, if the call reduces.
    pub reduce: Option<Reduce>,
    /// The group's axes, and which of the ranks along these it has.
    pub over: Ranks,
    /// Number of ranks in the group.
    pub ranks: usize,
    /// The other axis that the call can go wrong along, of at least two ranks.
    pub other: Option<Axis>,
    /// Elements of the rank's tensor.
    pub elements: usize,
    /// Its label, if it has one.
    pub label: Option<Arc<str>>,
    /// True if ranks give each other different numbers of rows.
    pub uneven: bool,
    /// Source location of the call.
    pub at: &'static Location<'static>,
    /// Description of the call in words.
    pub words: String,
    pub(crate) members: Arc<[usize]>, // the group's ranks in the world
    // the other axes it can go wrong along, with the ranks along each
    pub(crate) ways: Vec<(Axis, Arc<[usize]>)>,
    // the ranks that go wrong with it, and the call's number on each
    pub(crate) calls: Arc<BTreeMap<usize, usize>>,
}

/// Expected result of a mutation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedResult {
    /// There is no such mutant.
    None,
    /// The mutant gives the right result for any data, for this reason.
    Same(&'static str),
    /// The mutant must be tried.
    Open,
}

/// Reason that a repeated copy is equivalent.
const COPY: &str = "a copy made twice is the same copy";
/// Reason that an addend from a neighbour is equivalent.
const ADDEND: &str = "a reduction does not depend on which rank gave which addend";

impl CallSite {
    pub(super) fn new(
        number: usize,
        call: &Call,
        members: &Arc<[usize]>,
        ways: Vec<(Axis, Arc<[usize]>)>,
    ) -> Self {
        let other = ways.first().map(|(axis, _)| *axis);
        Self {
            members: members.clone(),
            ways,
            calls: Arc::default(),
            call: number,
            op: call.op,
            reduce: call.reduce,
            over: call.over.clone(),
            ranks: members.len(),
            other,
            elements: call.elements(),
            label: call.label.clone(),
            uneven: matches!(call.counts, Some(Counts::Between(..))),
            at: call.at,
            words: call.to_string(),
        }
    }
    /// True if the call is a message between two ranks.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.op, Op::Send | Op::Receive)
    }
    /// Returns the expected result of a mutation of this call.
    pub fn outlook(&self, mutation: Mutation) -> ExpectedResult {
        use ExpectedResult::{None, Open, Same};
        use Mutation::{Average, Axis, Neighbour, Part, Repeat, Skip, Stale, Sum, Tail};
        let sums = self.reduce == Some(Reduce::Sum);
        let there = match (self.op, mutation) {
            (Op::Barrier | Op::Receive, _) => false, // carries nothing; the sender goes wrong
            (_, Skip | Stale | Tail) => true,
            (Op::Send, _) => false,
            (_, Axis) => self.other.is_some(),
            (_, Average) => sums,
            (_, Sum) => self.op == Op::ReduceScatter,
            (_, Repeat) => !self.uneven, // the received blocks would not fit the given ones
            (_, Part | Neighbour) => true,
        };
        match (self.op, mutation) {
            _ if !there => None,
            (Op::AllReduce, Neighbour) if self.reduce.is_some() => Same(ADDEND),
            (Op::ReduceScatter | Op::AllToAll, Repeat) => Open,
            (_, Repeat) if self.reduce.is_none() => Same(COPY),
            _ => Open,
        }
    }
}
