//! Parameters as layers use them: whole, cut by columns, cut by rows. The cut is said once, where the weight is
//! made, and both its placement and the handle it gives follow from that.
use crate::model::record::{Recordable, SeenShare};
use crate::ops::{Columns, Matrices, Rows, Split, same};
use crate::param::origin::Origin;
use crate::param::placement::{Cuts, Pieces, Section};
use crate::{Draw, Param, Placed, Placement, Result};
use comm::{Axes, Axis, Group, Mesh};
use kernels::Kernels;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// Initial biases: small, but not 0, where bugs hide.
pub(crate) const BIAS: Draw = Draw { mean: 0.0, std: 0.02 };

/// A parameter that no axis cuts.
pub struct WholeWeight<D: Kernels>(Param<D>);
/// `W[I, O_t]`: cut by columns, each section on its own.
pub struct ColumnWeight<D: Kernels>(Param<D>, Axis);
/// `W[I_t, O]`: cut by rows.
pub struct RowWeight<D: Kernels>(Param<D>, Axis);

impl<D: Kernels> WholeWeight<D> {
    /// The matrix `name`, the same on every rank; `placement` says where its gradient must be summed.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn new<'a>(
        at: impl Into<Origin<'a, D>>,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        placement: Placement,
        draw: Draw,
    ) -> Result<Self> {
        Ok(Self(Param::new(at, name, shape, placement, draw)?))
    }
    /// The value, for as long as the result lives.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn whole(&self) -> Result<Tensor<D>> {
        Ok(self.0.value())
    }
    /// The parameter behind it.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.0
    }
}

impl<D: Kernels> ColumnWeight<D> {
    /// This rank's columns of the matrix `name[inputs, Σ sections]`; initial values are normal with deviation 1/√inputs.
    ///
    /// # Errors
    /// If the ranks of `axis` do not divide a section, or there are no such values.
    pub fn new<'a>(
        at: impl Into<Origin<'a, D>>,
        axis: Axis,
        name: impl Into<Arc<str>>,
        inputs: usize,
        sections: &[Section],
    ) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        Self::drawn(at, axis, name.into(), inputs, sections, draw)
    }
    /// This rank's columns of the bias `name.bias[1, Σ sections]`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn bias<'a>(
        at: impl Into<Origin<'a, D>>,
        axis: Axis,
        name: &str,
        sections: &[Section],
    ) -> Result<Self> {
        Self::drawn(at, axis, format!("{name}.bias").into(), 1, sections, BIAS)
    }
    pub(crate) fn drawn<'a>(
        at: impl Into<Origin<'a, D>>,
        axis: Axis,
        name: Arc<str>,
        inputs: usize,
        sections: &[Section],
        draw: Draw,
    ) -> Result<Self> {
        let at = at.into();
        let outputs = sections.iter().map(|s| s.size).sum();
        let placed = at.placement.clone().on(axis, Placed::Shard { dim: 1, sections: sections.to_vec() });
        Ok(Self(Param::new(at, name, [inputs, outputs], placed, draw)?, axis))
    }
    /// This rank's columns.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn columns(&self) -> Result<Columns<D>> {
        Ok(Columns::new(self.0.value(), self.1))
    }
    /// The parameter behind it.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.0
    }
}

/// Columns as those of the weight that they were made with, or of.
impl<D: Kernels> Recordable<D> for (&Split<D>, &ColumnWeight<D>) {
    fn seen(&self, mesh: &Mesh<D::Place>, is_gradient: bool) -> Result<SeenShare<D::Elem>> {
        self.0.seen_as(mesh, self.1.0.placement(), is_gradient)
    }
}

impl<D: Kernels> RowWeight<D> {
    /// This rank's rows of the matrix `name[shape]`, cut as `pieces` says.
    ///
    /// # Errors
    /// If the ranks of `axis` do not divide the rows, or there are no such values.
    pub fn new<'a>(
        at: impl Into<Origin<'a, D>>,
        axis: Axis,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        pieces: Pieces,
        draw: Draw,
    ) -> Result<Self> {
        let (at, sections) = (at.into(), vec![Section::new(shape[0], pieces)]);
        let placed = at.placement.clone().on(axis, Placed::Shard { dim: 0, sections });
        Ok(Self(Param::new(at, name, shape, placed, draw)?, axis))
    }
    /// This rank's rows.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn rows(&self) -> Result<Rows<D>> {
        Ok(Rows::new(self.0.value(), self.1))
    }
    /// `W[I,O_t]`: all rows, gathered for as long as the result lives, and this rank's columns of them, section by section.
    /// An all-gather of `I_t·O` elements; its gradient is [`gathered_gradient`](crate::ops::gathered_gradient).
    ///
    /// # Errors
    /// If ranks do not meet, are those of another axis, or do not divide a section.
    pub fn gathered(&self, group: &Group<D::Place>, sections: &[Section]) -> Result<Columns<D>> {
        same(self.1, group.axis())?;
        let cuts = Cuts::columns((self.1, group), self.0.name(), sections)?;
        let (all, inputs) = (group.all_gather(&self.0.value())?, self.0.shape()[0]);
        let mut own = Tensor::empty(all.device(), Category::Buffers, inputs, cuts.local[1]);
        let device = all.device();
        device.fill(own.view_mut(), D::Elem::ZERO); // padding
        for (columns, from) in cuts.stretches() {
            let theirs = all.view().take_rows(0, inputs).take_cols(from, columns.len);
            device.copy(columns.of_mut(own.view_mut()), theirs);
        }
        Ok(Columns::new(own, self.1))
    }
    /// The axis whose ranks have the other rows.
    pub fn axis(&self) -> Axis {
        self.1
    }
    /// The parameter behind it.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.0
    }
}

/// Matrices of experts, one below the other: `W[E·D, F]`, each expert's `[D, F_t]` cut by columns, and whole experts dealt over the
/// ranks of another axis.
pub struct ExpertWeight<D: Kernels> {
    param: Param<D>,
    pub(crate) width: usize, // D
}

impl<D: Kernels> ExpertWeight<D> {
    /// This rank's experts of so many of width `D` each, and its columns of them: of `name[E·D, Σ sections]`.
    ///
    /// # Errors
    /// If the ranks do not divide a section, or there are no such values.
    pub fn new<'a>(
        at: impl Into<Origin<'a, D>>,
        name: impl Into<Arc<str>>,
        [experts, width]: [usize; 2],
        sections: &[Section],
        draw: Draw,
    ) -> Result<Self> {
        let at = at.into();
        let (rows, columns) = (experts * width, sections.iter().map(|s| s.size).sum());
        let rows_cut = vec![Section { size: rows, pieces: Pieces::Padded, unit: width }];
        let whole = Axes::TOKENS.iter().fold(Placement::default(), |p, axis| p.on(axis, Placed::Replicate));
        let placed = whole
            .resting(at.rests)
            .on(Axis::Edp, Placed::Partial)
            .on(Axis::Ep, Placed::Shard { dim: 0, sections: rows_cut })
            .on(Axis::Etp, Placed::Shard { dim: 1, sections: sections.to_vec() });
        Ok(Self { param: Param::new(at, name, [rows, columns], placed, draw)?, width })
    }
    /// The matrices of this rank's experts.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn matrices(&self) -> Result<Matrices<D>> {
        Ok(Matrices::new(self.param.value(), self.width, Axis::Etp))
    }
    /// The parameter behind it.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.param
    }
}

#[cfg(test)]
mod tests;
