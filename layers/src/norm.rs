//! The norm before a part of a block: of either kind, alike in what it takes, keeps and gives.
pub mod layer_norm;
pub mod rms_norm;

use crate::ops::Stream;
use crate::{Builder, Cx, Kept, Layer, LayerNorm, NormKind, Param, Result, RmsNorm};
use kernels::Kernels;
use tensor::Tensor;

/// A norm with its name.
pub struct Norm<D: Kernels> {
    name: String,
    kind: Kind<D>,
}

enum Kind<D: Kernels> {
    Rms(Box<RmsNorm<D>>),
    Layer(Box<LayerNorm<D>>),
}

/// X\[B,D\] and each row's statistics.
pub type Saved<D> = Kept<(Stream<D>, Tensor<<D as Kernels>::Wide>)>;

impl<D: Kernels> Norm<D> {
    /// A norm of `width` features.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn new(at: &Builder<D>, kind: NormKind, name: &str, width: usize, eps: f64) -> Result<Self> {
        let kind = match kind {
            NormKind::Rms => Kind::Rms(Box::new(RmsNorm::new(at, name, width, eps)?)),
            NormKind::Layer => Kind::Layer(Box::new(LayerNorm::new(at, name, width, eps)?)),
        };
        Ok(Self { name: name.into(), kind })
    }
    /// dX, plus the gradient that went around (`skip`), in one pass.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn backward_onto(
        &mut self,
        saved: Saved<D>,
        dy: &Stream<D>,
        skip: Option<&Stream<D>>,
    ) -> Result<Stream<D>> {
        match &mut self.kind {
            Kind::Rms(norm) => norm.backward(saved, dy, skip),
            Kind::Layer(norm) => norm.backward(saved, dy, skip),
        }
    }
}

impl<D: Kernels> Layer<D> for Norm<D> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = Saved<D>;
    type Pending = (); // the gradients of gain and bias cost one pass that dX makes anyway

    fn forward(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Saved<D>)> {
        cx.saw(&self.name, "in", |_| Ok(x.seen()))?;
        let (y, saved) = match &self.kind {
            Kind::Rms(norm) => norm.forward(cx, x)?,
            Kind::Layer(norm) => norm.forward(cx, x)?,
        };
        cx.saw(&self.name, "out", |_| Ok(y.seen()))?;
        Ok((y, saved))
    }

    fn backward_input(&mut self, _: &Cx<D>, saved: Saved<D>, dy: Stream<D>) -> Result<(Stream<D>, ())> {
        Ok((self.backward_onto(saved, &dy, None)?, ()))
    }

    fn backward_weight(&mut self, _: &Cx<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        match &mut self.kind {
            Kind::Rms(norm) => norm.params(into),
            Kind::Layer(norm) => norm.params(into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves, proves_in_regions};
    use comm::Op;
    use tensor::Scalar;

    struct AnyNorm(NormKind);
    impl Case for AnyNorm {
        type Layer<D: Kernels> = Norm<D>;
        fn features(&self) -> [usize; 2] {
            [7, 7]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Norm<D>> {
            Norm::new(at, self.0, "gain", 7, 1e-5)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let gain = &g.weights["gain"];
            if self.0 == NormKind::Rms {
                let (dx, dgain) = reference::rms_norm_backward(&g.x, gain, &g.dy, 1e-5);
                let y = reference::rms_norm(&g.x, gain, 1e-5);
                return Answer { y, dx, gradients: [("gain".into(), dgain)].into() };
            }
            let (dx, dgain, dbias) = reference::layer_norm_backward(&g.x, gain, &g.dy, 1e-5);
            let y = reference::layer_norm(&g.x, gain, &g.weights["gain.bias"], 1e-5);
            Answer { y, dx, gradients: [("gain".into(), dgain), ("gain.bias".into(), dbias)].into() }
        }
        fn traffic(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
            vec![]
        }
        fn traffic_in_regions(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
            vec![]
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            let gains = if self.0 == NormKind::Rms { 7 } else { 2 * 7 };
            if regions { gains } else { 0 }
        }
    }

    /// Kills: ε outside the root, a mean over the wrong count, a variance about 0, `=` for `+=` on dgain or dbias, a
    /// needless collective.
    #[test]
    fn norms_equal_norms_bit_for_bit() {
        for kind in [NormKind::Rms, NormKind::Layer] {
            proves(&AnyNorm(kind));
        }
    }

    /// Kills: a gain's or bias' gradient not summed over the tokens' ranks, or averaged.
    #[test]
    fn norms_equal_norms_under_sequence_parallelism() {
        for kind in [NormKind::Rms, NormKind::Layer] {
            proves_in_regions(&AnyNorm(kind));
        }
    }
}
