//! This rank's membership of a group, and the groups within it.
use crate::error::sizes;
use crate::ghost::Ghost;
use crate::ledger::elements_sent;
use crate::{
    Axes, Call, CommError, Elem, Engine, Engines, Ledger, Members, Op, Ranks, Record, Result, Windows,
};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use tensor::{Device, Place, Tensor};

/// This rank's membership of the ranks along one axis or several ([`Mesh::over`](crate::Mesh::over)), or of some of
/// them ([`Group::blocks`]). Clones are cheap, and members of the same group. Ranks meet in a group if it has the same
/// members, however each came by it.
///
/// All ranks of a group make the same calls in the same order; where they do not, each gets an error that names both
/// calls by place and label. Group and call belong to the rank's own thread: that a rank which has finished, or waits
/// elsewhere in a ring of ranks, will not come is concluded from there being no other. In a group of one rank nothing
/// moves and nothing is counted.
///
/// # Errors
/// Every call may fail because the ranks' calls differ ([`CommError::Mismatch`], [`CommError::Deadlock`]), because
/// another rank failed or left ([`CommError::Dead`], [`CommError::Broken`], [`CommError::Finished`]) or did not come in
/// time ([`CommError::Late`]). Other errors are listed at each call.
///
/// # Panics
/// Where a tensor is written of which there is another owner.
#[derive(Clone)]
pub struct Group<P: Place> {
    pub(crate) engine: Arc<dyn Engine<P>>,
    world: Arc<dyn Engines<P>>, // gives parts their engines
    along: usize,               // how many ranks there are along the axes
    pub(crate) over: Ranks,     // which of them these are
    pub(crate) rank: usize,
    size: usize,
    pub(crate) members: Members, // ranks of the world
    label: Option<Arc<str>>,
    pub(crate) record: Arc<Record>,
}

