//! Messages from one rank of a group to another. Each side posts a window; the second side to post copies
//! from the sender's window to the receiver's. The posts of one side end in the order in which they were
//! made, so messages arrive in order.
//!
//! Windows are touched only under the lock of their two ranks, and a post is withdrawn under it: so memory
//! that a rank takes back is not being copied. A waiting rank reads the count of ended posts without the
//! lock. It takes the lock once before it goes on, so the count need not order any memory accesses.
use super::slow::{Slow, pause};
use super::watch::{PendingCalls, Wait, Watch};
use crate::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use crate::sync::{Instant, Mutex, fence, lock};
use crate::{Call, CommError, Post, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The messages of one group.
pub(super) struct Messages {
    senders: Box<[Mutex<Receivers>]>,
    ranks: Arc<[usize]>, // of the world
    watch: Arc<Watch>,
    slow: Option<Arc<Slow>>,
}

/// Channels of one sender: to each receiver one for each kind of message, so that no kind waits for another.
type Receivers = BTreeMap<(usize, &'static str), Arc<Channel>>;

/// Messages of one rank to one other rank.
#[derive(Default)]
struct Channel {
    /// At most one of the two sides has standing posts. The index is `Post::sends`: receiver, sender.
    sides: Mutex<[PostSide; 2]>,
    ended: [AtomicUsize; 2], // number of ended posts of each side; changed under the lock
}

#[derive(Default)]
struct PostSide {
    posted: usize,
    standing: VecDeque<WaitingPost>, // the first of these is the first that has not ended
    ends: VecDeque<(usize, PostEnd)>, // outcomes that the ranks of ended posts have not read yet
}

/// A post that waits for its counterpart.
struct WaitingPost {
    window: PostWindow,
    call: Option<Call>, // `None` if the post was withdrawn; the first post never is
    since: Instant,
}
struct PostWindow(*mut ());
// SAFETY: a window is touched only under the lock, while its rank leaves it alone.
unsafe impl Send for PostWindow {}

/// Outcome of an ended post, if there is more to it than its end.
enum PostEnd {
    Refused(String), // the other's call
    Arrives(Instant),
}

impl PostSide {
    /// Takes the first standing post and the withdrawn ones behind it; returns the first, and their number.
    fn next(&mut self) -> Option<(WaitingPost, usize)> {
        let first = self.standing.pop_front()?;
        let mut ended = 1;
        while self.standing.front().is_some_and(|next| next.call.is_none()) {
            self.standing.pop_front();
            ended += 1;
        }
        Some((first, ended))
    }
}

impl Messages {
    pub(super) fn new(ranks: Arc<[usize]>, watch: Arc<Watch>, slow: Option<Arc<Slow>>) -> Self {
        Self { senders: ranks.iter().map(|_| Mutex::default()).collect(), ranks, watch, slow }
    }
    fn channel(&self, from: usize, to: usize, lane: &'static str) -> Arc<Channel> {
        lock(&self.senders[from]).entry((to, lane)).or_default().clone()
    }
    /// Posts a window for the message that `call` names. If the other side has posted, `copy` copies from the
    /// sender's window to the receiver's; it gets the sender's call.
    ///
    /// # Errors
    /// If a rank has failed.
    ///
    /// # Safety
    /// The window holds what `copy` copies, the same amount for equal calls. Until `finish` or `withdraw` of
    /// this post returns, the window stays as it is, and no other code touches a receiver's.
    pub(super) unsafe fn post<S>(
        &self,
        [from, to]: [usize; 2],
        sends: bool,
        window: *mut S,
        call: &Call,
        copy: impl FnOnce(*const S, *mut S, &Call),
    ) -> Result<Post> {
        self.watch.alive()?;
        let lane = call.lane();
        let (channel, me, now) = (self.channel(from, to, lane), usize::from(sends), Instant::now());
        let mut sides = lock(&channel.sides);
        let number = sides[me].posted;
        sides[me].posted += 1;
        let post = Post { from, to, sends, lane, number };
        let Some((other, others_ended)) = sides[1 - me].next() else {
            let standing =
                WaitingPost { window: PostWindow(window.cast()), call: Some(call.clone()), since: now };
            sides[me].standing.push_back(standing);
            return Ok(post);
        };
        let theirs = other.call.expect("the first one was not withdrawn");
        let others_number = channel.ended[1 - me].load(Relaxed);
        if theirs.passes(call) {
            let windows = [other.window.0.cast::<S>(), window];
            // Both windows have the number of elements of the two calls, which are equal. The other side's
            // post stands, so both windows stay as they are, and only this code touches the receiver's.
            copy(windows[me], windows[1 - me], if sends { call } else { &theirs });
            if let Some(slow) = &self.slow {
                let sent = if sends { now } else { other.since };
                let arrival = slow.message([from, to], sent, call.elements() * call.elem.size);
                sides[me].ends.push_back((number, PostEnd::Arrives(arrival)));
                sides[1 - me].ends.push_back((others_number, PostEnd::Arrives(arrival)));
            }
        } else {
            sides[me].ends.push_back((number, PostEnd::Refused(theirs.to_string())));
            sides[1 - me].ends.push_back((others_number, PostEnd::Refused(call.to_string())));
        }
        channel.ended[me].store(number + 1, Relaxed);
        channel.ended[1 - me].store(others_number + others_ended, Relaxed);
        drop(sides);
        fence(SeqCst); // a sleeper sees the new count, or is found asleep here
        let [mine, others] = if sends { [from, to] } else { [to, from] };
        self.watch.wake(self.ranks[others], self.ranks[mine]);
        Ok(post)
    }
    /// Waits until the message has been copied, and for as long as a slow link takes. Ends the post, even on
    /// an error.
    ///
    /// # Errors
    /// Those of every call of a group.
    pub(super) fn finish(&self, post: Post, call: &Call) -> Result<()> {
        let wait = PostPair { place: self, channel: self.channel(post.from, post.to, post.lane), post, call };
        let me = wait.mine();
        let outcome = self.watch.wait(me, &wait);
        let outcome = match wait.channel.end(post) {
            PostState::Withdrawn => outcome,
            PostState::Done(None) => Ok(()),
            PostState::Done(Some(PostEnd::Arrives(at))) => {
                pause(&self.watch, me, at);
                Ok(())
            }
            PostState::Done(Some(PostEnd::Refused(theirs))) => {
                Err(CommError::Mismatch { rank: me, mine: call.to_string(), peer: wait.peer(), theirs })
            }
        };
        if let Err(error) = &outcome {
            self.watch.blame(me, error);
        }
        outcome
    }
    /// Withdraws a post.
    pub(super) fn withdraw(&self, post: Post) {
        self.channel(post.from, post.to, post.lane).end(post);
    }
}

/// State of a post when it is ended.
enum PostState {
    Done(Option<PostEnd>),
    Withdrawn,
}

impl Channel {
    fn has_ended(&self, post: Post) -> bool {
        self.ended[usize::from(post.sends)].load(Relaxed) > post.number
    }
    /// Ends a post, done or not; after this its window is its rank's own again.
    fn end(&self, post: Post) -> PostState {
        let me = usize::from(post.sends);
        let side = &mut lock(&self.sides)[me];
        if self.has_ended(post) {
            let end = side.ends.iter().position(|(number, _)| *number == post.number);
            return PostState::Done(end.and_then(|at| side.ends.remove(at)).map(|(_, end)| end));
        }
        let ended = self.ended[me].load(Relaxed);
        side.standing[post.number - ended].call = None;
        if post.number == ended {
            let (_, more) = side.next().expect("this one");
            self.ended[me].store(ended + more, Relaxed);
        }
        PostState::Withdrawn
    }
}

/// Wait of one side for the other.
struct PostPair<'a> {
    place: &'a Messages,
    channel: Arc<Channel>,
    post: Post,
    call: &'a Call,
}
impl PostPair<'_> {
    fn mine(&self) -> usize {
        self.place.ranks[if self.post.sends { self.post.from } else { self.post.to }]
    }
    fn peer(&self) -> usize {
        self.place.ranks[if self.post.sends { self.post.to } else { self.post.from }]
    }
}
impl Drop for PostPair<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.channel.end(self.post);
        }
    }
}
impl Wait for PostPair<'_> {
    #[inline(always)]
    fn missing(&self) -> impl Iterator<Item = usize> {
        (!self.channel.has_ended(self.post)).then(|| self.peer()).into_iter()
    }
    fn in_vain(&self) -> Result<()> {
        self.place.watch.alive()
    }
    fn members(&self) -> Vec<usize> {
        vec![self.place.ranks[self.post.from], self.place.ranks[self.post.to]]
    }
    fn pending(&self, _: usize) -> PendingCalls {
        let (channel, post) = (self.channel.clone(), self.post);
        Box::new(move || !channel.has_ended(post))
    }
    fn call(&self) -> &Call {
        self.call
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
