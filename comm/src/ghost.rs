//! Groups without peers: one rank of any world, for its price. Calls are metered and counted, but carry
//! nothing.
use crate::engine::Calls;
use crate::{Call, Engine, Engines, Members, Post, Result, Windows};
use std::sync::Arc;
use tensor::Place;

/// Engine of groups of this number of ranks, without peers.
pub(crate) struct Ghost(pub(crate) usize);

impl<P: Place> Engine<P> for Ghost {
    unsafe fn now(&self, _: usize, _: Windows<P::Ptr>, _: &Call) -> Result<()> {
        Ok(())
    }
    /// Returns this rank's bytes for every rank.
    fn values(&self, _: usize, mine: &[u8], _: &Call) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec(); self.0])
    }
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post> {
        calls.for_each(drop);
        Ok(Post::started(rank, 0))
    }
    fn finish(&self, _: Post, _: &Call) -> Result<()> {
        Ok(())
    }
    fn withdraw(&self, _: Post) {}
}

/// Engines of a world without peers.
pub(crate) struct Ghosts;

impl<P: Place> Engines<P> for Ghosts {
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>> {
        Arc::new(Ghost(members.len()))
    }
}
