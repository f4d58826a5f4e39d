//! Exchange of rows with the root, the data rank that has the batch and computes the loss of all ranks'
//! tokens.
//!
//! ```text
//! scatter    X_d[B_d,F], from X[B,F] of the root; the others give no row     Σ_{d>0} B_d·F elements
//! gather     X[B,F] on the root, from X_d[B_d,F]; the others get no row      Σ_{d>0} B_d·F elements
//! ```
//!
//! Ranks may have different numbers of rows, so each is an all-to-all in which only the root gives, or takes.
use crate::{PassContext, Result, ShardingStrategy, Split, TokenShards};
use comm::{Group, Mesh};
use kernels::Kernels;
use std::ops::Range;
use tensor::{Device, Place, Tensor};

/// The data ranks, if the first of them is the root. Without a root there is nothing to exchange.
pub struct RootExchange<P: Place>(Option<Group<P>>);

impl<P: Place> RootExchange<P> {
    /// Creates the exchange of the ranks that a model is built on, under this label.
    pub fn new(rests: ShardingStrategy, mesh: &Mesh<P>, label: &str) -> Self {
        Self((rests == ShardingStrategy::ROOT).then(|| mesh.group(TokenShards::SEQUENCES).named(label)))
    }
    /// Returns whether this rank is the root, if there is one.
    pub fn is_root(&self) -> Option<bool> {
        self.0.as_ref().map(|group| group.rank() == 0)
    }
    /// Returns this rank's rows of those that the root has.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn scatter<D: Kernels<Place = P>, E: Device<Place = P>>(
        &self,
        cx: &PassContext<D>,
        x: &Tensor<E>,
    ) -> Result<Option<Tensor<E>>> {
        self.exchange(cx, x, |[at_root, own]| [at_root, own])
    }
    /// Returns the rows of all ranks on the root, in rank order, and no rows on others.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather<D: Kernels<Place = P>>(
        &self,
        cx: &PassContext<D>,
        x: &Tensor<D>,
    ) -> Result<Option<Tensor<D>>> {
        self.exchange(cx, x, |[at_root, own]| [own, at_root])
    }
    fn exchange<D: Kernels<Place = P>, E: Device<Place = P>>(
        &self,
        cx: &PassContext<D>,
        x: &Tensor<E>,
        order: fn([Vec<usize>; 2]) -> [Vec<usize>; 2],
    ) -> Result<Option<Tensor<E>>> {
        let Some(group) = &self.0 else { return Ok(None) };
        let numbers = cx.numbers_of_ranks();
        let of_ranks = numbers.iter().map(|of| of.iter().map(Range::len).sum());
        let mut given = vec![0; group.size()];
        given[0] = cx.rows();
        let at_root = if group.rank() == 0 { of_ranks.collect() } else { vec![0; group.size()] };
        let [give, take] = order([at_root, given]);
        Ok(Some(group.all_to_all_v(x, &give, &take)?))
    }
}

impl<D: Kernels> Split<D> {
    /// Returns the columns after an exchange of rows.
    ///
    /// # Errors
    /// Those of the exchange.
    pub fn exchanged(self, by: impl FnOnce(&Tensor<D>) -> Result<Option<Tensor<D>>>) -> Result<Self> {
        let axis = self.axis();
        Ok(by(self.share())?.map_or(self, |rows| Self::new(rows, axis)))
    }
}
