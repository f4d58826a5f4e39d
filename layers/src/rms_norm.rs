//! RMSNorm, the same on every rank of the tensor axis.
//!
//! ```text
//! forward    Y[B,D] = X · r · gain,  r[B] = 1/√(mean(X²) + ε)                    no traffic
//! backward  dX[B,D] = r·(dY·gain) − X·r³/D·Σ_D(dY·gain·X)                        no traffic
//!           dgain[D] = Σ_B dY·X·r                                                no traffic
//! ```
//!
//! Each rank does all of it: the rows are whole, and dividing the work would cost a collective. (Sequence
//! regions divide the rows instead.)
//!
//! Source: Zhang, Sennrich, arXiv:1910.07467, eq. 4; Llama's form. Chapter: 3.
use crate::ops::{rms_norm, rms_norm_backward};
use crate::weight::WholeWeight;
use crate::{Builder, Cx, Draw, Kept, Layer, Param, Result};
use kernels::Kernels;
use tensor::Tensor;

/// RMSNorm with a gain.
pub struct RmsNorm<D: Kernels> {
    gain: WholeWeight<D>, // [1,D]
    eps: f64,
}

/// X\[B,D\] and 1/rms\[B\].
pub type Saved<D> = Kept<(Tensor<D>, Tensor<D>)>;

impl<D: Kernels> RmsNorm<D> {
    /// A norm of `width` features; gains begin near 1, but not at 1, where bugs hide.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn new(at: &Builder<D>, name: &str, width: usize, eps: f64) -> Result<Self> {
        let gain = WholeWeight::new(at, name, [1, width], Draw { mean: 1.0, std: 0.02 })?;
        Ok(Self { gain, eps })
    }
    /// dX, plus the gradient that went around (`skip`), in one pass.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn backward_onto(
        &mut self,
        saved: Saved<D>,
        dy: &Tensor<D>,
        skip: Option<&Tensor<D>>,
    ) -> Result<Tensor<D>> {
        let (x, r) = saved.open();
        rms_norm_backward(&mut self.gain, &x, &r, dy, skip)
    }
}

impl<D: Kernels> Layer<D> for RmsNorm<D> {
    type In = Tensor<D>;
    type Out = Tensor<D>;
    type Saved = Saved<D>;
    type Pending = (); // dgain costs one pass that dX makes anyway

    fn forward(&self, cx: &Cx<D>, x: Tensor<D>) -> Result<(Tensor<D>, Saved<D>)> {
        let (y, r) = rms_norm(&x, &self.gain.whole()?, self.eps);
        Ok((y, cx.keep((x, r))))
    }

    fn backward_input(&mut self, _: &Cx<D>, saved: Saved<D>, dy: Tensor<D>) -> Result<(Tensor<D>, ())> {
        Ok((self.backward_onto(saved, &dy, None)?, ()))
    }

    fn backward_weight(&mut self, _: &Cx<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        into.push(self.gain.param());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves};
    use comm::Op;
    use tensor::Scalar;

    struct Norm;
    impl Case for Norm {
        type Layer<D: Kernels> = RmsNorm<D>;
        fn features(&self) -> [usize; 2] {
            [7, 7]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<RmsNorm<D>> {
            RmsNorm::new(at, "gain", 7, 1e-5)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let gain = &g.weights["gain"];
            let (dx, dgain) = reference::rms_norm_backward(&g.x, gain, &g.dy, 1e-5);
            let y = reference::rms_norm(&g.x, gain, 1e-5);
            Answer { y, dx, gradients: [("gain".into(), dgain)].into() }
        }
        fn traffic(&self, _: usize) -> Vec<(Op, usize)> {
            vec![]
        }
    }

    /// Kills: ε outside the root, a mean over the wrong count, `=` for `+=` on dgain, a needless collective.
    #[test]
    fn norm_equals_norm_bit_for_bit() {
        proves(&Norm);
    }
}
