//! Waits of ranks for others to arrive.
use crate::{Call, Result};
use std::sync::Arc;

/// A wait of a rank. Ranks are ranks of the world.
pub(super) trait Wait {
    /// Ranks that have not arrived; the wait is over when there are none.
    fn missing(&self) -> impl Iterator<Item = usize>;
    /// Returns an error if waiting is in vain.
    fn in_vain(&self) -> Result<()>;
    /// Ranks that must arrive, the waiting rank among them.
    fn members(&self) -> Vec<usize>;
    /// Returns a check for later, on any thread: true if rank `on` is still missing and can still arrive.
    fn pending(&self, on: usize) -> PendingCalls;
    /// The call that the rank is in.
    fn call(&self) -> &Call;
}
pub(super) type PendingCalls = Box<dyn Fn() -> bool + Send>;

/// Arrivals of the ranks of a group.
pub(super) trait Arrivals: Send + Sync + 'static {
    /// True if the rank at `place` has not arrived at meeting `number`.
    fn not_arrived(&self, place: usize, number: usize) -> bool;
}

/// Wait for all ranks of a group at one meeting.
pub(super) struct Arrival<'a, C: ?Sized> {
    pub(super) ranks: &'a [usize], // of the world
    pub(super) comings: &'a Arc<C>,
    pub(super) number: usize,
    pub(super) vain: &'a dyn Fn() -> Result<()>,
    pub(super) call: &'a Call,
}

impl<C: Arrivals + ?Sized> Wait for Arrival<'_, C> {
    #[inline(always)]
    fn missing(&self) -> impl Iterator<Item = usize> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter(|(place, _)| self.comings.not_arrived(*place, self.number)).map(|(_, rank)| *rank)
    }
    fn in_vain(&self) -> Result<()> {
        (self.vain)()
    }
    fn members(&self) -> Vec<usize> {
        self.ranks.to_vec()
    }
    fn pending(&self, on: usize) -> PendingCalls {
        let (comings, number) = (self.comings.clone(), self.number);
        let place = self.ranks.iter().position(|&rank| rank == on).expect("a member");
        Box::new(move || comings.not_arrived(place, number))
    }
    fn call(&self) -> &Call {
        self.call
    }
}
