//! A parameter: this rank's share of a whole matrix, and of its gradient.
use crate::Result;
use crate::build::{Builder, Draw};
use crate::placement::{Cuts, Placed, Placement, Replica};
use comm::{Group, Mesh, Reduce};
use kernels::{Kernels, Write};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor, View, ViewMut};

/// This rank's share of a parameter. Layers read it through the weights of [`crate::weight`], where it may be
/// gathered or fetched, and add to its gradient through `accumulate`; nobody else touches it.
pub struct Param<D: Kernels> {
    name: Arc<str>,
    shape: [usize; 2],
    placement: Placement,
    cuts: Cuts,
    replicas: Vec<(Replica, Group<D>)>, // what other ranks hold, too, each part with its holders
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
        let element = |i| cuts.whole_index([i / cols, i % cols]).map_or(D::Elem::ZERO, &values);
        let value = Tensor::from_fn(at.device, Category::Weights, rows, cols, element);
        let held = |replica: Replica| {
            let block = at.mesh.group(replica.axis).blocks(replica.holders)?.named(name.clone());
            Ok((replica, block))
        };
        let replicas = cuts.replicas().into_iter().map(held).collect::<Result<_>>()?;
        Ok(Self { name, shape, placement, cuts, replicas, value, gradient: None, written: false })
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
        for (replica, holders) in &self.replicas {
            sum_replica(self.gradient.as_mut().expect("taken above"), replica, holders)?;
        }
        for (axis, group) in mesh.axes() {
            if let (Placed::Summed, Some(gradient)) = (self.placement.along(axis), &mut self.gradient) {
                group.named(self.name.clone()).all_reduce(gradient, Reduce::Sum)?;
            }
        }
        Ok(())
    }
    /// Adds the squares of the synced gradient's numbers to `sum[1, 1]`, those that several ranks hold on the first
    /// of them only: over all ranks of the axes that cut it, each number counts once.
    pub(crate) fn add_norm2(&self, sum: &mut Tensor<D>) {
        let gradient = self.gradient.as_ref().expect("a synced gradient");
        let device = gradient.device();
        let Some(dim) = self.replicas.first().map(|(r, _)| r.dim) else {
            return device.add_norm2(sum.view_mut(), gradient.view());
        };
        let mut from = 0;
        for (replica, _) in self.replicas.iter().filter(|(r, _)| !r.first) {
            device.add_norm2(sum.view_mut(), part(gradient.view(), dim, from, replica.start - from));
            from = replica.start + replica.len;
        }
        device.add_norm2(sum.view_mut(), part(gradient.view(), dim, from, gradient.shape()[dim] - from));
    }
    /// Lets an optimizer change the value by the synced gradient, some rows at a time, and ends the step: the next
    /// contribution to the gradient is a first one. With a sum the gradient's squares are added to it, as
    /// [`add_norm2`](Self::add_norm2) does, but where rows are only this rank's, just before they are used: memory is
    /// read once for both.
    pub(crate) fn update(
        &mut self,
        mut sum: Option<&mut Tensor<D>>,
        mut kernel: impl FnMut(&D, Range<usize>, ViewMut<D>, View<D>),
    ) {
        if !self.replicas.is_empty()
            && let Some(sum) = sum.take()
        {
            self.add_norm2(sum);
        }
        let device = self.value.device().clone();
        let gradient = self.gradient.as_ref().expect("a synced gradient").view();
        let [rows, cols] = self.value.shape();
        let together = (D::TOGETHER / cols.max(1)).max(1);
        for rows in (0..rows).step_by(together).map(|from| from..rows.min(from.saturating_add(together))) {
            let value = self.value.view_mut().take_rows(rows.start, rows.len());
            let gradient = gradient.take_rows(rows.start, rows.len());
            if let Some(sum) = &mut sum {
                device.add_norm2(sum.view_mut(), gradient);
            }
            kernel(&device, rows, value, gradient);
        }
        self.written = false;
    }
    /// Adds other values, by global index, to the value: a proof's fresh randomness between two steps.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn disturb(&mut self, at: &Builder<D>, draw: Draw) -> Result<()> {
        let ([rows, cols], cuts) = (self.local(), &self.cuts);
        let values = at.values.of(&self.name, self.shape, draw)?;
        let element = |i| cuts.whole_index([i / cols, i % cols]).map_or(D::Elem::ZERO, &values);
        let noise = Tensor::from_fn(at.device, Category::Buffers, rows, cols, element);
        at.device.add(self.value.view_mut(), noise.view());
        Ok(())
    }
    /// How its share was cut out of the whole.
    pub(crate) fn cuts(&self) -> &Cuts {
        &self.cuts
    }
    /// The whole value on the host, the same on every rank; `None` without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&self, mesh: &Mesh<D>) -> Result<Option<Vec<D::Elem>>> {
        self.cuts.gather(mesh, &self.value)
    }
    /// The whole gradient on the host, the same on every rank of what it was synced over; `None` without values
    /// or before the first contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_gradient(&self, mesh: &Mesh<D>) -> Result<Option<Vec<D::Elem>>> {
        match &self.gradient {
            None => Ok(None),
            Some(gradient) => self.cuts.gather(mesh, gradient),
        }
    }
    /// This rank's elements, each with where it lies in the whole, row-major; nothing without values.
    pub fn elements(&self) -> Vec<(usize, D::Elem)> {
        self.placed(&self.value)
    }
    /// The same of the gradient; nothing before the first contribution.
    pub fn gradient_elements(&self) -> Vec<(usize, D::Elem)> {
        self.gradient.as_ref().map_or_else(Vec::new, |gradient| self.placed(gradient))
    }
    fn placed(&self, share: &Tensor<D>) -> Vec<(usize, D::Elem)> {
        let (cuts, cols) = (&self.cuts, share.cols());
        let values = share.read().unwrap_or_default().into_iter().enumerate();
        let place = |(i, x)| {
            let [row, column] = cuts.whole_index([i / cols, i % cols])?;
            Some((row * self.shape[1] + column, x))
        };
        values.filter_map(place).collect()
    }
}

/// Sums a part of a gradient over the ranks that hold the same part of the value.
fn sum_replica<D: Kernels>(gradient: &mut Tensor<D>, replica: &Replica, holders: &Group<D>) -> Result<()> {
    let [rows, cols] = gradient.shape();
    let [rows, cols] = if replica.dim == 0 { [replica.len, cols] } else { [rows, replica.len] };
    let mut part = Tensor::empty(gradient.device(), Category::Buffers, rows, cols);
    let device = gradient.device().clone();
    device.copy(part.view_mut(), replica.of(gradient.view()));
    holders.all_reduce(&mut part, Reduce::Sum)?;
    device.copy(replica.of_mut(gradient.view_mut()), part.view());
    Ok(())
}

/// `len` rows or columns of a matrix.
fn part<D: Kernels>(x: View<D>, dim: usize, start: usize, len: usize) -> View<D> {
    if dim == 0 { x.take_rows(start, len) } else { x.take_cols(start, len) }
}

impl Replica {
    fn of<'a, D: Kernels>(&self, x: View<'a, D>) -> View<'a, D> {
        part(x, self.dim, self.start, self.len)
    }
    fn of_mut<'a, D: Kernels>(&self, x: ViewMut<'a, D>) -> ViewMut<'a, D> {
        if self.dim == 0 { x.take_rows(self.start, self.len) } else { x.take_cols(self.start, self.len) }
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
        let at = Builder::new(&device, &mesh, &Random { seed: 1 });
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
