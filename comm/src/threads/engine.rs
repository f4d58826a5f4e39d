//! Collectives of one group of threads, on the peers' memory.
use super::messages::Messages;
use super::rendezvous::Rendezvous;
use super::slow::Slow;
use super::started::Started;
use super::watch::Watch;
use crate::call::windows::{AllWindows, chunk_range, share};
use crate::engine::Calls;
use crate::process::{Order, SumName};
use crate::shared::{JointCall, JointOperation, PieceMoved, Reduction, SharedPlace};
use crate::{Call, Counts, Engine, Op, Post, Result, Windows};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

/// One group of threads.
pub(super) struct Threads<P> {
    place: P, // copies and adds in the ranks' memory
    // set if all ranks but one are of other processes, which hold their own results
    apart: Option<Arc<Order>>,
    ranks: usize,
    rendezvous: Rendezvous,
    messages: Messages,
    started: Started,
    members: Arc<[usize]>, // ranks of the world
}

impl<P: SharedPlace> Threads<P> {
    /// Makes the group of these ranks of a world, over links of this kind.
    pub(super) fn new(
        (place, apart): (P, Option<Arc<Order>>),
        members: Arc<[usize]>,
        watch: &Arc<Watch>,
        slow: Option<Arc<Slow>>,
    ) -> Self {
        Self {
            place,
            apart,
            ranks: members.len(),
            rendezvous: Rendezvous::new(members.clone(), watch.clone(), slow.clone()),
            messages: Messages::new(members.clone(), watch.clone(), slow.clone()),
            started: Started::new(members.clone(), watch.clone(), slow),
            members,
        }
    }
    /// Returns the function that does one rank's share of a started call once all ranks have posted.
    fn share(&self) -> impl Fn(usize, *mut (), &AllWindows, &Call) {
        // SAFETY: all calls are equal, as was checked when the last rank posted. Windows are as their ranks
        // promised, and no rank touches its own until every share is done.
        |rank, to, windows, call| unsafe { self.work(rank, to, windows, call) }
    }
    /// Does a rank's part of a call once all ranks have entered: reads the peers' windows, and writes to
    /// `to`, or in place.
    ///
    /// # Safety
    /// All calls are equal. Each rank's window holds the elements that it gives, and `to` has room for those
    /// that this rank takes. Windows are borrowed, and `to` is borrowed mutably. So `to` overlaps no window
    /// except this rank's own in place: then `to` is this rank's block of the window, or the window is this
    /// rank's block of `to`.
    unsafe fn work(&self, rank: usize, to: *mut (), windows: &AllWindows, call: &Call) {
        if self.place.joins() {
            if rank == 0 {
                // SAFETY: the caller's promise.
                unsafe { self.jointly(windows, call) }
            }
            return;
        }
        if self.apart.is_some() && to.is_null() {
            return;
        }
        let size = call.elem.size;
        let copy = |peer: usize, from: usize, at: usize, len: usize| {
            // The elements that are named below are inside the windows, as the caller promises; a window of
            // another process may hold no others.
            let from = windows.of::<u8>(peer).wrapping_add(from * size);
            let to = to.cast::<u8>().wrapping_add(at * size);
            if from != to && len > 0 {
                // SAFETY: as above; everything but this rank's own block in place is disjoint.
                unsafe { self.place.copy(from, to, len * size) }
            }
        };
        let join = |place, range| {
            let how = call.reduce.expect("a reduction");
            // SAFETY: while this rank is inside, only it touches this range of the windows, or only it
            // writes.
            unsafe { self.place.reduce(&Reduction { windows, elem: call.elem, range, how, place }) }
        };
        if let (Op::AllReduce, Some(order)) = (call.op, &self.apart) {
            let own = call.adds(self.ranks, rank);
            // Inside the window, as the caller promises.
            let (target, bytes) = (to.cast::<u8>().wrapping_add(own.start * size), own.len() * size);
            join(Some(target), own);
            if bytes > 0 && !call.adds_all(self.ranks) {
                // SAFETY: as above; the others' shares are written once this call has returned.
                let sum = unsafe { self.place.bytes(target, bytes) };
                order.give_share(&SumName { members: self.members.clone(), number: call.sum }, &sum.into());
            }
            return;
        }
        match call.op {
            Op::AllReduce => join(None, share(rank, self.ranks, call.elements())),
            Op::ReduceScatter => join(Some(to.cast()), call.wanted(self.ranks, rank, rank)),
            Op::Barrier => {}
            _ => self.pieces(rank, windows, call, copy),
        }
    }
    /// Passes each piece that a rank takes to `copy`: the giving rank, the start there, the start in the
    /// result, the length.
    #[inline(always)]
    fn pieces(
        &self,
        rank: usize,
        windows: &AllWindows,
        call: &Call,
        mut copy: impl FnMut(usize, usize, usize, usize),
    ) {
        if let Some(Counts::Columns(n)) = &call.counts {
            for peer in 0..self.ranks {
                let its = chunk_range(peer, call.cols, *n);
                for row in 0..call.rows {
                    copy(peer, row * call.cols, row * n + its.start, its.len());
                }
            }
            return;
        }
        let mut filled = 0;
        let room = call.takes(self.ranks, rank);
        for peer in 0..self.ranks {
            // If blocks differ from rank to rank, the call of the giving rank says which they are.
            let between = matches!(call.counts, Some(Counts::Between(..)));
            let theirs = if between { windows.call(peer) } else { call };
            let piece = theirs.wanted(self.ranks, peer, rank);
            assert!(piece.len() <= room - filled);
            copy(peer, piece.start, filled, piece.len());
            filled += piece.len();
        }
    }
    /// Posts one side of a message, and copies the message if the other side has posted.
    ///
    /// # Safety
    /// Same as [`Engine::start`].
    unsafe fn message(&self, rank: usize, [give, take]: [*mut (); 2], call: &Call) -> Result<Post> {
        let sends = call.op == Op::Send;
        let way = if sends { [rank, call.root] } else { [call.root, rank] };
        let bytes = call.elements() * call.elem.size;
        let copy = |source: *const u8, target, sender: &Call| {
            if self.place.joins() {
                let what = JointOperation::Moved(vec![PieceMoved {
                    from: way[0],
                    to: way[1],
                    source,
                    target,
                    bytes,
                }]);
                // SAFETY: the caller's promise, of both sides.
                unsafe { self.join((way[0], sender), Vec::new(), what) }
            } else if !(source.is_null() || target.is_null()) {
                // SAFETY: as above.
                unsafe { self.place.copy(source, target, bytes) }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.messages.post(way, sends, if sends { give } else { take }.cast(), call, copy) }
    }
    /// Does the parts of all ranks in a call that all have entered, if the place does them as a whole.
    ///
    /// # Safety
    /// Same as [`Threads::work`], for all ranks.
    unsafe fn jointly(&self, windows: &AllWindows, call: &Call) {
        let (n, size, elements) = (self.ranks, call.elem.size, call.elements());
        let both: Vec<_> = (0..n).map(|rank| windows.both(rank).map(<*mut ()>::cast::<u8>)).collect();
        let what = match (call.op, &call.counts) {
            (Op::Barrier, _) => return,
            (Op::AllReduce, _) => JointOperation::Reduced(call.reduce.expect("a reduction"), elements),
            (Op::ReduceScatter, _) => JointOperation::Scattered(
                (0..n).map(|to| call.block(call.common_counts(), n, to, elements)).collect(),
            ),
            (Op::AllGather, None) => JointOperation::Gathered(elements),
            (Op::AllGather, &Some(Counts::Columns(n))) => {
                JointOperation::Columns { rows: call.rows, cols: call.cols, n }
            }
            (Op::Broadcast, _) => JointOperation::Spread(call.root, elements),
            _ => {
                let mut moves = Vec::new();
                for to in 0..n {
                    self.pieces(to, windows, windows.call(to), |from, at, filled, len| {
                        // Inside the windows, as the caller promises.
                        let source = both[from][0].wrapping_add(at * size);
                        let target = both[to][1].wrapping_add(filled * size);
                        moves.push(PieceMoved { from, to, source, target, bytes: len * size });
                    });
                }
                JointOperation::Moved(moves)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.join((0, call), both, what) }
    }
    /// Runs a joint call on the place: at once, or in its turn if ranks are processes. The call of `rank`
    /// names it.
    ///
    /// # Safety
    /// Same as [`SharedPlace::jointly`]; if ranks are processes, until [`Order::finish_parts`] returns.
    unsafe fn join(&self, (rank, call): (usize, &Call), windows: Vec<[*mut u8; 2]>, what: JointOperation) {
        let (members, number, size) = (&self.members, call.elem.name, call.elem.size);
        let Some(order) = &self.apart else {
            let joint = JointCall { members, call, number, size, windows: &windows, what, apart: None };
            // SAFETY: the caller's promise.
            return unsafe { self.place.jointly(&joint) };
        };
        let own = order.own();
        let name = [members[rank], call.number];
        let (place, members, call, rest) =
            (self.place.clone(), members.clone(), call.to_string(), SentWindows((windows, what)));
        let part = move |drawn: &[u8]| {
            let (windows, what) = rest.get();
            let (members, windows, apart) = (&*members, &windows[..], Some((own, drawn)));
            // SAFETY: the caller's promise.
            unsafe { place.jointly(&JointCall { members, call: &call, number, size, windows, what, apart }) }
        };
        order.arrived(name, &self.members, || self.place.drawn(), Box::new(part));
    }
}

/// Windows that go to another thread; ranks leave them alone until that thread is done with them.
struct SentWindows<T>(T);
// SAFETY: as above.
unsafe impl<T> Send for SentWindows<T> {}
impl<T> SentWindows<T> {
    fn get(self) -> T {
        self.0
    }
}

impl<P: SharedPlace> Engine<P> for Threads<P> {
    unsafe fn now(&self, rank: usize, windows: Windows<P::Ptr>, call: &Call) -> Result<()> {
        let both = [windows.give, windows.take].map(|window| window.map_or(null_mut(), P::raw));
        let [give, to] = both;
        let give = if self.place.joins() { from_ref(&both).cast_mut().cast() } else { give };
        // SAFETY: the caller's promise, for every rank: ranks whose calls differ do not get this far.
        self.rendezvous.collective(rank, give, call, |windows| unsafe { self.work(rank, to, windows, call) })
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let mut given = Vec::new();
        self.rendezvous.collective(rank, from_ref(&mine).cast_mut(), call, |windows| {
            // SAFETY: all windows are such slices, because all calls are equal, and are borrowed.
            given = (0..self.ranks).map(|peer| unsafe { *windows.of::<&[u8]>(peer) }.to_vec()).collect();
        })?;
        Ok(given)
    }
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post> {
        let raw = |window: Option<P::Ptr>| window.map_or(null_mut(), P::raw);
        let calls = calls.map(|(windows, call)| ([raw(windows.give), raw(windows.take)], call));
        let mut calls = calls.peekable();
        // SAFETY: the caller's promise.
        unsafe {
            match calls.next_if(|(_, call)| call.is_message()) {
                Some((windows, call)) => self.message(rank, windows, &call),
                None => self.started.post(rank, calls),
            }
        }
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        if post.is_started() {
            self.started.finish(post, call, &self.share())
        } else {
            self.messages.finish(post, call)
        }
    }
    fn withdraw(&self, post: Post) {
        if post.is_started() {
            self.started.withdraw(post, &self.share());
        } else {
            self.messages.withdraw(post);
        }
    }
}

#[cfg(test)]
mod tests;
