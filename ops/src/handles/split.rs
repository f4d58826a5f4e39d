//! Types of a rank's part of a matrix: [`Tensor`] (all of it, the same on every rank of the group), [`Split`]
//! (its own columns), [`Partial`] (a partial sum); and of a weight: [`Columns`] or [`Rows`]. The types of
//! products say which part results from which, and only a collective converts one into another, so a
//! forgotten all-reduce does not compile. Each part knows the axis it is split along, and refuses a group of
//! another axis.
use crate::param::placement::Band;
use crate::param::tiles::WeightTiles;
use crate::record::{Recordable, RecordedPart};
use crate::tensors::product;
use crate::{Error, Param, Placement, Result, filled, plus};
use comm::{Axes, Axis, Group, Mesh, Reduce, Request};
use kernels::{Kernels, Write};
use std::ops::Add;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// `X[B,F_t]`: each rank has its own features.
pub struct Split<D: Kernels> {
    share: Tensor<D>,
    axis: Axis,
}

/// A reduction that has not run yet: each rank has a partial sum (or a stabiliser). Only a collective turns
/// it into a tensor.
///
/// Leaving out the all-reduce does not compile:
/// ```compile_fail,E0308
/// use {comm::Group, kernels::Kernels, ops::{Result, Rows, Split}, tensor::Tensor};
/// fn row_linear<D: Kernels>(x: &Split<D>, w: &Rows<D>, group: &Group<D::Place>) -> Result<Tensor<D>> {
///     let _ = group;
///     x.matmul(w)
/// }
/// ```
/// ```
/// use {comm::Group, kernels::Kernels, ops::{Result, Rows, Split}, tensor::Tensor};
/// fn row_linear<D: Kernels>(x: &Split<D>, w: &Rows<D>, group: &Group<D::Place>) -> Result<Tensor<D>> {
///     let _ = group;
///     x.matmul(w)?.all_reduce(group)
/// }
/// ```
/// Nor does adding a residual (or a bias) that would be summed once per rank:
/// ```compile_fail,E0308
/// use {comm::Group, kernels::Kernels, ops::{Partial, Result}, tensor::Tensor};
/// fn residual<D: Kernels>(x: &Tensor<D>, y: Partial<D>, group: &Group<D::Place>) -> Result<Tensor<D>> {
///     (y + x).all_reduce(group)
/// }
/// ```
/// ```
/// use {comm::Group, kernels::Kernels, ops::{Partial, Result, plus}, tensor::Tensor};
/// fn residual<D: Kernels>(x: &Tensor<D>, y: Partial<D>, group: &Group<D::Place>) -> Result<Tensor<D>> {
///     Ok(plus(y.all_reduce(group)?, x))
/// }
/// ```
#[must_use = "a partial result is not a result"]
pub struct Partial<D: Kernels> {
    addend: Tensor<D>,
    reduce: Reduce,
    axis: Axes,
}

/// `W[I,O_t]`: a weight cut by columns. It owns its tensor, so a gathered weight is freed when it drops. A
/// product with a weight of [tiles](crate::ShardingStrategy::tiles) gathers and frees one tile after another.
pub struct Columns<D: Kernels> {
    share: Tensor<D>, // this rank's shard, if there are tiles
    tiles: Option<Arc<WeightTiles<D::Place>>>,
    turned: bool,
    pub(crate) axis: Axis,
}

/// `W[I_t,O]`: a weight cut by rows; the transpose of one cut by columns.
pub struct Rows<D: Kernels>(Columns<D>);

impl<D: Kernels> Clone for Split<D> {
    fn clone(&self) -> Self {
        Self { share: self.share.clone(), axis: self.axis }
    }
}

/// Checks that two parts are split along the same axes.
pub(crate) fn same(share: impl Into<Axes>, other: impl Into<Axes>) -> Result<()> {
    let (share, other) = (share.into(), other.into());
    let why = || format!("a part along axis {share} cannot be used with a part or group along axis {other}");
    if share == other { Ok(()) } else { Err(Error::Cannot(why())) }
}

