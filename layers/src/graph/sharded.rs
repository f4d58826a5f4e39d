//! Matrices under any sharding, whose type is checked when an operator takes them: a partial sum is no value,
//! and only a [`ShardingStep`] changes a sharding.
use crate::graph::OperatorKind;
use crate::graph::sharding::{Change, MeshSizes, Sharding, ShardingStep, size};
use comm::{Axis, Group, Mesh, Reduce};
use kernels::Kernels;
use ops::Result;
use std::ops::Range;
use tensor::{Category, Place, Tensor, View};

/// A rank's place in a mesh, and its groups.
pub struct MeshPlace<P: Place> {
    pub(super) mesh: Mesh<P>,
    pub(super) sizes: MeshSizes,
}

impl<P: Place> MeshPlace<P> {
    /// The place of a rank of this mesh, which has these axes.
    pub fn new(mesh: &Mesh<P>, sizes: &MeshSizes) -> Self {
        Self { mesh: mesh.clone(), sizes: sizes.clone() }
    }
    /// Coordinate of this rank along an axis.
    pub(super) fn at(&self, axis: Axis) -> usize {
        self.mesh.coordinate(axis, self.mesh.rank())
    }
    /// Returns the group along these axes, whose ranks count with the first axis outermost. Without axes it
    /// has this rank alone.
    pub(super) fn group(&self, axes: &[Axis]) -> Result<Group<P>> {
        if axes.is_empty() {
            return Ok(self.mesh.subgroup(&[self.mesh.rank()])?);
        }
        let group = self.mesh.over(axes)?;
        let ranks: Vec<_> = group.ranks().collect();
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by_key(|&i| {
            axes.iter().map(|&axis| self.mesh.coordinate(axis, ranks[i])).collect::<Vec<_>>()
        });
        Ok(if order.is_sorted() { group } else { group.subgroup(&order)? })
    }
    /// Returns the ranges of a whole's rows that the ranks of a group along these axes have under a sharding.
    fn ranges(&self, under: &Sharding, rows: usize, axes: &[Axis]) -> Vec<Range<usize>> {
        let blocks = axes.iter().map(|&axis| size(&self.sizes, axis)).product();
        let range = |number: usize| {
            let place = |axis: Axis| match axes.iter().position(|of| *of == axis) {
                None => self.at(axis),
                Some(i) => {
                    let inner: usize = axes[i + 1..].iter().map(|&axis| size(&self.sizes, axis)).product();
                    number / inner % size(&self.sizes, axis)
                }
            };
            under.range(0, rows, &self.sizes, &place)
        };
        (0..blocks).map(range).collect()
    }
}

/// A rank's part of a matrix under a sharding.
pub struct Sharded<D: Kernels> {
    pub(super) share: Tensor<D>,
    pub(super) shape: [usize; 2], // of the whole
    pub(super) at: Sharding,
}

impl<D: Kernels> Clone for Sharded<D> {
    fn clone(&self) -> Self {
        Self { share: self.share.clone(), at: self.at.clone(), ..*self }
    }
}

/// Copies a part of a matrix.
fn copied<D: Kernels>(device: &D, part: View<D>) -> Tensor<D> {
    let mut copy = Tensor::empty(device, Category::Activations, part.rows(), part.cols());
    device.copy(copy.view_mut(), part);
    copy
}

/// Returns a matrix without other owners: a copy, if it has any.
pub(super) fn owned<D: Kernels>(x: Tensor<D>) -> Tensor<D> {
    if x.is_shared() { copied(x.device(), x.view()) } else { x }
}

