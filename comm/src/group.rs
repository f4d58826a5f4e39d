//! A rank's membership of a group, and subgroups.
use crate::ghost::Ghost;
use crate::ledger::elements_sent;
use crate::{
    Axes, Call, CommError, Elem, Engine, Engines, Ledger, Members, Op, RankRecord, Ranks, Result, Windows,
};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use tensor::quoted::{counted, sizes};
use tensor::{Device, Place, Tensor};

/// A rank's membership of a group, which has the ranks along one axis or several
/// ([`Mesh::over`](crate::Mesh::over)), or some of these ([`Group::consecutive`]). Clones are cheap, and
/// members of the same group. Groups with the same members are one group, however each rank obtained it.
///
/// All ranks of a group make the same calls in the same order. If they do not, each gets an error that names
/// both calls by place and label. A group and its calls belong to the rank's own thread. So a rank that has
/// finished, or waits in a ring of ranks, is known not to arrive: no other thread can make its call. A group
/// of one rank sends nothing and counts nothing.
///
/// # Errors
/// Every call fails if the ranks' calls differ ([`CommError::Mismatch`], [`CommError::Deadlock`]), if another
/// rank failed or left ([`CommError::Dead`], [`CommError::Broken`], [`CommError::Finished`]) or did not
/// arrive in time ([`CommError::Late`]). Each call lists its other errors.
///
/// # Panics
/// A call panics if it writes a tensor that has another owner.
#[derive(Clone)]
pub struct Group<P: Place> {
    pub(crate) engine: Arc<dyn Engine<P>>,
    world: Arc<dyn Engines<P>>, // gives subgroups their engines
    along: usize,               // number of ranks along the axes
    pub(crate) over: Ranks,     // ranks of this group among them
    pub(crate) rank: usize,
    size: usize,
    pub(crate) members: Members, // ranks of the world
    label: Option<Arc<str>>,
    pub(crate) record: Arc<RankRecord>,
}

