//! A parameter: this rank's share of a whole matrix, and of its gradient.
use crate::Result;
use crate::build::{Builder, Draw};
use crate::placement::{Cuts, Placed, Placement};
use comm::{Mesh, Reduce};
use kernels::{Kernels, Write};
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor, ViewMut};

/// This rank's share of a parameter. Layers read it through the weights of [`crate::weight`], where it may be
/// gathered or fetched, and add to its gradient through `accumulate`; nobody else touches it.
pub struct Param<D: Kernels> {
    name: Arc<str>,
    shape: [usize; 2],
    placement: Placement,
    value: Tensor<D>,
    gradient: Option<Tensor<D>>, // taken at the first contribution, so that inference has none
    written: bool,
}

impl<D: Kernels> Param<D> {
    /// This rank's share of the matrix `name` of this whole shape, with values by global index.
    ///
    /// # Errors
    /// If the ranks do not divide it, or there are no such values.
    pub fn new(
        at: &Builder<D>,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        placement: Placement,
        draw: Draw,
    ) -> Result<Self> {
        let name = name.into();
        let cuts = placement.cuts(at.mesh, &name, shape)?;
        let [rows, cols] = cuts.local;
        let values = at.values.of(&name, shape, draw)?;
        let value = Tensor::from_fn(at.device, Category::Weights, rows, cols, |i| {
            values(cuts.whole_index([i / cols, i % cols]))
        });
        Ok(Self { name, shape, placement, value, gradient: None, written: false })
    }
    /// Its canonical name: `blocks.0.attention.qkv`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }
    /// `[rows, columns]` of the whole.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }
    /// `[rows, columns]` of this rank's share.
    pub fn local(&self) -> [usize; 2] {
        self.value.shape()
    }
    /// Where its parts lie.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
    /// Whether weight decay applies: to matrices, not to gains.
    pub fn decays(&self) -> bool {
        self.shape[0] > 1
    }
    /// The local value: the one place where it may one day be gathered or fetched first.
    pub(crate) fn value(&self) -> Tensor<D> {
        self.value.clone()
    }
    /// Lets `kernel` write the gradient if it is the first contribution of the step, and add to it if not.
    pub(crate) fn accumulate(&mut self, kernel: impl FnOnce(&D, ViewMut<D>, Write)) {
        let write = if std::mem::replace(&mut self.written, true) { Write::Add } else { Write::Set };
        let ([rows, cols], device) = (self.local(), self.value.device());
        let gradient =
            self.gradient.get_or_insert_with(|| Tensor::empty(device, Category::Gradients, rows, cols));
        kernel(device, gradient.view_mut(), write);
    }
    /// Sums the addends of the gradient along every axis that has some. No contribution is a zero contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn sync(&mut self, mesh: &Mesh<D>) -> Result<()> {
        if !self.written {
            self.accumulate(|device, gradient, _| device.fill(gradient, D::Elem::ZERO));
        }
        for (axis, group) in mesh.axes() {
            if let (Placed::Summed, Some(gradient)) = (self.placement.along(axis), &mut self.gradient) {
                group.named(self.name.clone()).all_reduce(gradient, Reduce::Sum)?;
            }
        }
        Ok(())
    }
    /// Lets an optimizer change the value by the synced gradient, and ends the step: the next contribution to
    /// the gradient is a first one.
    pub(crate) fn update(&mut self, kernel: impl FnOnce(&D, &mut Tensor<D>, &Tensor<D>)) {
        let device = self.value.device().clone();
        let gradient = self.gradient.as_ref().expect("a synced gradient");
        kernel(&device, &mut self.value, gradient);
        self.written = false;
    }
    /// Adds other values, by global index, to the value: a proof's fresh randomness between two steps.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn disturb(&mut self, at: &Builder<D>, draw: Draw) -> Result<()> {
        let ([rows, cols], cuts) = (self.local(), self.cuts(at.mesh));
        let values = at.values.of(&self.name, self.shape, draw)?;
        let noise = Tensor::from_fn(at.device, Category::Buffers, rows, cols, |i| {
            values(cuts.whole_index([i / cols, i % cols]))
        });
        at.device.add(self.value.view_mut(), noise.view());
        Ok(())
    }
    /// This rank's share of the gradient; none before the first contribution.
    pub(crate) fn gradient(&self) -> Option<&Tensor<D>> {
        self.gradient.as_ref()
    }
    pub(crate) fn cuts(&self, mesh: &Mesh<D>) -> Cuts {
        self.placement.cuts(mesh, &self.name, self.shape).expect("checked when the parameter was made")
    }
    /// The whole value on the host, the same on every rank; `None` without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&self, mesh: &Mesh<D>) -> Result<Option<Vec<D::Elem>>> {
        self.cuts(mesh).gather(mesh, &self.value)
    }
    /// The whole gradient on the host, the same on every rank of what it was synced over; `None` without values
    /// or before the first contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_gradient(&self, mesh: &Mesh<D>) -> Result<Option<Vec<D::Elem>>> {
        match &self.gradient {
            None => Ok(None),
            Some(gradient) => self.cuts(mesh).gather(mesh, gradient),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Optimizer, Random};
    use tensor::Cpu;

    /// Kills: the last step's gradient used again, a value that moves without a gradient.
    #[test]
    fn no_contribution_is_a_zero_contribution() {
        let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
        let at = Builder { device: &device, mesh: &mesh, values: &Random { seed: 1 } };
        let mut param =
            Param::new(&at, "w", [2, 2], Placement::default(), Draw { mean: 0.0, std: 1.0 }).unwrap();
        let mut optimizer = Optimizer::new(Kind::Sgd, None);
        let start = param.gather(&mesh).unwrap().unwrap();
        param.accumulate(|device, gradient, _| device.fill(gradient, 0.5));
        for (step, gradient) in [0.5, 0.0].into_iter().enumerate() {
            param.sync(&mesh).unwrap();
            assert_eq!(param.gather_gradient(&mesh).unwrap().unwrap(), [gradient; 4], "step {step}");
            optimizer.step(&mut [&mut param], &mesh, 1.0).unwrap();
            let moved: Vec<f64> = start.iter().map(|w| w - 0.5).collect();
            assert_eq!(param.gather(&mesh).unwrap().unwrap(), moved, "step {step}");
        }
    }
}
