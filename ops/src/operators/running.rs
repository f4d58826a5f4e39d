//! Running softmax: of queries that have seen some keys and may see others.
use crate::{Columns, filled, wide_along};
use kernels::{Attend, Heads, Kernels, RunningSoftmax, Write};
use std::ops::{Deref, Range};
use tensor::{Category, Device, Scalar, Tensor, View};

/// Settings of one call of attention, with the sinks of its heads.
pub struct AttentionCall<D: Kernels> {
    /// Settings of the kernels.
    pub attend: Attend,
    /// Sinks, and the columns of them that belong to these heads.
    pub sinks: Option<(Columns<D>, Range<usize>)>,
}

impl<D: Kernels> From<Attend> for AttentionCall<D> {
    /// Returns a call without sinks.
    fn from(attend: Attend) -> Self {
        Self { attend, sinks: None }
    }
}
impl<D: Kernels> Deref for AttentionCall<D> {
    type Target = Attend;
    fn deref(&self) -> &Attend {
        &self.attend
    }
}
impl<D: Kernels> AttentionCall<D> {
    /// Returns the sinks `[1, Hq]`, if there are any.
    pub(super) fn sinks(&self) -> Option<View<'_, D>> {
        self.sinks.as_ref().map(|(sinks, of)| sinks.whole().view().take_cols(of.start, of.len()))
    }
}

/// A running softmax of every query: `[o | max | sum]`.
pub(super) struct Running<D: Kernels>(pub(super) Tensor<D::Wide>);

impl<D: Kernels> Running<D> {
    /// Begins with no keys, or with the sink of each head.
    pub(super) fn new(device: &D, rows: usize, heads: Heads, sinks: Option<View<D>>) -> Self {
        let [_, max, sum] = heads.running();
        let wide = device.wide();
        let zero = <D::Wide as Device>::Elem::ZERO;
        let mut state = filled(wide, Category::Activations, [rows, sum.end], zero);
        let maxima = state.view_mut().take_cols(max.start, max.len());
        if let Some(sinks) = sinks {
            let ones = filled(device, Category::Buffers, [rows, 1], D::Elem::ONE);
            device.gemm_wide(maxima, ones.view(), sinks, Write::Set);
            wide.fill(state.view_mut().take_cols(sum.start, sum.len()), <D::Wide as Device>::Elem::ONE);
        } else {
            wide.fill(maxima, <D::Wide as Device>::Elem::NEG_INF);
        }
        Self(state)
    }
    pub(super) fn view(&mut self, heads: Heads) -> RunningSoftmax<'_, D::Wide> {
        let (out, rest) = self.0.view_mut().split_cols(heads.gathered());
        let (max, sum) = rest.split_cols(heads.queries);
        RunningSoftmax { out, max, sum }
    }
    /// Ends: returns `O[B, Hq·v]` and the log-sum-exp `[B, Hq]`.
    pub(super) fn finish(mut self, device: &D, heads: Heads) -> (Tensor<D>, Tensor<D::Wide>) {
        let [out, max, _] = heads.running();
        let mut o = Tensor::empty(device, Category::Activations, self.0.rows(), out.len());
        let mut lse = wide_along(&o, max.len());
        device.attention_finish(heads, o.view_mut(), self.view(heads));
        device.wide().copy(lse.view_mut(), self.0.view().take_cols(max.start, max.len()));
        (o, lse)
    }
}
