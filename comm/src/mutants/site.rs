//! A call that a run made, and how it goes wrong.
use crate::axis::{Axis, Ranks};
use crate::call::{Call, Counts, Op, Reduce};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

tensor::listed! {
    /// How a call goes wrong. Memory that nothing has come to holds zeros.
    Mutation {
        /// Nothing moves: of a reduction a rank has its own addend, of copies its own part.
        Skip = "skip",
        /// Done twice: a sum in place is a sum of sums, one to other memory is added twice, blocks that were exchanged
        /// are exchanged back.
        Repeat = "repeat",
        /// The average where the sum is meant.
        Average = "average",
        /// The sum where the average is meant: as many times too much as there are ranks. No program here averages, so
        /// it is what is summed that grows. (An all-reduce of which this is true is one repeated.)
        Sum = "sum",
        /// Over the group less its first rank.
        Part = "part",
        /// Over the ranks along another axis.
        Axis = "axis",
        /// Every rank acts as the next one: gives what that should give, and gets what that should get.
        Neighbour = "neighbour",
        /// What the last call of the same operation and shape gave; zeros if there was none.
        Stale = "stale",
        /// The last element of what comes from others has not come: of every block, where these are not added.
        Tail = "tail",
    }
}

/// One call of every rank, and how it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The number of the call, from 1, as each rank counts its own over all its groups. The ranks of a group must make
    /// it together; where the call of that number is another one on some of them, they are told that they disagree. Of
    /// programs in which ranks count differently, [`Trial::at`](crate::mutants::Trial::at) asks for the call that ranks make together.
    pub call: usize,
    /// What happens.
    pub mutation: Mutation,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the mutant {} of call {}", self.mutation, self.call)
    }
}

/// A call that a run made.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its number on its rank, from 1.
    pub call: usize,
    /// The operation.
    pub op: Op,
    /// How addends become one value, if they do.
    pub reduce: Option<Reduce>,
    /// The group.
    pub over: Ranks,
    /// How many ranks that is.
    pub ranks: usize,
    /// The axis along which it could go wrong: another one of two ranks or more.
    pub other: Option<Axis>,
    /// Elements of the rank's tensor.
    pub elements: usize,
    /// Its label, if it has one.
    pub label: Option<Arc<str>>,
    /// Whether ranks give each other different numbers of rows.
    pub uneven: bool,
    /// Its place in the code.
    pub at: &'static Location<'static>,
    /// All of it in words.
    pub words: String,
    pub(crate) members: Arc<[usize]>, // the group's ranks of the world
    pub(crate) ways: Vec<(Axis, Arc<[usize]>)>, // the other axes that it could go wrong along, and who stands along them
    pub(crate) calls: Arc<BTreeMap<usize, usize>>, // who goes wrong with it, and the call's number there
}

/// What may be expected of a mutation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// There is no such mutant.
    None,
    /// It gives what the call should give, whatever is said, for this reason.
    Same(&'static str),
    /// It is to be tried.
    Open,
}

/// Why a copy may be repeated.
const COPY: &str = "a copy made twice is the same copy";
/// Why an addend may come from a neighbour.
const ADDEND: &str = "a reduction does not ask which rank gave which addend";

impl Site {
    pub(super) fn new(
        number: usize,
        call: &Call,
        members: &Arc<[usize]>,
        ways: Vec<(Axis, Arc<[usize]>)>,
    ) -> Self {
        let uneven = matches!(call.counts, Some(Counts::Between(..)));
        let (ranks, other) = (members.len(), ways.first().map(|(axis, _)| *axis));
        Self {
            members: members.clone(),
            ways,
            calls: Arc::default(),
            call: number,
            op: call.op,
            reduce: call.reduce,
            over: call.over.clone(),
            ranks,
            other,
            elements: call.elements(),
            label: call.label.clone(),
            uneven,
            at: call.at,
            words: call.to_string(),
        }
    }
    /// Whether ranks pass it to each other in pairs.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.op, Op::Send | Op::Receive)
    }
    /// What may be expected of a mutation here.
    pub fn outlook(&self, mutation: Mutation) -> Outlook {
        use Mutation::{Average, Axis, Neighbour, Part, Repeat, Skip, Stale, Sum, Tail};
        use Outlook::{None, Open, Same};
        let sums = self.reduce == Some(Reduce::Sum);
        let there = match (self.op, mutation) {
            (Op::Barrier | Op::Receive, _) => false, // carries nothing; the sender goes wrong
            (_, Skip | Stale | Tail) => true,
            (Op::Send, _) => false,
            (_, Axis) => self.other.is_some(),
            (_, Average) => sums,
            (_, Sum) => self.op == Op::ReduceScatter,
            (_, Repeat) => !self.uneven, // what came would not fit what is given
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
