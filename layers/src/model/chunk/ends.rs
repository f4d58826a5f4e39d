//! The layers before and after the blocks of a chunk.
use crate::build::part::{BoxedLayer, Ticket};
use crate::build::stage::{Ending, Output, StageRequest, Targets};
use crate::{InputHalf, Layer, Params};
use comm::{Axes, Group};
use kernels::Kernels;
use ops::{
    KeptValue, PassContext, Region, Result, RootExchange, Stream, gather_last, gather_tokens, last_rows,
    mean_square,
};
use std::sync::Arc;
use tensor::TokenIds;

/// A head, or another layer after the last block.
pub(crate) type LastLayer<D> = BoxedLayer<D, Ending<D>, Option<Output<D>>>;

/// The ends of a chunk; all `None` for a chunk in the middle of a model.
pub(crate) struct Ends<D: Kernels> {
    pub(crate) embedding: Option<BoxedLayer<D, TokenIds<D::Place>, Stream<D>>>,
    pub(crate) rows: Option<Region>, // of features, if they enter here
    pub(crate) end: Option<LastLayer<D>>,
    pub(crate) name: Arc<str>, // of the end, in a profile
    pub(crate) tied: bool,     // the ends, to each other
    pub(crate) group: Group<D::Place>,
    pub(crate) sharers: Group<D::Place>, // ranks that have tokens of the same sequences
}

/// Mean squared error (MSE) loss.
pub(crate) struct MeanSquare<D: Kernels> {
    pub(crate) over: Axes, // along which each rank has a part of the loss
    pub(crate) group: Group<D::Place>,
    pub(crate) root: RootExchange<D::Place>,
}

impl<D: Kernels> Layer<D> for MeanSquare<D> {
    type In = Ending<D>;
    type Out = Option<Output<D>>;
    type Saved = Option<KeptValue<Stream<D>>>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, (x, wanted): Ending<D>) -> Result<(Self::Out, Self::Saved)> {
        let y = match wanted {
            Some(StageRequest::Loss(Targets::Rows(y))) => y,
            Some(StageRequest::Loss(Targets::Ids(_))) => {
                panic!("the targets of bare blocks are ids; they must be rows")
            }
            _ => return Ok((Some(Output::Logits(x.gather(&self.group)?)), None)),
        };
        let x = self.root.gather(cx, x.share())?.map_or(x, Stream::from);
        let (loss, dx) = mean_square(x, &y, cx.pass().mean_over, &self.group, self.over)?;
        let part = if cx.keeps() { self.root.scatter(cx, dx.share())? } else { None };
        Ok((Some(Output::Loss(loss)), Some(cx.keep(part.map_or(dx, Stream::from)))))
    }
    fn backward_input(&mut self, _: &PassContext<D>, dx: Self::Saved, _: Self::Out) -> InputHalf<D, Self> {
        Ok(((dx.expect("forward computed no loss").open(), None), ()))
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (): Self::Pending) -> Result<()> {
        Ok(())
    }
    fn params<'a>(&'a mut self, _: &mut Params<'a, D>) {}
}

impl<D: Kernels> Ends<D> {
    pub(crate) fn of_embedding<'a>(&'a mut self, all: &mut Params<'a, D>) {
        self.embedding.iter_mut().for_each(|embedding| embedding.params(all));
    }
    pub(crate) fn of_head<'a>(&'a mut self, all: &mut Params<'a, D>) {
        self.end.iter_mut().for_each(|end| end.params(all));
    }
    pub(crate) fn embedding(&mut self) -> &mut BoxedLayer<D, TokenIds<D::Place>, Stream<D>> {
        self.embedding.as_mut().expect("the chunk has no embedding")
    }
    fn head(&mut self) -> &mut LastLayer<D> {
        self.end.as_mut().expect("the chunk has no end")
    }
    /// Lends the embedding's table to a tied head, or takes it back.
    pub(crate) fn lend(&mut self) {
        let slot = |table: Option<_>| table.expect("a tied end has no slot for the table");
        if let (true, Some(embedding), Some(end)) = (self.tied, &mut self.embedding, &mut self.end) {
            std::mem::swap(slot(embedding.table()), slot(end.table()));
        }
    }
    /// Computes the loss or logits from the last block's output.
    pub(crate) fn forward(
        &mut self,
        cx: &PassContext<D>,
        x: Stream<D>,
        wanted: StageRequest<D>,
    ) -> Result<(Option<Output<D>>, Ticket)> {
        let StageRequest::Logits { all } = wanted else { return self.head().forward(cx, (x, Some(wanted))) };
        let few = !all && !cx.recording(); // a record has a row for every token
        let x = if few { last_rows(cx, &x.gather(&self.group)?).into() } else { x };
        let (Some(Output::Logits(y)), _) = self.head().forward(cx, (x, Some(wanted)))? else {
            panic!("the end returned no logits")
        };
        if all {
            return Ok((Some(Output::Logits(gather_tokens(cx, y, &self.sharers)?)), None));
        }
        let y = if few { y } else { last_rows(cx, &y) };
        Ok((Some(Output::Logits(gather_last(cx, y, &self.sharers)?)), None))
    }
    /// Runs the whole backward of a loss. Returns the gradient of the last block's output, `None` for the
    /// `first` layer of a model.
    pub(crate) fn back(
        &mut self,
        cx: &PassContext<D>,
        saved: Ticket,
        first: bool,
    ) -> Result<Option<Stream<D>>> {
        let (dx, pending) = if first {
            (None, self.head().backward_without_dx(cx, saved, None)?)
        } else {
            let ((dx, _), pending) = self.head().backward_input(cx, saved, None)?;
            (Some(dx), pending)
        };
        self.head().backward_weight(cx, pending)?;
        Ok(dx)
    }
}
