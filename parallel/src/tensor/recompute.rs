//! Activation recomputation, `recompute`: each block keeps only its input, and its backward runs the forward
//! again.
//!
//! ```text
//! forward   Y = F(X)               X is kept, `B·D` elements a block
//! backward  what F keeps = F(X)    again; then dX, dW of F
//! ```
//!
//! The second forward repeats the first, collectives included: the same dropout, whose masks are drawn by
//! site, step and token. The experts of tokens are kept from the first forward, with the plan of their
//! dispatch.
//!
//! Source: Chen et al., "Training deep nets with sublinear memory cost", §4, arXiv:1604.06174.
//! Chapter: fitting a model.
use kernels::Kernels;
use layers::build::part::Ticket;
use layers::{Block, BoxedLayer, Builder, Choice, InputHalf, Layer, Params, Strategy, StrategyInfo};
use ops::{KeptValue, PassContext, Result, Stream};

/// Recomputation of every block.
pub struct Recompute;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "activation recomputation",
    word: Choice::RECOMPUTE,
    paper: "Chen et al., arXiv:1604.06174",
    chapter: Some("fitting-a-model.md"),
    hints: &[(
        "",
        "a block's second forward repeats the first: the same dropout, experts and keys of the past",
    )],
    ..StrategyInfo::of(None, Choice::Recompute)
};

impl<D: Kernels> Strategy<D> for Recompute {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn block(&self, _: &Builder<D>, _: usize, block: Block<D>) -> Block<D> {
        again(block)
    }
}

/// Returns a block, or another layer from the stream to the stream, whose forward runs again in backward.
pub(super) fn again<D: Kernels>(block: Block<D>) -> Block<D> {
    BoxedLayer::new(Again(block))
}

struct Again<D: Kernels>(Block<D>);

impl<D: Kernels> Again<D> {
    /// Runs the forward again, for what the block saves.
    fn saved(&self, cx: &PassContext<D>, x: KeptValue<Stream<D>>) -> Result<Ticket> {
        cx.again(|| self.0.forward(cx, x.open())).map(|(_, saved)| saved)
    }
}

impl<D: Kernels> Layer<D> for Again<D> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = KeptValue<Stream<D>>;
    type Pending = Ticket;

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        let kept = cx.keep(x.clone());
        let (y, _) = cx.keeping_nothing(|| self.0.forward(cx, x))?;
        Ok((y, kept))
    }
    fn backward_input(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> InputHalf<D, Self> {
        self.0.backward_input(cx, self.saved(cx, x)?, dy)
    }
    fn backward_without_dx(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> Result<Ticket> {
        self.0.backward_without_dx(cx, self.saved(cx, x)?, dy)
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Ticket) -> Result<()> {
        self.0.backward_weight(cx, pending)
    }
    fn backward(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> Result<Stream<D>> {
        self.0.backward(cx, self.saved(cx, x)?, dy)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
    }
}

#[cfg(test)]
mod tests;
