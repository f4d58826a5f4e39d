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
    /// `mine[R,C]` of every rank, in rank order, to `out[ranks·R,C]`.
    fn all_gather(&self, rank: usize, mine: View<D>, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// The sum over ranks of `data[ranks·R,C]`; this rank's block of rows to `out[R,C]`.
    fn reduce_scatter(&self, rank: usize, data: View<D>, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// The root's `data` to every rank's.
    fn broadcast(&self, rank: usize, root: usize, data: ViewMut<D>, call: &Call) -> Result<()>;
    /// Nobody returns before all have called.
    fn barrier(&self, rank: usize, call: &Call) -> Result<()>;
    /// Returns when the receiver has the data.
    fn send(&self, rank: usize, to: usize, data: View<D>, call: &Call) -> Result<()>;
    /// What `from` sends, to `out`.
    fn receive(&self, rank: usize, from: usize, out: ViewMut<D>, call: &Call) -> Result<()>;
    /// What carries the bytes of these ranks of the group among themselves: one engine for all of them, whoever asks
    /// first and however often. Nobody waits.
    fn block(&self, ranks: Range<usize>) -> Arc<dyn Engine<D>>;
}
