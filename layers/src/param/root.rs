//! A parameter that rests on the root, the first of the ranks that sum its gradient.
//!
//! ```text
//! forward    W of the root, to all ranks     broadcast, n elements
//! backward   dW += Σ_d dW_d on the root      reduce, n elements: a reduce-scatter with one block, the root's
//! ```
//!
//! Both run once a microbatch, parameter by parameter. The root adds its own part to the sum so far.
use crate::param::kept::Kept;
use crate::{Param, Result};
use kernels::Kernels;

impl<D: Kernels> Param<D> {
    /// Copies the root's value to all ranks, for a forward and its backward. Does nothing to a parameter that
    /// does not rest on the root.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn replicate(&mut self) -> Result<()> {
        if let (true, Some(value)) = (self.sharding.rooted, &mut self.value.whole) {
            self.sharding.sum.named(self.name.clone()).broadcast(value, 0)?;
            self.stale = false;
        }
        Ok(())
    }
    /// Sums the gradient of a microbatch on the root, after its backward; other ranks' gradients and values
    /// end. Does nothing to a parameter that does not rest on the root.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn reduce(&mut self) -> Result<()> {
        let Some(counts) = self.sharding.rows_at_root() else { return Ok(()) };
        self.begin_sum()?;
        let gradient = self.gradient.whole.as_mut().expect("begun above");
        let sum = self.sharding.sum.named(self.name.clone()).reduce_scatter_v(gradient, &counts)?;
        self.stale = self.sharding.is_elsewhere();
        if self.stale {
            (self.gradient.whole, self.contributed.whole) = (None, false);
            self.gradient.shard = Some(Kept::Here(sum));
        } else {
            gradient.device().clone().copy(gradient.view_mut(), sum.view());
        }
        Ok(())
    }
}
