//! LayerNorm of whole rows.
//!
//! ```text
//! forward    Y[B,D] = (X − μ)·r·gain + bias,  μ = mean(X),  r[B] = 1/√(mean((X − μ)²) + ε)      no traffic
//! backward  with N = (X − μ)·r and G = dY·gain:  dX = r·(G − mean(G) − N·mean(G·N))             no traffic
//!           dgain[D] = Σ_B dY·N,  dbias[D] = Σ_B dY                                             no traffic
//! ```
//!
//! As with RMSNorm, each rank does all tokens or, in a sequence region, its own; dgain and dbias are then addends.
//!
//! Source: Ba, Kiros, Hinton, "Layer normalization", §3, arXiv:1607.06450; GPT-2's form. Chapters: 3, 7.
use crate::linear::column::BIAS;
use crate::norm::Saved;
use crate::norm::rms_norm::GAIN;
use crate::ops::{Stream, layer_norm, layer_norm_backward};
use crate::param::weight::WholeWeight;
use crate::{Builder, Cx, Param, Result};
use kernels::Kernels;

/// LayerNorm with a gain and a bias.
pub struct LayerNorm<D: Kernels> {
    gain: WholeWeight<D>, // [1,D]
    bias: WholeWeight<D>, // [1,D]
    eps: f64,
}

impl<D: Kernels> LayerNorm<D> {
    /// A norm of `width` features: parameters `name` and `name.bias`.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn new(at: &Builder<D>, name: &str, width: usize, eps: f64) -> Result<Self> {
        let row = |name: &str, draw| WholeWeight::new(at, name, [1, width], at.placement(), draw);
        Ok(Self { gain: row(name, GAIN)?, bias: row(&format!("{name}.bias"), BIAS)?, eps })
    }
    /// Y; X, the mean and r are kept.
    ///
    /// # Errors
    /// If ranks do not meet; so it is below.
    pub(crate) fn forward(&self, cx: &Cx<D>, x: Stream<D>) -> Result<(Stream<D>, Saved<D>)> {
        let (y, stats) = layer_norm(&x, [&self.gain.whole()?, &self.bias.whole()?], self.eps);
        Ok((y, cx.keep((x, stats))))
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
        let (x, stats) = saved.open();
        layer_norm_backward([&mut self.gain, &mut self.bias], &x, &stats, dy, skip)
    }
    pub(crate) fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        into.extend([self.gain.param(), self.bias.param()]);
    }
}
