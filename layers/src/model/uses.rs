//! Hooks on the parameters of a module (the head, a block, the embedding) around each use.
use crate::{Param, Result};
use kernels::Kernels;

/// Callbacks of a model about the parameters of its modules, made while a microbatch passes through them.
/// `before` and `after` run once per module in a forward and once in a backward (twice, where a backward runs
/// in two halves).
pub trait ParamHooks<D: Kernels> {
    /// True if parameters are sharded at rest and must be gathered before use, so that `before` and `after`
    /// have work to do. If false, a model need not call them.
    fn moves(&self) -> bool {
        false
    }
    /// The module is used next: its values must be gathered.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn before(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// The module is used after the next one: its all-gathers may start.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn ahead(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// This pass of this microbatch no longer uses the module.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn after(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// The gradients of the module's parameters are complete for this step.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn complete(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// The gradients of these parameters (all that one part of a model has) are complete: waits for their
    /// sums.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn finish(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer changes these parameters after the next one: loading their state may start.
    ///
    /// # Errors
    /// If the state cannot be loaded.
    fn ahead_of_update(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer changes these parameters next: the parts kept at rest and their optimizer state must be
    /// loaded.
    ///
    /// # Errors
    /// If the state cannot be loaded.
    fn before_update(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer has changed these parameters and no longer needs their state in this step.
    ///
    /// # Errors
    /// If the state cannot be stored.
    fn after_update(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer has changed the parts kept at rest of these parameters, all of this rank's.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn share(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
}

/// No hooks: for passes without training whose parameters are kept whole.
impl<D: Kernels> ParamHooks<D> for () {}
