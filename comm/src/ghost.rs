//! A group without peers: any rank of any world, for its price. Calls are metered and counted, and do nothing.
use crate::call::Call;
use crate::engine::Engine;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;
use tensor::{Device, View, ViewMut};

/// The engine of groups whose peers do not exist.
pub(crate) struct Ghost;

impl<D: Device> Engine<D> for Ghost {
    fn all_reduce(&self, _: usize, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn all_gather(&self, _: usize, _: View<D>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn reduce_scatter(&self, _: usize, _: View<D>, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn broadcast(&self, _: usize, _: usize, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn barrier(&self, _: usize, _: &Call) -> Result<()> {
        Ok(())
    }
    fn send(&self, _: usize, _: usize, _: View<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn receive(&self, _: usize, _: usize, _: ViewMut<D>, _: &Call) -> Result<()> {
        Ok(())
    }
    fn block(&self, _: Range<usize>) -> Arc<dyn Engine<D>> {
        Arc::new(Ghost)
    }
}
