//! Layers between the products of attention, from rows `[Q | K | V]` of a rank's heads to their outputs.
use super::head_norm;
use crate::build::part::{BoxedLayer, Ticket};
use crate::build::strategy;
use crate::{Builder, HeadNorm, InputHalf, Layer, Params};
use kernels::{Heads, Kernels};
use ops::{PassContext, Result, Rotary, Split, rotate};

/// Norm and rotation of heads, and the core.
pub struct SelfAttention<D: Kernels> {
    norm: Option<HeadNorm<D>>,
    rotary: Option<Rotary<D>>,
    heads: Heads, // this rank's
    core: BoxedLayer<D, Split<D>, Split<D>>,
}

/// Values that backward needs: those of the norm, and those of the core.
pub type Saved<D> = (Option<head_norm::Saved<D>>, Ticket);

impl<D: Kernels> SelfAttention<D> {
    /// Builds the layers of the heads of a core.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    pub(crate) fn new(
        at: &Builder<D>,
        core: &strategy::Core,
        norm: Option<HeadNorm<D>>,
        rotary: Option<&Rotary<D>>,
    ) -> Result<Self> {
        Ok(Self { norm, rotary: rotary.cloned(), heads: core.heads, core: at.build(core)? })
    }
    /// Returns true if the device's kernels take heads of so many features.
    pub(crate) fn fits(&self, device: &D) -> bool {
        self.heads.dim <= device.scratch().most_features
    }
}

impl<D: Kernels> Layer<D> for SelfAttention<D> {
    type In = Split<D>; // [Q|K|V]
    type Out = Split<D>; // O
    type Saved = Saved<D>;
    type Pending = Ticket;

    fn forward(&self, cx: &PassContext<D>, mut qkv: Split<D>) -> Result<(Split<D>, Saved<D>)> {
        let mut norm = None;
        if let Some(layer) = &self.norm {
            let (y, saved) = layer.forward(cx, qkv, self.heads)?;
            (qkv, norm) = (y, Some(saved));
        }
        if let Some(rotary) = &self.rotary {
            rotate(cx, rotary, &mut qkv, self.heads, false);
        }
        let (o, core) = self.core.forward(cx, qkv)?;
        Ok((o, (norm, core)))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        (norm, core): Saved<D>,
        d_o: Split<D>,
    ) -> InputHalf<D, Self> {
        let (mut dqkv, pending) = self.core.backward_input(cx, core, d_o)?;
        if let Some(rotary) = &self.rotary {
            rotate(cx, rotary, &mut dqkv, self.heads, true);
        }
        if let (Some(layer), Some(saved)) = (&mut self.norm, norm) {
            dqkv = layer.backward(saved, self.heads, &dqkv)?;
        }
        Ok((dqkv, pending))
    }

    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Self::Pending) -> Result<()> {
        self.core.backward_weight(cx, pending)
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        if let Some(norm) = &mut self.norm {
            norm.params(into);
        }
        self.core.params(into);
    }
}
