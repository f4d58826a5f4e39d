//! What stands before and behind the blocks of a chunk.
use crate::model::end::{AnyEnd, End, EndBack, EndLoss, TiedTable, TiedTableMut};
use crate::model::part::{Part, Ticket};
use crate::model::stage::{Of, Output, Targets, Wanted};
use crate::ops::{Region, Stream, gather_last, gather_tokens, last_rows, mean_square};
use crate::param::weight::RowWeight;
use crate::{Cx, Embedding, Kept, Layer, Param, Result};
use comm::{Axes, Group};
use kernels::Kernels;
use std::sync::Arc;
use tensor::Tensor;

/// The ends of a chunk; of one in the middle of a model, none.
pub(crate) struct Ends<D: Kernels> {
    pub(crate) tables: Tables<D>,
    pub(crate) rows: Option<Region>, // of features, where they enter here
    pub(crate) end: Option<AnyEnd<D>>,
    pub(crate) name: Arc<str>, // of the last, in a profile
    pub(crate) group: Group<D::Place>,
    pub(crate) sharers: Group<D::Place>, // of the tokens of the same sequences
}

/// The tables of ids.
pub(crate) struct Tables<D: Kernels> {
    pub(crate) embedding: Option<Part<D, Embedding<D>>>,
    pub(crate) other: Option<RowWeight<D>>, // of a tied head whose embedding is in another chunk
    pub(crate) tied: bool,
}

/// The mean square of what is missing.
pub(crate) struct MeanSquare<D: Kernels> {
    pub(crate) over: Axes, // of which each rank has a part of the loss
    pub(crate) group: Group<D::Place>,
}

impl<D: Kernels> Tables<D> {
    pub(crate) const NONE: Self = Self { embedding: None, other: None, tied: false };

    /// What a tied head shares with the embedding.
    fn shared(&self) -> Option<&RowWeight<D>> {
        let table = || self.embedding.as_ref().and_then(Part::usual).map(Embedding::rows);
        self.other.as_ref().or_else(table).filter(|_| self.tied)
    }
    pub(crate) fn shared_mut(&mut self) -> Option<&mut RowWeight<D>> {
        let table = self.embedding.as_mut().and_then(Part::usual_mut).map(Embedding::table);
        self.other.as_mut().or(table).filter(|_| self.tied)
    }
}

impl<D: Kernels> End<D> for MeanSquare<D> {
    type Saved = Kept<Stream<D>>;
    type Pending = ();

    fn forward(&self, cx: &Cx<D>, _: TiedTable<D>, x: Stream<D>, targets: Targets<D>) -> EndLoss<D, Self> {
        let Targets::Rows(y) = targets else { panic!("ids as targets of bare blocks; it must be rows") };
        let (loss, dx) = mean_square(x, &y, cx.pass().mean_over, &self.group, self.over)?;
        Ok((loss, cx.keep(dx)))
    }
    fn logits(&self, _: &Cx<D>, _: TiedTable<D>, x: Stream<D>) -> Result<Tensor<D>> {
        x.gather(&self.group)
    }
    fn backward_input(&mut self, _: &Cx<D>, _: TiedTable<D>, dx: Self::Saved, _: bool) -> EndBack<D, Self> {
        Ok((Some(dx.open()), ()))
    }
    fn backward_weight(&mut self, _: &Cx<D>, _: TiedTableMut<D>, (): Self::Pending) -> Result<()> {
        Ok(())
    }
    fn params<'a>(&'a mut self, _: &mut Vec<&'a mut Param<D>>) {}
}

impl<D: Kernels> Ends<D> {
    pub(crate) const EMBEDDING: Of<D, Self> = Of { used: Self::of_embedding, own: Self::of_embedding };
    pub(crate) const HEAD: Of<D, Self> = Of { used: Self::used_by_head, own: Self::of_head };

    fn of_embedding<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.tables.embedding.iter_mut().for_each(|embedding| embedding.params(all));
    }
    fn of_head<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.end.iter_mut().for_each(|end| end.params(all));
        all.extend(self.tables.other.as_mut().map(RowWeight::param));
    }
    fn used_by_head<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.end.iter_mut().for_each(|end| end.params(all));
        all.extend(self.tables.shared_mut().map(RowWeight::param));
    }
    pub(crate) fn embedding(&mut self) -> &mut Part<D, Embedding<D>> {
        self.tables.embedding.as_mut().expect("the chunk has an embedding")
    }
    /// The loss or logits of what the last block gave.
    pub(crate) fn forward(&self, cx: &Cx<D>, x: Stream<D>, wanted: Wanted<D>) -> Result<(Output<D>, Ticket)> {
        let (table, end) = (self.tables.shared(), self.end.as_ref().expect("the chunk has an end"));
        let all = match wanted {
            Wanted::Loss(targets) => {
                let (loss, saved) = end.forward(cx, table, x, targets)?;
                return Ok((Output::Loss(loss), saved));
            }
            Wanted::Logits { all } => all,
        };
        let few = !all && !cx.recording(); // a record has a row for every token
        let x = if few { last_rows(cx, &x.gather(&self.group)?).into() } else { x };
        let y = end.logits(cx, table, x)?;
        if all {
            return Ok((Output::Logits(gather_tokens(cx, y, &self.sharers)?), None));
        }
        let y = if few { y } else { last_rows(cx, &y) };
        Ok((Output::Logits(gather_last(cx, y, &self.sharers)?), None))
    }
    /// The gradient of what the last block gave, none where nobody wants it, and what the weight half needs.
    pub(crate) fn back(&mut self, cx: &Cx<D>, s: Ticket, first: bool) -> Result<(Option<Stream<D>>, Ticket)> {
        let end = self.end.as_mut().expect("the chunk has an end");
        end.backward_input(cx, self.tables.shared(), s, !first)
    }
    pub(crate) fn backward_weight(&mut self, cx: &Cx<D>, pending: Ticket) -> Result<()> {
        let end = self.end.as_mut().expect("the chunk has an end");
        end.backward_weight(cx, self.tables.shared_mut(), pending)
    }
}
