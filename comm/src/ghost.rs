//! Groups without peers: one rank of any world, for its price. Calls are metered and counted, but carry
//! nothing. A clock may count their time, too.
use crate::engine::Calls;
use crate::ledger::elements_sent;
use crate::{Axes, Call, Engine, Engines, Members, Op, Post, Result, Windows};
use std::sync::Arc;
use tensor::Place;

/// Counts the time of calls that carry nothing.
pub trait CallClock: Send + Sync {
    /// Counts a call that the rank waits for.
    fn call(&self, call: &GhostCall);
    /// Counts a call that runs while the rank computes. Returns its number.
    fn start(&self, call: &GhostCall) -> usize;
    /// Waits for the started call of this number.
    fn finish(&self, number: usize);
}

/// A call without peers.
#[derive(Clone, Debug)]
pub struct GhostCall<'a> {
    /// The operation.
    pub op: Op,
    /// Axes of the group.
    pub axes: Axes,
    /// Number of ranks of the group.
    pub ranks: usize,
    /// Bytes that this rank sends, as the [ledger](crate::Ledger) counts them; of a receive, those that come.
    pub bytes: usize,
    /// This rank of the world.
    pub rank: usize,
    /// The other rank of a message, as a rank of the world.
    pub peer: Option<usize>,
    members: &'a Members,
}

impl GhostCall<'_> {
    /// Number of the group's ranks that lie in the same block of `unit` consecutive ranks of the world as
    /// this one; of a message, of its two ranks.
    pub fn within(&self, unit: usize) -> usize {
        match self.peer {
            Some(peer) => 1 + usize::from(peer / unit == self.rank / unit),
            None => self.members.within(self.rank, unit),
        }
    }
    /// Number of ranks that take part: both of a message, or all of the group.
    pub fn parties(&self) -> usize {
        if self.is_message() { 2 } else { self.ranks }
    }
    /// Returns true for a message from one rank to another.
    pub fn is_message(&self) -> bool {
        self.peer.is_some()
    }
}

/// Engine of a group without peers.
pub(crate) struct Ghost {
    pub(crate) members: Members,
    pub(crate) clock: Option<Arc<dyn CallClock>>,
}

impl Ghost {
    /// Passes a call to the clock, if there is one, with the bytes of all calls that it stands for.
    fn told<T>(
        &self,
        rank: usize,
        call: &Call,
        bytes: impl FnOnce() -> usize,
        tell: impl FnOnce(&dyn CallClock, &GhostCall) -> T,
    ) -> Option<T> {
        let members = &self.members;
        let clock = self.clock.as_deref()?;
        let me = members.get(rank).expect("a rank of the group");
        let (ranks, axes, peer) = (members.len(), call.over.axes, call.peer.filter(|_| call.is_message()));
        let call = GhostCall { op: call.op, axes, ranks, bytes: bytes(), rank: me, peer, members };
        Some(tell(clock, &call))
    }
    /// Bytes of one call.
    fn bytes(&self, rank: usize, call: &Call) -> usize {
        let ranks = self.members.len();
        let elements = match call.op {
            Op::Receive => call.elements(),
            _ if ranks == 1 => 0,
            _ => elements_sent(call, ranks, rank),
        };
        elements * call.elem.size
    }
}

impl<P: Place> Engine<P> for Ghost {
    unsafe fn now(&self, rank: usize, _: Windows<P::Ptr>, call: &Call) -> Result<()> {
        self.told(rank, call, || self.bytes(rank, call), |clock, call| clock.call(call));
        Ok(())
    }
    /// Returns this rank's bytes for every rank.
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        self.told(rank, call, || self.bytes(rank, call), |clock, call| clock.call(call));
        Ok(vec![mine.to_vec(); self.members.len()])
    }
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post> {
        let mut calls = calls.map(|(_, call)| call);
        let number = calls.next().and_then(|first| {
            let bytes = || {
                self.bytes(rank, &first) + calls.by_ref().map(|call| self.bytes(rank, &call)).sum::<usize>()
            };
            self.told(rank, &first, bytes, |clock, call| clock.start(call))
        });
        calls.for_each(drop);
        Ok(Post::started(rank, number.unwrap_or(0)))
    }
    fn finish(&self, post: Post, _: &Call) -> Result<()> {
        self.clock.as_deref().inspect(|clock| clock.finish(post.number));
        Ok(())
    }
    fn withdraw(&self, _: Post) {}
}

/// Engines of a world without peers.
pub(crate) struct Ghosts(pub(crate) Option<Arc<dyn CallClock>>);

impl<P: Place> Engines<P> for Ghosts {
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>> {
        Arc::new(Ghost { members: members.clone(), clock: self.0.clone() })
    }
}
