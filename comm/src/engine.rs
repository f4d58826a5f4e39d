//! What carries the bytes between ranks: threads, or nothing.
use crate::call::Call;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;
use tensor::{Device, View, ViewMut};

/// What carries the bytes of one group. Windows are contiguous and sizes fit: [`Group`](crate::Group) saw to that, as
/// it did to memory and ledger, so that all engines are metered alike. `rank`, `root`, `to`, `from` count in the group,
/// which has two ranks or more.
pub(crate) trait Engine<D: Device>: Send + Sync {
    /// The reduction that `call` names, in rank order, in every rank's `data`.
    fn all_reduce(&self, rank: usize, data: ViewMut<D>, call: &Call) -> Result<()>;
    /// `mine` of every rank, in rank order, to `out`; blocks of the call's counts, or of one size.
    fn all_gather(&self, rank: usize, mine: View<D>, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// The first columns of `mine[R,C]` of every rank, side by side in rank order, to `out`: as many as that has, of
    /// `ranks·C`.
    fn all_gather_columns(&self, rank: usize, mine: View<D>, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// The sum over ranks of `data`; this rank's block of rows, by the call's counts or of one size, to `out`.
    fn reduce_scatter(&self, rank: usize, data: View<D>, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// The root's `data` to every rank's.
    fn broadcast(&self, rank: usize, root: usize, data: ViewMut<D>, call: &Call) -> Result<()>;
    /// `mine[R,C]` of every rank, in rank order, to the `out[ranks·R,C]` that the root has.
    fn gather(&self, rank: usize, mine: View<D>, out: Option<ViewMut<D>>, call: &Call) -> Result<()>;
    /// Each rank's block of the `data[ranks·R,C]` that the root has, to its `out[R,C]`.
    fn scatter(
        &self,
        rank: usize,
        root: usize,
        data: Option<View<D>>,
        out: ViewMut<D>,
        call: &Call,
    ) -> Result<()>;
    /// Block `i` of `data` to rank `i`; what ranks have for this one, in rank order, to `out`. Blocks of the call's
    /// counts, or of one size.
    fn all_to_all(&self, rank: usize, data: View<D>, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// Bytes of any number of every rank, in rank order.
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>>;
    /// Nobody returns before all have called.
    fn barrier(&self, rank: usize, call: &Call) -> Result<()>;
    /// Offers a message. Returns at once.
    ///
    /// # Safety
    /// Nobody writes the window before `finish` or `withdraw` of this post returns.
    unsafe fn post_send(&self, rank: usize, to: usize, data: View<D>, call: &Call) -> Result<Post>;
    /// Asks for a message. Returns at once.
    ///
    /// # Safety
    /// Nobody touches the window before `finish` or `withdraw` of this post returns.
    unsafe fn post_receive(&self, rank: usize, from: usize, out: ViewMut<D>, call: &Call) -> Result<Post>;
    /// Returns when the message has arrived, or with an error; the post has ended then.
    fn finish(&self, post: Post, call: &Call) -> Result<()>;
    /// Takes the post back if its message has not gone yet.
    fn withdraw(&self, post: Post);
    /// What carries the bytes of these ranks of the group among themselves: one engine for all of them, whoever asks
    /// first and however often. Nobody waits.
    fn part(&self, ranks: &[usize]) -> Arc<dyn Engine<D>>;
}

/// Which of `n` elements in all are a rank's, each having `each` of them: the last ranks fewer, or none.
pub(crate) fn nth_of(rank: usize, each: usize, n: usize) -> Range<usize> {
    (rank * each).min(n)..((rank + 1) * each).min(n)
}

/// A message offered or asked for: the `number`th of one rank to another, counted by the one who posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) sends: bool,
    /// It is part of an all-reduce; those are counted by themselves.
    pub(crate) part: bool,
    pub(crate) number: usize,
}
