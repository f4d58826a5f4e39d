//! This rank's membership of a group, with the collectives.
//!
//! Everything that does not depend on how bytes travel is here: arguments are checked before anyone waits, results are
//! allocated, traffic is counted. So a ghost is metered exactly as a rank that has peers.
use crate::axis::{Axis, Ranks};
use crate::call::{Call, Op, Reduce};
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::ledger::{Counts, Ledger, elements_sent};
use std::panic::Location;
use std::sync::Arc;
use tensor::{Category, Device, Scalar, Tensor};

/// This rank's membership of the ranks along one axis, or of a block of them ([`Group::blocks`]). Clones are cheap, and
/// members of the same group.
///
/// All ranks of a group make the same calls in the same order; where they do not, each gets an error that names both
/// calls by place and label. Group and call belong to the rank's own thread: that a rank which has finished, or waits
/// elsewhere in a ring of ranks, will not come is concluded from there being no other. In a group of one rank nothing
/// moves and nothing is counted.
///
/// # Errors
/// Every call may fail because the ranks' calls differ ([`CommError::Mismatch`], [`CommError::Deadlock`]), because
/// another rank failed or left ([`CommError::Dead`], [`CommError::Broken`], [`CommError::Finished`]) or did not come in
/// time ([`CommError::Late`]). Only other errors are said at each call.
///
/// # Panics
/// Where a tensor is written of which there is another owner.
pub struct Group<D: Device> {
    engine: Arc<dyn Engine<D>>,
    whole: Arc<dyn Engine<D>>, // of all ranks along the axis; gives blocks their engines
    over: Ranks,               // which these are
    rank: usize,
    members: Arc<[usize]>, // ranks of the world
    label: Option<Arc<str>>,
    counts: Arc<Counts>,
}

impl<D: Device> Clone for Group<D> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            whole: self.whole.clone(),
            members: self.members.clone(),
            label: self.label.clone(),
            counts: self.counts.clone(),
            ..*self
        }
    }
}

impl<D: Device> Group<D> {
    /// The membership of `members[rank]`, who are all ranks along the axis.
    pub(crate) fn new(
        engine: Arc<dyn Engine<D>>,
        axis: Axis,
        rank: usize,
        members: Arc<[usize]>,
        counts: Arc<Counts>,
    ) -> Self {
        Self { whole: engine.clone(), engine, over: Ranks::all(axis), rank, members, label: None, counts }
    }
    /// This rank, counted in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many ranks.
    pub fn size(&self) -> usize {
        self.members.len()
    }
    /// The axis along which these ranks differ.
    pub fn axis(&self) -> Axis {
        self.over.axis
    }
    /// What this rank has said so far in all groups of its mesh.
    pub fn ledger(&self) -> Ledger {
        self.counts.snapshot()
    }
    /// The same group, with another label in its calls: a parameter's name, or a step. Labels are for messages only;
    /// they may differ between ranks.
    #[must_use]
    pub fn named(&self, label: impl Into<Arc<str>>) -> Group<D> {
        Group { label: Some(label.into()), ..self.clone() }
    }
    /// This rank's block of `size` consecutive ranks, of which the group has `ranks/size`: 0..size, size..2·size and so
    /// on. A group like any other, with the same label and ledger; in messages it reads `tp[2..4]`, counted along the
    /// axis. Of one rank it is a group of one, of all ranks the group itself.
    ///
    /// For replicas: of more ranks than key heads, those of one block hold the same key head, whose gradient is the sum
    /// over the block.
    ///
    /// Nobody waits here. Ranks of one block meet in it however and however often each of them came by it: a block of a
    /// block is a block of the group. Calls over the block and over the group may alternate, in the same order on all
    /// their ranks.
    ///
    /// ```
    /// # use comm::{Axis, CommError, Reduce, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// // Four ranks, two key heads: ranks 0 and 1 hold one of them, ranks 2 and 3 the other.
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
    /// [`CommError::Uneven`] if the group does not consist of blocks of this size.
    #[track_caller]
    pub fn blocks(&self, size: usize) -> Result<Group<D>> {
        let ranks = self.size();
        if !ranks.is_multiple_of(size) {
            return Err(CommError::Uneven { size, group: self.over, ranks, at: Location::caller() });
        }
        if size == ranks {
            return Ok(self.clone());
        }
        let first = self.rank - self.rank % size;
        let members = self.members[first..first + size].into();
        let start = self.over.start() + first; // along the axis
        let over = Ranks { block: Some((start, start + size)), ..self.over };
        let engine = self.whole.block(start..start + size);
        Ok(Group { engine, over, rank: self.rank - first, members, ..self.clone() })
    }