impl<P: Place> Group<P> {
    /// Makes the group of `members`, which are all ranks along these axes; `rank` is this rank's place among
    /// them.
    pub(crate) fn new(
        world: &Arc<dyn Engines<P>>,
        axes: Axes,
        rank: usize,
        members: Members,
        record: Arc<RankRecord>,
    ) -> Self {
        let (engine, world) = (engine(&**world, &members), world.clone());
        let size = members.len();
        Self { engine, world, along: size, over: Ranks::all(axes), rank, size, members, label: None, record }
    }
    /// Ranks of the world in this group, in the group's order.
    pub fn ranks(&self) -> impl Iterator<Item = usize> {
        self.members.iter()
    }
    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Axes along which the group's ranks differ; a subgroup keeps the axes of the group it was made of.
    pub fn axis(&self) -> Axes {
        self.over.axes
    }
    /// Traffic of this rank so far, in all groups of its mesh.
    pub fn ledger(&self) -> Ledger {
        self.record.ledger()
    }
    /// Returns this group with another label in its calls: a parameter's name, or a step. Labels only appear
    /// in errors and records; they may differ between ranks.
    #[must_use]
    pub fn named(&self, label: impl Into<Arc<str>>) -> Group<P> {
        Group { label: Some(label.into()), ..self.clone() }
    }
    /// Returns this rank's subgroup of `size` consecutive ranks: 0..size, size..2·size and so on,
    /// `ranks/size` in all. The subgroup is a group like any other, with the same label and ledger. Messages
    /// call it `tp[2..4]`, counted along the axes. Size 1 gives a group of one; the size of the group gives
    /// the group itself.
    ///
    /// For replicas: if there are more ranks than KV heads, the ranks of one subgroup hold the same KV head,
    /// and its gradient is the sum over the subgroup.
    ///
    /// Never blocks. Ranks of a subgroup meet in it however, and however often, each of them made it: a
    /// subgroup of a subgroup is a subgroup of the group. Calls over the subgroup and over the group may
    /// alternate, in the same order on all their ranks.
    ///
    /// ```
    /// # use comm::{Axis, CommError, Reduce, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// // Four ranks, two KV heads: ranks 0 and 1 hold one of them, ranks 2 and 3 the other.
    /// let gradients = World::threads(&[(Axis::Tp, 4)])?.run(|device: Cpu<f32>, mesh| {
    ///     let replicas = mesh.group(Axis::Tp).consecutive(2)?.named("key");
    ///     let mut dk = Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| mesh.rank() as f32);
    ///     replicas.all_reduce(&mut dk, Reduce::Sum)?;
    ///     Ok::<_, CommError>(dk.read().expect("the host has values")[0])
    /// })?;
    /// assert_eq!(gradients, [1.0, 1.0, 5.0, 5.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if `size` does not divide the number of ranks.
    #[track_caller]
    pub fn consecutive(&self, size: usize) -> Result<Group<P>> {
        let ranks = self.size();
        if !ranks.is_multiple_of(size) {
            let why = format!("{self} has no subgroups of {size}: the size must be {}", sizes(ranks));
            return Err(CommError::bad_argument(why));
        }
        let first = self.rank / size * size;
        self.subgroup(&(first..first + size).collect::<Vec<_>>())
    }
    /// Returns the group of all ranks with this rank's colour, in the group's order. `colour` must be the
    /// same function on all ranks, so they need not communicate. Ranks with different functions wait for each
    /// other in different groups, and get an error.
    ///
    /// # Errors
    /// None; returns a `Result` like [`Group::subgroup`].
    #[track_caller]
    pub fn split(&self, colour: impl Fn(usize) -> usize) -> Result<Group<P>> {
        let mine = colour(self.rank);
        let members: Vec<_> = (0..self.size()).filter(|&rank| colour(rank) == mine).collect();
        self.subgroup(&members)
    }
    /// Returns the group of these ranks of this group, in this order: a group like any other, with the same
    /// label and ledger, whose ranks count from 0. All of these ranks call it with the same list. Never
    /// blocks. Ranks meet in a group however, and however often, they made it: a subgroup of a subgroup is a
    /// subgroup of the whole group, and of the world.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the list is empty, names a rank twice or an unknown rank, or lacks this
    /// rank.
    #[track_caller]
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Group<P>> {
        if let Some(why) = self.why_no_group(ranks) {
            let why = format!("ranks {ranks:?} form no group within {self}: {why}");
            return Err(CommError::bad_argument(why));
        }
        let some = self.over.at(ranks);
        let whole = some.some.iter().any(|places| places.iter().copied().eq(0..self.along));
        let over = if whole { Ranks::all(self.axis()) } else { some };
        let rank = ranks.iter().position(|&rank| rank == self.rank).expect("checked above");
        let members = ranks.iter().map(|&rank| self.members.get(rank).expect("checked above"));
        let members = Members::List(members.collect());
        let engine = engine(&*self.world, &members);
        Ok(Group { engine, over, rank, size: ranks.len(), members, ..self.clone() })
    }
    fn why_no_group(&self, ranks: &[usize]) -> Option<String> {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        match (sorted.last(), twice) {
            (None, _) => Some("a group needs 1 rank or more".to_string()),
            (Some(last), _) if *last >= self.size() => Some(format!("there is no rank {last}")),
            (_, Some(twice)) => Some(format!("rank {} is named twice", twice[0])),
            _ if !ranks.contains(&self.rank) => Some(format!("this rank, {}, is not among them", self.rank)),
            _ => None,
        }
    }
    /// Makes a call of this rank. A call is large, so this is inlined to make it in place.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn call(&self, op: Op, [rows, cols]: [usize; 2], elem: Elem) -> Call {
        Call {
            op,
            reduce: None,
            peer: None,
            root: 0,
            rows,
            cols,
            counts: None,
            elem,
            over: self.over.clone(),
            label: self.label.clone(),
            at: Location::caller(),
            tag: None,
            reported: None,
            number: 0,
            sum: 0,
        }
    }
    /// Runs one call: counts and records it.
    #[inline]
    pub(crate) fn run<T>(&self, call: &Call, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = self.record.begin(call, elements_sent(call, self.size(), self.rank), false)?;
        let outcome = work();
        self.record.end(begun, None, call, &outcome);
        outcome
    }
    /// Returns the windows of a call on these tensors; all-reduce and broadcast are in place. The tensors are
    /// contiguous, and have as many elements as the call counts.
    pub(crate) fn windows<D: Device<Place = P>>(
        &self,
        call: &Call,
        give: Option<&Tensor<D>>,
        take: Option<&mut Tensor<D>>,
    ) -> Windows<P::Ptr> {
        let ranks = self.size();
        let rank = self.rank;
        let in_place = matches!(call.op, Op::AllReduce | Op::Broadcast);
        let len = |tensor: Option<&Tensor<D>>| tensor.map_or(0, Tensor::len);
        let taken = len(take.as_deref());
        let given = if in_place { taken } else { len(give) };
        assert!(given == call.gives(ranks, rank) && taken == call.takes(ranks, rank), "{call}");
        if let Some(take) = &take {
            call.writes(take);
        }
        let take = take.map(|take| take.view_mut().ptr());
        Windows { give: if in_place { take } else { give.map(|give| give.view().ptr()) }, take }
    }
    /// Runs one collective on tensors; all-reduce and broadcast are in place, in `take`.
    pub(crate) fn together<D: Device<Place = P>>(
        &self,
        call: &Call,
        give: Option<&Tensor<D>>,
        take: Option<&mut Tensor<D>>,
    ) -> Result<()> {
        let windows = self.windows(call, give, take);
        // SAFETY: the tensors are borrowed while this runs, `take` mutably.
        self.run(call, || unsafe { self.engine.now(self.rank, windows, call) })
    }
    /// Makes a call on elements of a device's dtype.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn call_of<D: Device>(&self, op: Op, shape: [usize; 2]) -> Call {
        self.call(op, shape, Elem::of::<D::Elem>())
    }
    /// Makes a call with a root, or with the other side of a message.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group has no such rank, or a message is to or from this rank.
    #[track_caller]
    pub(crate) fn call_with<D: Device>(&self, op: Op, shape: [usize; 2], root: usize) -> Result<Call> {
        let mut call = self.call_of::<D>(op, shape);
        let what = match op {
            Op::Send => "send to",
            Op::Receive => "receive from",
            Op::Gather => "gather on",
            Op::Scatter => "scatter from",
            _ => "broadcast from",
        };
        let other = root != self.rank || !matches!(op, Op::Send | Op::Receive);
        let Some(peer) = self.members.get(root).filter(|_| other) else {
            let why = format!("rank {} of {self} cannot {what} rank {root}", self.rank);
            return Err(CommError::bad_argument(why));
        };
        (call.peer, call.root) = (Some(peer), root);
        Ok(call)
    }
    /// Returns the rows of each rank if all have the same number.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the number of ranks does not divide `rows`.
    #[track_caller]
    pub(crate) fn divides(&self, rows: usize) -> Result<usize> {
        let (ranks, over) = (self.size(), &self.over);
        if rows.is_multiple_of(ranks) {
            return Ok(rows / ranks);
        }
        Err(CommError::bad_argument(format!(
            "{rows} rows cannot be cut into equal blocks for the {ranks} ranks of the {over} group"
        )))
    }
    /// Returns the sum of these counts of rows, one for each rank.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if there is not one count per rank, or the rows or their bytes overflow.
    pub(crate) fn total(&self, counts: &[usize], call: &Call) -> Result<usize> {
        let sum = counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        let bytes = sum.and_then(|sum| sum.checked_mul(call.cols)?.checked_mul(call.elem.size));
        let why = match sum {
            _ if counts.len() != self.size() => {
                format!("there are {} for {}", counted(counts.len(), "count"), counted(self.size(), "rank"))
            }
            None => format!("the counts {counts:?} add up to more rows than fit in 64 bits"),
            Some(sum) if bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) => return Ok(sum),
            Some(sum) => {
                format!("the counts {counts:?} add up to {sum} rows, more bytes than fit in memory")
            }
        };
        Err(CommError::bad_counts(call, why))
    }
    /// Checks that these counts add up to the rows of the call's tensor.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if they do not.
    pub(crate) fn adds_up(&self, counts: &[usize], call: &Call) -> Result<()> {
        let (sum, rows) = (self.total(counts, call)?, call.rows);
        if sum == rows {
            return Ok(());
        }
        let why = format!("the counts {counts:?} add up to {sum} rows, but the tensor has {rows}");
        Err(CommError::bad_counts(call, why))
    }
}

impl<P: Place> fmt::Display for Group<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} group of {}", self.over, counted(self.size(), "rank"))
    }
}

/// Returns the engine of these ranks of a world; for one rank, an engine that does nothing.
fn engine<P: Place>(world: &dyn Engines<P>, members: &Members) -> Arc<dyn Engine<P>> {
    let alone = || Arc::new(Ghost { members: members.clone(), clock: None });
    if members.len() == 1 { alone() } else { world.of(members) }
}

#[cfg(test)]
mod tests;
