//! What stands before and behind the blocks of a chunk.
use crate::model::stage::{Of, Output, Targets, Wanted};
use crate::ops::{Region, Stream, last_rows, mean_square};
use crate::param::weight::RowWeight;
use crate::{Cx, Embedding, Head, Kept, Layer, Param, Result, head};
use comm::{Axes, Group};
use kernels::Kernels;
use std::sync::Arc;

/// The ends of a chunk; of one in the middle of a model, none.
pub(crate) struct Ends<D: Kernels> {
    pub(crate) tables: Tables<D>,
    pub(crate) rows: Option<Region>, // of features, where they enter here
    pub(crate) end: Option<End<D>>,
    pub(crate) name: Arc<str>, // of the last, in a profile
    pub(crate) group: Group<D::Place>,
}

/// The tables of ids.
pub(crate) struct Tables<D: Kernels> {
    pub(crate) embedding: Option<Embedding<D>>,
    pub(crate) other: Option<RowWeight<D>>, // of a tied head whose embedding is in another chunk
    pub(crate) tied: bool,
}

/// What makes a loss of a row.
pub(crate) enum End<D: Kernels> {
    /// Logits, and cross-entropy.
    Head(Box<Head<D>>),
    /// The mean square of what is missing. Of the loss each rank of these axes has a part.
    MeanSquare(Axes),
}

/// What the end keeps for backward.
pub(crate) enum Saved<D: Kernels> {
    Head(head::Saved<D>),
    Gradient(Kept<Stream<D>>),
}

/// dX, where it is wanted, and what the weight half needs.
type Back<D> = (Option<Stream<D>>, Option<head::Pending<D>>);

impl<D: Kernels> Tables<D> {
    pub(crate) const NONE: Self = Self { embedding: None, other: None, tied: false };

    /// What a tied head shares with the embedding.
    fn shared(&self) -> Option<&RowWeight<D>> {
        self.other.as_ref().or(self.embedding.as_ref().map(Embedding::rows)).filter(|_| self.tied)
    }
    pub(crate) fn shared_mut(&mut self) -> Option<&mut RowWeight<D>> {
        self.other.as_mut().or(self.embedding.as_mut().map(Embedding::table)).filter(|_| self.tied)
    }
}

impl<D: Kernels> End<D> {
    pub(crate) fn params<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        if let End::Head(head) = self {
            head.params(all);
        }
    }
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
    pub(crate) fn embedding(&mut self) -> &mut Embedding<D> {
        self.tables.embedding.as_mut().expect("the chunk has an embedding")
    }
    /// The loss or logits of what the last block gave.
    pub(crate) fn forward(
        &self,
        cx: &Cx<D>,
        x: Stream<D>,
        wanted: Wanted<D>,
    ) -> Result<(Output<D>, Option<Saved<D>>)> {
        let (table, group) = (self.tables.shared(), &self.group);
        Ok(match (self.end.as_ref().expect("the chunk has an end"), wanted) {
            (End::Head(head), Wanted::Loss(Targets::Ids(ids))) => {
                let (loss, saved) = head.forward(cx, table, x, ids)?;
                (Output::Loss(loss), Some(Saved::Head(saved)))
            }
            (End::MeanSquare(over), Wanted::Loss(Targets::Rows(y))) => {
                let (loss, dx) = mean_square(x, &y, cx.mean_over(), group, *over)?;
                (Output::Loss(loss), Some(Saved::Gradient(cx.keep(dx))))
            }
            (_, Wanted::Loss(_)) => panic!("ids for a head, rows for blocks without one"),
            (end, Wanted::Logits { all }) => {
                let few = !all && !cx.recording(); // a record has a row for every token
                let x = if few { last_rows(cx, &x.gather(group)?).into() } else { x };
                let y = match end {
                    End::Head(head) => head.logits(cx, table, x)?,
                    End::MeanSquare(_) => x.gather(group)?,
                };
                (Output::Logits(if all || few { y } else { last_rows(cx, &y) }), None)
            }
        })
    }
    /// The gradient of what the last block gave, none where nobody wants it, and what the weight half needs.
    pub(crate) fn backward_input(&mut self, cx: &Cx<D>, saved: Saved<D>, first: bool) -> Result<Back<D>> {
        match (&mut self.end, saved) {
            (Some(End::Head(head)), Saved::Head(saved)) => {
                let (dx, pending) = head.backward_input(cx, self.tables.shared(), saved, !first)?;
                Ok((dx, Some(pending)))
            }
            (_, Saved::Gradient(dx)) => Ok((Some(dx.open()), None)),
            _ => panic!("what an end kept goes back to that end"),
        }
    }
    pub(crate) fn backward_weight(&mut self, pending: Option<head::Pending<D>>) {
        if let (Some(End::Head(head)), Some(pending)) = (&mut self.end, pending) {
            head.backward_weight(self.tables.shared_mut(), pending);
        }
    }
}