    /// Puts the reduction over all ranks, in rank order, into every rank's `data[R,C]`: the same bits on all.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn all_reduce(&self, data: &mut Tensor<D>, reduce: Reduce) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let call = Call { reduce: Some(reduce), ..self.call(Op::AllReduce, data.shape()) };
        self.count(&call, 0);
        self.engine.all_reduce(self.rank, data.view_mut(), &call)
    }
    /// `mine[R,C]` of every rank, below each other in rank order: `[ranks·R, C]`, a buffer, the same on all ranks. In a
    /// group of one, another owner of `mine`.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn all_gather(&self, mine: &Tensor<D>) -> Result<Tensor<D>> {
        if self.size() == 1 {
            return Ok(mine.clone());
        }
        let call = self.call(Op::AllGather, mine.shape());
        let rows = mine.rows() * self.size();
        let mut out = Tensor::empty(mine.device(), Category::Buffers, rows, mine.cols());
        self.count(&call, 0);
        self.engine.all_gather(self.rank, mine.view(), out.view_mut(), &call)?;
        Ok(out)
    }
    /// This rank's block of rows of the sum over ranks, in rank order, of `data[R,C]`: `[R/ranks, C]`, an activation,
    /// of which every rank holds another. In a group of one, another owner of `data`.
    ///
    /// # Errors
    /// [`CommError::Indivisible`] rows, and those of every call.
    #[track_caller]
    pub fn reduce_scatter(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        let (rows, size) = (data.rows(), self.size());
        if size == 1 {
            return Ok(data.clone());
        }
        let call = Call { reduce: Some(Reduce::Sum), ..self.call(Op::ReduceScatter, data.shape()) };
        if !rows.is_multiple_of(size) {
            return Err(CommError::Indivisible { rows, group: self.over, size, at: call.at });
        }
        let mut out = data.beside(rows / size, data.cols());
        self.count(&call, 0);
        self.engine.reduce_scatter(self.rank, data.view(), out.view_mut(), &call)?;
        Ok(out)
    }
    /// Puts the `data[R,C]` of rank `root` of the group into every rank's.
    ///
    /// # Errors
    /// [`CommError::WrongPeer`] if the group has no such rank, and those of every call.
    #[track_caller]
    pub fn broadcast(&self, data: &mut Tensor<D>, root: usize) -> Result<()> {
        let peer = self.peer(root, "take a broadcast from", Location::caller())?;
        if self.size() == 1 {
            return Ok(());
        }
        let call = Call { peer: Some(peer), ..self.call(Op::Broadcast, data.shape()) };
        self.count(&call, root);
        self.engine.broadcast(self.rank, root, data.view_mut(), &call)
    }
    /// Returns on no rank before all have called it.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let call = self.call(Op::Barrier, [0, 0]);
        self.count(&call, 0);
        self.engine.barrier(self.rank, &call)
    }
    /// Sends `data[R,C]` to rank `to` of the group. Returns when it has been received: nothing holds a copy meanwhile.
    ///
    /// # Errors
    /// [`CommError::WrongPeer`] if `to` is no other rank of the group, and those of every call.
    #[track_caller]
    pub fn send(&self, to: usize, data: &Tensor<D>) -> Result<()> {
        let peer = self.other(to, "send to", Location::caller())?;
        let call = Call { peer: Some(peer), ..self.call(Op::Send, data.shape()) };
        self.count(&call, 0);
        self.engine.send(self.rank, to, data.view(), &call)
    }
    /// Receives what rank `from` of the group sends, an activation `[rows, cols]` on `device`. Messages of one rank to
    /// another arrive in order.
    ///
    /// # Errors
    /// [`CommError::WrongPeer`] if `from` is no other rank of the group, [`CommError::Mismatch`], on both, if what
    /// it sends has another shape, and those of every call.
    #[track_caller]
    pub fn receive(&self, device: &D, from: usize, rows: usize, cols: usize) -> Result<Tensor<D>> {
        let peer = self.other(from, "receive from", Location::caller())?;
        let call = Call { peer: Some(peer), ..self.call(Op::Receive, [rows, cols]) };
        let mut out = Tensor::empty(device, Category::Activations, rows, cols);
        self.count(&call, 0);
        self.engine.receive(self.rank, from, out.view_mut(), &call)?;
        Ok(out)
    }

    #[track_caller]
    fn call(&self, op: Op, [rows, cols]: [usize; 2]) -> Call<'_> {
        Call {
            op,
            reduce: None,
            peer: None,
            rows,
            cols,
            elem: D::Elem::NAME,
            over: self.over,
            label: self.label.as_deref(),
            at: Location::caller(),
        }
    }
    fn count(&self, call: &Call, root: usize) {
        let elements = call.rows * call.cols;
        let sent = elements_sent(call.op, self.size(), self.rank, root, elements);
        self.counts.add(self.axis(), call.op, elements, sent * size_of::<D::Elem>());
    }
    /// The rank of the world of a rank of the group.
    fn peer(&self, peer: usize, what: &'static str, at: &'static Location<'static>) -> Result<usize> {
        self.members.get(peer).copied().ok_or_else(|| self.wrong_peer(peer, what, at))
    }
    fn other(&self, peer: usize, what: &'static str, at: &'static Location<'static>) -> Result<usize> {
        if peer == self.rank { Err(self.wrong_peer(peer, what, at)) } else { self.peer(peer, what, at) }
    }
    fn wrong_peer(&self, peer: usize, what: &'static str, at: &'static Location<'static>) -> CommError {
        CommError::WrongPeer { rank: self.rank, group: self.over, size: self.size(), what, peer, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mesh, Op};
    use kernels::Meta;
    use tensor::Cpu;

    type Priced = Meta<Cpu<f32>>;

    fn group(sizes: &[(Axis, usize)], rank: usize) -> Group<Priced> {
        Mesh::ghost(sizes, rank).unwrap().group(Axis::Tp).clone()
    }
    fn zeros(rows: usize, cols: usize) -> Tensor<Priced> {
        Tensor::empty(&Priced::default(), Category::Buffers, rows, cols)
    }

    /// Kills: arguments checked after others wait, or counted though nothing is said.
    #[test]
    fn bad_arguments_are_told_at_once_with_their_place() {
        let group = group(&[(Axis::Dp, 2), (Axis::Tp, 3)], 4);
        let device = Priced::default();
        let here = |line: u32| format!("(at comm/src/group.rs:{line}:");
        let cases = [
            (group.send(3, &zeros(1, 1)), line!(), "rank 1 of the tp group of 3 ranks cannot send to rank 3"),
            (group.send(1, &zeros(1, 1)), line!(), "cannot send to rank 1"),
            (group.receive(&device, 1, 1, 1).map(drop), line!(), "cannot receive from rank 1"),
            (group.receive(&device, 7, 1, 1).map(drop), line!(), "cannot receive from rank 7"),
            (group.broadcast(&mut zeros(1, 1), 3), line!(), "cannot take a broadcast from rank 3"),
            (group.reduce_scatter(&zeros(4, 1)).map(drop), line!(), "4 rows cannot be scattered over the 3"),
            (group.blocks(2).map(drop), line!(), "has no blocks of 2: a block's size must be 1 or 3"),
            (group.blocks(0).map(drop), line!(), "has no blocks of 0"),
            (group.blocks(6).map(drop), line!(), "has no blocks of 6"),
        ];
        for (told, line, words) in cases {
            let told = told.unwrap_err().to_string();
            assert!(told.contains(words) && told.contains(&here(line)), "{told}");
        }
        assert_eq!(group.ledger(), Ledger::default());
        assert_eq!(device.meter().peaks_of_all().total, 0);
    }

    /// Kills: results in another category or of another size.
    #[test]
    fn gathered_tensors_are_buffers_and_others_activations() {
        let (group, device) = (group(&[(Axis::Tp, 2)], 0), Priced::default());
        let x = Tensor::empty(&device, Category::Weights, 4, 3);
        let held = |category| device.meter().now(category);
        let _all = group.all_gather(&x).unwrap();
        assert_eq!((held(Category::Buffers), held(Category::Activations)), (8 * 3 * 4, 0));
        let _block = group.reduce_scatter(&x).unwrap();
        assert_eq!((held(Category::Buffers), held(Category::Activations)), (8 * 3 * 4, 2 * 3 * 4));
        let _got = group.receive(&device, 1, 1, 5).unwrap();
        assert_eq!((held(Category::Buffers), held(Category::Activations)), (8 * 3 * 4, (2 * 3 + 5) * 4));
    }

    #[test]
    fn alone_there_is_nobody_to_talk_to() {
        let group = Mesh::<Priced>::alone().group(Axis::Tp).clone();
        assert!(group.send(0, &zeros(1, 1)).is_err() && group.receive(&Priced::default(), 0, 1, 1).is_err());
        assert!(
            group.broadcast(&mut zeros(1, 1), 1).is_err() && group.broadcast(&mut zeros(1, 1), 0).is_ok()
        );
    }

    /// Kills: a name that starts a ledger of its own.
    #[test]
    fn a_named_group_counts_in_the_same_ledger() {
        let mesh = Mesh::<Priced>::ghost(&[(Axis::Tp, 2)], 0).unwrap();
        let group = mesh.group(Axis::Tp);
        let named = group.named("blocks.0").named(String::from("blocks.1"));
        named.barrier().unwrap();
        group.barrier().unwrap();
        for ledger in [named.ledger(), group.ledger(), mesh.clone().ledger()] {
            assert_eq!(ledger.get(Axis::Tp, Op::Barrier).calls, 2);
        }
        assert_eq!((named.axis(), named.rank(), named.size()), (Axis::Tp, 0, 2));
    }
}