impl<P: Place> Group<P> {
    /// The membership of the rank at this place of the members, who are all ranks along these axes.
    pub(crate) fn new(
        world: &Arc<dyn Engines<P>>,
        axes: Axes,
        rank: usize,
        members: Members,
        record: Arc<Record>,
    ) -> Self {
        let (engine, world) = (engine(&**world, &members), world.clone());
        let (over, size) = (Ranks::all(axes), members.len());
        Self { engine, world, along: size, over, rank, size, members, label: None, record }
    }
    /// The ranks of the world that it has, in its order.
    pub fn ranks(&self) -> impl Iterator<Item = usize> {
        self.members.iter()
    }
    /// This rank, counted in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many ranks.
    pub fn size(&self) -> usize {
        self.size
    }
    /// The axes along which the ranks differ that this group is, or is a part of.
    pub fn axis(&self) -> Axes {
        self.over.axes
    }
    /// The traffic of this rank so far, in all groups of its mesh.
    pub fn ledger(&self) -> Ledger {
        self.record.ledger()
    }
    /// This group, with another label in its calls: a parameter's name, or a step. Labels are for messages only;
    /// they may differ between ranks.
    #[must_use]
    pub fn named(&self, label: impl Into<Arc<str>>) -> Group<P> {
        Group { label: Some(label.into()), ..self.clone() }
    }
    /// This rank's block of `size` consecutive ranks, of which the group has `ranks/size`: 0..size, size..2·size and so
    /// on. A group like any other, with the same label and ledger; in messages it reads `tp[2..4]`, counted along the
    /// axes. Of one rank it is a group of one, of all ranks the group itself.
    ///
    /// For replicas: of more ranks than KV heads, those of one block hold the same KV head, whose gradient is the sum
    /// over the block.
    ///
    /// Nobody waits here. Ranks of one block meet in it however and however often each of them came by it: a block of a
    /// block is a block of the group. Calls over the block and over the group may alternate, in the same order on all
    /// their ranks.
    ///
    /// ```
    /// # use comm::{Axis, CommError, Reduce, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// // Four ranks, two KV heads: ranks 0 and 1 hold one of them, ranks 2 and 3 the other.
    /// let gradients = World::threads(&[(Axis::Tp, 4)])?.run(|device: Cpu<f32>, mesh| {
    ///     let replicas = mesh.group(Axis::Tp).blocks(2)?.named("key");
    ///     let mut dk = Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| mesh.rank() as f32);
    ///     replicas.all_reduce(&mut dk, Reduce::Sum)?;
    ///     Ok::<_, CommError>(dk.read().expect("the host has values")[0])
    /// })?;
    /// assert_eq!(gradients, [1.0, 1.0, 5.0, 5.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group does not consist of blocks of this size.
    #[track_caller]
    pub fn blocks(&self, size: usize) -> Result<Group<P>> {
        let ranks = self.size();
        if !ranks.is_multiple_of(size) {
            let why = format!("{self} has no blocks of {size}: a block's size must be {}", sizes(ranks));
            return Err(CommError::bad_argument(why));
        }
        let first = self.rank / size * size;
        self.subgroup(&(first..first + size).collect::<Vec<_>>())
    }
    /// The ranks of this rank's colour, in the group's order: a group like any other. `colour` is the same function on
    /// all ranks, which is why nobody need ask the others; ranks with other functions wait for each other in different
    /// groups, and get an error.
    ///
    /// # Errors
    /// Never; a result as from [`Group::subgroup`].
    #[track_caller]
    pub fn split(&self, colour: impl Fn(usize) -> usize) -> Result<Group<P>> {
        let mine = colour(self.rank);
        let members: Vec<_> = (0..self.size()).filter(|&rank| colour(rank) == mine).collect();
        self.subgroup(&members)
    }
    /// These ranks of the group, in this order: a group like any other, with the same label and ledger; its ranks are
    /// counted anew from 0. All of them call this with the same list. Nobody waits here, and ranks meet in a group
    /// however and however often they came by it: a subgroup of a subgroup is one of the whole, and of the world.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the list is empty, names a rank twice or one that is not there, or lacks this one.
    #[track_caller]
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Group<P>> {
        if let Some(why) = self.why_no_group(ranks) {
            let why = format!("ranks {ranks:?} form no group within {self}: {why}");
            return Err(CommError::bad_argument(why));
        }
        let some = self.over.at(ranks);
        let all = some.some.iter().any(|places| places.iter().copied().eq(0..self.along));
        let over = if all { Ranks::all(self.axis()) } else { some };
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
            (None, _) => Some("a group has one rank or more".to_string()),
            (Some(last), _) if *last >= self.size() => Some(format!("there is no rank {last}")),
            (_, Some(twice)) => Some(format!("rank {} is named twice", twice[0])),
            _ if !ranks.contains(&self.rank) => Some(format!("this rank, {}, is not among them", self.rank)),
            _ => None,
        }
    }
    /// A call of this rank. It is large: so it is made where it is wanted.
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
            told: None,
            number: 0,
        }
    }
    /// Runs one call: counts it and keeps it on record.
    #[inline]
    pub(crate) fn run<T>(&self, call: &Call, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = self.record.begin(call, elements_sent(call, self.size(), self.rank), false)?;
        let outcome = work();
        self.record.end(begun, None, call, &outcome);
        outcome
    }
    /// The windows of a call on these tensors; where nothing is given, it is done in place. Tensors have no gaps, and as
    /// many elements as the call counts.
    pub(crate) fn windows<D: Device<Place = P>>(
        &self,
        call: &Call,
        give: Option<&Tensor<D>>,
        take: Option<&mut Tensor<D>>,
    ) -> Windows<P::Ptr> {
        let (ranks, rank) = (self.size(), self.rank);
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
    /// Runs one call of all ranks on tensors; where nothing is given, it is done in place.
    pub(crate) fn together<D: Device<Place = P>>(
        &self,
        call: &Call,
        give: Option<&Tensor<D>>,
        take: Option<&mut Tensor<D>>,
    ) -> Result<()> {
        let windows = self.windows(call, give, take);
        // SAFETY: the tensors are borrowed as long as this runs, the one that is taken to mutably.
        self.run(call, || unsafe { self.engine.now(self.rank, windows, call) })
    }
    /// A call on numbers of a device.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn call_of<D: Device>(&self, op: Op, shape: [usize; 2]) -> Call {
        self.call(op, shape, Elem::of::<D::Elem>())
    }
    /// A call with a root, or with the other side of a message.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group has no such rank, or a message is to or from this one.
    #[track_caller]
    pub(crate) fn call_with<D: Device>(&self, op: Op, shape: [usize; 2], root: usize) -> Result<Call> {
        let mut call = self.call_of::<D>(op, shape);
        let what = match op {
            Op::Send => "send to",
            Op::Receive => "receive from",
            Op::Gather => "gather on",
            Op::Scatter => "scatter from",
            _ => "take a broadcast from",
        };
        let other = root != self.rank || !matches!(op, Op::Send | Op::Receive);
        let Some(peer) = self.members.get(root).filter(|_| other) else {
            let why = format!("rank {} of {self} cannot {what} rank {root}", self.rank);
            return Err(CommError::bad_argument(why));
        };
        (call.peer, call.root) = (Some(peer), root);
        Ok(call)
    }
    /// The rows of each rank, if all have as many.
    ///
    /// # Errors
    /// [`CommError::BadArgument`]
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
    /// How many rows these counts, one for each rank, make; their bytes can be counted.
    ///
    /// # Errors
    /// [`CommError::BadCounts`]
    pub(crate) fn total(&self, counts: &[usize], call: &Call) -> Result<usize> {
        let sum = counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        let bytes = sum.and_then(|sum| sum.checked_mul(call.cols)?.checked_mul(call.elem.size));
        let why = match sum {
            _ if counts.len() != self.size() => {
                format!("there are {} counts for {} ranks", counts.len(), self.size())
            }
            None => format!("the counts {counts:?} add up to more rows than can be counted"),
            Some(sum) if bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) => return Ok(sum),
            Some(sum) => {
                format!("the counts {counts:?} add up to {sum} rows, more bytes than can be counted")
            }
        };
        Err(CommError::bad_counts(call, why))
    }
    /// Whether these counts make the rows of the call's tensor.
    ///
    /// # Errors
    /// [`CommError::BadCounts`]
    pub(crate) fn adds_up(&self, counts: &[usize], call: &Call) -> Result<()> {
        let (sum, rows) = (self.total(counts, call)?, call.rows);
        if sum == rows {
            return Ok(());
        }
        let why = format!("the counts {counts:?} add up to {sum} rows, not to the tensor's {rows}");
        Err(CommError::bad_counts(call, why))
    }
}

impl<P: Place> fmt::Display for Group<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} group of {} ranks", self.over, self.size())
    }
}

/// The engine of these ranks of a world; of one rank, which sends nothing, one that does nothing.
fn engine<P: Place>(world: &dyn Engines<P>, members: &Members) -> Arc<dyn Engine<P>> {
    if members.len() == 1 { Arc::new(Ghost(1)) } else { world.of(members) }
}

#[cfg(test)]
mod tests;
