//! A classifier from its examples to its loss, as one layer: a planned graph.
use crate::build::stage::{Ending, Output, StageRequest, Targets};
use crate::graph::planned::PlannedGraph;
use crate::graph::sharded::Sharded;
use crate::graph::split::{Given, GraphSaved, SplitGraph};
use crate::{Builder, InputHalf, Layer, Params};
use comm::Axes;
use kernels::{Kernels, LossTerms};
use ops::{Error, KeptValue, PassContext, Region, Result, Stream, own_loss};
use std::sync::Arc;
use tensor::Tensor;

/// A classifier from its examples, which every rank has whole, to its loss or its logits.
pub struct GraphEnd<D: Kernels> {
    graph: SplitGraph<D>,
    classes: usize,
    over: Axes, // axes over which the loss is a partial sum
}

impl<D: Kernels> GraphEnd<D> {
    /// Builds this rank's part of a plan whose graph ends in a loss.
    ///
    /// # Errors
    /// If the plan's graph ends otherwise, or its parameters cannot be built.
    pub fn build(at: &Builder<D>, plan: &Arc<PlannedGraph>) -> Result<Self> {
        let logits = plan.graph.logits();
        let logits = logits.ok_or_else(|| Error::Cannot("the graph of a classifier has no loss".into()))?;
        let classes = plan.graph.tensors[logits].shape[1];
        let over = at.mesh.over(Axes::LOSS)?.axis();
        Ok(Self { graph: SplitGraph::build(at, plan)?, classes, over })
    }
}

impl<D: Kernels> Layer<D> for GraphEnd<D> {
    type In = Ending<D>;
    type Out = Option<Output<D>>;
    type Saved = Option<KeptValue<GraphSaved<D>>>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, (x, wanted): Ending<D>) -> Result<(Self::Out, Self::Saved)> {
        assert_eq!(x.region(), Region::Whole, "examples are whole on every rank");
        let input = Some(x.share().clone());
        let Some(StageRequest::Loss(Targets::Ids(targets))) = wanted else {
            return match self.graph.forward(input, None)?.0 {
                Given::Matrix(y) => Ok((Some(Output::Logits(y.gathered(self.graph.place())?)), None)),
                Given::Loss(_) => panic!("a loss without targets"),
            };
        };
        let terms = LossTerms {
            mean_over: cx.pass().mean_over,
            smoothing: 0.0,
            z: 0.0,
            vocabulary: self.classes,
            cap: None,
        };
        match self.graph.forward(input, Some((&targets, terms)))? {
            (Given::Loss(loss), saved) => {
                Ok((Some(Output::Loss(own_loss::<D>(loss, self.over))), Some(cx.keep(saved))))
            }
            (Given::Matrix(_), _) => panic!("a classifier's graph ends in a loss"),
        }
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Self::Out,
    ) -> InputHalf<D, Self> {
        self.backward_without_dx(cx, saved, dy)?;
        Err(Error::Cannot("examples have no gradient".into()))
    }
    fn backward_without_dx(&mut self, _: &PassContext<D>, saved: Self::Saved, _: Self::Out) -> Result<()> {
        self.graph.backward(saved.expect("forward gave a loss").open(), None).map(drop)
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.graph.params(into);
    }
}

/// A graph from the stream to the stream. Its backward adds the gradients of weights in the input half.
impl<D: Kernels> Layer<D> for SplitGraph<D> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = KeptValue<GraphSaved<D>>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        assert_eq!(x.region(), Region::Whole, "a graph's input is whole on every rank");
        match self.forward(Some(x.share().clone()), None)? {
            (Given::Matrix(y), saved) => {
                Ok((Stream::from(Sharded::gathered(y, self.place())?), cx.keep(saved)))
            }
            (Given::Loss(_), _) => panic!("a loss is not a stream"),
        }
    }
    fn backward_input(
        &mut self,
        _: &PassContext<D>,
        saved: Self::Saved,
        dy: Stream<D>,
    ) -> InputHalf<D, Self> {
        let dx: Option<Tensor<D>> = self.backward(saved.open(), Some(dy.share().clone()))?;
        let dx = dx.ok_or_else(|| Error::Cannot("the gradient of the graph's input is not wanted".into()))?;
        Ok((dx.into(), ()))
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.params(into);
    }
}
