//! Parameters as layers use them: whole, cut by columns, cut by rows. The weight's constructor states the cut
//! once; the placement and the type that layers receive follow from it.
use crate::handles::split::same;
use crate::param::origin::ParamOrigin;
use crate::param::placement::matrices::MatrixSections;
use crate::param::placement::sent::SentFeatures;
use crate::param::placement::{Cuts, Pieces, Section};
use crate::record::{Recordable, RecordedPart};
use crate::{Columns, Draw, Error, Param, Placed, Placement, Result, Rows, Split};
use comm::{Axes, Axis, Group, Mesh};
use kernels::Kernels;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// Distribution of initial biases: small, but not 0, which would hide bugs.
pub const BIAS: Draw = Draw { mean: 0.0, std: 0.02 };

/// A parameter that no axis cuts.
pub struct WholeWeight<D: Kernels>(Param<D>);
/// `W[I, O_t]`: cut by columns, each section on its own.
pub struct ColumnWeight<D: Kernels>(Param<D>, Axis);
/// `W[I_t, O]`: cut by rows.
pub struct RowWeight<D: Kernels>(Param<D>, Axis);

impl<D: Kernels> WholeWeight<D> {
    /// Creates the matrix `name`, the same on every rank; `placement` states the axes that its gradient is
    /// summed over.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn new<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        placement: Placement,
        draw: Draw,
    ) -> Result<Self> {
        Ok(Self(Param::new(at, name, shape, placement, draw)?))
    }
    /// Returns the value, which stays in memory as long as the result.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn whole(&self) -> Result<Tensor<D>> {
        Ok(self.0.value())
    }
    /// Returns the underlying parameter.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.0
    }
}

impl<D: Kernels> ColumnWeight<D> {
    /// Creates this rank's columns of the matrix `name[inputs, Σ sections]`; initial values are normal with
    /// deviation 1/√inputs.
    ///
    /// # Errors
    /// If the ranks of `axis` do not divide a section, or the values are missing.
    pub fn new<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: impl Into<Arc<str>>,
        inputs: usize,
        sections: &[Section],
    ) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        Self::drawn(at, axis, name.into(), inputs, sections, draw)
    }
    /// Creates this rank's columns of the bias `name.bias[1, Σ sections]`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn bias<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: &str,
        sections: &[Section],
    ) -> Result<Self> {
        Self::drawn(at, axis, format!("{name}.bias").into(), 1, sections, BIAS)
    }
    /// Creates this rank's columns of the sinks `name.sinks[1, heads]`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sinks<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: &str,
        heads: usize,
    ) -> Result<Self> {
        Self::drawn(at, axis, format!("{name}.sinks").into(), 1, &[heads.into()], BIAS)
    }
    /// Creates this rank's columns of a gain `name[1, size of the section]`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn gain<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: impl Into<Arc<str>>,
        section: Section,
        draw: Draw,
    ) -> Result<Self> {
        Self::drawn(at, axis, name.into(), 1, &[section], draw)
    }
    pub(crate) fn drawn<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: Arc<str>,
        inputs: usize,
        sections: &[Section],
        draw: Draw,
    ) -> Result<Self> {
        let at = at.into();
        let mut placed = at.placement.clone().on(axis, Placed::Shard { dim: 1, sections: sections.to_vec() });
        placed.matrices.columns = sections.iter().map(|s| s.size).collect();
        Ok(Self(Param::new(at, name, [inputs, sections.iter().map(|s| s.size).sum()], placed, draw)?, axis))
    }
    /// Creates this rank's columns of the matrix `name[inputs, outputs]`, whose rows are features that the
    /// ranks have in parts. Each rank sends `each` of its features, the most important ones of the initial
    /// values; weights from the others to other ranks' outputs are 0.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sparse<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: &str,
        shape: [usize; 2],
        each: usize,
    ) -> Result<(Self, Arc<SentFeatures>)> {
        let at = at.into();
        let [inputs, outputs] = shape;
        let ranks = at.mesh.group(axis).size();
        let draw = Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        if !inputs.is_multiple_of(ranks) {
            return Err(Error::fit("input features", inputs, (axis, ranks)));
        }
        let values = at.values.of(name, shape, draw)?;
        let mut importance = Tensor::empty(at.device.wide(), Category::Buffers, inputs, 1);
        importance.write(&mut |row| SentFeatures::importance(&values, shape, ranks, row));
        values.check()?;
        let importance = importance.read().unwrap_or_else(|| vec![Scalar::ZERO; inputs]);
        let sent = Arc::new(SentFeatures::choose(shape, (ranks, each), |row| importance[row]));
        let origin = ParamOrigin { placement: Placement { sent: Some(sent.clone()), ..at.placement }, ..at };
        Ok((Self::drawn(origin, axis, name.into(), inputs, &[outputs.into()], draw)?, sent))
    }
    /// Lets products gather a value that is sharded at rest tile by tile, as the sharding says.
    #[must_use]
    pub fn tiled(self) -> Self {
        Self(self.0.tiled(), self.1)
    }
    /// Returns this rank's columns.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn columns(&self) -> Result<Columns<D>> {
        Ok(Columns::of_param(&self.0, self.1))
    }
    /// Returns the underlying parameter.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.0
    }
}