impl<D: Kernels> Columns<D> {
    pub(crate) fn new(share: Tensor<D>, axis: Axis) -> Self {
        Self { share, tiles: None, turned: false, axis }
    }
    /// Returns the columns of a parameter that is cut along `axis`.
    pub(crate) fn of_param(param: &Param<D>, axis: Axis) -> Self {
        let (share, tiles) = param.value_or_tiles();
        Self { share, tiles, turned: false, axis }
    }
    /// `Wᵀ[O_t,I]`.
    #[must_use]
    pub fn t(self) -> Rows<D> {
        Rows(Columns { turned: !self.turned, ..self })
    }
    /// Returns the local part of a bias, to add to a matrix split along `axis`.
    pub(crate) fn row(&self, axis: Axis) -> Result<&Tensor<D>> {
        same(axis, self.axis)?;
        Ok(self.whole())
    }
    pub(crate) fn whole(&self) -> &Tensor<D> {
        assert!(self.tiles.is_none(), "a weight of tiles is only used in products");
        &self.share
    }
    fn times(&self, x: &Tensor<D>) -> Result<Tensor<D>> {
        let [inputs, outputs] = self.tiles.as_ref().map_or(self.share.shape(), |tiles| tiles.local);
        let mut y = x.along(if self.turned { inputs } else { outputs });
        let mut add = |columns: Band, w: &Tensor<D>| {
            let write = if self.turned && columns.start > 0 { Write::Add } else { Write::Set };
            if self.turned {
                product(x.device(), y.view_mut(), columns.of(x.view()), w.view().t(), write);
            } else {
                product(x.device(), columns.of_mut(y.view_mut()), x.view(), w.view(), write);
            }
        };
        match &self.tiles {
            None => add(Band { dim: 1, start: 0, len: outputs }, &self.share),
            Some(tiles) => {
                for tile in &tiles.all {
                    add(tile.columns, &tiles.gather(&self.share, tile)?);
                }
            }
        }
        Ok(y)
    }
}

impl<D: Kernels> Rows<D> {
    /// Returns the rows of a parameter that is cut along `axis`.
    pub(crate) fn of_param(param: &Param<D>, axis: Axis) -> Self {
        Self(Columns::of_param(param, axis))
    }
    /// `Wᵀ[O,I_t]`.
    #[must_use]
    pub fn t(self) -> Columns<D> {
        Columns { turned: !self.0.turned, ..self.0 }
    }
    pub(crate) fn share(&self) -> (&Tensor<D>, Axis) {
        (self.0.whole(), self.0.axis)
    }
}

/// `X[B,I] · W[I,O_t] = Y[B,O_t]`: no communication but for the tiles of `W`.
///
/// # Errors
/// If `W` has tiles and ranks do not meet.
pub fn matmul<D: Kernels>(x: &Tensor<D>, w: &Columns<D>) -> Result<Split<D>> {
    Ok(Split { share: w.times(x)?, axis: w.axis })
}

impl<D: Kernels> Split<D> {
    pub(crate) fn new(share: Tensor<D>, axis: Axis) -> Self {
        Self { share, axis }
    }
    pub(crate) fn share(&self) -> &Tensor<D> {
        &self.share
    }
    pub(crate) fn into_share(self) -> Tensor<D> {
        self.share
    }
    pub(crate) fn share_mut(&mut self) -> &mut Tensor<D> {
        &mut self.share
    }
    /// The axis whose ranks have the other columns.
    pub fn axis(&self) -> Axis {
        self.axis
    }
    /// Number of rows, and of this rank's columns.
    pub fn shape(&self) -> [usize; 2] {
        self.share.shape()
    }
    /// The device that holds it.
    pub fn device(&self) -> &D {
        self.share.device()
    }
    /// `X[B,I_t] · W[I_t,O]`: the contracted dimension is split, so this is a partial sum.
    ///
    /// # Errors
    /// If the two are split along different axes, or `W` has tiles and ranks do not meet.
    pub fn matmul(&self, w: &Rows<D>) -> Result<Partial<D>> {
        same(self.axis, w.0.axis)?;
        Ok(Partial::sum(w.0.times(&self.share)?, self.axis))
    }
    /// Cuts this rank's consecutive columns from a matrix that every rank holds whole.
    ///
    /// # Errors
    /// If the ranks do not divide the columns.
    pub fn cut(whole: &Tensor<D>, group: &Group<D::Place>) -> Result<Self> {
        let ranks = group.size();
        let Some(axis) = group.axis().single() else {
            return Err(Error::size("the axis that cuts a matrix", group.axis(), "a single axis"));
        };
        if !whole.cols().is_multiple_of(ranks) {
            return Err(Error::fit("columns", whole.cols(), (axis, ranks)));
        }
        let n = whole.cols() / ranks;
        let mut share = whole.along(n);
        whole.device().copy(share.view_mut(), whole.view().take_cols(group.rank() * n, n));
        Ok(Self { share, axis })
    }
    /// Returns this part for a record, with the columns that it has of the whole, which were cut section by
    /// section. In a gradient, columns that several ranks may hold are partial sums until they are summed,
    /// for any number of ranks.
    pub(crate) fn seen_as(
        &self,
        mesh: &Mesh<D::Place>,
        placement: &Placement,
        is_gradient: bool,
    ) -> Result<RecordedPart<D::Elem>> {
        let width = placement.size_along(self.axis);
        let cuts = placement.cuts(mesh, "an activation", [1, width])?;
        let column = |c| cuts.whole_index([0, c]).map(|[_, c]| c);
        Ok(RecordedPart {
            is_partial: is_gradient && placement.may_be_shared(self.axis),
            ..self.seen_at((0..self.share.cols()).map(column).collect(), width)
        })
    }
    fn seen_at(&self, columns: Vec<Option<usize>>, width: usize) -> RecordedPart<D::Elem> {
        RecordedPart {
            values: self.share.read(),
            rows: 0..self.share.rows(),
            columns,
            width,
            is_partial: false,
        }
    }
    /// Gathers all columns, in rank order: the same on every rank.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn all_gather(&self, group: &Group<D::Place>) -> Result<Tensor<D>> {
        self.all_gather_first(group, self.shape()[1] * group.size())
    }
    /// Gathers the first `n` of all columns, the same on every rank; the last ranks' columns may be padded.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn all_gather_first(&self, group: &Group<D::Place>, n: usize) -> Result<Tensor<D>> {
        same(self.axis, group.axis())?;
        Ok(group.all_gather_columns(&self.share, n)?)
    }
}

