//! What is done about the parameters of a unit (head, a block, embedding) around their use.
use crate::{Param, Result};
use kernels::Kernels;

/// What a model reports of the parameters of its units while a microbatch goes through them. A unit is `before` and `after`
/// once in a forward and once in a backward (or twice, where the halves of a backward come apart).
pub trait Uses<D: Kernels> {
    /// Whether parameters do not rest where they are used, so that `before` and `after` have something to do. Where this
    /// is false a model need not report them.
    fn moves(&self) -> bool {
        false
    }
    /// The unit is used next: its values must be here.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn before(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// The unit is used after the one that is used next: its values may begin to come.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn ahead(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// The unit is not used any more by this pass of this microbatch.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn after(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// Nothing more is added to the unit's gradients in this step.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn complete(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// Nothing more is added to the gradients of these parameters, all that one part of a model has: their sums are waited
    /// for.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn finish(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer changes these parameters next: what rests of them, and its own state beside it, must be here.
    ///
    /// # Errors
    /// If state cannot be brought.
    fn before_update(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer has changed these parameters, and needs their state no more in this step.
    ///
    /// # Errors
    /// If state cannot be put away.
    fn after_update(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
    /// An optimizer has changed what rests here of these parameters, all of this rank's.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn share(&mut self, _: &mut [&mut Param<D>]) -> Result<()> {
        Ok(())
    }
}

/// For passes that learn nothing, of parameters that rest where they are used.
impl<D: Kernels> Uses<D> for () {}
