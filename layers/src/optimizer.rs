//! Optimizer steps on the shares that a rank holds, with clipping by the global norm.
//!
//! ```text
//! norm² = Σ over all parameters of Σ g²     each share counted once: an all-reduce of 1 element per splitting axis
//! c     = min(1, limit/norm)
//! SGD     w −= lr·c·g
//! AdamW   m = β₁m + (1−β₁)cg,  v = β₂v + (1−β₂)(cg)²,  w −= lr·λ·w + lr·m̂/(√v̂ + ε)
//! ```
//!
//! Which axes count comes from the placements; no axis is named here. Norm and factor stay on the device.
//!
//! Source: Pascanu et al., arXiv:1211.5063 (clipping); Loshchilov, Hutter, arXiv:1711.05101 (`AdamW`).
use crate::build::Element;
use crate::ops::{Partial, filled, plus};
use crate::{Param, Result};
use comm::{Axis, Mesh};
use kernels::{AdamW, Kernels};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Plain gradient descent.
    Sgd,
    /// Adam with decoupled weight decay (on matrices only).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Weight decay.
        decay: f64,
    },
}

impl Kind {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sgd => "sgd",
            Kind::AdamW { .. } => "adamw",
        }
    }
    /// `AdamW` as most transformers are trained.
    pub const ADAMW: Kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };
}

/// An optimizer and its state for this rank's shares.
pub struct Optimizer<D: Kernels> {
    kind: Kind,
    clip: Option<f64>,
    steps: usize,
    moments: Vec<[Tensor<D>; 2]>, // m, v of each parameter; taken at the first step
    label: Arc<str>,              // of the norm's calls
}

impl<D: Kernels> Optimizer<D> {
    /// Nothing done yet. `clip`: the largest global norm of the gradient.
    pub fn new(kind: Kind, clip: Option<f64>) -> Self {
        Self { kind, clip, steps: 0, moments: Vec::new(), label: "norm2".into() }
    }
    /// Which optimizer.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// Steps done.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// One step with synced gradients: the norm² before clipping, the same on every rank.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn step(&mut self, params: &mut [&mut Param<D>], mesh: &Mesh<D>, lr: f64) -> Result<Tensor<D>> {
        let device = params.first().expect("a model has parameters").value().device().clone();
        let norm2 = norm2(&device, params, mesh, &self.label)?;
        let mut factor = filled(&device, Category::Buffers, [1, 1], D::Elem::ONE);
        if let Some(limit) = self.clip {
            device.clip_factor(factor.view_mut(), norm2.view(), limit);
        }
        self.steps += 1;
        match self.kind {
            Kind::Sgd => {
                for param in params {
                    param.update(|device, w, g| device.sgd(w.view_mut(), g.view(), factor.view(), lr));
                }
            }
            Kind::AdamW { beta1, beta2, eps, decay } => {
                self.moments(params);
                for (param, [m, v]) in params.iter_mut().zip(&mut self.moments) {
                    let decay = if param.decays() { decay } else { 0.0 };
                    let constants = AdamW { lr, beta1, beta2, eps, decay, step: self.steps };
                    param.update(|device, w, g| {
                        let moments = (m.view_mut(), v.view_mut());
                        device.adamw(w.view_mut(), moments, g.view(), factor.view(), constants);
                    });
                }
            }
        }
        Ok(norm2)
    }
    /// Each parameter's moments, put together from all ranks; none before the first step, or of plain descent.
    ///
    /// # Errors
    /// If ranks do not meet, and what `each` gives.
    pub fn gather<E: From<crate::Error>>(
        &self,
        params: &[&mut Param<D>],
        mesh: &Mesh<D>,
        mut each: impl FnMut(&str, [Option<Vec<D::Elem>>; 2]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for (param, [m, v]) in params.iter().zip(&self.moments) {
            let cuts = param.cuts();
            each(param.name(), [cuts.gather(mesh, m)?, cuts.gather(mesh, v)?])?;
        }
        Ok(())
    }
    /// Goes on from a saved state: `steps` done, element `[row, column]` of a parameter's moment 0 or 1.
    ///
    /// # Errors
    /// What `element` gives.
    pub fn restore<'a>(
        &mut self,
        steps: usize,
        params: &[&mut Param<D>],
        element: impl Fn(&Param<D>, usize) -> Result<Element<'a, D::Elem>>,
    ) -> Result<()> {
        self.steps = steps;
        if self.kind == Kind::Sgd || steps == 0 {
            return Ok(());
        }
        self.moments(params);
        for (param, moments) in params.iter().zip(&mut self.moments) {
            let (cuts, cols) = (param.cuts(), param.local()[1]);
            for (which, moment) in moments.iter_mut().enumerate() {
                let element = element(param, which)?;
                let at = |i| cuts.whole_index([i / cols, i % cols]);
                moment.write(&mut |i| at(i).map_or(D::Elem::ZERO, &element));
            }
        }
        Ok(())
    }
    fn moments(&mut self, params: &[&mut Param<D>]) {
        if self.moments.is_empty() {
            let zero =
                |p: &Param<D>| filled(p.value().device(), Category::Optimizer, p.local(), D::Elem::ZERO);
            self.moments = params.iter().map(|p| [zero(p), zero(p)]).collect();
        }
    }
}

/// Σ of all gradients' squares. Each share is summed over the axes along which ranks differ, and counted once
/// along the others.
fn norm2<D: Kernels>(
    device: &D,
    params: &[&mut Param<D>],
    mesh: &Mesh<D>,
    label: &Arc<str>,
) -> Result<Tensor<D>> {
    let zero = || filled(device, Category::Buffers, [1, 1], D::Elem::ZERO);
    let mut sums: [Option<Tensor<D>>; 1 << Axis::ALL.len()] = std::array::from_fn(|_| None); // by axes
    for param in params {
        let sum = sums[param.placement().different()].get_or_insert_with(zero);
        param.add_norm2(sum);
    }
    for (axis, group) in mesh.axes() {
        let bit = 1 << axis as usize;
        for along in (0..sums.len()).filter(|along| along & bit != 0) {
            let Some(mut sum) = sums[along].take() else { continue };
            sum = Partial::sum(sum, axis).all_reduce(&group.named(label.clone()))?;
            let others = &mut sums[along - bit];
            *others = Some(match others.take() {
                Some(other) => plus(other, &sum),
                None => sum,
            });
        }
    }
    Ok(sums[0].take().unwrap_or_else(zero))
}
