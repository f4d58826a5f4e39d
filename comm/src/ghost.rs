//! A group without peers: any rank of any world, for its price. Calls are metered and counted, and do nothing.
use crate::call::Call;
use crate::engine::{Engine, Post};
use crate::error::Result;
use std::sync::Arc;
use tensor::{Device, View, ViewMut};

/// The engine of groups of so many ranks whose peers do not exist.
pub(crate) struct Ghost(pub(crate) usize);

const POST: Post = Post { from: 0, to: 0, sends: false, part: false, number: 0 };

impl<D: Device> Engine<D> for Ghost {
    fn all_reduce(&self, _: usize, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn all_gather(&self, _: usize, _: View<D>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn all_gather_columns(&self, _: usize, _: View<D>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn reduce_scatter(&self, _: usize, _: View<D>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn broadcast(&self, _: usize, _: usize, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn gather(&self, _: usize, _: View<D>, _: Option<ViewMut<D>>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn scatter(&self, _: usize, _: usize, _: Option<View<D>>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn all_to_all(&self, _: usize, _: View<D>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    /// As if all ranks had what this one has.
    fn values(&self, _: usize, mine: &[u8], _: &Call) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec(); self.0])
    }
    fn barrier(&self, _: usize, _: &Call) -> Result<()> {
        Ok(())
    }
    unsafe fn post_send(&self, _: usize, _: usize, _: View<D>, _: &Call) -> Result<Post> {
        Ok(POST)
    }
    unsafe fn post_receive(&self, _: usize, _: usize, _: ViewMut<D>, _: &Call) -> Result<Post> {
        Ok(POST)
    }
    fn finish(&self, _: Post, _: &Call) -> Result<()> {
        Ok(())
    }
    fn withdraw(&self, _: Post) {}
    fn part(&self, ranks: &[usize]) -> Arc<dyn Engine<D>> {
        Arc::new(Ghost(ranks.len()))
    }
}
