//! What stands behind the last block of a model, and makes a loss, or logits, of its rows.
use crate::model::part::{Own, Ticket};
use crate::ops::{Partial, Stream};
use crate::param::weight::RowWeight;
use crate::{Cx, Param, Result, Targets};
use kernels::Kernels;
use tensor::Tensor;

/// The embedding's table, where the head is tied to it.
pub type TiedTable<'a, D> = Option<&'a RowWeight<D>>;
/// The embedding's table, where the head is tied to it, to add to its gradient.
pub type TiedTableMut<'a, D> = Option<&'a mut RowWeight<D>>;
/// What forward gives: a part of the mean loss, and what backward needs.
pub type EndLoss<D, E> = Result<(Partial<<D as Kernels>::Wide>, <E as End<D>>::Saved)>;
/// What the input half of a backward gives: dX, where it is wanted, and what the weight half needs.
pub type EndBack<D, E> = Result<(Option<Stream<D>>, <E as End<D>>::Pending)>;

/// The end of a model.
pub trait End<D: Kernels> {
    /// What backward needs of forward, made of [`Kept`](crate::Kept).
    type Saved;
    /// What the weight half needs of the input half.
    type Pending;

    /// `X[B,D]` to this microbatch's part of the mean loss: on each rank that has other tokens a partial sum.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn forward(&self, cx: &Cx<D>, table: TiedTable<D>, x: Stream<D>, targets: Targets<D>)
    -> EndLoss<D, Self>;
    /// `X[B,D]` to logits `[B,V]`, all of them on every rank: for choosing the next token.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn logits(&self, cx: &Cx<D>, table: TiedTable<D>, x: Stream<D>) -> Result<Tensor<D>>;
    /// The input half: `dX[B,D]`, where it is wanted.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        table: TiedTable<D>,
        saved: Self::Saved,
        wanted: bool,
    ) -> EndBack<D, Self>;
    /// The weight half.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn backward_weight(&mut self, cx: &Cx<D>, table: TiedTableMut<D>, pending: Self::Pending) -> Result<()>;
    /// Its parameters, in program order.
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>);
}

/// An end of any type; what it keeps stays with it, and the model holds a ticket.
pub type AnyEnd<D> = Box<dyn End<D, Saved = Ticket, Pending = Ticket>>;

/// This end, whatever its type.
pub fn any<D: Kernels>(end: impl End<D> + 'static) -> AnyEnd<D> {
    Box::new(Own::new(end))
}

impl<D: Kernels, E: End<D> + 'static> End<D> for Own<E, E::Saved, E::Pending> {
    type Saved = Ticket;
    type Pending = Ticket;

    fn forward(
        &self,
        cx: &Cx<D>,
        table: TiedTable<D>,
        x: Stream<D>,
        targets: Targets<D>,
    ) -> EndLoss<D, Self> {
        let (loss, saved) = self.layer.forward(cx, table, x, targets)?;
        Ok((loss, cx.keeps().then(|| self.saved.keep(saved))))
    }
    fn logits(&self, cx: &Cx<D>, table: TiedTable<D>, x: Stream<D>) -> Result<Tensor<D>> {
        self.layer.logits(cx, table, x)
    }
    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        table: TiedTable<D>,
        saved: Self::Saved,
        wanted: bool,
    ) -> EndBack<D, Self> {
        let (dx, pending) = self.layer.backward_input(cx, table, self.saved.take(saved), wanted)?;
        Ok((dx, Some(self.pending.keep(pending))))
    }
    fn backward_weight(&mut self, cx: &Cx<D>, table: TiedTableMut<D>, pending: Self::Pending) -> Result<()> {
        self.layer.backward_weight(cx, table, self.pending.take(pending))
    }
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.layer.params(into);
    }
}
