//! Linear layer whose weight every rank has whole, for its own rows of the stream.
//!
//! ```text
//! forward    Y[B,O] = X[B,I] · W[I,O]                     no traffic
//! backward  dX[B,I] = dY[B,O] · W[I,O]ᵀ                   no traffic
//!           dW[I,O] = X[B,I]ᵀ · dY[B,O]                   no traffic
//! ```
//! It pays where outputs are few beside the products that follow. Under sequence parallelism a rank has its
//! own tokens; dW is then a partial sum, as its placement says.
//!
//! Source: DeepSeek-AI, "DeepSeek-V3", §2.1.1, arXiv:2412.19437: the products that give latents.
use crate::{Builder, InputHalf, Layer, Params};
use kernels::Kernels;
use ops::{
    Draw, KeptValue, PassContext, Result, Stream, WholeWeight, whole_gradient, whole_input_gradient,
    whole_matmul,
};
use std::sync::Arc;

/// A linear layer whose weight is not split.
pub struct WholeLinear<D: Kernels> {
    name: Arc<str>,
    weight: WholeWeight<D>, // W[I,O]
}

impl<D: Kernels> WholeLinear<D> {
    /// Creates the parameter `name[inputs, outputs]`. Initial values are normal with standard deviation
    /// 1/√inputs.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn new(at: &Builder<D>, name: &str, [inputs, outputs]: [usize; 2]) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let weight = WholeWeight::new(at, name, [inputs, outputs], at.placement(), draw)?;
        Ok(Self { name: name.into(), weight })
    }
}

impl<D: Kernels> Layer<D> for WholeLinear<D> {
    type In = Stream<D>; // X[B,I]
    type Out = Stream<D>; // Y[B,O]
    type Saved = KeptValue<Stream<D>>;
    type Pending = (Stream<D>, Stream<D>);

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        cx.record(&self.name, "in", &x)?;
        let y = x.with(whole_matmul(x.share(), &self.weight.whole()?));
        cx.record(&self.name, "out", &y)?;
        Ok((y, cx.keep(x)))
    }
    fn backward_input(&mut self, cx: &PassContext<D>, x: Self::Saved, dy: Stream<D>) -> InputHalf<D, Self> {
        cx.record_gradient(&self.name, "out", &dy)?;
        let dx = dy.with(whole_input_gradient(dy.share(), &self.weight.whole()?));
        cx.record_gradient(&self.name, "in", &dx)?;
        Ok((dx, (x.open(), dy)))
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (x, dy): Self::Pending) -> Result<()> {
        whole_gradient(&mut self.weight, x.share(), dy.share());
        Ok(())
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.weight.param());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use comm::Op;
    use tensor::Scalar;

    struct Whole;
    impl Case for Whole {
        type Layer<D: Kernels> = WholeLinear<D>;
        fn features(&self) -> [usize; 2] {
            [7, 4]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<WholeLinear<D>> {
            WholeLinear::new(at, "w", [7, 4])
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let w = &g.weights["w"];
            let (dx, dw) = reference::linear_backward(&g.x, w, &g.dy, [7, 4]);
            Answer { y: reference::linear(&g.x, w, [7, 4]), dx, gradients: [("w".into(), dw)].into() }
        }
        fn traffic(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
            vec![]
        }
        fn traffic_in_regions(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
            vec![]
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            if regions { 7 * 4 } else { 0 }
        }
    }

    /// Kills: a product that is summed over ranks, a gradient of a rank's own tokens alone.
    #[test]
    fn whole_linear_equals_linear_bit_for_bit() {
        proves(&Whole);
        proves_in_regions(&Whole);
    }
}
