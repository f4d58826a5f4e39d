//! One long sequence: the core of attention alone, forward and backward, and a training step of one block of
//! shape L. Under `cp` two ranks share its tokens; half the time of one rank is their limit.
use super::pass;
use super::scale::Scale;
use comm::Axis;
use kernels::{Kernels, Mask};
use layers::build::strategy::Core;
use layers::{BoxedLayer, Design, Layer, Shape};
use ops::{PassContext, SGD, Split};
use parallel::{Batch, BuildContext, Result, Trainer};
use tensor::{Category, Scalar, Tensor, mix};

/// The core of one rank's attention, its `[Q|K|V]`, and the gradient of its output.
pub(super) struct Attention<D: Kernels> {
    core: BoxedLayer<D, Split<D>, Split<D>>,
    cx: PassContext<D>,
    given: [Split<D>; 2],
}

impl<D: Kernels> Attention<D> {
    pub(super) fn new(at: &BuildContext<D>, scale: &Scale) -> Result<Self> {
        let heads = scale.shape.heads;
        let core = Core::of("scores", heads, Mask::Causal);
        let cx = PassContext::train(0, [scale.long], scale.long).sharded(at.tokens);
        let given = |(salt, cols): (u64, usize)| {
            let number = |i: usize| D::Elem::sample(mix(salt) ^ i as u64, 1.0);
            let whole = Tensor::from_fn(at.device, Category::Activations, cx.rows(), cols, number);
            Split::cut(&whole, at.mesh.group(Axis::Tp))
        };
        let [qkv, d_o] = [(1, heads.row()), (2, heads.gathered())].map(given);
        Ok(Self { core: at.build(&core)?, given: [qkv?, d_o?], cx })
    }
    pub(super) fn once(&mut self) -> Result<()> {
        let [qkv, d_o] = self.given.clone();
        let (o, saved) = self.core.forward(&self.cx, qkv)?;
        drop(o);
        self.core.backward(&self.cx, saved, d_o)?;
        Ok(())
    }
}

/// A trainer of one block, and its batch: one sequence of features.
pub(super) fn block<D: Kernels>(at: &BuildContext<D>, scale: &Scale) -> Result<(Trainer<D>, Batch)> {
    let design = Design::Blocks(Shape { blocks: 1, ..scale.shape });
    let batch = Batch::new(vec![pass::features(scale, 0, scale.long)], 1)?;
    Ok((Trainer::new(at, design, (SGD, None))?, batch))
}