impl<D: Kernels> Sharded<D> {
    /// Wraps a matrix that every rank has whole.
    pub fn whole(share: Tensor<D>) -> Self {
        Self { shape: share.shape(), share, at: Sharding::WHOLE }
    }
    /// Wraps a rank's part of a matrix of this whole shape.
    pub(crate) fn new(share: Tensor<D>, shape: [usize; 2], at: Sharding) -> Self {
        Self { share, shape, at }
    }
    /// Its sharding.
    pub fn sharding(&self) -> &Sharding {
        &self.at
    }
    /// This rank's part.
    pub fn share(&self) -> &Tensor<D> {
        &self.share
    }
    /// Takes this rank's part.
    pub(crate) fn into_share(self) -> Tensor<D> {
        self.share
    }
    /// Takes a step to another sharding.
    ///
    /// # Errors
    /// If the step is not possible from this sharding, or a collective fails.
    pub fn step(self, on: &MeshPlace<D::Place>, step: &ShardingStep) -> Result<Self> {
        let next = self.at.after(step)?;
        let device = self.share.device().clone();
        let [rows, columns] = self.share.shape();
        let x = self.share.view();
        let group = on.group(&step.axes)?;
        let n = group.size();
        let counts = |under: &Sharding| -> Vec<usize> {
            on.ranges(under, self.shape[0], &step.axes).iter().map(Range::len).collect()
        };
        let share = match (step.change, step.dim) {
            (Change::Slice, 0) => {
                let range = &on.ranges(&next, self.shape[0], &step.axes)[group.rank()];
                let before = self.at.range(0, self.shape[0], &on.sizes, &|axis| on.at(axis)).start;
                copied(&device, x.take_rows(range.start - before, range.len()))
            }
            (Change::Slice, _) => copied(&device, x.take_cols(group.rank() * (columns / n), columns / n)),
            (Change::Gather, 0) => group.all_gather_v(&self.share, &counts(&self.at))?,
            (Change::Gather, _) => group.all_gather_columns(&self.share, columns * n)?,
            (Change::Exchange, 0) => {
                let give = counts(&next);
                let here = give[group.rank()];
                let arrived = group.all_to_all_v(&self.share, &give, &vec![here; n])?;
                let mut y = self.share.beside(here, columns * n);
                for from in 0..n {
                    let columns = y.view_mut().take_cols(from * columns, columns);
                    device.copy(columns, arrived.view().take_rows(from * here, here));
                }
                y
            }
            (Change::Exchange, _) => {
                group.all_to_all_v(&stacked(&device, x, n), &vec![rows; n], &counts(&self.at))?
            }
            (Change::Reduce, _) => {
                let mut sum = owned(self.share);
                group.all_reduce(&mut sum, Reduce::Sum)?;
                sum
            }
            (Change::Scatter, 0) => group.reduce_scatter_v(&self.share, &counts(&next))?,
            (Change::Scatter, _) => group.reduce_scatter(&stacked(&device, x, n))?,
        };
        Ok(Self { share, at: next, ..self })
    }
    /// Takes steps, one after the other.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn steps<'a>(
        self,
        on: &MeshPlace<D::Place>,
        steps: impl IntoIterator<Item = &'a ShardingStep>,
    ) -> Result<Self> {
        steps.into_iter().try_fold(self, |x, step| x.step(on, step))
    }
    /// Gathers and sums all parts: the whole matrix, on every rank.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn gathered(self, on: &MeshPlace<D::Place>) -> Result<Tensor<D>> {
        let (_, steps) = self.at.way(&Sharding::WHOLE, &mut |_, _| 1.0);
        Ok(self.steps(on, &steps)?.share)
    }
    /// Adds another matrix of the same sharding.
    ///
    /// # Errors
    /// If the shardings differ.
    pub fn plus(self, other: &Self) -> Result<Self> {
        let at = OperatorKind::Sum.result(&[&self.at, &other.at])?;
        Ok(Self { share: ops::plus(owned(self.share), &other.share), at, ..self })
    }
}

/// Stacks `n` blocks of columns of a matrix.
fn stacked<D: Kernels>(device: &D, x: View<D>, n: usize) -> Tensor<D> {
    let (rows, columns) = (x.rows(), x.cols() / n);
    let mut stack = Tensor::empty(device, Category::Buffers, n * rows, columns);
    for block in 0..n {
        device.copy(stack.view_mut().take_rows(block * rows, rows), x.take_cols(block * columns, columns));
    }
    stack
}
