//! The norm before a part of a block, of whole rows: RMSNorm, or LayerNorm, which has a bias.
//!
//! ```text
//! RMSNorm    Y[B,D] = N·gain,        N = X·r,       r[B] = 1/√(mean(X²) + ε)                     no traffic
//! LayerNorm  Y[B,D] = N·gain + bias, N = (X − μ)·r, r[B] = 1/√(mean((X − μ)²) + ε), μ = mean(X)  no traffic
//! backward   with G = dY·gain:  dX = r·(G − N·mean(G·N)), and − r·mean(G) for LayerNorm          no traffic
//!            dgain[D] = Σ_B dY·N,  dbias[D] = Σ_B dY                                             no traffic
//! ```
//!
//! Each rank computes all of it: the rows are whole, and dividing the work would cost a collective. Under
//! sequence parallelism a rank normalises its own tokens; dgain and dbias are then partial sums, as their
//! placement says.
//!
//! Source: Zhang, Sennrich, arXiv:1910.07467, eq. 4, in Llama's form; Ba, Kiros, Hinton, "Layer
//! normalization", §3, arXiv:1607.06450, in GPT-2's. Chapter: columns and rows, sequence parallelism.
use crate::build::strategy;
use crate::{Builder, InputHalf, Layer, NormKind, Params};
use kernels::Kernels;
use ops::handles::weight::BIAS;
use ops::{Branches, Draw, KeptValue, PassContext, Result, Stream, WholeWeight, norm, norm_backward};
use tensor::Tensor;

/// A norm with its name.
pub struct Norm<D: Kernels> {
    name: String,
    gain: WholeWeight<D>,         // [1,D]
    bias: Option<WholeWeight<D>>, // [1,D], of LayerNorm
    eps: f64,
}

/// Gains start near 1, but not at 1, which would hide bugs.
pub(crate) const GAIN: Draw = Draw { mean: 1.0, std: 0.02 };

/// X\[B,D\] and each row's statistics.
pub type Saved<D> = KeptValue<(Stream<D>, Tensor<<D as Kernels>::Wide>)>;

impl<D: Kernels> Norm<D> {
    /// Creates parameters `name` and, for LayerNorm, `name.bias`.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn new(at: &Builder<D>, norm: &strategy::Norm) -> Result<Self> {
        let strategy::Norm { kind, name, width, eps } = *norm;
        let row = |name: &str, draw| WholeWeight::new(at, name, [1, width], at.placement(), draw);
        let bias = || row(&format!("{name}.bias"), BIAS);
        let bias = (kind == NormKind::Layer).then(bias).transpose()?;
        Ok(Self { name: name.into(), gain: row(name, GAIN)?, bias, eps })
    }
}

impl<D: Kernels> Layer<D> for Norm<D> {
    type In = Stream<D>;
    type Out = Branches<D>;
    type Saved = Saved<D>;
    type Pending = (); // the pass that computes dX adds to these gradients too

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Branches<D>, Saved<D>)> {
        cx.record(&self.name, "in", &x)?;
        let bias = self.bias.as_ref().map(WholeWeight::whole).transpose()?;
        let (y, stats) = norm(&x, &self.gain.whole()?, bias.as_ref(), self.eps);
        cx.record(&self.name, "out", &y)?;
        Ok(((y, Some(x.clone())), cx.keep((x, stats))))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Saved<D>,
        (dy, around): Branches<D>,
    ) -> InputHalf<D, Self> {
        let (x, stats) = saved.open();
        let dx = norm_backward(&mut self.gain, self.bias.as_mut(), (&x, &stats), &dy, around.as_ref())?;
        cx.record_gradient(&self.name, "in", &dx)?;
        Ok((dx, ()))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.gain.param());
        into.extend(self.bias.as_mut().map(WholeWeight::param));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use comm::Op;
    use tensor::Scalar;

    struct AnyNorm(NormKind);
    impl Case for AnyNorm {
        type Layer<D: Kernels> = Norm<D>;
        fn features(&self) -> [usize; 2] {
            [7, 7]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Norm<D>> {
            Norm::new(at, &strategy::Norm { kind: self.0, name: "gain", width: 7, eps: 1e-5 })
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
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

    /// Kills: ε outside the root, a mean over the wrong count, a variance about 0, `=` for `+=` on dgain or
    /// dbias, a needless collective.
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
