//! Activation recomputation, `recompute`: each block keeps only its input, and its backward runs the forward
//! again.
//!
//! ```text
//! forward   Y = F(X)               X is kept, `B·D` numbers a block
//! backward  what F keeps = F(X)    again; then dX, dW of F
//! ```
//!
//! The second forward repeats the first, collectives included: the same dropout, whose masks are drawn by
//! site, step and token, and the same experts, which are chosen from the same values.
//!
//! Source: Chen et al., "Training deep nets with sublinear memory cost", §4, arXiv:1604.06174.
use kernels::Kernels;
use layers::model::part::{Block, BoxedLayer, Ticket};
use layers::ops::Stream;
use layers::{Choice, InputHalf, KeptValue, Layer, Params, PassContext, Result, Strategy, StrategyInfo};

/// Recomputation of every block.
pub struct Recompute;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "activation recomputation",
    word: Choice::RECOMPUTE,
    paper: "Chen et al., arXiv:1604.06174",
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
    fn block(&self, _: usize, block: Block<D>) -> Block<D> {
        BoxedLayer::new(Again(block))
    }
}

/// A block whose forward runs again in backward.
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
        let saved = self.saved(cx, x)?;
        self.0.backward_input(cx, saved, dy)
    }
    fn backward_without_dx(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> Result<Ticket> {
        let saved = self.saved(cx, x)?;
        self.0.backward_without_dx(cx, saved, dy)
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Ticket) -> Result<()> {
        self.0.backward_weight(cx, pending)
    }
    fn backward(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> Result<Stream<D>> {
        let saved = self.saved(cx, x)?;
        self.0.backward(cx, saved, dy)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Mesh;
    use kernels::Heads;
    use layers::{Builder, Chunk, Half, Input, RandomValues, Record, Shape, StageRequest, Targets};
    use tensor::{Category, Cpu, Device, F61, Key, Scalar, TokenIds, Work};

    type Seen = (Vec<Vec<(usize, F61)>>, String);

    const TOKENS: usize = 5;
    const SHAPE: Shape = Shape {
        width: 4,
        blocks: 2,
        heads: Heads { queries: 2, keys: 1, dim: 2 },
        hidden: 8,
        vocabulary: 7,
        dropout: layers::Rates { embedding: 0.0, attention: 0.5, residual: 0.5 },
        ..Shape::LLAMA
    };

    /// A model's gradients with what its layers took and gave, the bytes that are kept between forward and
    /// backward, and the layers of each direction in a profile.
    fn gone_through(again: bool, blocks: usize, half: Half) -> (Seen, usize, [usize; 2]) {
        let (_key, device, mesh) = (Key(3).enter(), Cpu::<F61>::default(), Mesh::alone());
        let strategies = again.then_some(&Recompute as &dyn Strategy<_>);
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 }).with(strategies);
        let mut model = Chunk::whole(&at, &Shape { blocks, ..SHAPE }).unwrap();
        let cx = PassContext::train(0, [TOKENS], TOKENS).dropping(9, 2).profiled(&device);
        let record = Record::new(&mesh);
        let cx = cx.recorded(Some(record.clone()));
        let ids = |salt| TokenIds::new(device.place(), &[1, 2, 3, 4, salt], SHAPE.vocabulary).unwrap();
        let held = || device.meter().now(Category::Activations);
        let profile = device.profile().expect("the host has one");
        profile.begin(0);
        let before = held();
        let loss = Some(StageRequest::Loss(Targets::Ids(ids(6))));
        drop(model.forward(0, &cx, &mut (), Input::Tokens(ids(0)), loss).unwrap());
        let kept = held() - before;
        model.backward(0, &cx, &mut (), None, half, true).unwrap();
        if half == Half::Input {
            model.backward_weight(0, &cx, &mut (), true).unwrap();
        }
        assert_eq!(held(), before, "nothing is left of a microbatch that is back");
        let worked = profile.end();
        let ways = [tensor::Direction::Forward, tensor::Direction::Backward];
        let layers = ways.map(|way| {
            let is = |work: &Work| matches!(work, Work::Layer { pass, .. } if *pass == way);
            worked.iter().filter(|worked| is(&worked.work)).count()
        });
        let gradients = model.params().iter().map(|p| p.gradient_elements()).collect();
        ((gradients, format!("{:?}", record.take())), kept, layers)
    }

    /// Kills: anything kept but a block's input, a second forward that drops other numbers, a forward that a
    /// profile or a record has twice.
    #[test]
    fn a_block_keeps_its_input_and_has_the_gradients_of_one_that_keeps_all() {
        for half in [Half::Both, Half::Input] {
            let [usual, again] = [false, true].map(|again| gone_through(again, 3, half));
            assert_eq!(again.0, usual.0);
            assert!(again.0.0.iter().all(|gradient| gradient.iter().any(|(_, x)| *x != F61::ZERO)));
            assert_eq!(again.2[0], usual.2[0], "one forward");
            assert!(again.1 < usual.1);
            let more = again.1 - gone_through(true, 2, half).1;
            assert_eq!(more, TOKENS * SHAPE.width * size_of::<F61>());
        }
    }
}