/// Columns that are placed like those of this weight.
impl<D: Kernels> Recordable<D> for (&Split<D>, &ColumnWeight<D>) {
    fn local_part(&self, mesh: &Mesh<D::Place>, is_gradient: bool) -> Result<RecordedPart<D::Elem>> {
        self.0.seen_as(mesh, self.1.0.placement(), is_gradient)
    }
}

impl<D: Kernels> RowWeight<D> {
    /// Creates this rank's rows of the matrix `name[shape]`, cut into `pieces`.
    ///
    /// # Errors
    /// If the ranks of `axis` do not divide the rows, or the values are missing.
    pub fn new<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        pieces: Pieces,
        draw: Draw,
    ) -> Result<Self> {
        Self::cut(at, axis, name, (Section::new(shape[0], pieces), shape[1]), draw)
    }
    /// Creates this rank's rows of a matrix, cut as a section, with so many columns.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn cut<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        axis: Axis,
        name: impl Into<Arc<str>>,
        (rows, columns): (Section, usize),
        draw: Draw,
    ) -> Result<Self> {
        let at = at.into();
        let placed = at.placement.clone().on(axis, Placed::Shard { dim: 0, sections: vec![rows] });
        Ok(Self(Param::new(at, name, [rows.size, columns], placed, draw)?, axis))
    }
    /// Lets products gather a value that is sharded at rest tile by tile, as the sharding says.
    #[must_use]
    pub fn tiled(self) -> Self {
        Self(self.0.tiled(), self.1)
    }
    /// Declares that these sections of columns are matrices of their own, such as `[Q|K|V]`.
    #[must_use]
    pub fn fused(mut self, sections: &[Section]) -> Self {
        self.0.sharding.placement.matrices.columns = sections.iter().map(|s| s.size).collect();
        self
    }
    /// Returns this rank's rows.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn rows(&self) -> Result<Rows<D>> {
        Ok(Rows::of_param(&self.0, self.1))
    }
    /// Gathers all rows and returns this rank's columns of them, section by section: `W[I,O_t]`, freed with
    /// the result. An all-gather of `I_t·O` elements; its gradient is
    /// [`gathered_gradient`](crate::gathered_gradient).
    ///
    /// # Errors
    /// If ranks do not meet, are of another axis, or do not divide a section.
    pub fn gathered(&self, group: &Group<D::Place>, sections: &[Section]) -> Result<Columns<D>> {
        same(self.1, group.axis())?;
        let cuts = Cuts::columns((self.1, group), self.0.name(), sections)?;
        let gathered = group.all_gather(&self.0.value())?;
        let inputs = self.0.shape()[0];
        let mut share = Tensor::empty(gathered.device(), Category::Buffers, inputs, cuts.local[1]);
        let device = gathered.device();
        device.fill(share.view_mut(), D::Elem::ZERO); // padding
        for (columns, from) in cuts.stretches() {
            let theirs = gathered.view().take_rows(0, inputs).take_cols(from, columns.len);
            device.copy(columns.of_mut(share.view_mut()), theirs);
        }
        Ok(Columns::new(share, self.1))
    }
    /// Returns the axis whose ranks have the other rows.
    pub fn axis(&self) -> Axis {
        self.1
    }
    /// Returns the underlying parameter.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.0
    }
}

/// Matrices of experts, stacked by rows: `W[E·D, F]`. Each expert's `[D, F_t]` is cut by columns; whole
/// experts are distributed over the ranks of another axis.
pub struct ExpertWeight<D: Kernels> {
    pub(crate) param: Param<D>,
    pub(crate) width: usize, // D
}

impl<D: Kernels> ExpertWeight<D> {
    /// Creates this rank's local part of `name[E·D, Σ sections]`, for `experts` experts of width `D`: its
    /// experts, and its columns of them. `transposed`: rows are output features.
    ///
    /// # Errors
    /// If the ranks do not divide a section, or the values are missing.
    pub fn new<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        name: impl Into<Arc<str>>,
        [experts, width]: [usize; 2],
        (sections, transposed): (&[Section], bool),
        draw: Draw,
    ) -> Result<Self> {
        let at = at.into();
        let (rows, columns) = (experts * width, sections.iter().map(|s| s.size).sum());
        let rows_cut = vec![Section { size: rows, pieces: Pieces::Padded, grain: width }];
        let whole = Axes::TOKENS.iter().fold(Placement::default(), |p, axis| p.on(axis, Placed::Replicate));
        let mut placed = whole
            .resting(at.rests)
            .on(Axis::Edp, Placed::Partial)
            .on(Axis::Ep, Placed::Shard { dim: 0, sections: rows_cut })
            .on(Axis::Etp, Placed::Shard { dim: 1, sections: sections.to_vec() });
        let each = sections.iter().map(|s| s.size).collect();
        placed.matrices = MatrixSections { columns: each, rows: Some(width), transposed };
        Ok(Self { param: Param::new(at, name, [rows, columns], placed, draw)?, width })
    }
    /// Returns the underlying parameter.
    pub fn param(&mut self) -> &mut Param<D> {
        &mut self.param
    }
}

#[cfg(test)]
mod tests;
