//! Exchange of outputs with the root, the rank of a group that computes the loss of all ranks' tokens.
//!
//! ```text
//! gather     Z[B,F] on the root, from Z_d[B_d,F]; other ranks keep no row     Σ_{d>0} B_d·F elements
//! scatter    dZ_d[B_d,F], from dZ[B,F] on the root                            Σ_{d>0} B_d·F elements
//! ```
//!
//! Ranks may have different numbers of rows: each sends, or gets, one message.
use super::{Split, Stream};
use crate::{Builder, PassContext, Result, ShardingStrategy, TokenShards};
use comm::{Group, Tag};
use kernels::Kernels;
use tensor::{Tensor, ViewMut};

/// The data ranks, if the first of them is the root; both exchanges leave a tensor as it is if not.
pub struct RootExchange<D: Kernels>(Option<Group<D::Place>>);

impl<D: Kernels> RootExchange<D> {
    /// Creates the exchange of the ranks that a model is built on.
    pub fn new(at: &Builder<D>) -> Self {
        let rooted = at.rests == ShardingStrategy::ROOT;
        Self(rooted.then(|| at.mesh.group(TokenShards::SEQUENCES).named("outputs")))
    }
    /// Numbers of the first row and of the rows of each rank.
    fn rows(cx: &PassContext<D>) -> impl Iterator<Item = (usize, (usize, usize))> {
        let all = cx.numbers_of_ranks().into_iter().scan(0, |first, of| {
            let n = of.into_iter().map(|of| of.len()).sum();
            *first += n;
            Some((*first - n, n))
        });
        all.enumerate().filter(|(_, (_, n))| *n > 0)
    }
    /// Gathers the rows of all ranks on the root, in rank order; other ranks get none.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&self, cx: &PassContext<D>, x: Tensor<D>) -> Result<Tensor<D>> {
        let Some(group) = &self.0 else { return Ok(x) };
        let (tag, cols) = (Tag::new("outputs", cx.pass().microbatch), x.cols());
        if group.rank() > 0 {
            if x.rows() > 0 {
                group.send(0, &x, tag)?;
            }
            return Ok(x.beside(0, cols));
        }
        let mut all = x.beside(Self::rows(cx).map(|(_, (_, n))| n).sum(), cols);
        for (rank, (first, n)) in Self::rows(cx) {
            let of_rank = |all: ViewMut<D>, x: &Tensor<D>| x.device().copy(all.take_rows(first, n), x.view());
            match rank {
                0 => of_rank(all.view_mut(), &x),
                _ => of_rank(all.view_mut(), &group.receive(x.device(), rank, n, cols, tag)?),
            }
        }
        Ok(all)
    }
    /// Returns this rank's rows of those that the root has.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn scatter(&self, cx: &PassContext<D>, all: Tensor<D>) -> Result<Tensor<D>> {
        let Some(group) = &self.0 else { return Ok(all) };
        let (tag, cols) = (Tag::new("gradient of outputs", cx.pass().microbatch), all.cols());
        if group.rank() > 0 {
            return match cx.rows() {
                0 => Ok(all),
                n => Ok(group.receive(all.device(), 0, n, cols, tag)?),
            };
        }
        let rows = |(first, n)| {
            let mut rows = all.beside(n, cols);
            all.device().copy(rows.view_mut(), all.view().take_rows(first, n));
            rows
        };
        for (rank, of) in Self::rows(cx).filter(|(rank, _)| *rank > 0) {
            group.send(rank, &rows(of), tag)?;
        }
        Ok(rows((0, cx.rows())))
    }
    /// Applies an exchange to rows of a stream, if there is a root.
    ///
    /// # Errors
    /// Those of the exchange.
    pub fn on_stream(
        &self,
        x: Stream<D>,
        exchange: impl FnOnce(Tensor<D>) -> Result<Tensor<D>>,
    ) -> Result<Stream<D>> {
        if self.0.is_none() { Ok(x) } else { Ok(exchange(x.share().clone())?.into()) }
    }
    /// Applies an exchange to a rank's columns.
    ///
    /// # Errors
    /// Those of the exchange.
    pub fn on_split(x: Split<D>, exchange: impl FnOnce(Tensor<D>) -> Result<Tensor<D>>) -> Result<Split<D>> {
        let axis = x.axis();
        Ok(Split::new(exchange(x.into_share())?, axis))
    }
}
