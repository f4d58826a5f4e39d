//! Engines carry the bytes between ranks: by threads, by connections of processes, or not at all.
use crate::static_name::{StaticName, lasting};
use crate::{Call, Members, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tensor::Place;

/// Carries the bytes of one group. [`Group`](crate::Group) handles memory and the ledger, so that all engines
/// are metered alike. `rank` counts in the group, which has at least two ranks.
pub(crate) trait Engine<P: Place>: Send + Sync {
    /// Runs a collective to its end.
    ///
    /// # Safety
    /// The windows have as many elements as [`Call::gives`] and [`Call::takes`] return, of the call's type.
    /// They are borrowed until this returns, and the window that is written is borrowed mutably.
    unsafe fn now(&self, rank: usize, windows: Windows<P::Ptr>, call: &Call) -> Result<()>;
    /// Returns the bytes of every rank, in rank order; ranks may have different numbers of bytes.
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>>;
    /// Starts collectives, which meet once for all of them, or one message: offers it, or asks for it.
    /// Returns at once.
    ///
    /// # Safety
    /// Windows are as for [`Engine::now`]. Until `finish` or `withdraw` of this post returns, no code
    /// accesses them, except to read the window of a message that is sent.
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post>;
    /// Waits until the message has arrived or the started calls are done. The post has ended then, even on
    /// error.
    fn finish(&self, post: Post, call: &Call) -> Result<()>;
    /// Withdraws the post. If its message has already been copied, or all ranks have posted, ends it as done.
    fn withdraw(&self, post: Post);
}

/// Engines of a world, looked up by the members of the group.
pub(crate) trait Engines<P: Place>: Send + Sync {
    /// Returns the one engine of these members in this order, however each rank obtained the group. The
    /// engine is created on first use. Never blocks.
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>>;
}

/// Addresses of the data that a rank gives in a call, and of its result; equal if the call is in place.
#[derive(Clone, Copy)]
pub(crate) struct Windows<A> {
    pub(crate) give: Option<A>,
    pub(crate) take: Option<A>,
}

/// Calls, each with its windows.
pub(crate) type Calls<'a, A> = &'a mut dyn Iterator<Item = (Windows<A>, Call)>;

/// A message offered or asked for: the `number`th from one rank to another, counted by the posting rank; or a
/// started collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) sends: bool,
    /// Queue of the message; each queue is counted on its own.
    #[serde(deserialize_with = "lasting")]
    pub(crate) lane: StaticName,
    pub(crate) number: usize,
}

impl Post {
    /// Makes the post of a started collective.
    pub(crate) fn started(rank: usize, number: usize) -> Self {
        Self { from: rank, to: rank, sends: false, lane: "", number }
    }
    /// Returns true for a started collective, false for a message.
    pub(crate) fn is_started(self) -> bool {
        self.from == self.to
    }
}

/// An open post with its call. Dropping it withdraws the post.
pub(crate) struct StandingPost<P: Place> {
    engine: Arc<dyn Engine<P>>,
    post: Option<Post>,
    pub(crate) call: Call,
}

impl<P: Place> StandingPost<P> {
    pub(crate) fn new(engine: &Arc<dyn Engine<P>>, post: Post, call: Call) -> Self {
        Self { engine: engine.clone(), post: Some(post), call }
    }
    /// Waits for the post, as [`Engine::finish`] does.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.post.take().map_or(Ok(()), |post| self.engine.finish(post, &self.call))
    }
}

impl<P: Place> Drop for StandingPost<P> {
    fn drop(&mut self) {
        self.post.take().inspect(|&post| self.engine.withdraw(post));
    }
}
