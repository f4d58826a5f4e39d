//! Exchange of heads for tokens among ranks that have the same heads of other tokens: after it each rank has
//! all tokens of its part of the heads, in the order of the sequences.
use super::tokens::{RowOrder, moved, order};
use crate::{PassContext, Result, Split, filled};
use comm::Group;
use kernels::{Heads, Kernels};
use std::ops::Range;
use tensor::{Category, Scalar, Tensor};

/// A group of context ranks that exchange heads for tokens. With more ranks than KV heads, several ranks get
/// the same one.
pub struct HeadExchange<D: Kernels> {
    group: Group<D::Place>,
    all: Heads,
    own: Heads,
}

impl<D: Kernels> HeadExchange<D> {
    /// Makes the exchange of these heads.
    pub fn new(group: Group<D::Place>, all: Heads) -> Self {
        Self { own: all.share(group.size()), group, all }
    }
    /// Heads of each rank after the exchange.
    pub fn heads(&self) -> Heads {
        self.own
    }
    /// Index of this rank's first query head.
    pub fn first(&self) -> usize {
        self.group.rank() * self.own.queries
    }
    /// Exchanges `[Q|K|V][B_r,(Hq+2Hk)·d]` for `[B,·]` of this rank's heads: an all-to-all.
    ///
    /// # Errors
    /// If the call fails.
    pub fn qkv(&self, cx: &PassContext<D>, qkv: &Split<D>) -> Result<Split<D>> {
        self.to_heads(cx, qkv, |rank| self.all.columns_of(rank, self.group.size()))
    }
    /// Exchanges the gradient of O, `[B_r,Hq·d]`, for `[B,·]` of this rank's heads: an all-to-all.
    ///
    /// # Errors
    /// If the call fails.
    pub fn gradient(&self, cx: &PassContext<D>, d_o: &Split<D>) -> Result<Split<D>> {
        self.to_heads(cx, d_o, |rank| [self.all.outputs_of(rank, self.group.size())])
    }
    /// Exchanges O of this rank's heads, `[B,·]`, for `[B_r,Hq·d]`: an all-to-all.
    ///
    /// # Errors
    /// If the call fails.
    pub fn output(&self, cx: &PassContext<D>, o: Split<D>) -> Result<Split<D>> {
        self.to_tokens(cx, o, self.all.gathered(), |rank| [self.all.outputs_of(rank, self.group.size())])
    }
    /// Exchanges the gradient of this rank's heads, `[B,·]` in the wide dtype, for `dQKV[B_r,(Hq+2Hk)·d]`: an
    /// all-to-all, wide if several ranks have parts of a KV head's gradient, which are summed.
    ///
    /// # Errors
    /// If the call fails.
    pub fn qkv_gradient(&self, cx: &PassContext<D>, device: &D, dqkv: Split<D::Wide>) -> Result<Split<D>> {
        let columns = |rank| self.all.columns_of(rank, self.group.size());
        if self.group.size() <= self.all.keys {
            return self.to_tokens(cx, Split::narrowed(device, &dqkv), self.all.row(), columns);
        }
        Ok(Split::narrowed(device, &self.to_tokens(cx, dqkv, self.all.row(), columns)?))
    }
    fn order(&self, cx: &PassContext<D>) -> (RowOrder, Vec<usize>) {
        let ranks = self.group.size();
        order(ranks, |rank| cx.rows_in_member(ranks, rank))
    }
    fn to_heads<const N: usize>(
        &self,
        cx: &PassContext<D>,
        x: &Split<D>,
        columns: impl Fn(usize) -> [Range<usize>; N],
    ) -> Result<Split<D>> {
        let (ranks, axis, x) = (self.group.size(), x.axis(), x.share());
        let (order, rows) = self.order(cx);
        let here = x.rows();
        let mut sent = x.beside(here * ranks, columns(0).iter().map(Range::len).sum());
        for rank in 0..ranks {
            let mut first = 0;
            for of in columns(rank) {
                let block = sent.view_mut().take_rows(rank * here, here).take_cols(first, of.len());
                x.device().copy(block, x.view().take_cols(of.start, of.len()));
                first += of.len();
            }
        }
        let arrived = self.group.all_to_all_v(&sent, &vec![here; ranks], &rows)?;
        Ok(Split::new(moved(arrived, &order, false), axis))
    }
    fn to_tokens<const N: usize, E: Kernels<Place = D::Place>>(
        &self,
        cx: &PassContext<D>,
        x: Split<E>,
        cols: usize,
        columns: impl Fn(usize) -> [Range<usize>; N],
    ) -> Result<Split<E>> {
        let (ranks, axis, device, here) = (self.group.size(), x.axis(), x.device().clone(), cx.rows());
        let (order, rows) = self.order(cx);
        let x = moved(x.into_share(), &order, true);
        let arrived = self.group.all_to_all_v(&x, &rows, &vec![here; ranks])?;
        let mut y = filled(&device, Category::Activations, [here, cols], E::Elem::ZERO);
        for rank in 0..ranks {
            let mut first = 0;
            for of in columns(rank) {
                let from = arrived.view().take_rows(rank * here, here).take_cols(first, of.len());
                device.add(y.view_mut().take_cols(of.start, of.len()), from);
                first += of.len();
            }
        }
        Ok(Split::new(y, axis))
    }
}

impl<D: Kernels> Split<D> {
    /// Returns a matrix of the wide dtype, rounded to this one.
    pub fn narrowed(device: &D, x: &Split<D::Wide>) -> Self {
        let [rows, cols] = x.shape();
        let mut y = Tensor::empty(device, Category::Activations, rows, cols);
        device.narrow(y.view_mut(), x.share().view());
        Self::new(y, x.axis())
    }
}
