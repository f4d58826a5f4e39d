//! A linear layer over ranks that have its inputs and its outputs in parts, and send each other some of the
//! inputs.
//!
//! ```text
//! forward    Y[B,O_t] = X_t · W[I_t,O_t] + Σ_s X_s[B,sent] · W[sent of s,O_t]    all-gather, B·sent elements
//! backward  dX_t      = dY_t · W[I_t,O_t]ᵀ + Σ_s dY_s · W[sent of t,O_s]ᵀ       reduce-scatter, ranks·B·sent
//!           dW[I_t,O_t] = X_tᵀ · dY_t,  dW[sent of s,O_t] = X_s[B,sent]ᵀ · dY_t  no traffic
//! ```
//!
//! Messages are matrices of `[sent, tokens]`, and travel a part of the tokens at a time, beside the products.
use super::gradients::product_gradient;
use crate::handles::split::same;
use crate::handles::weight::ColumnWeight;
use crate::param::placement::sent::SentFeatures;
use crate::tensors::{product, sum_of};
use crate::{Columns, Result, Split, rows_of};
use comm::Group;
use kernels::{Kernels, RowShard, Write};
use std::ops::Range;
use tensor::{Category, Index, Scalar, Tensor, View};

/// Exchange of features among the ranks of an axis.
pub struct FeatureExchange<D: Kernels> {
    group: Group<D::Place>,
    each: usize,              // features that a rank sends
    sent: Index<D::Place>,    // this rank's, counted among its own features
    places: Index<D::Place>,  // of each of this rank's features among those that it sends; none: `each`
    foreign: Index<D::Place>, // the features that other ranks send, counted among all
}

/// The features that all ranks sent: `[ranks·sent, tokens]` for each part of the tokens.
pub struct ReceivedFeatures<D: Kernels>(Vec<Tensor<D>>);

