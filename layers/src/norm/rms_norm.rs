//! RMSNorm of whole rows.
//!
//! ```text
//! forward    Y[B,D] = X · r · gain,  r[B] = 1/√(mean(X²) + ε)                    no traffic
//! backward  dX[B,D] = r·(dY·gain) − X·r³/D·Σ_D(dY·gain·X)                        no traffic
//!           dgain[D] = Σ_B dY·X·r                                                no traffic
//! ```
//!
//! Each rank does all of it: the rows are whole, and dividing the work would cost a collective. In a sequence region
//! a rank has its own tokens and does those; its dgain is then an addend, which the gain's placement says.
//!
//! Source: Zhang, Sennrich, arXiv:1910.07467, eq. 4; Llama's form. Chapters: 3, 7.
use crate::norm::Saved;
use crate::ops::{Stream, rms_norm, rms_norm_backward};
use crate::param::weight::WholeWeight;
use crate::{Builder, Cx, Draw, Param, Result};
use kernels::Kernels;

/// RMSNorm with a gain.
pub struct RmsNorm<D: Kernels> {
    gain: WholeWeight<D>, // [1,D]
    eps: f64,
}

/// Gains begin near 1, but not at 1, where bugs hide.
pub(crate) const GAIN: Draw = Draw { mean: 1.0, std: 0.02 };

impl<D: Kernels> RmsNorm<D> {
    /// A norm of `width` features.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn new(at: &Builder<D>, name: &str, width: usize, eps: f64) -> Result<Self> {
        let gain = WholeWeight::new(at, name, [1, width], at.placement(), GAIN)?;
        Ok(Self { gain, eps })
    }
    /// Y; X and 1/rms are kept.
    ///
    /// # Errors
    /// If ranks do not meet; so it is below.
    pub(crate) fn forward(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Saved<D>)> {
        let (y, r) = rms_norm(&x, &self.gain.whole()?, self.eps);
        Ok((y, cx.keep((x, r))))
    }
    /// dX, plus the gradient that went around (`skip`), in one pass.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn backward(
        &mut self,
        saved: Saved<D>,
        dy: &Stream<D>,
        skip: Option<&Stream<D>>,
    ) -> Result<Stream<D>> {
        let (x, r) = saved.open();
        rms_norm_backward(&mut self.gain, &x, &r, dy, skip)
    }
    pub(crate) fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        into.push(self.gain.param());
    }
}