/// Columns in rank order, `n` in all; the last ranks' columns may be padded.
impl<D: Kernels> Recordable<D> for (&Split<D>, &Group<D::Place>, usize) {
    fn local_part(&self, _: &Mesh<D::Place>, _: bool) -> Result<RecordedPart<D::Elem>> {
        let (split, group, n) = *self;
        let cols = split.share.cols();
        let column = |c| Some(group.rank() * cols + c).filter(|&c| c < n);
        Ok(split.seen_at((0..cols).map(column).collect(), n))
    }
}

impl<D: Kernels> Partial<D> {
    /// Zeros, for a rank that adds nothing to a sum over the ranks of a group.
    pub fn nothing(device: &D, shape: [usize; 2], group: &Group<D::Place>) -> Self {
        Self::sum(filled(device, Category::Activations, shape, D::Elem::ZERO), group.axis())
    }
    /// This rank's partial sum over the ranks of an axis. Outside this crate only a product
    /// ([`Split::matmul`]) makes one.
    pub(crate) fn sum(addend: Tensor<D>, axis: impl Into<Axes>) -> Self {
        Self { addend, reduce: Reduce::Sum, axis: axis.into() }
    }
    /// Returns this rank's partial sum, for a collective of this group.
    pub(crate) fn addend(self, group: &Group<D::Place>) -> Result<Tensor<D>> {
        same(self.axis, group.axis())?;
        assert_eq!(self.reduce, Reduce::Sum, "the reduction of a partial sum");
        Ok(self.addend)
    }
    /// Applies a linear function to this rank's partial sum: the result is a partial sum of the function of
    /// the sum. Taking, sending and adding up rows are linear.
    ///
    /// # Errors
    /// The errors of the function.
    pub fn through(self, linear: impl FnOnce(Tensor<D>) -> Result<Tensor<D>>) -> Result<Self> {
        Ok(Self { addend: linear(self.addend)?, ..self })
    }
    /// This rank's stabiliser.
    pub(crate) fn stab(addend: Tensor<D>, axis: impl Into<Axes>) -> Self {
        Self { addend, reduce: Reduce::Stab, axis: axis.into() }
    }
    /// Runs the reduction: the result is the same on every rank of the group.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn all_reduce(mut self, group: &Group<D::Place>) -> Result<Tensor<D>> {
        same(self.axis, group.axis())?;
        group.all_reduce(&mut self.addend, self.reduce)?;
        Ok(self.addend)
    }
    /// Starts the reduction; the returned request waits for it.
    ///
    /// # Errors
    /// If the group's ranks are those of another axis, or one has failed.
    #[track_caller]
    pub fn start_all_reduce(self, group: &Group<D::Place>) -> Result<Request<D>> {
        same(self.axis, group.axis())?;
        Ok(group.start_all_reduce(self.addend, self.reduce)?)
    }
}

/// Adds two partial sums, in the left one's memory.
impl<D: Kernels> Add<&Partial<D>> for Partial<D> {
    type Output = Self;
    fn add(self, other: &Self) -> Self {
        let alike = self.axis == other.axis && self.reduce == Reduce::Sum && other.reduce == Reduce::Sum;
        assert!(alike, "partial sums over other axes, or stabilisers, cannot be added");
        Self::sum(plus(self.addend, &other.addend), self.axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::{Category, Cpu};

    /// Even on one rank, where every collective is a no-op. Kills: a guard that lets another axis pass.
    #[test]
    fn shares_meet_only_what_is_split_along_their_axis() {
        let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
        let matrix = || Tensor::from_fn(&device, Category::Buffers, 2, 2, |i| i as f32);
        let (data, split) = (mesh.group(Axis::Dp), Split::cut(&matrix(), mesh.group(Axis::Tp)).unwrap());
        let says = "a part along axis tp cannot be used with a part or group along axis dp";
        assert_eq!(split.all_gather(data).err().unwrap().to_string(), says);
        assert_eq!(split.matmul(&Columns::new(matrix(), Axis::Dp).t()).err().unwrap().to_string(), says);
        let partial = || split.matmul(&Columns::new(matrix(), Axis::Tp).t()).unwrap();
        assert_eq!(partial().all_reduce(data).err().unwrap().to_string(), says);
        assert!(
            partial().all_reduce(mesh.group(Axis::Tp)).is_ok()
                && split.all_gather(mesh.group(Axis::Tp)).is_ok()
        );
    }
}