impl<D: Kernels> Clone for ReceivedFeatures<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Kernels> FeatureExchange<D> {
    /// Makes the exchange of these features among the ranks of a group.
    pub fn new(device: &D, group: Group<D::Place>, sent: &SentFeatures) -> Self {
        let (rank, own, each, place) = (group.rank(), sent.own(), sent.each(), device.place());
        let mine: Vec<usize> = sent.of(rank).map(|feature| feature - rank * own).collect();
        let index = |feature: usize| mine.binary_search(&feature).map_or(each, |at| at) as u32;
        let foreign = (0..group.size()).filter(|other| *other != rank).flat_map(|other| sent.of(other));
        Self {
            each,
            sent: Index::new(place, each, mine.iter().map(|feature| *feature as u32)),
            places: Index::new(place, own, (0..own).map(index)),
            foreign: Index::new(place, (group.size() - 1) * each, foreign.map(|feature| feature as u32)),
            group,
        }
    }
    /// Returns the parts of the tokens that travel together: at most four, of 64 tokens or more.
    fn parts(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + use<D> {
        let len = tokens.div_ceil((tokens / 64).clamp(1, 4)).max(1);
        let tokens = if self.group.size() == 1 { 0 } else { tokens };
        (0..tokens).step_by(len).map(move |from| from..(from + len).min(tokens))
    }
    /// Returns, of the features that all ranks sent, the rows before and after this rank's own; each with its
    /// first row among those of the other ranks only.
    fn others(&self) -> impl Iterator<Item = (Range<usize>, usize)> + use<D> {
        let (rank, ranks, each) = (self.group.rank(), self.group.size(), self.each);
        let blocks = [(0..rank * each, 0), ((rank + 1) * each..ranks * each, rank * each)];
        blocks.into_iter().filter(|(rows, _)| !rows.is_empty())
    }
    /// Rows of a weight `W[I,O_t]` that this rank's own features meet.
    fn own(&self) -> Range<usize> {
        let len = self.places.len();
        self.group.rank() * len..(self.group.rank() + 1) * len
    }
    fn check(&self, x: &Split<D>, w: &Columns<D>) -> Result<()> {
        same(x.axis(), w.axis)?;
        same(x.axis(), self.group.axis())
    }
    /// Returns Y of this rank's columns, and the features that were received.
    ///
    /// # Errors
    /// If a collective fails, or the axes differ.
    #[track_caller]
    pub fn columns(&self, x: &Split<D>, w: &Columns<D>) -> Result<(Split<D>, ReceivedFeatures<D>)> {
        self.check(x, w)?;
        let (x, w, device) = (x.share(), w.whole(), x.device());
        let send = |tokens: Range<usize>| {
            let of_each = transposed(device, x.view().take_rows(tokens.start, tokens.len()));
            Ok((tokens, self.group.start_all_gather(rows_of(&of_each, &self.sent))?))
        };
        let calls = self.parts(x.rows()).map(send).collect::<Result<Vec<_>>>()?;
        let (range, mut y, mut received) = (self.own(), x.along(w.cols()), Vec::new());
        product(device, y.view_mut(), x.view(), w.view().take_rows(range.start, range.len()), Write::Set);
        let w = rows_of(w, &self.foreign);
        for (tokens, call) in calls {
            let arrived = call.wait()?;
            for (rows, from) in self.others() {
                let (x, w) = (take(&arrived, rows.clone()), w.view().take_rows(from, rows.len()));
                product(device, y.view_mut().take_rows(tokens.start, tokens.len()), x.t(), w, Write::Add);
            }
            received.push(arrived);
        }
        Ok((Split::new(y, self.group.axis().single().expect("checked")), ReceivedFeatures(received)))
    }
    /// Returns dX of this rank's features, from dY of its columns.
    ///
    /// # Errors
    /// As [`columns`](Self::columns).
    #[track_caller]
    pub fn input_gradient(&self, dy: &Split<D>, w: &Columns<D>) -> Result<Split<D>> {
        self.check(dy, w)?;
        let (axis, dy, w, device) = (dy.axis(), dy.share(), w.whole(), dy.device());
        let foreign = rows_of(w, &self.foreign);
        let send = |tokens: Range<usize>| {
            let dy = dy.view().take_rows(tokens.start, tokens.len());
            let mut sums =
                Tensor::empty(device, Category::Buffers, self.group.size() * self.each, tokens.len());
            device.fill(sums.view_mut().take_rows(self.group.rank() * self.each, self.each), D::Elem::ZERO);
            for (rows, from) in self.others() {
                let w = foreign.view().take_rows(from, rows.len());
                product(device, sums.view_mut().take_rows(rows.start, rows.len()), w, dy.t(), Write::Set);
            }
            Ok((tokens, self.group.start_reduce_scatter(sums)?))
        };
        let calls = self.parts(dy.rows()).map(send).collect::<Result<Vec<_>>>()?;
        let own = self.own();
        let mut dx = dy.along(self.places.len());
        product(device, dx.view_mut(), dy.view(), w.view().take_rows(own.start, own.len()).t(), Write::Set);
        for (tokens, call) in calls {
            let back = rows_of(&call.wait()?, &self.places);
            let back = transposed(device, back.view());
            device.add(dx.view_mut().take_rows(tokens.start, tokens.len()), back.view());
        }
        Ok(Split::new(dx, axis))
    }
    /// Adds the gradient of the weight: of this rank's own features, and of those that were received.
    pub fn weight_gradient(
        &self,
        w: &mut ColumnWeight<D>,
        (x, received): (&Split<D>, &ReceivedFeatures<D>),
        dy: &Split<D>,
    ) {
        let (range, dy, inputs) = (self.own(), dy.share(), w.param().local()[0]);
        w.param().accumulate(|device, dw, write| {
            let mut dw = sum_of(device, dw, write);
            let target = dw.again().take_rows(range.start, range.len());
            product_gradient(device, target, x.share().view().t(), dy.view(), Write::Add);
            let wide = device.wide();
            for (tokens, all) in self.parts(dy.rows()).zip(&received.0) {
                let mut foreign = Tensor::empty(wide, Category::Buffers, self.foreign.len(), dy.cols());
                let dy = dy.view().take_rows(tokens.start, tokens.len());
                for (rows, from) in self.others() {
                    let to = foreign.view_mut().take_rows(from, rows.len());
                    product_gradient(device, to, take(all, rows), dy, Write::Set);
                }
                let whole = RowShard { first: 0, len: inputs };
                wide.embed_backward(dw.again(), foreign.view(), &self.foreign, whole);
            }
        });
    }
}

/// Rows of a matrix.
fn take<D: Kernels>(x: &Tensor<D>, rows: Range<usize>) -> View<'_, D> {
    x.view().take_rows(rows.start, rows.len())
}

/// Copies the transpose of a matrix.
fn transposed<D: Kernels>(device: &D, x: View<D>) -> Tensor<D> {
    let mut y = Tensor::empty(device, Category::Buffers, x.cols(), x.rows());
    device.copy(y.view_mut(), x.t());
    y
}
