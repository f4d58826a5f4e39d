//! What carries the bytes between ranks: threads, the connections of processes, or nothing.
use crate::lasting::{Lasting, lasting};
use crate::{Call, Members, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tensor::Place;

/// What carries the bytes of one group. [`Group`](crate::Group) sees to memory and ledger, so that all engines are metered
/// alike. `rank` counts in the group, which has two ranks or more.
pub(crate) trait Engine<P: Place>: Send + Sync {
    /// Does what all ranks do together in `call`, to its end.
    ///
    /// # Safety
    /// The windows have as many elements as [`Call::gives`] and [`Call::takes`] count, of the call's kind. They are borrowed
    /// until this returns, and where something is taken to is borrowed mutably.
    unsafe fn now(&self, rank: usize, windows: Windows<P::Ptr>, call: &Call) -> Result<()>;
    /// Bytes of any number of every rank, in rank order.
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>>;
    /// Starts what all ranks do together in these calls, one meeting for all of them; or the one message that is called for:
    /// offers it, or asks for it. Returns at once.
    ///
    /// # Safety
    /// Windows are as for [`Engine::now`]. Nobody touches them, or writes those of a message that is sent, before `finish` or
    /// `withdraw` of this post returns.
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post>;
    /// Returns when the message has arrived, or what was started is done, or with an error; the post has ended then.
    fn finish(&self, post: Post, call: &Call) -> Result<()>;
    /// Takes the post back if its message has not gone yet, or not all ranks have come.
    fn withdraw(&self, post: Post);
}

/// The engines of a world, found by who their members are.
pub(crate) trait Engines<P: Place>: Send + Sync {
    /// What carries the bytes of these ranks among themselves, in this order: one engine for all of them, by whatever
    /// way each came to the group, whoever asks first and however often. Nobody waits.
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>>;
}

/// Addresses of what a rank gives in a call, and of where what it gets goes: the same, where that is in place.
#[derive(Clone, Copy)]
pub(crate) struct Windows<A> {
    pub(crate) give: Option<A>,
    pub(crate) take: Option<A>,
}

/// Calls, each with its windows.
pub(crate) type Calls<'a, A> = &'a mut dyn Iterator<Item = (Windows<A>, Call)>;

/// A message offered or asked for: the `number`th of one rank to another, counted by the one who posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) sends: bool,
    /// Its queue; those of each are counted by themselves.
    #[serde(deserialize_with = "lasting")]
    pub(crate) lane: Lasting,
    pub(crate) number: usize,
}

impl Post {
    /// What a rank started together with others.
    pub(crate) fn started(rank: usize, number: usize) -> Self {
        Self { from: rank, to: rank, sends: false, lane: "", number }
    }
    /// Whether it is such a one, and no message.
    pub(crate) fn is_started(self) -> bool {
        self.from == self.to
    }
}

/// A post that stands, with its call. It ends with this at the latest.
pub(crate) struct Standing<P: Place> {
    engine: Arc<dyn Engine<P>>,
    post: Option<Post>,
    pub(crate) call: Call,
}

impl<P: Place> Standing<P> {
    pub(crate) fn new(engine: &Arc<dyn Engine<P>>, post: Post, call: Call) -> Self {
        Self { engine: engine.clone(), post: Some(post), call }
    }
    /// Waits for it, as [`Engine::finish`] does.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.post.take().map_or(Ok(()), |post| self.engine.finish(post, &self.call))
    }
}

impl<P: Place> Drop for Standing<P> {
    fn drop(&mut self) {
        self.post.take().inspect(|&post| self.engine.withdraw(post));
    }
}
